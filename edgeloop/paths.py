"""Where a script finds its data and puts its results, the same here and inside a job.

    from edgeloop.paths import outputs, raw, working

    for image in working("faces128").glob("*.png"): ...
    torch.save(model, outputs("best.pt"))

Inside a job these are the folders that were laid out for it. Outside they are `data/raw`,
`data/working` and `outputs` of the project (see `find_project`). A project that keeps its data
elsewhere says so in `edgeloop.yaml`: with `data_root: data_blobs` they are `data_blobs/raw`,
`data_blobs/working` and `data_blobs/outputs`. Every job has this module, whether or not Edgeloop is
installed there, so it is written for Python 3.8 and its standard library alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = [
    "PROJECT_MARKS",
    "data_root",
    "find_project",
    "outputs",
    "project_mark",
    "raw",
    "runs_folder",
    "working",
]

DATA_ROOT = "data"
RUNS = "runs"
_LARGEST_SETTINGS = 1_000_000

PROJECT_MARKS = (
    "edgeloop.yaml",
    ".edgeloop",
    ".azureml/config.json",
    "data/raw",
    "data/working",
)


def find_project(start: Path) -> Path:
    """The nearest folder, from `start` upwards, with one of the marks in it; else `start`."""
    start = start.absolute()
    for folder in (start, *start.parents):
        if project_mark(folder):
            return folder
    return start


def project_mark(folder: Path) -> str:
    """What makes a folder a project, such as `edgeloop.yaml`; empty where nothing does."""
    return next((mark for mark in PROJECT_MARKS if (folder / mark).exists()), "")


def data_root(project: Path) -> str:
    """The folder of a project's data, relative to it: `data`, or the setting `data_root`."""
    return _setting(project, "data_root") or DATA_ROOT


def runs_folder(project: Path) -> Path:
    """Where the records of a project's jobs are: `runs`, or the setting `runs`."""
    return project / (_setting(project, "runs") or RUNS)


def _setting(project: Path, key: str) -> str:
    """A key of `edgeloop.yaml`, by its line: a script in a job has no YAML library. Loading the
    settings refuses a file that is not read the same way here."""
    try:
        with (project / "edgeloop.yaml").open("rb") as file:
            text = file.read(_LARGEST_SETTINGS).decode("utf-8", "replace")
    except OSError:
        return ""
    line = re.search(rf"""(?m)^{key}:[ \t]*(["']?)([^"'#\r\n]*?)/?\1[ \t]*(?:#.*)?\r?$""", text)
    return line.group(2) if line else ""


def raw(*parts: str) -> Path:
    """`data/raw`, or what lies below it: `raw("faces")`."""
    return _below(_data() / "raw", parts)


def working(*parts: str) -> Path:
    """`data/working`, or what lies below it: `working("faces128")`."""
    return _below(_data() / "working", parts)


def outputs(*parts: str) -> Path:
    """`outputs`, or what lies below it; the folder to write into is made."""
    folder_of_job = os.environ.get("EDGELOOP_OUTPUT_DIR")
    folder = Path(folder_of_job) if folder_of_job else _outputs(find_project(Path.cwd()))
    path = _below(folder, parts)
    (path.parent if parts else path).mkdir(parents=True, exist_ok=True)
    return path


def _data() -> Path:
    folder_of_job = os.environ.get("EDGELOOP_DATA_DIR")
    if folder_of_job:
        return Path(folder_of_job)
    project = find_project(Path.cwd())
    return project / data_root(project)


def _outputs(project: Path) -> Path:
    root = data_root(project)
    return project / "outputs" if root == DATA_ROOT else project / root / "outputs"


def _below(folder: Path, parts: tuple[str, ...]) -> Path:
    path = folder.joinpath(*parts)
    if folder not in (path, *path.parents) or ".." in path.parts[len(folder.parts) :]:
        raise ValueError(f"{'/'.join(parts)} leads out of {folder}")
    return path
