"""Results shipped with the package: a search of two dozen candidates, each converted and tested on
the simulator of a chip, and the models of the front, trained in full and measured on a CPU. F1 is
over 100 and 200 images instead of 1k and 10k. `scripts/make_demo_store.py` created them.

Also the generator of drawn faces, a labelled dataset that needs no download, and three small models
that segment them: `demo:unet-w8`, `demo:unet-w16` and `demo:unet-w24` wherever a command takes a
model file.

    with open_demo() as workspace:
        rows = workspace.status()
"""

from __future__ import annotations

from pathlib import Path

from edgeloop._util.suggest import suggestion
from edgeloop.demo.faces import FaceSet, Progress, difficulty_of, make_faces
from edgeloop.demo.packing import pack, unpacked
from edgeloop.demo.portrait import draw_face
from edgeloop.errors import BadInput
from edgeloop.settings import STORE_FOLDER, Settings
from edgeloop.store import SqliteLocation
from edgeloop.workspace import Workspace

__all__ = [
    "CHIP_EXPERIMENT",
    "DEMO_FILE",
    "HOST_EXPERIMENT",
    "FaceSet",
    "Progress",
    "demo_model",
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
_MODELS = Path(__file__).parent / "models"


def open_demo(experiment: str = CHIP_EXPERIMENT) -> Workspace:
    """Opened in memory: changes are lost, nothing is written. Models have their results and the
    files that charts need, without their ONNX files."""
    # The location is only a name here: the store that is given is the one that is used.
    settings = Settings(Path.cwd(), SqliteLocation(DEMO_FILE.parent), experiment, node="demo")
    return Workspace(settings, unpacked(DEMO_FILE.read_bytes()))


def demo_model(name: str) -> Path:
    """The ONNX file of a model that is shipped with the package, such as `unet-w24`."""
    known = {path.stem: path for path in sorted(_MODELS.glob("*.onnx"))}
    if name not in known:
        hint = suggestion(name, known, otherwise="choose one of")
        raise BadInput(reason=f"no model {name!r} is shipped with Edgeloop: {hint}")
    return known[name]


def open_or_demo(store: str | None = None, experiment: str | None = None) -> Workspace:
    """The configured store, or the demo if none is configured and the project has none. Never
    creates a store."""
    found = Workspace.open(store, experiment)
    own = found.settings.project / STORE_FOLDER
    if found.settings.location == SqliteLocation(own) and not own.is_dir():
        found.close()
        return open_demo()
    return found
