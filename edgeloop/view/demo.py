"""Results shipped with the package: a search of two dozen candidates, each converted and tested on
the simulator of a chip, and the models of the front, trained in full and measured on a CPU. F1 is
over 100 and 200 images instead of 1k and 10k. `scripts/make_demo_store.py` created them.

Also three models of 256 × 256 that segment drawn faces: `demo:unet-small`, `demo:unet-medium` and
`demo:unet-large` wherever a command takes a model file. `scripts/train_example_nets.py` trained
them.

    with open_demo() as workspace:
        rows = workspace.status()
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from edgeloop._util.values import suggestion
from edgeloop.errors import BadInput
from edgeloop.settings import STORE_FOLDER, Settings
from edgeloop.store import Store, Values
from edgeloop.store.location import SqliteLocation
from edgeloop.testing import MemoryStore
from edgeloop.workspace import Workspace, with_models

CHIP_EXPERIMENT, HOST_EXPERIMENT = "demo", "demo-host"
_DATA = Path(__file__).with_name("demo_data")
DEMO_FILE = _DATA / "demo.zip"


def open_demo(experiment: str = CHIP_EXPERIMENT) -> Workspace:
    """Opened in memory: changes are lost, nothing is written. Models have their results and the
    files that charts need, without their ONNX files."""
    # The location is only a name here: the store that is given is the one that is used.
    settings = Settings(Path.cwd(), SqliteLocation(DEMO_FILE.parent), experiment, node="demo")
    return Workspace(settings, unpacked(DEMO_FILE.read_bytes()))


def demo_model(name: str) -> Path:
    """The ONNX file of a model that is shipped with the package, such as `unet-large`."""
    shipped = {path.stem: path for path in sorted(_DATA.glob("*.onnx"))}
    if name not in shipped:
        hint = suggestion(name, shipped, otherwise="choose one of")
        raise BadInput(reason=f"no model {name!r} is shipped with Edgeloop: {hint}")
    return shipped[name]


def open_or_demo(store: str | None = None, experiment: str | None = None) -> Workspace:
    """The configured store, or the demo if none is configured and the project has none. Never
    creates a store. Without an experiment, it is the one that has models."""
    workspace = Workspace.open(store, experiment)
    default_folder = workspace.settings.project / STORE_FOLDER
    if (
        workspace.settings.location == SqliteLocation(default_folder)
        and not default_folder.is_dir()
    ):
        workspace.close()
        return open_demo()
    return workspace if experiment else with_models(workspace)


# Rows, device use and small files of a store as one zip file, and back as a store in memory.


LARGEST_BYTES = 200_000
TABLES = "tables.json"
FILES = "files/"
_WHEN = (2026, 1, 1, 0, 0, 0)  # the same content is the same file


class DemoStore(MemoryStore):
    @property
    def description(self) -> str:
        return "demo data"


def pack(store: Store, experiments: Iterable[str], is_kept: Callable[[str], bool]) -> bytes:
    """`is_kept` is asked for the key of each file that is not large. Files that are left out are
    left out of their rows as well: a row that names a file promises that it is there."""
    tables: dict[str, object] = {
        "usage": [[record.key, dict(record.values)] for record in store.usage().query()]
    }
    files: dict[str, bytes] = {}
    models: dict[str, list[list[object]]] = {}
    for experiment in experiments:
        small = [i.key for i in store.blobs.list(f"{experiment}/") if i.size <= LARGEST_BYTES]
        files |= {key: store.blobs.read(key) for key in small if is_kept(key)}
        models[experiment] = [
            [row.key, _with_files(row.values, f"{experiment}/{row.key}/", files)]
            for row in store.models(experiment).query()
        ]
    text = json.dumps({**tables, "models": models}, indent=0, sort_keys=True)
    return _zipped({TABLES: text.encode(), **{FILES + key: files[key] for key in sorted(files)}})


def unpacked(content: bytes) -> MemoryStore:
    store = DemoStore()
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        tables = json.loads(packed.read(TABLES))
        for name in packed.namelist():
            if name.startswith(FILES):
                store.blobs.put(name.removeprefix(FILES), packed.read(name))
    store.usage().insert_many((key, values) for key, values in tables["usage"])
    for experiment, rows in tables["models"].items():
        store.models(experiment).insert_many((key, values) for key, values in rows)
    return store


def _with_files(values: Values, folder: str, blobs: Mapping[str, bytes]) -> dict[str, object]:
    row: dict[str, object] = dict(values)
    if "stages" in row:
        stages = json.loads(str(row["stages"]))
        for record in stages.values():
            files = record.get("files", {})
            record["files"] = {n: k for n, k in files.items() if folder + k in blobs}
            record.pop("committed", None)  # tokens of leases that ended long ago
        row["stages"] = json.dumps(stages)
    return row


def _zipped(contents: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)
    return target.getvalue()
