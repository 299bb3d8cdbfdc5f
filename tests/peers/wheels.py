"""Wheels of what the test environment has, so that pip installs real packages without a network."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.peers.environments import closure

_OF_AN_INSTALLATION = ("INSTALLER", "REQUESTED", "direct_url.json")


def make_wheels(folder: Path, requirements: Sequence[str]) -> Path:
    """A folder for pip's --find-links with these and all that they need."""
    folder.mkdir(parents=True, exist_ok=True)
    for found in closure([Requirement(text) for text in requirements]).values():
        _pack(found, folder)
    return folder


def _pack(found: Distribution, folder: Path) -> None:
    """Not compressed: it is unpacked at once."""
    about = (found.read_text("WHEEL") or "").splitlines()
    tags = [line.removeprefix("Tag: ").split("-") for line in about if line.startswith("Tag: ")]
    tag = "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))
    stem = f"{found.name.replace('-', '_')}-{found.version}"
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as archive:
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            is_ours = ".." in file.parts or file.suffix == ".pyc"
            if not is_ours and file.name not in _OF_AN_INSTALLATION and path.is_file():
                archive.write(path, str(file))
