"""Where the store is and which experiment: options, the environment, a file, defaults.

Nothing else in Edgeloop reads the environment, but for libraries that find credentials in it.
`edgeloop.paths.find_project` says which folder is the project.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from edgeloop._util.files import home_folder, read_regular, write_atomic
from edgeloop._util.system import has_users
from edgeloop._util.values import (
    LINES,
    SIZE,
    TEXT,
    Reads,
    mapping,
    matching,
    number,
    suggestion,
    whole,
)
from edgeloop._util.yaml import Origin, read_document
from edgeloop.errors import BadSetting
from edgeloop.paths import DATA_ROOT, RUNS, data_root, find_project, runs_folder
from edgeloop.store.location import (
    AzureLocation,
    Location,
    SqliteLocation,
    datastore_location,
    parse_connection_string,
    parse_location,
)

if TYPE_CHECKING:
    from edgeloop._util.schema import Section

    PlatformSection = TypeVar("PlatformSection", bound=Section)


STORE_FOLDER = ".edgeloop"
SETTINGS_FILE = "edgeloop.yaml"
DEFAULT_EXPERIMENT = "default"
LOCAL = "local"
AZUREML, AZURE = "azureml", "azure"
_COMPUTE_NAME = matching(
    r"[A-Za-z0-9][A-Za-z0-9._-]*", "named with letters, digits, '.', '_' and '-'"
)
_FOLDER = matching(
    r"(?!edgeloop\.yaml)[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*/?",
    "a folder inside the project, such as data_blobs",
)
_FOR_TOOLS = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_USER_INFO = (re.compile(r"[\w+.-]+://[^/?#@;]*"), re.compile(r"[^/?#;\s]*@"))  # before, after
_SECRET_PART = re.compile(
    r"(?i)(?:^|[;?&])\s*(?:accountkey|sharedaccesssignature|sig|password|token|secret)=[^;&#/]*"
)
_SECRET_KEY = re.compile(
    r"(?i)header|token|secret|password|credential|signature|variables|env|key$"
)
_SHOWN_KEYS = ("experiment", "node", "fleet")  # others read them in the store


def _key(default: Any, about: str) -> Any:
    """A key of `edgeloop.yaml`, with its description."""
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Settings:
    """Everything that can be set; the fields with a description may stand in `edgeloop.yaml`.

    `computes` has a mapping with `kind` for each name; `local` is always there, and `azureml` where
    a workspace is named. `azure` says which workspace that is. Keys that belong to platforms are in
    `platform_keys`; `section` reads them.
    """

    project: Path
    location: Location
    experiment: str = _key(
        DEFAULT_EXPERIMENT, "The experiment; also `EDGELOOP_EXPERIMENT` or `--experiment`."
    )
    node: str = field(
        default_factory=socket.gethostname,
        metadata={"about": "Name of this machine, by default its host name; also `EDGELOOP_NODE`."},
    )
    lease_seconds: float = _key(120.0, "How long a claim holds without a heartbeat.")
    clock_margin_seconds: float = _key(15.0, "Tolerated difference between the clocks of machines.")
    max_attempts: int = _key(
        3, "Failed attempts before a model stays in `error` until it is reset."
    )
    benchmark_runs: int = _key(5, "Runs per benchmark.")
    dataset: str = _key(
        "", "Folder of images for calibration and test; also `INPUT_DATASET` or `--dataset`."
    )
    task: str = _key(
        "segmentation",
        "What the dataset is for: `segmentation`, another built-in task or a plug-in's; models "
        "that do not fit it are compared with their float form.",
    )
    calibration_images: int = _key(1_000, "Images for quantization.")
    quick_images: int = _key(1_000, "Images for `f1_1k` and `f1_1k_f`.")
    thorough_images: int = _key(10_000, "Images for `f1_onnx` and `f1_10k`.")
    curve_images: int = _key(100, "Images for PR curves if F1 comes from a board's class maps.")
    toolchain: str = _key("", "`qnn`, `snpe` or a plug-in's; by default what the devices run.")
    board_patience_seconds: float = _key(
        900.0, "How long a board may be away before a runner with `--drain` gives up."
    )
    stuck_seconds: float = _key(
        3_600.0, "How long a stage may show no progress before `edgeloop health` calls it stuck."
    )
    native_memory: str = _key(
        "",
        "Most memory that a compiler may use for one model, such as `8GB`; by default 60 % of what "
        "the machine or container has. Also `EDGELOOP_NATIVE_MEMORY`.",
    )
    compute: str = _key(LOCAL, "Where jobs run that name no compute; also `EDGELOOP_COMPUTE`.")
    computes: Mapping[str, Mapping[str, object]] = field(
        default_factory=lambda: {LOCAL: {"kind": LOCAL}},
        repr=False,
        metadata={"about": "Computes by name, each with its `kind`; `local` is always there."},
    )
    code_limit_mb: float = _key(100.0, "Maximum size of the code snapshot of a job.")
    kept_limit_mb: float = _key(
        5_000.0,
        "Most that is kept, for seven days, of the files that a job creates outside `outputs/`.",
    )
    data_root: str = _key(
        DATA_ROOT,
        "Folder of the project's data. Another than `data`, such as `data_blobs`, holds `raw/`, "
        "`working/` and `outputs/`, here and inside jobs, and is never sent as code.",
    )
    runs: str = _key(RUNS, "Folder of the project for the records and results of jobs.")
    azure: Mapping[str, object] = field(
        default_factory=dict, repr=False, metadata={"about": "The Azure ML workspace."}
    )
    fleet: Mapping[str, object] = field(
        default_factory=dict,
        repr=False,
        metadata={"about": "What `edgeloop fleet up` starts if it is not told otherwise."},
    )
    platform_keys: Mapping[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def load(
        cls,
        start: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        store: str | None = None,
        experiment: str | None = None,
        workspace_config: Path | None = None,
    ) -> Settings:
        """Read everything there is; the arguments win over the environment, that over the file."""
        here = (start or Path.cwd()).absolute()
        project = find_project(here)
        trusted = environ.get("EDGELOOP_TRUST", "").split(os.pathsep)
        if "*" not in trusted and str(project) not in trusted:
            check_owner(project, project == here, environ.get("SUDO_UID", ""))
        written = _read_file(project / SETTINGS_FILE, environ)
        _check_folders(project, written)
        location = _location(project, environ, store, written)
        chosen = environ.get("EDGELOOP_EXPERIMENT") or None if experiment is None else experiment
        if chosen is not None:
            written["experiment"] = chosen
        if environ.get("EDGELOOP_NODE"):
            written["node"] = environ["EDGELOOP_NODE"]
        if environ.get("EDGELOOP_COMPUTE"):
            written["compute"] = environ["EDGELOOP_COMPUTE"]
        if environ.get("INPUT_DATASET"):
            dataset = environ["INPUT_DATASET"]
            is_path = (here / dataset).is_dir()  # from here, and not from the project
            written["dataset"] = str(here / dataset) if is_path else dataset
        config = workspace_config or environ.get("EDGELOOP_WORKSPACE_CONFIG")
        if config:
            keys = {"workspace_config": str(Path(config).absolute())}
            written["azure"] = {**written.get("azure", {}), **keys}
        return cls(project=project, location=location, **written)

    def compute_settings(
        self, name: str = "", environ: Mapping[str, str] = os.environ
    ) -> dict[str, object]:
        """All that is written about a compute (none named: the default), variables filled in.

        `computes` itself keeps them as written, so that it may go into records; and a variable
        that is not set troubles only those who use that compute.
        """
        name = name or self.compute
        older = read_project_files(self.project).compute_target
        if name not in self.computes and name not in (AZUREML, older):
            hint = suggestion(name, self.computes, f"those in {SETTINGS_FILE} are")
            raise BadSetting(where="compute", reason=f"there is no compute {name!r}: {hint}")
        written = dict(self.computes.get(name, {"kind": AZUREML}))
        if written.get("kind") == AZUREML:  # it finds its workspace by these, too
            written |= {"project": str(self.project), "azure": dict(self.azure)}
        where = f"{SETTINGS_FILE}, compute {name}"
        check_variables(written, where)
        filled = filled_in(written, where, environ)
        return filled if isinstance(filled, dict) else {}

    def with_keys(self, **keys: object) -> Settings:
        """With keys of platforms as an option of a command has set them."""
        return replace(self, platform_keys={**self.platform_keys, **keys})

    def section(
        self, model: type[PlatformSection], environ: Mapping[str, str] = os.environ
    ) -> PlatformSection:
        """The settings of a platform; its keys stand at the top of `edgeloop.yaml`.

        A field may name variables that win over the file: `json_schema_extra={"environment":
        ["SNPE_ROOT"]}`, the first that is set.
        """
        values = {k: v for k, v in self.platform_keys.items() if k in model.model_fields}
        for key, item in model.model_fields.items():
            extra = item.json_schema_extra
            names = extra.get("environment") if isinstance(extra, dict) else None
            for name in names if isinstance(names, list) else ():
                if environ.get(str(name)):
                    values[key] = environ[str(name)]
                    break
        return model(**values)


@cache
def settings_model() -> type[Section]:
    """The keys of `edgeloop.yaml`, with those of platforms. Made when it is needed: importing
    pydantic takes longer than `status`."""
    from pydantic import create_model

    from edgeloop._util.schema import Section, Text, key

    about = {item.name: item for item in fields(Settings) if "about" in item.metadata}
    keys: dict[str, Any] = {
        "store": (Text, key("", "The store's URL, by default `.edgeloop`; also `EDGELOOP_STORE`."))
    }
    for name, item in about.items():
        default = item.default_factory if item.default is MISSING else item.default
        keys[name] = (Annotated[Any, _readers()[name]], key(default, item.metadata["about"]))
    entry = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
    computes = dict[Annotated[str, _COMPUTE_NAME], Annotated[Any, Reads(_compute, entry)]]
    keys["computes"] = (computes, keys["computes"][1])
    general = create_model("OwnSettings", __base__=Section, **keys)
    bases = (*_platform_sections(), general)  # pydantic takes the keys of the last base first
    return create_model("SettingsFile", __base__=bases, __doc__="The settings of a project.")


@cache
def _readers() -> dict[str, Reads]:
    """How each key is read, by the type of its field."""
    kinds: dict[object, Reads] = {
        "str": TEXT,
        "int": whole(1),
        "float": number(is_open=True),
        "Mapping[str, object]": Reads(mapping, {"type": "object", "additionalProperties": True}),
    }
    computes = Reads(
        lambda value: {_COMPUTE_NAME.read(name): _compute(v) for name, v in mapping(value).items()},
        {"type": "object"},
    )
    named = {item.name: kinds.get(item.type, computes) for item in fields(Settings)[2:-1]}
    named["data_root"] = named["runs"] = _FOLDER
    named["native_memory"] = Reads(lambda value: f"{SIZE.read(value)}B", SIZE.schema)
    return {"store": TEXT, **named}


def _check_folders(project: Path, written: dict[str, Any]) -> None:
    """`edgeloop.paths` reads these two keys by their lines, and must find the same."""
    seen = {"data_root": data_root(project), "runs": str(runs_folder(project).relative_to(project))}
    for key, folder in seen.items():
        if key in written:
            written[key] = written[key].rstrip("/")
        if written.get(key, folder) != folder:
            reason = f"write it on a line of its own, as '{key}: {written[key]}'"
            raise BadSetting(where=f"{SETTINGS_FILE}, {key}", reason=reason)


def _platform_sections() -> Iterator[type[Section]]:
    """A platform may have a `Section` of keys as its attribute `settings`. One that cannot be
    loaded has none: `edgeloop doctor` says why."""

    for point in platform_points():
        with suppress(Exception):
            section = getattr(point.load(), "settings", None)
            if isinstance(section, type):
                yield section


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


def check_variables(value: object, where: str, key: str = "") -> None:
    """A settings file may come from another person, and its variables are filled with secrets of
    the user who reads it. So a variable is a whole value, or is where secrets belong; never in a
    host or a path, which would send it wherever the file says."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            inner = key if key in _SHOWN_KEYS or _SECRET_KEY.search(key) else str(name)
            check_variables(item, where, inner)
    elif isinstance(value, list):
        for item in value:
            check_variables(item, where, key)
    elif isinstance(value, str):
        for match in _VARIABLE.finditer(value):
            if not _is_well_placed(match, key):
                place = f" in {key}" if key else ""
                reason = (
                    f"{match[0]} cannot stand{place}: a variable must be the whole value, a "
                    "password or key in an address, or a header, and never goes into "
                    f"{', '.join(_SHOWN_KEYS[:-1])} or {_SHOWN_KEYS[-1]}"
                )
                raise BadSetting(where=where, reason=reason)


def _is_well_placed(match: re.Match[str], key: str) -> bool:
    before, after = match.string[: match.start()], match.string[match.end() :]
    if key in _SHOWN_KEYS:
        return False
    if _SECRET_KEY.search(key) or not (before.strip() or after.strip()):
        return True
    if _USER_INFO[0].fullmatch(before) and _USER_INFO[1].match(after):
        return True
    part = list(_SECRET_PART.finditer(before))
    return bool(part) and part[-1].end() == len(before)


def has_variable(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `${NAME}` could be filled in."""
    return name in environ


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this machine keeps what must outlive a command: the queue of local jobs."""
    return _own_folder(environ, "EDGELOOP_STATE", "XDG_STATE_HOME", ".local/state")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this machine keeps what it could fetch or make again: datasets, environments."""
    return _own_folder(environ, "EDGELOOP_CACHE", "XDG_CACHE_HOME", ".cache")


def tool_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What programs of others get of our environment: where things are, and no secrets."""
    return {name: environ[name] for name in _FOR_TOOLS if environ.get(name)}


def config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where a user's own configuration files are, by the XDG specification."""
    xdg_folder = environ.get("XDG_CONFIG_HOME", "")
    return Path(xdg_folder) if xdg_folder.startswith("/") else home_folder(environ) / ".config"


def login_shell(environ: Mapping[str, str] = os.environ) -> str:
    """`bash`, `zsh` or another; empty if it is not set."""
    return Path(environ.get("SHELL", "")).name


def shell_start_file(shell: str, environ: Mapping[str, str] = os.environ) -> Path:
    """What an interactive bash or zsh reads first."""
    folder = environ.get("ZDOTDIR", "") if shell == "zsh" else ""
    return (Path(folder) if folder.startswith("/") else home_folder(environ)) / f".{shell}rc"


def service_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a runner or a portal that starts without a shell needs of this one: where the store is
    and how to open it, the SDK, and where programs are."""
    prefixes = ("EDGELOOP_", "MODEL_STORAGE_", "AZURE_", "AWS_", "GOOGLE_", "SNPE_", "QAIRT_")
    exact = ("PATH", "INPUT_DATASET", "PGPASSWORD", "PGPASSFILE", "PGSSLROOTCERT", "LANG")
    return {k: v for k, v in environ.items() if v and (k in exact or k.startswith(prefixes))}


def whole_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All of ours, secrets included: for processes of ours on this machine."""
    return dict(environ)


def store_credentials(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What other machines need of this one's environment to open the store; secret. Paths name
    files of this machine, so they stay."""
    prefixes = ("AZURE_", "AWS_", "GOOGLE_")
    credentials = {
        k: v for k, v in environ.items() if v and (k == "PGPASSWORD" or k.startswith(prefixes))
    }
    return {name: value for name, value in credentials.items() if not value.startswith("/")}


def _own_folder(environ: Mapping[str, str], variable: str, shared: str, usual: str) -> Path:
    if environ.get(variable):
        return Path(environ[variable]).expanduser().absolute()
    if environ.get(shared, "").startswith("/"):  # a relative one is void, by its specification
        return Path(environ[shared]) / "edgeloop"
    return home_folder(environ) / usual / "edgeloop"


def portal_token(environ: Mapping[str, str] = os.environ) -> str:
    """What the portal's users must know; by the environment, so no list of processes has it. A
    Secret that was made from a file often ends with a newline, which no visitor can send."""
    return environ.get("EDGELOOP_PORTAL_TOKEN", "").strip()


def wants_colour(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a terminal may be given colours: https://no-color.org, and terminals without any."""
    return not environ.get("NO_COLOR") and environ.get("TERM", "") != "dumb"


def is_in_journal(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether systemd keeps what is printed, for others to read."""
    return bool(environ.get("JOURNAL_STREAM"))


def _location(
    project: Path, environ: Mapping[str, str], store: str | None, written: dict[str, object]
) -> Location:
    blobs = environ.get("EDGELOOP_BLOBS") or None
    in_file = written.pop("store", None)
    if store is not None:
        return parse_location(store, blobs, where="--store")
    if environ.get("EDGELOOP_STORE"):
        return parse_location(environ["EDGELOOP_STORE"], blobs)
    if environ.get("MODEL_STORAGE_CONNECTION_STRING"):
        return parse_connection_string(environ["MODEL_STORAGE_CONNECTION_STRING"])
    if in_file:
        where = f"{SETTINGS_FILE}, store"
        return parse_location(str(in_file), blobs, project, where)
    project_store = SqliteLocation(project / STORE_FOLDER)
    is_begun = (project_store.folder / "store.db").is_file() or (
        project_store.folder / "blobs"
    ).is_dir()
    older = None if is_begun else older_datastore(project)
    return older[1] if older else project_store


def older_datastore(project: Path) -> tuple[str, AzureLocation] | None:
    """The datastore that an older project's `.azureml/datastore.json` names, if it says enough."""
    files = read_project_files(project)
    if not (files.account and files.container):
        return None
    place = (files.account, files.container, files.account_key, files.blob_endpoint)
    return files.datastore, datastore_location(*place)


def storage_account(environ: Mapping[str, str] = os.environ) -> AzureLocation | None:
    """The account that the usual variables of Azure's tools name; no container is chosen."""
    names = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
    account = next((environ[name] for name in names if environ.get(name)), "")
    if not account:
        return None
    keys = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY")
    key = next((environ[name] for name in keys if environ.get(name)), "")
    return datastore_location(account, "any", key, environ.get("AZURE_STORAGE_ENDPOINT", ""))


def _read_file(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The keys that are written, checked. Computes keep their variables: see `compute_settings`."""
    if not path.exists() and not path.is_symlink():
        return {}
    content, origin = read_document(path, BadSetting)
    if not isinstance(content, Mapping | None):
        raise origin.at((), LINES)
    document = {str(key): value for key, value in (content or {}).items() if not _kind(value)}
    computes = document.pop("computes", None) or {}
    if isinstance(computes, Mapping):
        computes = {str(key): value for key, value in computes.items()}
        for name, value in (content or {}).items():  # one of a kind needs no heading
            if _kind(value) and computes.setdefault(str(name), value) is not value:
                raise origin.at((str(name),), f"the compute {str(name)!r} is there twice")
        local = computes.get(LOCAL) or {}
        if computes and isinstance(local, Mapping):
            computes = {LOCAL: local} | computes | {LOCAL: {"kind": LOCAL, **local}}
            if local.get("kind", LOCAL) != LOCAL:
                reason = f"is this machine and cannot be of kind {local['kind']!r}"
                raise origin.wrong(("computes", LOCAL), reason)
    check_variables(document, path.name)
    document = {key: filled_in(value, path.name, environ) for key, value in document.items()}
    return _checked({**document, **({"computes": computes} if computes else {})}, origin)


def _checked(document: Mapping[str, object], origin: Origin) -> dict[str, Any]:
    """By the readers alone; only where one refuses or does not exist, the model says more."""
    readers = _readers()
    with suppress(KeyError, ValueError):
        written = {key: value for key, value in document.items() if value is not None}
        return {key: readers[key].read(value) for key, value in written.items()}
    from edgeloop._util.schema import validated

    checked = validated(settings_model(), document, origin)
    values = {key: getattr(checked, key) for key in checked.model_fields_set}
    others = {key: values.pop(key) for key in checked.model_fields_set - readers.keys()}
    return {**values, "platform_keys": others}


def _compute(value: object) -> dict[str, object]:
    if not _kind(value):
        raise ValueError("must say its kind, for example '{kind: ray, address: …}'")
    return mapping(value)


def _kind(value: object) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    return kind if isinstance(kind, str) else ""


# The files of an older project's `.azureml/`: read where they are there. Only `azure create` writes
# one, the `config.json` of the workspace that it creates.
#
# `config.json` names the workspace and is looked for upwards, as Azure's own tools do; its
# neighbours name a compute target, a datastore and an environment. `datastore.json` may hold an
# account's key: it opens the store from here and goes nowhere else, since a job never needs it.
# `environment.json` is either short (`name`, or `image` and `packages`) or what azureml-core saves:
# `docker`, `python` and `environmentVariables`.


FOLDER = ".azureml"
ENVIRONMENT_FILE = "environment.json"
_MARKS = ("edgeloop.yaml", ".edgeloop", FOLDER, f"{FOLDER}/config.json", f"{FOLDER}/datastore.json")
_LARGEST = 1 << 20
_TEXTS = (
    "subscription_id",
    "resource_group",
    "workspace_name",
    "compute_target",
    "datastore_name",
    "account_name",
    "container_name",
    "account_key",
    "blob_endpoint",
)


@dataclass(frozen=True)
class ProjectFiles:
    """What the files say; an empty text where they say nothing."""

    folder: Path | None = None
    subscription: str = ""
    resource_group: str = ""
    workspace: str = ""
    compute_target: str = ""
    datastore: str = ""
    account: str = ""
    container: str = ""
    account_key: str = field(default="", repr=False)
    blob_endpoint: str = ""  # ours: where a private cloud has the account
    environment: str = ""  # a registered name
    image: str = ""
    packages: tuple[str, ...] = ()
    conda: str = ""  # the text of a conda file
    dockerfile: str = ""  # its text, instead of an image
    python: str = ""  # the interpreter of an image that brings its own packages
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    shm: str = ""  # shared memory of its containers


def read_project_files(start: Path) -> ProjectFiles:
    """The nearest `.azureml/` from here upwards; a file that cannot be read is an error. One above
    `start` that belongs to another user is passed by: see `check_owner`."""
    for folder in (start.absolute(), *start.absolute().parents):
        if (folder / FOLDER).is_dir():
            if folder != start.absolute() and _stranger(folder, _MARKS[2:]):
                continue
            return _read(folder / FOLDER)
    return ProjectFiles()


def check_owner(project: Path, is_here: bool, also: str = "") -> None:
    """Settings decide where a user's data and secrets go, so those of another user are refused; of
    root they are as good as one's own. `is_here`: the folder is the current one, which then
    need not be theirs. `also` is the number of a user whose files root takes for its own (sudo)."""
    if not has_users():
        return
    also_trusted = {int(also)} if also.isdecimal() and os.geteuid() == 0 else set()
    foreign = _stranger(project, _MARKS, also_trusted)
    if foreign is None and not is_here and not any(os.path.lexists(project / m) for m in _MARKS):
        foreign = _stranger(project, (".",), also_trusted)
    if foreign is not None:
        path, owner = foreign
        raise BadSetting(
            where=str(path),
            reason=f"it belongs to {owner}, and settings of other users are not read. If you trust "
            f"them, set EDGELOOP_TRUST={project}; to start a project of your own, create a folder "
            ".edgeloop in it",
        )


def _stranger(
    folder: Path, names: tuple[str, ...], also_trusted: Set[int] = frozenset()
) -> tuple[Path, str] | None:
    """What of these belongs to another user, and to whom; a link and what is behind it count."""
    if not has_users():
        return None
    for name in names:
        for follow in (False, True):
            with suppress(FileNotFoundError, NotADirectoryError):
                uid = (folder / name).stat(follow_symlinks=follow).st_uid
                if uid not in (os.geteuid(), 0, *also_trusted):
                    return folder / name, _user_name(uid)
    return None


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with the number {uid}"


def with_workspace(files: ProjectFiles, config: Path) -> ProjectFiles:
    """The same with the workspace that another `config.json` names."""
    if not config.is_file():
        raise BadSetting(where=str(config), reason="there is no such workspace config")
    content = _json(config, config.name)
    for key in ("subscription_id", "resource_group", "workspace_name"):
        if not _text(content, key):
            raise BadSetting(where=config.name, reason=f"it names no {key}")
    return replace(
        files,
        subscription=_text(content, "subscription_id"),
        resource_group=_text(content, "resource_group"),
        workspace=_text(content, "workspace_name"),
    )


def write_workspace(project: Path, subscription: str, resource_group: str, workspace: str) -> None:
    """Name the workspace in `.azureml/config.json`, where Azure's own tools look for it, too."""
    content = {
        "subscription_id": subscription,
        "resource_group": resource_group,
        "workspace_name": workspace,
    }
    (project / FOLDER).mkdir(exist_ok=True)
    write_atomic(project / FOLDER / "config.json", json.dumps(content, indent=2) + "\n")


def _read(folder: Path) -> ProjectFiles:
    config = _json(folder / "config.json")
    target = _json(folder / "compute_target.json")
    datastore = _json(folder / "datastore.json")
    return ProjectFiles(
        folder=folder,
        subscription=_text(config, "subscription_id"),
        resource_group=_text(config, "resource_group"),
        workspace=_text(config, "workspace_name"),
        compute_target=_text(target, "compute_target"),
        datastore=_text(datastore, "datastore_name"),
        account=_text(datastore, "account_name"),
        container=_text(datastore, "container_name"),
        account_key=_text(datastore, "account_key"),
        blob_endpoint=_text(datastore, "blob_endpoint"),
        **_environment(folder),
    )


def _environment(folder: Path) -> dict[str, Any]:
    content = _json(folder / ENVIRONMENT_FILE)
    variables = _section(content, "environmentVariables")
    always: dict[str, Any] = {
        "variables": tuple((name, str(value)) for name, value in variables.items())
    }
    docker, python = _section(content, "docker"), _section(content, "python")
    always["shm"] = shm = _text(docker, "shmSize")
    if shm and not re.fullmatch(r"\d+[bBkKmMgG]", shm):
        reason = (
            f"its docker.shmSize must be a number and b, k, m or g, for example 2g, not {shm!r}"
        )
        raise BadSetting(where=f"{FOLDER}/{ENVIRONMENT_FILE}", reason=reason)
    if docker or python:
        return {**always, **_defined(folder, docker, python)}
    packages = content.get("packages") or content.get("pip_packages")
    name, version = _text(content, "name", "environment_name"), content.get("version")
    return {
        **always,
        "environment": f"{name}:{version}" if name and version else name,
        "image": _text(content, "image", "docker_image"),
        "packages": tuple(map(str, packages)) if isinstance(packages, list) else (),
    }


def _defined(
    folder: Path, docker: Mapping[str, object], python: Mapping[str, object]
) -> dict[str, Any]:
    """An environment as azureml-core saves it: it says what to build, so its name does not matter.
    Passwords of a registry are left out: the workspace needs a connection to it."""
    image, dockerfile = _text(docker, "baseImage"), _text(docker, "baseDockerfile")
    if dockerfile and "\n" not in dockerfile and _beside(folder, dockerfile).is_file():
        dockerfile = _content(_beside(folder, dockerfile)).decode("utf-8", "replace")
    registry = _text(_section(docker, "baseImageRegistry"), "address")
    if image and registry and not image.startswith(f"{registry}/"):
        image = f"{registry}/{image}"
    if python.get("userManagedDependencies") is True:
        if not image and not dockerfile:
            reason = "userManagedDependencies needs docker.baseImage or docker.baseDockerfile"
            raise BadSetting(where=f"{FOLDER}/{ENVIRONMENT_FILE}", reason=reason)
        interpreter = _text(python, "interpreterPath")
        return {
            "image": image,
            "dockerfile": dockerfile,
            "python": "" if interpreter == "python" else interpreter,
        }
    return {"image": image, "dockerfile": dockerfile, "conda": _conda(folder, python)}


def _conda(folder: Path, python: Mapping[str, object]) -> str:
    """The packages themselves, or the file that lists them."""
    inline, name = _section(python, "condaDependencies"), _text(python, "condaDependenciesFile")
    if inline:
        if not isinstance(inline.get("dependencies"), list):
            reason = "its python.condaDependencies needs a list of dependencies"
            raise BadSetting(where=f"{FOLDER}/{ENVIRONMENT_FILE}", reason=reason)
        return json.dumps(inline)
    if not name:
        return ""
    if not _beside(folder, name).is_file():
        reason = f"its python.condaDependenciesFile names {name}, which is not there"
        raise BadSetting(where=f"{FOLDER}/{ENVIRONMENT_FILE}", reason=reason)
    return _content(_beside(folder, name)).decode("utf-8", "replace")


def _beside(folder: Path, name: str) -> Path:
    """Beside the file, or from the project's folder, as `.azureml/conda.yml` is written."""
    return folder / name if (folder / name).is_file() else folder.parent / name


def _section(content: Mapping[str, object], key: str) -> Mapping[str, object]:
    section = content.get(key)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise BadSetting(
            where=f"{FOLDER}/{ENVIRONMENT_FILE}", reason=f"its {key} must be an object"
        )
    return section


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, _LARGEST)
    except OSError as error:
        where = f"{FOLDER}/{path.name}"
        raise BadSetting(where=where, reason=f"cannot be read: {error.strerror}") from None


def _json(path: Path, where: str = "") -> Mapping[str, object]:
    where = where or f"{FOLDER}/{path.name}"
    try:
        content = json.loads(read_regular(path, _LARGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:  # a decoder's words could quote a key
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise BadSetting(where=where, reason=f"cannot be read: {reason}") from None
    if not isinstance(content, dict):
        raise BadSetting(where=where, reason="must hold one JSON object")
    for key in _TEXTS:
        if not isinstance(content.get(key), str | None):  # its value may be secret
            raise BadSetting(where=where, reason=f"its {key} must be a text")
    return content


def _text(content: Mapping[str, object], *keys: str) -> str:
    values = (content.get(key) for key in keys)
    return next((value for value in values if isinstance(value, str)), "")


# Entry points of platforms: the built-in ones, by name only, before those of plug-ins.


PLATFORMS = "edgeloop.platforms"
_BUILT_IN = {
    "host": "edgeloop.platforms.host:HostPlatform",
    "qnn": "edgeloop.platforms.qnn:QnnPlatform",
    "snpe": "edgeloop.platforms.snpe:SnpePlatform",
}


def platform_points() -> tuple[EntryPoint, ...]:
    """Nothing is imported until a point is loaded. A plug-in cannot replace a built-in platform."""
    built_in = [EntryPoint(name, value, PLATFORMS) for name, value in _BUILT_IN.items()]
    installed = importlib.metadata.entry_points(group=PLATFORMS)
    plug_ins = [point for point in installed if point.name not in _BUILT_IN]
    return (*built_in, *sorted(plug_ins, key=lambda point: point.name))
