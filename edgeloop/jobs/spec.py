"""A job's specification, from a file or a command line, completely checked.

It is a mapping of strings, lists and mappings, whether it was written in YAML, typed on the command
line or read back from a record. So it is checked in one place, also when a job is submitted again.
Strings stay as they were typed: a learning rate of `1e-3` reaches the script as `1e-3`. Nothing is
sent, stored or started here.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from edgeloop._util.values import (
    LINES,
    PLAIN_TEXT,
    POSITIVE_TIME,
    SCALAR,
    SIZE,
    TIME,
    Reads,
    choice,
    did_you_mean,
    items,
    matching,
    number,
    plain_text,
    shown,
    whole,
    words,
)
from edgeloop._util.yaml import KeyPath, Origin, read_document
from edgeloop.errors import BadInput, BadJob, BadName
from edgeloop.node.ticket import (
    JOB_PLACEHOLDERS,
    MOST_PATTERNS,
    EarlierOutputs,
    Environment,
    Resources,
    check_pattern,
    escaped,
    filled,
    placeholders,
)
from edgeloop.paths import find_project

if TYPE_CHECKING:
    from edgeloop._util.schema import Section

# URLs of data that a job reads or writes where it is, and how they are written.
#
# az://container/path                      the project's account, or AZURE_STORAGE_ACCOUNT
# abfss://container@account.dfs.…/path     any account; also wasbs: and https://account.blob.…/
# azureml://datastores/NAME/paths/path     a datastore of the workspace, or of datastore.json
# s3://bucket/path                         with the credentials of the machine that runs the job
# gs://bucket/path                         only on a compute that serves such URLs itself
# file:///folder                           a folder that this machine sees


INPUT_MODES = ("mount", "download")
OUTPUT_MODES = ("mount", "upload")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_DATASTORE = re.compile(
    r"azureml://(?:subscriptions/(?P<subscription>[^/]+)/resource[gG]roups/(?P<group>[^/]+)/"
    r"(?:providers/Microsoft\.MachineLearningServices/)?workspaces/(?P<workspace>[^/]+)/)?"
    r"datastores/(?P<container>[A-Za-z0-9_-]+)/paths/(?P<path>.*)"
)
_IN_ACCOUNT = re.compile(
    r"(?:abfs|wasb)s?://(?P<container>[^/@]+)@(?P<account>[^/@.]+)\.(?:dfs|blob)\."
    r"(?P<suffix>[^/@]+)(?:/(?P<path>.*))?"
)
_BLOB = re.compile(
    r"https://(?P<account>[^/@.]+)\.blob\.(?P<suffix>[^/@]+)/(?P<container>[^/]+)(?:/(?P<path>.*))?"
)
_BUCKET = re.compile(r"(?P<kind>s3|gs|az)://(?P<container>[^/@:]+)(?:/(?P<path>.*))?")
_FILE = re.compile(r"file:(?://)?(?P<path>/.*)")
_FORMS = (
    "an azureml://datastores/NAME/paths/…, az://, abfss://, https://ACCOUNT.blob…, s3://, gs:// or "
    "file:/// URL"
)


@dataclass(frozen=True)
class UrlParts:
    """A URL, taken apart. `container` is also the name of a bucket or a datastore."""

    kind: str  # azureml, azure, s3, gs or file
    container: str
    path: str  # without slashes at its ends; of file: the whole path
    account: str = ""
    endpoint: str = ""
    is_file: bool = False  # its last part has an ending, and no slash follows
    workspace: tuple[str, ...] = ()  # of a datastore's long URL: subscription, group and name


@dataclass(frozen=True)
class RemotePath:
    """Data of a job that is not a dataset of the store: its name in the job, and where it is.

    `mode` is empty if the compute may choose.
    """

    name: str
    url: str
    mode: str = ""

    def document(self) -> dict[str, str]:
        """As it is written in a job file."""
        mode = {"mode": self.mode} if self.mode else {}
        return {"name": self.name, "url": self.url, **mode}


def is_remote(value: object) -> bool:
    """Whether an item of `data` or `writes` is a URL rather than a dataset's name."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, str) and _SCHEME.match(_split_name(value)[1]) is not None


def read_remote(value: object, is_output: bool = False) -> RemotePath:
    """`URL`, `NAME=URL`, or a mapping with `url`, `name` and `mode`; raises ValueError."""
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in ("url", "name", "mode")]
        if unknown or not isinstance(value.get("url"), str):
            what = f"has the unknown key {unknown[0]!r}" if unknown else "needs a 'url'"
            raise ValueError(f"has an entry that {what}: it may have url, name and mode")
        name, url = str(value.get("name") or ""), str(value["url"])
        mode = str(value.get("mode") or "")
    else:
        (name, url), mode = _split_name(str(value)), ""
    modes = OUTPUT_MODES if is_output else INPUT_MODES
    if mode and mode not in modes:
        raise ValueError(f"has a mode {mode!r}: it must be {' or '.join(modes)}")
    parts = parse_url(url)
    return RemotePath(_checked_name(name or _last_part(parts), url), url, mode)


def parse_url(url: str) -> UrlParts:
    """Raises ValueError, which never quotes what may be a secret."""
    shown = re.split(r"[?#]", url)[0]
    if "?" in url or "#" in url:
        reason = "may not have a query such as a signature, because records and logs would show it"
        raise ValueError(f"has a URL that {reason}: {shown}")
    if not url.isprintable() or "\\" in url:
        raise ValueError("has a URL with a backslash or an unprintable character")
    match = None
    for pattern in (_DATASTORE, _IN_ACCOUNT, _BLOB, _BUCKET, _FILE):
        match = match or pattern.fullmatch(url)
    if match is None:
        scheme = url.partition(":")[0]
        raise ValueError(f"has a URL of the form {scheme}:… that is not {_FORMS}")
    fields = {name: value or "" for name, value in match.groupdict().items()}
    path = fields["path"] if match.re is _FILE else fields["path"].strip("/")
    if any(part in ("..", ".") for part in path.split("/")) or "//" in path:
        raise ValueError(f"has a URL whose path holds '.', '..' or an empty part: {shown}")
    last = path.rstrip("/").rpartition("/")[2]
    is_file = "." in last.strip(".") and not url.endswith("/")
    if match.re is _FILE:
        return UrlParts("file", "", path.rstrip("/") or "/", is_file=is_file)
    if match.re is _DATASTORE:
        workspace = tuple(fields[name] for name in ("subscription", "group", "workspace"))
        named = workspace if any(workspace) else ()
        return UrlParts("azureml", fields["container"], path, is_file=is_file, workspace=named)
    if match.re is _BUCKET:
        kind = "azure" if fields["kind"] == "az" else fields["kind"]
        return UrlParts(kind, fields["container"], path, is_file=is_file)
    endpoint = f"https://{fields['account']}.blob.{fields['suffix']}"
    return UrlParts("azure", fields["container"], path, fields["account"], endpoint, is_file)


def _split_name(text: str) -> tuple[str, str]:
    """`faces=s3://…`; an equals sign inside the URL belongs to it."""
    name, equals, url = text.partition("=")
    if equals and ":" not in name:
        return name.strip(), url.strip()
    return "", text.strip()


def _last_part(parts: UrlParts) -> str:
    last = parts.path.rstrip("/").rpartition("/")[2] or parts.container
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "data"


def _checked_name(name: str, url: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*", name)
    if not is_plain or len(name) > 100:
        expected = "letters, digits, '.', '_', '-' and '/'"
        raise ValueError(f"has the name {name!r} for {url}: names may hold {expected}")
    return name


# How the values of keys are read.
#
# A job file is read as texts, so that a learning rate of `1e-3` reaches the script as it was typed;
# a key that is empty counts as not given. Whether files are there is checked by `spec_of`.


NAME_LIMIT = 100
MADE_NAME_LIMIT = 120  # of a sweep's member or an attempt: NAME-00012.3
RESERVED_NAMES = frozenset({"all", "last"})  # they select jobs
DEFAULT_PRIORITY = 100
DEFAULT_GRACE_S = 30.0
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_REGISTERED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}([:@][A-Za-z0-9._-]+)?")
_ENDINGS: Mapping[str, Literal["requirements", "conda"]] = {
    ".txt": "requirements",
    ".yml": "conda",
    ".yaml": "conda",
}
_EXPERIMENT = (r"[A-Za-z0-9][A-Za-z0-9_-]{2,39}", "3 to 40 letters, digits, '_' and '-'")
_TAG = matching(
    r"[A-Za-z0-9][A-Za-z0-9._=-]*", "plain words of letters, digits, '.', '_', '=' and '-'"
)
_SEVERAL = {"anyOf": [PLAIN_TEXT.schema, {"type": "array", "items": PLAIN_TEXT.schema}]}
_WORDS = {"anyOf": [SCALAR, {"type": "array", "items": SCALAR}]}
_ENVIRONMENT = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {
                "requirements": {"type": "string", "description": "A requirements.txt."},
                "conda": {"type": "string", "description": "A conda environment file."},
                "image": {"type": "string", "description": "The name of a container image."},
                "name": {"type": "string", "description": "One that the compute knows: `faces:3`."},
            },
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
    ]
}


def check_job_name(name: str, limit: int = NAME_LIMIT) -> str:
    """The rule for models' names: it becomes a folder, a part of keys and of other names."""
    if len(name) > limit:
        raise ValueError(f"has {len(name)} characters; {limit} are the limit")
    if not re.fullmatch(_PLAIN, name):
        raise ValueError(
            "may hold letters, digits, '.', '_' and '-', and begins with a letter or digit, "
            f"not {name!r}"
        )
    if name in RESERVED_NAMES:
        raise ValueError(f"cannot be {name!r}: that word selects jobs")
    return name


def plain_stem(text: str) -> str:
    """The nearest name that is allowed: `2-train (copy)` is `2-train-copy`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:40].strip("-._")
    return plain if plain and plain not in RESERVED_NAMES else "job"


def _argument(value: object) -> str:
    text = plain_text(value)
    if "\0" in text:
        raise ValueError("has an argument with a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"has an argument that is no UTF-8 text: {text!a}") from None
    return text


def _words(value: object, is_program: bool = False) -> tuple[str, ...]:
    """A list as it is; a text split as a shell would, though none ever sees it."""
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError:
            raise ValueError(f"has a quote that is never closed: {shown(value)}") from None
    arguments = tuple(_argument(word) for word in items(value))
    if is_program and not (arguments and arguments[0]):
        raise ValueError("must name a program")
    return arguments


def _data(rule: str, is_output: bool) -> Reads:
    """Names that a function of `edgeloop.jobs` accepts, and URLs."""

    def one(value: object) -> str | RemotePath:
        from edgeloop.node import ledger

        if is_remote(value):
            return read_remote(value, is_output)
        name = plain_text(value)
        try:
            getattr(ledger, rule)(name)
        except BadName as error:
            raise ValueError(f"cannot hold {name!r}: {error.fields['reason']}") from None
        return name

    def read(value: object) -> tuple[str | RemotePath, ...]:
        several = [value] if isinstance(value, str) else items(value)
        return tuple(one(item) for item in several)

    modes = OUTPUT_MODES if is_output else INPUT_MODES
    entry = {
        "type": "object",
        "properties": {
            "url": {"type": "string", "description": "Where it is."},
            "name": {"type": "string", "description": "Its name in the job."},
            "mode": {"enum": list(modes), "description": "By default the compute chooses."},
        },
        "required": ["url"],
        "additionalProperties": False,
    }
    several = {"type": "array", "items": {"anyOf": [PLAIN_TEXT.schema, entry]}}
    return Reads(read, {"anyOf": [PLAIN_TEXT.schema, several]})


def _pattern(value: object) -> str:
    try:
        return check_pattern(plain_text(value))
    except ValueError as error:
        raise ValueError(f"has a pattern that {error}") from None


def _patterns(value: object) -> tuple[str, ...]:
    patterns = tuple(dict.fromkeys(words(value, _pattern)))
    if len(patterns) > MOST_PATTERNS:
        raise ValueError(f"has {len(patterns)} patterns; {MOST_PATTERNS} are the limit")
    return patterns


def read_environment(value: object) -> Environment:
    """`here`, a file by its ending, `{requirements: FILE}`, `{conda: FILE}`, `{image: NAME}` or
    `{name: NAME}`. Raises ValueError."""
    if value == "here":
        return Environment()
    if isinstance(value, Mapping) and set(value) == {"image"}:
        image = plain_text(value["image"])
        if not _IMAGE.fullmatch(image):
            expected = "the name of an image, for example ghcr.io/acme/train:3"
            raise ValueError(f"must be {expected}, not {image!r}")
        return Environment("image", image)
    if isinstance(value, Mapping) and set(value) == {"name"}:
        name = plain_text(value["name"])
        if not _REGISTERED.fullmatch(name):
            expected = "the name of an environment of the compute, for example faces:3"
            raise ValueError(f"must be {expected}, not {name!r}")
        return Environment("name", name)
    if isinstance(value, Mapping) and len(value) == 1 and set(value) <= {"requirements", "conda"}:
        kind, file = next(iter(value.items()))
        return Environment(kind, Path(plain_text(file)).as_posix())
    if isinstance(value, str) and Path(value).suffix in _ENDINGS:
        return Environment(_ENDINGS[Path(value).suffix], Path(value).as_posix())
    raise ValueError(
        f"must be 'here', a requirements.txt or a conda .yaml file, not {shown(value)}"
    )


ENVIRONMENT = Reads(read_environment, _ENVIRONMENT)


def _single(value: object) -> str:
    if isinstance(value, list | tuple | Mapping):
        raise ValueError("must be a single value; quote it where it is a list for the script")
    return _argument(value)


def _sweep_values(value: object) -> tuple[str, ...]:
    """A list, or a text with commas."""
    try:
        values = split_values(value) if isinstance(value, str) else items(value)
    except BadInput as error:
        raise ValueError(f"cannot be read: {error}") from None
    if not values:
        raise ValueError("has no values")
    return tuple(_single(item) for item in values)


def _names(pattern: str, allowed: str) -> Reads:
    """For the keys of an open mapping."""

    def read(name: object) -> str:
        if not isinstance(name, str) or not re.fullmatch(pattern, name):
            raise ValueError(f"may hold names of {allowed}, not {name!r}")
        return name

    return Reads(read, {"type": "string"})


_TAGS = Reads(lambda value: tuple(dict.fromkeys(words(value, _TAG.read))), _SEVERAL)
_EXTRAS = ("core", "train", "azure", "azureml", "qnn", "portal", "all")
_EXTRA = choice(*_EXTRAS)
_EDGELOOP = Reads(lambda value: tuple(dict.fromkeys(words(value, _EXTRA.read))), _SEVERAL)
_NAME = Reads(lambda value: check_job_name(plain_text(value)), PLAIN_TEXT.schema)
_PATH = Reads(lambda value: Path(plain_text(value)).as_posix(), {"type": "string"})
_Argument = Annotated[str, Reads(_single, SCALAR)]
_ParamName = Annotated[
    str, _names(r"[A-Za-z_][A-Za-z0-9_.-]*", "letters, digits, '_', '.' and '-'")
]
_VARIABLE = _names(
    r"(?!EDGELOOP_)[A-Za-z_][A-Za-z0-9_]*",
    "letters, digits and '_' that do not begin with EDGELOOP_",
)
_VariableName = Annotated[str, _VARIABLE]


_SECRETS = Reads(lambda value: tuple(dict.fromkeys(words(value, _VARIABLE.read))), _SEVERAL)


# The keys of a job, each declared once.


@dataclass(frozen=True)
class JobOption:
    """An option of `run` and `job submit` that sets a key, or only a `part` of a mapping."""

    flag: str
    about: str
    metavar: str | None = None
    multiple: bool = False
    kind: Literal["text", "number", "pairs", "sweep"] = "text"
    least: int | None = None  # a whole number, at least this
    choices: tuple[str, ...] = ()
    part: str = ""

    @property
    def parameter(self) -> str:
        """The name under which click passes its value."""
        return self.flag.lstrip("-").replace("-", "_")


@dataclass(frozen=True, eq=False)
class JobKey:
    """One key of a job file. `run --help`, the JSON Schema, the reference page, overrides, records
    and, with `variable`, the environment of the script on its node come from this declaration.

    `reads` checks the value; `write` gives it back as a file has it, by default as it is.
    """

    name: str
    reads: Any
    default: Any
    about: str
    shown: str | None = None
    options: tuple[JobOption, ...] = ()
    variable: str = ""
    write: Callable[[JobSpec], object] | None = None


def job_key(name: str, reads: Any, default: Any, about: str, **more: Any) -> Any:
    """A field of `JobSpec` that is a key of a job file. A callable makes the default."""
    metadata = {"key": JobKey(name, reads, default, about, **more)}
    is_shown = name != "variables"  # their values may be secret
    if callable(default):
        return field(default_factory=default, metadata=metadata, repr=is_shown)
    return field(default=default, metadata=metadata, repr=is_shown)


def _written_resources(spec: JobSpec) -> dict[str, object]:
    needs = spec.resources
    written: dict[str, object] = {"cpus": repr(needs.cpus)} if spec.threads else {}
    written["gpus"] = repr(needs.gpus)
    if needs.memory_bytes:
        written["memory"] = f"{needs.memory_bytes}B"
    if needs.nodes != 1:
        written["nodes"] = str(needs.nodes)
    if needs.custom:
        written["custom"] = {name: repr(amount) for name, amount in needs.custom.items()}
    return written


def _written_environment(spec: JobSpec) -> object:
    return {spec.environment.kind: spec.environment.file} if spec.environment.file else ""


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job specification, as `Jobs.submit` makes it from a script or a YAML file.

    A program may also construct it: it needs a `command` or a `script` and nothing else, and is
    checked when it is submitted. An empty name, compute or experiment means the default.

    Attributes:
        code: Folder that is sent as code. By default the current one.
        stem: Beginning of the name if none is given.
        name: Name of the job.
        script: Path of the script inside the code.
        command: The command, if there is no script.
        args: Arguments of the command.
        data: Datasets that the job reads.
        writes: Datasets that the job creates.
        sources: Data at URLs that the job reads.
        targets: URLs that the job writes to.
        mode: How data at URLs is provided, where an entry does not say so itself.
        outputs: Patterns of files that are collected besides `outputs/`.
        environment: What is installed on the node.
        compute: Name of the compute.
        resources: CPUs, GPUs, memory, nodes and custom resources.
        cpus_given: Whether the number of CPUs was asked for, or is the default.
        tags: Labels to find the job by.
        experiment: Experiment it belongs to.
        timeout_s: Seconds after which it is ended.
        retries: Restarts after a failure.
        priority: Lower runs sooner; only for the compute `local`.
        grace_s: Seconds from SIGTERM to SIGKILL when it is canceled.
        params: Values for `{name}` in the command, or options `--name VALUE`.
        sweep: Values of each swept parameter.
        variables: Environment variables, with `${NAME}` not yet replaced.
        secrets: Names of variables whose values are secret, whatever they are called.
        allow_secrets: Patterns of code files that are sent although they hold secrets.
        edgeloop: Extras of Edgeloop, or `core`, if Edgeloop itself travels with the code.
        earlier: Outputs of other jobs that it starts with.

    Examples:
        >>> from pathlib import Path
        >>> from edgeloop.jobs.spec import spec_of_script
        >>> size = Path("train.py").write_text("")
        >>> spec = spec_of_script("train.py", ["--lr", "1e-3"], {"resources": {"gpus": 1}})
        >>> spec.full_command(), spec.resources.gpus
        (('python', 'train.py', '--lr', '1e-3'), 1.0)
        >>> JobSpec(command=("python", "-m", "train"), tags=("mine",)).full_command()
        ('python', '-m', 'train')
    """

    name: str = job_key(
        "name",
        _NAME,
        "",
        "Its name; by default made from the name of the file.",
        options=(JobOption("--name", "Name of the job  [default: script name and a number]"),),
    )
    stem: str = "job"  # beginning of the name if none is given
    script: str = job_key(  # inside the code; the command starts it
        "script", _PATH, "", "A `.py`, `.sh` or executable file of the code folder."
    )
    command: tuple[str, ...] = job_key(
        "command",
        Reads(partial(_words, is_program=True), _WORDS),
        (),
        "The program and its arguments, as a list or one text; no shell is used.",
        write=lambda spec: [] if spec.script else list(spec.command),
    )
    args: tuple[str, ...] = job_key(
        "args",
        Reads(_words, _WORDS),
        (),
        "Arguments; `{outputs}`, `{input:NAME}` and `{PARAM}` are filled in, `{{PARAM}}` is not.",
        options=(
            JobOption(
                "--arg",
                "An argument in which {outputs}, {input:NAME}, … are filled in, before those "
                "after --; repeatable.",
                metavar="WORD",
                multiple=True,
            ),
        ),
    )
    code: Path = job_key(  # noqa: RUF009 - it makes a field
        "code",
        PLAIN_TEXT,
        ".",
        "The folder that travels with the job.",
        options=(
            JobOption("--code", "Code folder to send  [default: the project]", metavar="DIR"),
        ),
    )
    data: tuple[str, ...] = job_key(
        "data",
        _data("parse_reference", False),
        (),
        "What it reads: datasets such as `working/faces@3`, and URLs (`faces=s3://…`).",
        options=(
            JobOption(
                "--data",
                "A dataset it reads, as working/faces or faces@3 (changes here are pushed first), "
                "or data at a URL, as faces=s3://bucket/faces; repeatable.",
                metavar="DATASET|[NAME=]URL",
                multiple=True,
            ),
        ),
        write=lambda spec: [*spec.data, *(place.document() for place in spec.sources)],
    )
    sources: tuple[RemotePath, ...] = ()
    writes: tuple[str, ...] = job_key(
        "writes",
        _data("check_name", True),
        (),
        "What it creates: datasets, stored as new versions, and URLs to write to.",
        options=(
            JobOption(
                "--writes",
                "A dataset it makes, as working/faces64 (published when the job succeeds), or a "
                "URL to write to, as crops=az://container/crops; repeatable.",
                metavar="DATASET|[NAME=]URL",
                multiple=True,
            ),
        ),
        write=lambda spec: [*spec.writes, *(place.document() for place in spec.targets)],
    )
    targets: tuple[RemotePath, ...] = ()
    mode: str = job_key(
        "mode",
        choice("mount", "download"),
        "",
        "How data at URLs is provided; by default as the compute can.",
        shown="",
        options=(
            JobOption(
                "--mode",
                "How data at URLs is provided  [default: as the compute can]",
                choices=("mount", "download"),
            ),
        ),
    )
    outputs: tuple[str, ...] = job_key(
        "outputs",
        Reads(_patterns, _SEVERAL),
        (),
        "Patterns of files to collect besides `outputs/`, for example `results` or `**/*.ckpt`.",
        options=(
            JobOption(
                "--outputs",
                "Files to collect besides outputs/, as results or '**/*.ckpt'; repeatable.",
                metavar="PATTERN",
                multiple=True,
            ),
        ),
    )
    environment: Environment = job_key(  # noqa: RUF009 - it makes a field
        "environment",
        ENVIRONMENT,
        Environment,
        "`here`, a requirements.txt, a conda .yaml file, `{image: NAME}` or `{name: NAME}`.",
        options=(
            JobOption(
                "--requirements",
                "pip requirements of the job's environment.",
                metavar="FILE",
                part="requirements",
            ),
            JobOption(
                "--conda", "Conda file of the job's environment.", metavar="FILE", part="conda"
            ),
            JobOption(
                "--image",
                "Container image, if the compute supports it.",
                metavar="NAME",
                part="image",
            ),
        ),
        write=_written_environment,
    )
    compute: str = job_key(
        "compute",
        matching(_PLAIN, "the name of a compute, as in edgeloop.yaml"),
        "",
        "Where it runs: a name under `computes` in edgeloop.yaml.",
        options=(
            JobOption("--compute", "Compute, by its name in edgeloop.yaml  [default: local]"),
        ),
    )
    resources: Resources = job_key(  # noqa: RUF009 - it makes a field
        "resources",
        None,
        Resources,
        "What the job needs of each machine.",
        options=(
            JobOption(
                "--cpus",
                "CPUs; on local also the threads of numerical libraries  [default: 1]",
                kind="number",
                part="cpus",
            ),
            JobOption("--gpus", "GPUs  [default: 0]", kind="number", part="gpus"),
            JobOption("--memory", "Memory, such as 8GB.", metavar="SIZE", part="memory"),
            JobOption(
                "--nodes",
                "Machines for the one job; each runs the script, and RANK tells which it is  "
                "[default: 1]",
                least=1,
                part="nodes",
            ),
            JobOption(
                "--resource",
                "Something else that the compute counts, as snapdragon888=1.",
                metavar="NAME=COUNT",
                multiple=True,
                kind="pairs",
                part="custom",
            ),
        ),
        write=_written_resources,
    )
    cpus_given: bool = False
    tags: tuple[str, ...] = job_key(
        "tags",
        _TAGS,
        (),
        "Words to select jobs by.",
        options=(JobOption("--tag", "Label to filter by; repeatable.", multiple=True),),
    )
    experiment: str = job_key(
        "experiment", matching(*_EXPERIMENT), "", "Experiment of the models it uploads."
    )
    timeout_s: float | None = job_key(
        "timeout",
        POSITIVE_TIME,
        None,
        "How long it may run, for example `2h`.",
        options=(JobOption("--timeout", "Time limit, such as 90s, 30m or 2h.", metavar="TIME"),),
        write=lambda spec: _seconds(spec.timeout_s),
    )
    retries: int = job_key(
        "retries",
        whole(),
        0,
        "How often it is started again after it failed.",
        options=(JobOption("--retries", "Restarts after a failure.", least=0),),
    )
    priority: int = job_key(
        "priority",
        whole(),
        DEFAULT_PRIORITY,
        "Jobs with a smaller number start first.",
        options=(JobOption("--priority", "Lower runs sooner  [default: 100]", least=0),),
    )
    grace_s: float = job_key(
        "grace",
        TIME,
        DEFAULT_GRACE_S,
        "Time between the request to end and the kill.",
        shown="30s",
        options=(
            JobOption(
                "--grace", "Time between SIGTERM and SIGKILL  [default: 30s]", metavar="TIME"
            ),
        ),
        write=lambda spec: _seconds(spec.grace_s),
    )
    params: Mapping[str, str] = job_key(
        "params",
        dict[_ParamName, _Argument],
        dict,
        "Values for `{PARAM}` in the command; the others become `--PARAM VALUE`.",
    )
    sweep: Mapping[str, tuple[str, ...]] = job_key(
        "sweep",
        dict[_ParamName, Annotated[tuple[str, ...], Reads(_sweep_values, _WORDS)]],
        dict,
        "Params with several values: one job per combination.",
        options=(
            JobOption(
                "--sweep",
                "A job for each value, as lr=1e-3,1e-4; several make all combinations.",
                metavar="PARAM=VALUES",
                multiple=True,
                kind="sweep",
            ),
        ),
    )
    variables: Mapping[str, str] = job_key(
        "variables",
        dict[_VariableName, _Argument],
        dict,
        "Environment variables; `${NAME}` is filled in where the job is submitted.",
        options=(
            JobOption(
                "--env",
                "A variable for the script. Write ${NAME} for a value of your environment.",
                metavar="NAME=VALUE",
                multiple=True,
                kind="pairs",
            ),
        ),
    )
    secrets: tuple[str, ...] = job_key(
        "secrets",
        _SECRETS,
        (),
        "Variables with secret values, which logs mask; one that is not set above is that of your "
        "environment.",
        options=(
            JobOption(
                "--secret",
                "A secret variable: records leave it out, and logs mask it. Without VALUE, that of "
                "your environment; repeatable.",
                metavar="NAME[=VALUE]",
                multiple=True,
            ),
        ),
    )
    allow_secrets: tuple[str, ...] = job_key(
        "allow_secrets",
        Reads(_patterns, _SEVERAL),
        (),
        "Code files that are sent although they hold keys or tokens, for example `tests/ca.pem`.",
        options=(
            JobOption(
                "--allow-secrets",
                "A code file, as a path or pattern, to send although it holds keys or tokens; "
                "repeatable.",
                metavar="PATTERN",
                multiple=True,
            ),
        ),
    )
    edgeloop: tuple[str, ...] = job_key(
        "edgeloop",
        _EDGELOOP,
        (),
        "Sends Edgeloop itself along, for scripts that import it: `core`, or its extras.",
    )
    earlier: tuple[EarlierOutputs, ...] = ()

    def __post_init__(self) -> None:
        """A program may give a text for a path, and a list or a text for the command."""
        object.__setattr__(self, "code", Path(self.code))
        try:
            object.__setattr__(self, "command", _words(self.command))
        except ValueError as error:
            raise BadJob(where="command", reason=str(error)) from None

    def full_command(self) -> tuple[str, ...]:
        """Build the command, with parameters filled in or appended as options.

        Returns:
            The words; `{outputs}`, `{input:…}` and the like are filled in on the node, which also
                makes `{outputs}` of `{{outputs}}`.
        """
        used: set[str] = set()

        def value(name: str) -> str | None:
            if name not in self.params or name in JOB_PLACEHOLDERS:
                return None
            used.add(name)
            return self.params[name]

        words = [filled(word, value, is_last=False) for word in (*self.command, *self.args)]
        rest = [(f"--{name}", value) for name, value in self.params.items() if name not in used]
        return (*words, *(word for pair in rest for word in pair))

    def filled_variables(self) -> dict[str, str]:
        """Replace `${NAME}` in the variables by the values of the environment, which may be secret.

        Returns:
            The environment variables of the job.
        """
        from edgeloop.settings import filled_in

        where = f"variables of {self.name or self.stem}"
        filled = {name: str(filled_in(text, where)) for name, text in self.variables.items()}
        for attribute, declared in job_keys().items():
            value = getattr(self, attribute)
            if declared.variable and value not in (None, "", (), {}):
                filled[declared.variable] = value if isinstance(value, str) else json.dumps(value)
        return filled

    @property
    def threads(self) -> int:
        """Threads that numerical libraries should use; 0 if no number of CPUs was asked for."""
        is_asked = self.cpus_given or self.resources.cpus != Resources.cpus
        return max(1, int(self.resources.cpus)) if is_asked else 0

    def document(self) -> dict[str, object]:
        """Write the specification as the content of a job file.

        Returns:
            A mapping from which `edgeloop.jobs.spec_of` reads the same specification.
        """
        document: dict[str, object] = {}
        for attribute, declared in job_keys().items():
            plain = getattr(self, attribute) if declared.write is None else declared.write(self)
            if isinstance(plain, tuple):
                plain = list(plain)
            elif isinstance(plain, Mapping):
                plain = {
                    name: list(value) if isinstance(value, tuple) else value
                    for name, value in plain.items()
                }
            elif not isinstance(plain, list):
                plain = "" if plain is None else str(plain)
            if plain not in ("", [], {}):
                document[declared.name] = plain
        return document


def job_keys() -> dict[str, JobKey]:
    """The keys of a job by the attributes of `JobSpec` that hold them."""
    return {each.name: each.metadata["key"] for each in fields(JobSpec) if "key" in each.metadata}


def job_file() -> type[Section]:
    """The model that checks a job file and that its JSON Schema comes from."""
    return _model_of(tuple(job_keys().values()))


@cache
def _model_of(keys: tuple[JobKey, ...]) -> type[Section]:
    """Created on first use: `run --help` needs the keys, but not pydantic."""
    from pydantic import create_model, model_validator

    from edgeloop._util.schema import Count, Section, key

    class TextSection(Section):
        @model_validator(mode="before")
        @classmethod
        def _without_empty(cls, value: object) -> object:
            if not isinstance(value, Mapping):
                return value
            return {name: item for name, item in value.items() if item not in ("", "null", "~")}

    class ResourceKeys(TextSection):
        """What the job needs of each machine."""

        cpus: Annotated[float, number(is_open=True, most=1e9)] = key(
            1.0, "CPU cores; a fraction is allowed."
        )
        gpus: Annotated[float, number(most=1e9)] = key(0.0, "GPUs, or a fraction of one.")
        memory: Annotated[int, SIZE] = key(0, "Main memory, for example `4GB`.", shown="")
        nodes: Count = key(1, "Machines, each with these resources, if the compute supports it.")
        custom: dict[str, Annotated[float, number(most=1e9)]] = key(
            dict, "Other things that are counted: `{board: 1}`."
        )

    model_fields: dict[str, Any] = {}
    for declared in keys:
        reads, default = declared.reads, declared.default
        if declared.name == "resources":
            reads = default = ResourceKeys
        elif isinstance(reads, Reads):
            reads = Annotated[object, reads]
        model_fields[declared.name] = (reads, key(default, declared.about, declared.shown))
    about = (
        "A job: a script or a command, the data it needs, and where it runs.\n\n"
        "Give exactly one of `script` and `command`. Paths start from the folder of the file."
    )
    return create_model("JobFile", __base__=TextSection, __doc__=about, **model_fields)


def spec_from(
    job: JobSpec | Path | str, args: Sequence[str], options: Mapping[str, object]
) -> JobSpec:
    """From whatever names a job; options win. `args` are passed as they are."""
    if isinstance(job, JobSpec):
        document = {**job.document(), **with_arguments(options, args)}
        return spec_of(document, Path.cwd(), job.name or job.stem, job.stem)
    if Path(job).suffix in (".yaml", ".yml"):
        return read_spec(Path(job), (), with_arguments(options, args))
    return spec_of_script(str(job), args, options)


def with_arguments(options: Mapping[str, object], args: Sequence[str]) -> Mapping[str, object]:
    """Keys of a job with these words after its arguments. Nothing in them is a placeholder."""
    if not args:
        return options
    try:
        before = _words(options.get("args", ()))
    except ValueError as error:
        raise BadJob(where="args", reason=f"args {error}") from None
    return {**options, "args": [*before, *map(escaped, args)]}


def read_spec(
    path: Path, overrides: Sequence[str] = (), options: Mapping[str, object] | None = None
) -> JobSpec:
    """A specification in YAML, with `key=value` overrides. Its paths are relative to its folder.

    `options` has keys of the file as well and takes precedence: mappings are merged, everything
    else is replaced. Its `code` is relative to the current folder.
    """
    from edgeloop.settings import filled_in

    options = dict(options or {})
    if "code" in options:
        options["code"] = str(Path(str(options["code"])).absolute())
    written, origin = read_document(path, BadJob, texts=True)
    if not isinstance(written, dict):
        raise origin.at((), f"{LINES}, for example 'script: train.py'")
    document = {
        key: value if key == "variables" else filled_in(value, path.name)
        for key, value in written.items()
    }
    document, origin = _overridden(document, overrides, origin)
    document = _merged(document, options)
    folder = path.absolute().parent
    spec = spec_of(document, folder, origin, stem=path.stem)
    project = find_project(folder).resolve()
    is_chosen = "code" in options or any(word.startswith("code=") for word in overrides)
    if not is_chosen and not spec.code.is_relative_to(project):
        reason = f"{document['code']!r} leads out of the project {project}"
        raise origin.at(("code",), f"{reason}: to send such a folder, choose it with --code")
    return spec


def spec_of_script(
    script: str,
    args: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    here: Path | None = None,
) -> JobSpec:
    """A script, relative to the current folder; the code is the project around it.

    `options` has the keys of a file: `{"data": ["faces"], "timeout": "2h"}`.
    """
    here = here or Path.cwd()
    options = dict(options or {})
    code = (here / str(options.pop("code", "") or find_project(here))).resolve()
    script_path = (here / script).absolute()
    if not script_path.is_file():
        raise BadJob(where=script, reason=f"there is no file {script_path}")
    script_path = script_path.parent.resolve() / script_path.name
    if not script_path.is_relative_to(code):
        reason = f"it is outside the code folder {code}: copy it there, or choose with --code"
        raise BadJob(where=script, reason=reason)
    path = script_path.relative_to(code).as_posix()
    document = {**with_arguments(options, args), "script": path, "code": str(code)}
    return spec_of(document, code, script, stem=script_path.stem)


def changed(
    spec: JobSpec, overrides: Sequence[str] = (), args: Sequence[str] | None = None
) -> JobSpec:
    """The same job with other keys and params, checked again. `args` replace its arguments, and
    are passed as they are."""
    where = spec.name or spec.stem
    document, _ = _overridden(spec.document(), overrides, Origin(where, BadJob))
    if args is not None:
        document["args"] = [escaped(word) for word in args]
    return spec_of(document, spec.code, where, spec.stem)


def spec_of(
    document: Mapping[str, object], folder: Path, where: str | Origin, stem: str = "job"
) -> JobSpec:
    """Check everything that can be checked without a network; raises BadJob."""
    from edgeloop._util.schema import validated
    from edgeloop.settings import filled_in

    origin = Origin(where, BadJob) if isinstance(where, str) else where
    keys: Any = validated(job_file(), document, origin)
    variables = {**{name: f"${{{name}}}" for name in keys.secrets}, **keys.variables}
    filled_in(variables, origin.name)  # fails now if one is not set
    code = (folder / keys.code).expanduser().resolve()
    if not code.is_dir():
        raise origin.at(("code",), f"the code folder {code} is not there")
    if bool(keys.script) == bool(keys.command):
        both = "both 'script' and 'command' are there" if keys.script else "nothing to run"
        raise origin.at((), f"{both}: give one, for example 'script: train.py'")
    try:
        path: KeyPath = ("script",)
        command = keys.command
        if keys.script:
            command = tuple(map(escaped, program_for(keys.script, code)))
        path = ("environment",)
        environment = keys.environment
        if environment.kind in ("requirements", "conda"):
            inside = _file_of_code(environment.file, code)
            environment = replace(environment, file=inside)
    except ValueError as error:
        raise origin.wrong(path, str(error)) from None
    needs = keys.resources
    checked = {attribute: getattr(keys, key.name) for attribute, key in job_keys().items()}
    checked |= {
        "code": code,
        "command": command,
        "environment": environment,
        "data": tuple(item for item in keys.data if isinstance(item, str)),
        "sources": _places(keys.data, keys.mode),
        "writes": tuple(item for item in keys.writes if isinstance(item, str)),
        "targets": _places(keys.writes, "upload" if keys.mode == "download" else keys.mode),
        "resources": Resources(needs.cpus, needs.gpus, needs.memory, needs.custom, needs.nodes),
        "cpus_given": "cpus" in needs.model_fields_set,
        "variables": variables,
    }
    spec = JobSpec(stem=plain_stem(stem), **checked)
    _check_placeholders(spec, origin)
    return spec


def _check_placeholders(spec: JobSpec, origin: Origin) -> None:
    """Raises BadJob for a placeholder that stands for nothing. In which folder a dataset is may not
    be known yet, so only the last parts of names are compared."""
    from edgeloop.node.ledger import parse_reference

    places = [f"input:{parse_reference(text)[0]}" for text in spec.data]
    places += [f"input:{place.name}" for place in spec.sources]
    places += [f"output:{name}" for name in (*spec.writes, *(p.name for p in spec.targets))]
    texts: dict[KeyPath, Sequence[str]] = {("args",): spec.args}
    if not spec.script:
        texts["command",] = spec.command
    texts |= {("params", name): (value,) for name, value in spec.params.items()}
    texts |= {("sweep", name): values for name, values in spec.sweep.items()}
    for path, several in texts.items():
        own = (*spec.params, *spec.sweep) if len(path) == 1 else ()
        names = [*JOB_PLACEHOLDERS, *own, *places]
        known = {_short_name(name) for name in names}
        for placeholder in itertools.chain.from_iterable(map(placeholders, several)):
            if _short_name(placeholder) not in known:
                raise origin.wrong(path, _unknown(placeholder, names))


def _short_name(placeholder: str) -> str:
    """`input:faces` of `input:working/faces`."""
    kind, colon, name = placeholder.partition(":")
    return f"{kind}:{name.rpartition('/')[2]}" if colon else kind


def _unknown(placeholder: str, names: Sequence[str]) -> str:
    same_kind = [name for name in names if (":" in name) == (":" in placeholder)]
    listed = ", ".join(f"{{{name}}}" for name in same_kind) or "none of this kind"
    hint = did_you_mean(
        placeholder, [*same_kind, *map(_short_name, same_kind)], f"there is {listed}."
    )
    shown = f"{{{placeholder}}}"
    how = f"To pass these characters themselves, write {{{shown}}}"
    return f"has the unknown placeholder {shown}: {hint} {how}"


def _places(written: Sequence[str | RemotePath], mode: str) -> tuple[RemotePath, ...]:
    """Those at URLs; one without a mode of its own has that of the job."""
    remote = [item for item in written if isinstance(item, RemotePath)]
    return tuple(item if item.mode else replace(item, mode=mode) for item in remote)


def program_for(script: str, code: Path) -> tuple[str, ...]:
    """The command that starts a script, by its suffix; ValueError if it cannot be started."""
    path = _file_inside(script, code)
    safe = f"./{script}" if script.startswith("-") else script
    if path.suffix == ".py":
        return ("python", safe)
    if path.suffix == ".sh":
        return ("bash", safe)
    if os.access(path, os.X_OK):
        return (f"./{script}",)
    reason = f"is neither .py nor .sh nor executable: 'chmod +x {script}', or use 'command'"
    raise ValueError(reason)


def _file_of_code(file: str, code: Path) -> str:
    """Its path in the code folder. One that was typed on the command line is absolute."""
    path = Path(file)
    if not path.is_absolute():
        return _file_inside(file, code).relative_to(code).as_posix()
    if not path.is_file():
        raise ValueError(f"names a file that is not there: {path}")
    path = path.parent.resolve() / path.name
    if not path.is_relative_to(code):
        raise ValueError(f"names {path}, which is outside the code folder {code}: copy it there")
    return path.relative_to(code).as_posix()


def _file_inside(file: str, code: Path) -> Path:
    """A file of the code; its path may not lead out of it."""
    path = code / file
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise ValueError(f"must be a path inside the code folder, not {file!r}")
    if not path.is_file():
        raise ValueError(f"names {file!r}, which is not in {code}")
    return path


def _overridden(
    document: Mapping[str, object], overrides: Sequence[str], origin: Origin
) -> tuple[dict[str, object], Origin]:
    from edgeloop._util.schema import with_overrides

    return with_overrides(
        job_file(), document, overrides, origin, example="epochs=30", texts=True, params="params"
    )


def _merged(document: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
    merged = dict(document)
    for name, value in options.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        if name == "secrets":
            merged[name] = [*_listed(before), *_listed(value)]
            continue
        is_one_choice = name == "environment"
        merged[name] = {**before, **value} if both and not is_one_choice else value  # type: ignore[dict-item]
    return merged


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value] if value else []


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.9f}".rstrip("0").rstrip(".") + "s"


# Records of older versions: in them no placeholder is escaped, and unknown ones are plain text.


_ESCAPING, _ESCAPED = "placeholders", "escaped"  # in the document of a record, beside its keys


def as_recorded(document: Mapping[str, object]) -> Mapping[str, object]:
    """The document for a record, marked as one of this version."""
    return {**document, _ESCAPING: _ESCAPED}


def as_submitted(document: Mapping[str, object]) -> Mapping[str, object]:
    """The keys in a record's document. A job of an older version runs again with the words that it
    had: what was plain text then is escaped."""
    if document.get(_ESCAPING) == _ESCAPED:
        return {key: value for key, value in document.items() if key != _ESCAPING}
    params = document.get("params")
    names = {*JOB_PLACEHOLDERS, *(params if isinstance(params, Mapping) else ())}

    def converted(value: object) -> object:
        if isinstance(value, list):
            return [converted(word) for word in value]
        if isinstance(value, Mapping):
            return {name: converted(item) for name, item in value.items()}
        if isinstance(value, str):
            return escaped(value, lambda name: ":" in name or name in names)
        return value

    keys = ("command", "args", "params")
    return {**document, **{key: converted(document[key]) for key in keys if key in document}}


# Many jobs from one: every combination of the values that a sweep names.
#
# `--sweep lr=1e-3,1e-4 --sweep bs=8,16` makes four jobs, NAME-1 to NAME-4; the glob `NAME-*`
# selects them all. The values become params, so they are in each job's record.


LARGEST = 10_000
_QUOTED = re.compile(r"\A(['\"])((?:(?!\1).)*)\1\Z", re.DOTALL)
_CLOSES = {"[": "]", "(": ")", "{": "}"}


def parse_sweep(texts: Iterable[str]) -> dict[str, list[str]]:
    """The values of `--sweep`, as the key `sweep` of a specification."""
    values_by_name: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name:
            reason = f"{text!r} has no values: write it as lr=1e-3,1e-4"
            raise BadJob(where="--sweep", reason=reason)
        if name in values_by_name:
            raise BadJob(where="--sweep", reason=f"{name} is given twice: join its values")
        try:
            values_by_name[name] = split_values(values)
        except BadInput as error:
            raise BadJob(where="--sweep", reason=f"{name}: {error}") from None
    return values_by_name


def split_values(text: str) -> list[str]:
    """At commas, but for those inside quotes or brackets; quotes around a whole value go."""
    values, current, open_brackets, quote = [], "", "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _CLOSES:
            open_brackets += _CLOSES[char]
        elif open_brackets and char == open_brackets[-1]:
            open_brackets = open_brackets[:-1]
        elif char == "," and not open_brackets:
            values.append(current)
            current = ""
            continue
        current += char
    values.append(current)
    if quote or open_brackets:
        raise BadInput(reason=f"a quote or bracket is not closed in {text!r}")
    values = [value.strip() for value in values]
    if "" in values:
        raise BadInput(reason=f"a value is missing in {text!r}")
    return [_QUOTED.sub(r"\2", value) for value in values]


def expand(spec: JobSpec, name: str) -> list[JobSpec]:
    """One specification per combination, with names that sort in this order.

    The last param changes fastest. Without a sweep there is one, with that name.
    """
    if not spec.sweep:
        return [replace(spec, name=name)]
    count = 1
    for values in spec.sweep.values():
        count *= len(values)
    if count > LARGEST:
        reason = f"it would make {count:,} jobs; {LARGEST:,} are the limit"
        raise BadJob(where="sweep", reason=reason)
    width = len(str(count))
    return [
        replace(
            spec,
            name=f"{name}-{number:0{width}d}",
            params={**spec.params, **dict(zip(spec.sweep, values, strict=True))},
            sweep={},
        )
        for number, values in enumerate(itertools.product(*spec.sweep.values()), start=1)
    ]
