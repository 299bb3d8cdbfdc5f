"""Results shipped with the package: a search of two dozen candidates, each converted and tested on
the simulator of a chip, and the models of the front, trained in full and measured on a CPU. F1 is
over 100 and 200 images instead of 1k and 10k. `scripts/make_demo_store.py` created them.

Also the generator of drawn faces, a labelled dataset that needs no download.

    with open_demo() as workspace:
        rows = workspace.status()
"""

from __future__ import annotations

from pathlib import Path

from edgeloop.demo.faces import FaceSet, Progress, difficulty_of, make_faces
from edgeloop.demo.packing import pack, unpacked
from edgeloop.demo.portrait import draw_face
from edgeloop.settings import STORE_FOLDER, Settings
from edgeloop.store import SqliteLocation
from edgeloop.workspace import Workspace

__all__ = [
    "CHIP_EXPERIMENT",
    "DEMO_FILE",
    "HOST_EXPERIMENT",
    "FaceSet",
    "Progress",
    "difficulty_of",
    "draw_face",
    "make_faces",
    "open_demo",
    "open_or_demo",
    "pack",
    "unpacked",
]

CHIP_EXPERIMENT, HOST_EXPERIMENT = "demo", "demo-host"
DEMO_FILE = Path(__file__).parent / "demo.zip"


def open_demo(experiment: str = CHIP_EXPERIMENT) -> Workspace:
    """Opened in memory: changes are lost, nothing is written. Models have their results and the
    files that charts need, without their ONNX files."""
    # The location is only a name here: the store that is given is the one that is used.
    settings = Settings(Path.cwd(), SqliteLocation(DEMO_FILE.parent), experiment, node="demo")
    return Workspace(settings, unpacked(DEMO_FILE.read_bytes()))


def open_or_demo(store: str | None = None, experiment: str | None = None) -> Workspace:
    """The configured store, or the demo if none is configured and the project has none. Never
    creates a store."""
    found = Workspace.open(store, experiment)
    own = found.settings.project / STORE_FOLDER
    if found.settings.location == SqliteLocation(own) and not own.is_dir():
        found.close()
        return open_demo()
    return found
