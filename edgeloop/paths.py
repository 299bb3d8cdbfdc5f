"""Where a script finds its data and puts its results, the same here and inside a job.

    from edgeloop.paths import outputs, raw, working

    for picture in working("faces128").glob("*.png"): ...
    torch.save(net, outputs("best.pt"))

Inside a job these are the folders that were laid out for it. Outside they are `data/raw`,
`data/working` and `outputs` of the project: the nearest folder, from here upwards, with
`edgeloop.yaml`, `.edgeloop/` or one of those two in it, else the one that the script was started
in. Nothing but the standard library is used, so a script that imports this runs wherever Python
does.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["outputs", "raw", "working"]

_MARKS = ("edgeloop.yaml", ".edgeloop", "data/raw", "data/working")


def raw(*parts: str) -> Path:
    """`data/raw`, or what lies below it: `raw("faces")`."""
    return _below(_data() / "raw", parts)


def working(*parts: str) -> Path:
    """`data/working`, or what lies below it: `working("faces128")`."""
    return _below(_data() / "working", parts)


def outputs(*parts: str) -> Path:
    """`outputs`, or what lies below it; the folder to write into is made."""
    given = os.environ.get("EDGELOOP_OUTPUT_DIR")
    folder = Path(given) if given else _project() / "outputs"
    path = _below(folder, parts)
    (path.parent if parts else path).mkdir(parents=True, exist_ok=True)
    return path


def _data() -> Path:
    given = os.environ.get("EDGELOOP_DATA_DIR")
    return Path(given) if given else _project() / "data"


def _project() -> Path:
    here = Path.cwd()
    for folder in (here, *here.parents):
        if any((folder / mark).exists() for mark in _MARKS):
            return folder
    return here


def _below(folder: Path, parts: tuple[str, ...]) -> Path:
    path = folder.joinpath(*parts)
    if not path.is_relative_to(folder) or ".." in path.relative_to(folder).parts:
        raise ValueError(f"{'/'.join(parts)} leads out of {folder}")
    return path
