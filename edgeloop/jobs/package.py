"""Edgeloop itself, for jobs that run it on machines where it is not installed.

Its files are stored once per content, like code, and a node unpacks them once. What they require is
in the environment that the compute builds, or in the one that a job names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from edgeloop.errors import BadInput
from edgeloop.jobs.snapshot import CodeFile, CodeSnapshot

NAME = "edgeloop"
CORE = "core"
EXTRAS = ("train", "azure", "azureml", "qnn", "portal", "all")
_PACKAGE = Path(__file__).parents[1]
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([\w-]+)["']""")
_OTHERS = re.compile(r"edgeloop\s*\[([^\]]*)\]")


@cache
def package_snapshot() -> CodeSnapshot:
    """The installed package, from a wheel or an editable checkout, as a folder for PYTHONPATH. Its
    metadata comes along: a search on a node reads there what the trainings it submits require."""
    contents = {
        f"{NAME}/{path.relative_to(_PACKAGE).as_posix()}": path.read_bytes()
        for path in _PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = _installed()
    metadata = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    contents[f"{NAME}-{found.version}.dist-info/METADATA"] = metadata.encode()
    return CodeSnapshot(tuple(CodeFile.of(name, contents[name]) for name in sorted(contents)))


def edgeloop_requirements(*extras: str) -> tuple[str, ...]:
    """What Edgeloop and some of its extras need, as pip reads it, without Edgeloop itself."""
    return tuple(sorted(set(_requirements(set(extras)))))


def _requirements(extras: Collection[str]) -> Iterator[str]:
    for line in _installed().requires or ():
        text, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        if extra and extra[1] not in extras:
            continue
        others = _OTHERS.match(text)
        if others:  # an extra that consists of others
            inner = {name.strip() for name in others[1].split(",")}
            yield from _requirements(inner - set(extras))
        else:
            yield text.strip()


def _installed() -> Distribution:
    try:
        return distribution(NAME)
    except PackageNotFoundError:
        reason = "Edgeloop has no metadata here, so it cannot travel with a job: install it by pip"
        raise BadInput(reason=reason) from None
