"""Results shipped with the package: the search of `make demo` with 16 candidates, each converted
and tested on the simulator of a chip, and the models of the front, trained further and measured on
a CPU. F1 is over 12 and 16 images instead of 1k and 10k. `scripts/make_demo_store.py` created them.

Also three models of 256 × 256 that segment drawn faces: `demo:unet-small`, `demo:unet-medium` and
`demo:unet-large` wherever a command takes a model file. `scripts/train_example_nets.py` trained
them.

    with open_demo() as workspace:
        rows = workspace.status()

`open_demo_farm` also has the search, jobs, and machines in the middle of their work.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgeloop._util.values import suggestion
from edgeloop.errors import BadInput
from edgeloop.settings import STORE_FOLDER, Settings
from edgeloop.store import Store, Values
from edgeloop.store.location import SqliteLocation
from edgeloop.testing import MemoryStore
from edgeloop.workspace import Workspace, with_models

CHIP_EXPERIMENT, HOST_EXPERIMENT = "demo", "demo-host"
_DATA = Path(__file__).with_name("demo_data")
DEMO_FILE, FARM_FILE = _DATA / "demo.zip", _DATA / "farm.zip"


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


def unpacked(
    content: bytes, change: Callable[[Values], Values] = lambda row: row, has_usage: bool = True
) -> MemoryStore:
    """`change` is applied to the row of every model."""
    store = DemoStore()
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        tables = json.loads(packed.read(TABLES))
        for name in packed.namelist():
            if name.startswith(FILES):
                store.blobs.put(name.removeprefix(FILES), packed.read(name))
    if has_usage:
        store.usage().insert_many((key, values) for key, values in tables["usage"])
    for experiment, rows in tables["models"].items():
        store.models(experiment).insert_many((key, change(values)) for key, values in rows)
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


# The demo as the portal shows it: a project with its search and its jobs, and a fleet in the middle
# of its work. All of it was recorded while it really ran. Only the times move: the moment of the
# recording is now, and the leases of machines that worked then do not run out.


FARM, PROJECT = "farm.json", "project/"
_AHEAD_S = 10 * 365 * 86_400.0
_MOMENTS = frozenset(
    {"since", "expires", "not_before", "beat", "error_at", "started", "created", "ended"}
)
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?")
_USE_KEY = re.compile(r"\d{10,11}\.\d{3}(?=\D|$)")


@dataclass(frozen=True)
class Recording:
    """What `scripts/make_demo_store.py` saw at the moment `recorded`: `models` that were not
    complete yet, by experiment; the registry of runners; and their device use so far."""

    recorded: float
    models: Mapping[str, Mapping[str, Values]]
    runners: Mapping[str, Values]
    usage: Mapping[str, Values]


def pack_farm(
    recording: Recording, project: Mapping[str, bytes], blobs: Mapping[str, bytes]
) -> bytes:
    """`project` are files below the project's folder, `blobs` those of jobs in the store."""
    text = json.dumps(vars(recording), indent=0, sort_keys=True)
    files = {PROJECT + name: content for name, content in sorted(project.items())}
    files |= {FILES + key: content for key, content in sorted(blobs.items())}
    return _zipped({FARM: text.encode(), **files})


@contextmanager
def open_demo_farm(
    experiment: str = CHIP_EXPERIMENT, content: bytes | None = None
) -> Iterator[Workspace]:
    """In a project of its own, which is deleted at the end. `content` is another recording."""
    with tempfile.TemporaryDirectory(prefix="edgeloop-demo-") as folder:
        store = _started_farm(content or FARM_FILE.read_bytes(), Path(folder), time.time())
        location = SqliteLocation(DEMO_FILE.parent)
        yield Workspace(Settings(Path(folder), location, experiment, node="demo"), store)


def _started_farm(content: bytes, project: Path, now_s: float) -> MemoryStore:
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        recording = Recording(**json.loads(packed.read(FARM)))
        ahead_s = now_s - recording.recorded
        store = unpacked(DEMO_FILE.read_bytes(), lambda row: _moved(row, ahead_s), has_usage=False)
        for name in packed.namelist():
            if name.startswith(FILES):
                store.blobs.put(name.removeprefix(FILES), packed.read(name))
            elif name.startswith(PROJECT):
                target = project / name.removeprefix(PROJECT)
                target.parent.mkdir(parents=True, exist_ok=True)
                text = packed.read(name)
                target.write_bytes(_moved_document(text, ahead_s) if _is_job(name) else text)
                os.utime(target, (now_s - 3600, now_s - 3600))
    live = {
        node
        for row in recording.runners.values()
        if _number(row.get("beat")) > recording.recorded - _LOST_S
        for node in [str(row["node"])]
    }
    for experiment, rows in recording.models.items():
        for name, row in rows.items():
            store.models(experiment).insert(name, _held_on(_moved(row, ahead_s), live))
    for key, row in recording.runners.items():
        moved = _moved(row, ahead_s)
        if str(row["node"]) in live:
            moved["beat"] = now_s + _AHEAD_S
        store.runners().insert(key, moved)
    moved_uses = (
        (_USE_KEY.sub(lambda key: f"{float(key[0]) + ahead_s:015.3f}", key, count=1), row)
        for key, row in recording.usage.items()
    )
    store.usage().insert_many((key, _moved(row, ahead_s)) for key, row in moved_uses)
    return store


_LOST_S = 30.0  # without a heartbeat: less than a runner is given, more than one beat takes


def _is_job(name: str) -> bool:
    return name.startswith(f"{PROJECT}runs/") and name.endswith(".json")


def _moved_document(text: bytes, by_s: float) -> bytes:
    return json.dumps(_moved_value(json.loads(text), by_s)).encode()


def _moved(row: Values, by_s: float) -> dict[str, Any]:
    return {name: _moved_value(value, by_s, name) for name, value in row.items()}


def _moved_value(value: Any, by_s: float, name: str = "") -> Any:
    """Every moment in it, later by so many seconds; JSON in a text, too."""
    if isinstance(value, dict):
        return {key: _moved_value(item, by_s, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved_value(item, by_s, name) for item in value]
    if name in _MOMENTS and type(value) in (int, float) and value > 0:
        return value + by_s
    if not isinstance(value, str):
        return value
    if _ISO.fullmatch(value):
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return datetime.fromtimestamp(moment.timestamp() + by_s, UTC).isoformat(timespec="seconds")
    if value[:1] in "{[" and value[-1:] in "}]":
        try:
            return json.dumps(_moved_value(json.loads(value), by_s), ensure_ascii=False)
        except ValueError:
            return value
    return value


def _held_on(row: dict[str, Any], live: set[str]) -> dict[str, Any]:
    """Leases of machines that are alive stay."""
    stages = json.loads(str(row.get("stages") or "{}"))
    for record in stages.values():
        node = re.split("[/:]", str(record.get("owner", "")))[0]
        if record.get("token") and node in live:
            record["expires"] += _AHEAD_S
    return {**row, "stages": json.dumps(stages)} if stages else row


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
