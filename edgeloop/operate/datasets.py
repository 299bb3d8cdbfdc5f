"""Which datasets are on this machine: those of a project, and the copies that runners fetched."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from edgeloop.errors import EdgeloopError
from edgeloop.node.ledger import KINDS, key_part, parse_reference
from edgeloop.paths import data_root
from edgeloop.settings import cache_folder


def dataset_root(project: Path) -> Path:
    return project.absolute() / data_root(project)


def local_datasets(project: Path) -> list[str]:
    """Their names, such as `working/faces`: folders of the project."""
    root = dataset_root(project)
    return [f"{kind}/{path.name}" for kind in KINDS for path in _folders(root / kind)]


def fetched_copy(reference: str) -> Path | None:
    """The copy of exactly this version in the machine's cache."""
    with suppress(EdgeloopError):
        name, version = parse_reference(reference)
        prefix = f"{key_part(name)}@{version}-"
        copies = [path for path in _folders(cache_folder() / "datasets") if version]
        return next((path for path in copies if path.name.startswith(prefix)), None)
    return None


def _folders(parent: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in parent.iterdir() if path.is_dir() and path.name[0] != ".")
    return []
