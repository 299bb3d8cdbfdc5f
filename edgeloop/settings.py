"""Where the store is and which experiment: options, the environment, a file, defaults.

Nothing else in Edgeloop reads the environment, but for libraries that find credentials in it.
`edgeloop.paths.find_project` says which folder is the project.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from edgeloop.errors import BadSetting
from edgeloop.paths import find_project
from edgeloop.project_files import read_project_files
from edgeloop.store import (
    Location,
    SqliteLocation,
    datastore_location,
    parse_connection_string,
    parse_location,
)

STORE_FOLDER = ".edgeloop"
SETTINGS_FILE = "edgeloop.yaml"
DEFAULT_EXPERIMENT = "default"
LOCAL = "local"
AZUREML, AZURE = "azureml", "azure"
_COMPUTE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FOR_TOOLS = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Settings:
    """All that can be set. The fields after `location` may stand in `edgeloop.yaml`.

    `computes` has a mapping with `kind` for each name; `local` is always there, and `azureml` where
    a workspace is named. `azure` says which workspace that is.
    """

    project: Path
    location: Location
    experiment: str = DEFAULT_EXPERIMENT
    node: str = field(default_factory=socket.gethostname)
    lease_seconds: float = 120.0
    clock_margin_seconds: float = 15.0
    max_attempts: int = 3
    benchmark_runs: int = 5
    dataset: str = ""
    task: str = "segmentation"
    calibration_images: int = 1_000
    quick_images: int = 1_000
    thorough_images: int = 10_000
    curve_images: int = 100
    toolchain: str = ""
    snpe_root: str = ""
    board_tool_seconds: float = 600.0
    board_transfer_seconds: float = 600.0
    board_probe_seconds: float = 10.0
    board_cache_mb: float = 4_000.0
    board_hot_celsius: float = 75.0
    board_patience_seconds: float = 900.0
    compute: str = LOCAL
    computes: Mapping[str, Mapping[str, object]] = field(
        default_factory=lambda: {LOCAL: {"kind": LOCAL}}, repr=False
    )
    code_limit_mb: float = 100.0
    azure: Mapping[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def load(
        cls,
        start: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        store: str | None = None,
        experiment: str | None = None,
    ) -> Settings:
        """Read everything there is; the arguments win over the environment, that over the file."""
        project = find_project(start or Path.cwd())
        written = _read_file(project / SETTINGS_FILE, environ)
        location = _location(project, environ, store, written)
        chosen = environ.get("EDGELOOP_EXPERIMENT") or None if experiment is None else experiment
        if chosen is not None:
            written["experiment"] = chosen
        if environ.get("EDGELOOP_NODE"):
            written["node"] = environ["EDGELOOP_NODE"]
        if environ.get("EDGELOOP_COMPUTE"):
            written["compute"] = environ["EDGELOOP_COMPUTE"]
        if environ.get("INPUT_DATASET"):
            written["dataset"] = environ["INPUT_DATASET"]
        if sdk_root(environ):
            written["snpe_root"] = sdk_root(environ)
        return cls(project=project, location=location, **_typed(written))  # type: ignore[arg-type]

    def compute_settings(
        self, name: str = "", environ: Mapping[str, str] = os.environ
    ) -> dict[str, object]:
        """All that is written about a compute (none named: the default), variables filled in.

        `computes` itself keeps them as written, so that it may go into records; and a variable
        that is not set troubles only those who use that compute.
        """
        name = name or self.compute
        if name not in self.computes and name not in (AZUREML, _compute_target(self.project)):
            near = difflib.get_close_matches(name, self.computes, n=1)
            known = f"those in {SETTINGS_FILE} are {', '.join(self.computes)}."
            hint = f"did you mean {near[0]!r}?" if near else known
            raise BadSetting(where="compute", reason=f"there is no compute {name!r}: {hint}")
        written = dict(self.computes.get(name, {"kind": AZUREML}))
        if written.get("kind") == AZUREML:  # it finds its workspace by these, too
            written |= {"project": str(self.project), "azure": dict(self.azure)}
        filled = filled_in(written, f"{SETTINGS_FILE}, compute {name}", environ)
        return filled if isinstance(filled, dict) else {}


def filled_in(value: object, where: str, environ: Mapping[str, str] = os.environ) -> object:
    """`${NAME}` stands for an environment variable, so that no secret need be written down.

    Lists and mappings are filled to their depths; everything but texts stays as it is.
    """

    def lookup(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise BadSetting(where=where, reason=f"the variable {match[1]} is not set")
        return environ[match[1]]

    if isinstance(value, str):
        return _VARIABLE.sub(lookup, value)
    if isinstance(value, Mapping):
        return {key: filled_in(item, where, environ) for key, item in value.items()}
    if isinstance(value, list):
        return [filled_in(item, where, environ) for item in value]
    return value


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this machine keeps what must outlive a command: the queue of local jobs."""
    return _own_folder(environ, "EDGELOOP_STATE", "XDG_STATE_HOME", ".local/state")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this machine keeps what it could fetch or make again: datasets, environments."""
    return _own_folder(environ, "EDGELOOP_CACHE", "XDG_CACHE_HOME", ".cache")


def sdk_root(environ: Mapping[str, str] = os.environ) -> str:
    """Where the Neural Processing SDK is, as its own setup script says it; empty: not said."""
    return environ.get("SNPE_ROOT") or environ.get("QAIRT_SDK_ROOT") or ""


def tool_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What programs of others get of our environment: where things are, and no secrets."""
    return {name: environ[name] for name in _FOR_TOOLS if environ.get(name)}


def _own_folder(environ: Mapping[str, str], own: str, shared: str, usual: str) -> Path:
    if environ.get(own):
        return Path(environ[own]).expanduser().absolute()
    if environ.get(shared, "").startswith("/"):  # a relative one is void, by its specification
        return Path(environ[shared]) / "edgeloop"
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return home / usual / "edgeloop"


def portal_token(environ: Mapping[str, str] = os.environ) -> str:
    """What the portal's users must know; by the environment, so no list of processes has it."""
    return environ.get("EDGELOOP_PORTAL_TOKEN", "")


def _location(
    project: Path, environ: Mapping[str, str], store: str | None, written: dict[str, object]
) -> Location:
    blobs = environ.get("EDGELOOP_BLOBS") or None
    in_file = written.pop("store", None)
    chosen = environ.get("EDGELOOP_STORE") or None if store is None else store
    if chosen is not None:
        return parse_location(chosen, blobs)
    if environ.get("MODEL_STORAGE_CONNECTION_STRING"):
        return parse_connection_string(environ["MODEL_STORAGE_CONNECTION_STRING"])
    if in_file:
        return parse_location(str(in_file), blobs, project)
    own = SqliteLocation(project / STORE_FOLDER)
    is_begun = (own.folder / "store.db").is_file() or (own.folder / "blobs").is_dir()
    return own if is_begun else _datastore(project) or own


def _datastore(project: Path) -> Location | None:
    """What an older project's `.azureml/datastore.json` names, if it says enough."""
    files = read_project_files(project)
    if not (files.account and files.container):
        return None
    return datastore_location(
        files.account, files.container, files.account_key, files.blob_endpoint
    )


def _compute_target(project: Path) -> str:
    """The name that an older project's `.azureml/compute_target.json` gives its cluster."""
    return read_project_files(project).compute_target or AZUREML


def _read_file(path: Path, environ: Mapping[str, str]) -> dict[str, object]:
    if not path.is_file():
        return {}
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:  # its text quotes the line, which may hold a password
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise BadSetting(where=path.name, reason=f"cannot be read as YAML{line}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(where=path.name, reason=f"cannot be read: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadSetting(where=path.name, reason="must hold 'key: value' lines")
    computes = _computes(content, path)
    plain = {key: item for key, item in content.items() if key != "computes" and not _kind(item)}
    for key in plain:
        _check_key(str(key), path)
    filled = {key: filled_in(value, path.name, environ) for key, value in plain.items()}
    return {**filled, **({"computes": computes} if computes else {})}


def _computes(content: Mapping[object, object], path: Path) -> dict[str, dict[str, object]]:
    """Those under `computes:`, and every mapping beside it that says its kind."""
    listed = content.get("computes") or {}
    if not isinstance(listed, Mapping):
        raise BadSetting(where=path.name, reason="computes must hold 'name: {kind: …}' lines")
    found: dict[str, dict[str, object]] = {}
    beside = [(key, value) for key, value in content.items() if _kind(value)]
    for key, value in (*listed.items(), *beside):
        name, reason = str(key), ""
        if not _COMPUTE_NAME.fullmatch(name):
            reason = f"a compute cannot be called {name!r}: use letters, digits, '.', '_' and '-'"
        elif name in found:
            reason = f"the compute {name!r} is there twice"
        if reason:
            raise BadSetting(where=path.name, reason=reason)
        found[name] = _compute(name, value, path)
    return {LOCAL: {"kind": LOCAL}, **found} if found else {}


def _compute(name: str, value: object, path: Path) -> dict[str, object]:
    if name == LOCAL:
        value = {"kind": LOCAL} if value is None else value
        value = {"kind": LOCAL, **value} if isinstance(value, Mapping) else value
    kind = _kind(value)
    if not isinstance(value, Mapping) or not kind:
        reason = f"compute {name!r} must say its kind, as '{name}: {{kind: ray, address: …}}'"
        raise BadSetting(where=path.name, reason=reason)
    if name == LOCAL and kind != LOCAL:
        raise BadSetting(where=path.name, reason=f"compute 'local' is this machine, not {kind!r}")
    return {str(key): item for key, item in value.items()}


def _kind(value: object) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _check_key(key: str, path: Path) -> None:
    allowed = ["store", *(item.name for item in fields(Settings)[2:])]
    if key in allowed:
        return
    near = difflib.get_close_matches(key, allowed, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(allowed)}."
    raise BadSetting(where=path.name, reason=f"unknown key {key!r}: {hint}")


def _typed(written: dict[str, object]) -> dict[str, object]:
    """Numbers must be positive numbers, texts texts; said here, not deep inside a lease."""
    kinds = {item.name: item.type for item in fields(Settings)}
    for key, value in written.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if kinds[key] in ("int", "float") and not (number and float(str(value)) > 0):
            raise BadSetting(where=SETTINGS_FILE, reason=f"{key} must be a number above 0")
        if kinds[key] == "int" and not isinstance(value, int):
            raise BadSetting(where=SETTINGS_FILE, reason=f"{key} must be a whole number")
        if kinds[key] == "str" and not isinstance(value, str):
            raise BadSetting(where=SETTINGS_FILE, reason=f"{key} must be a text")
        if key == AZURE and not isinstance(value, Mapping):
            raise BadSetting(where=SETTINGS_FILE, reason=f"{key} must hold 'name: value' lines")
    return written
