"""The keys of a job file: what each may hold, and what it becomes.

A job file is read as texts, so that a learning rate of `1e-3` reaches the script as it was typed;
a key that is empty counts as not given. Whether files are there is checked by `spec`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import model_validator

from edgeloop._util.schema import Section, key
from edgeloop._util.values import (
    PLAIN_TEXT,
    POSITIVE_TIME,
    SCALAR,
    SIZE,
    Count,
    PlainText,
    Reads,
    Seconds,
    Whole,
    choice,
    items,
    matching,
    number,
    plain_text,
    shown,
    words,
)
from edgeloop.errors import BadInput, BadName
from edgeloop.jobs.computes.base import Resources
from edgeloop.jobs.package import CORE, EXTRAS
from edgeloop.jobs.protocol.patterns import MOST_PATTERNS, check_pattern
from edgeloop.jobs.protocol.ticket import Environment
from edgeloop.jobs.protocol.urls import (
    INPUT_MODES,
    OUTPUT_MODES,
    RemotePath,
    is_remote,
    read_remote,
)
from edgeloop.jobs.sweep import split_values

NAME_LIMIT = 100
MADE_NAME_LIMIT = 120  # of a sweep's member or an attempt: NAME-00012.3
RESERVED_NAMES = frozenset({"all", "last"})  # they select jobs
DEFAULT_PRIORITY = 100
DEFAULT_GRACE_S = 30.0
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_REGISTERED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}([:@][A-Za-z0-9._-]+)?")
_ENDINGS: Mapping[str, Literal["requirements", "conda"]] = {
    **{".txt": "requirements", ".yml": "conda", ".yaml": "conda"},
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
            **{"additionalProperties": False, "minProperties": 1, "maxProperties": 1},
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
    found = tuple(_argument(word) for word in items(value))
    if is_program and not (found and found[0]):
        raise ValueError("must name a program")
    return found


def _data(rule: str, is_output: bool) -> Reads:
    """Names that a function of `edgeloop.data` accepts, and URLs."""

    def one(value: object) -> str | RemotePath:
        import edgeloop.data

        if is_remote(value):
            return read_remote(value, is_output)
        name = plain_text(value)
        try:
            getattr(edgeloop.data, rule)(name)
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
        **{"required": ["url"], "additionalProperties": False},
    }
    several = {"type": "array", "items": {"anyOf": [PLAIN_TEXT.schema, entry]}}
    return Reads(read, {"anyOf": [PLAIN_TEXT.schema, several]})


def _pattern(value: object) -> str:
    try:
        return check_pattern(plain_text(value))
    except ValueError as error:
        raise ValueError(f"has a pattern that {error}") from None


def _patterns(value: object) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(words(value, _pattern)))
    if len(found) > MOST_PATTERNS:
        raise ValueError(f"has {len(found)} patterns; {MOST_PATTERNS} are the limit")
    return found


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

    def read(name: str) -> str:
        if not re.fullmatch(pattern, name):
            raise ValueError(f"may hold names of {allowed}, not {name!r}")
        return name

    return Reads(read, {"type": "string"})


_TAGS = Reads(lambda value: tuple(dict.fromkeys(words(value, _TAG.read))), _SEVERAL)
_EXTRA = choice(CORE, *EXTRAS)
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


class _TextSection(Section):
    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: item for key, item in value.items() if item not in ("", "null", "~")}


class ResourceKeys(_TextSection):
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

    def resources(self) -> Resources:
        return Resources(self.cpus, self.gpus, self.memory, self.custom, self.nodes)


class JobFile(_TextSection):
    """A job: a script or a command, the data it needs, and where it runs.

    Give exactly one of `script` and `command`. Paths start from the folder of the file.
    """

    name: Annotated[str, _NAME] = key("", "Its name; by default made from the name of the file.")
    script: Annotated[str, _PATH] = key("", "A `.py`, `.sh` or executable file of the code folder.")
    command: Annotated[tuple[str, ...], Reads(partial(_words, is_program=True), _WORDS)] = key(
        (), "The program and its arguments, as a list or one text; no shell is used."
    )
    args: Annotated[tuple[str, ...], Reads(_words, _WORDS)] = key(
        (), "Arguments; `{outputs}`, `{input:NAME}` and `{PARAM}` are filled in."
    )
    code: PlainText = key(".", "The folder that travels with the job.")
    data: Annotated[tuple[str | RemotePath, ...], _data("parse_reference", False)] = key(
        (), "What it reads: datasets such as `working/faces@3`, and URLs (`faces=s3://…`)."
    )
    writes: Annotated[tuple[str | RemotePath, ...], _data("check_name", True)] = key(
        (), "What it creates: datasets, stored as new versions, and URLs to write to."
    )
    mode: Annotated[str, choice("mount", "download")] = key(
        "", "How data at URLs is provided; by default as the compute can.", shown=""
    )
    outputs: Annotated[tuple[str, ...], Reads(_patterns, _SEVERAL)] = key(
        (), "Patterns of files to collect besides `outputs/`, for example `results` or `**/*.ckpt`."
    )
    environment: Annotated[Environment, ENVIRONMENT] = key(
        Environment,
        "`here`, a requirements.txt, a conda .yaml file, `{image: NAME}` or `{name: NAME}`.",
    )
    compute: Annotated[str, matching(_PLAIN, "the name of a compute, as in edgeloop.yaml")] = key(
        "", "Where it runs: a name under `computes` in edgeloop.yaml."
    )
    resources: ResourceKeys = key(ResourceKeys, "What the job needs of each machine.")
    tags: Annotated[tuple[str, ...], _TAGS] = key((), "Words to select jobs by.")
    experiment: Annotated[str, matching(*_EXPERIMENT)] = key(
        "", "Experiment of the models it uploads."
    )
    timeout: Annotated[float | None, POSITIVE_TIME] = key(
        None, "How long it may run, for example `2h`."
    )
    retries: Whole = key(0, "How often it is started again after it failed.")
    priority: Whole = key(DEFAULT_PRIORITY, "Jobs with a smaller number start first.")
    grace: Seconds = key(
        DEFAULT_GRACE_S, "Time between the request to end and the kill.", shown="30s"
    )
    params: dict[_ParamName, _Argument] = key(
        dict, "Values for `{PARAM}` in the command; the others become `--PARAM VALUE`."
    )
    sweep: dict[_ParamName, Annotated[tuple[str, ...], Reads(_sweep_values, _WORDS)]] = key(
        dict, "Params with several values: one job per combination."
    )
    variables: dict[_VariableName, _Argument] = key(
        dict, "Environment variables; `${NAME}` is filled in where the job is submitted."
    )
    secrets: Annotated[tuple[str, ...], _SECRETS] = key(
        (), "Variables with secret values; one that is not set above is that of your environment."
    )
    edgeloop: Annotated[tuple[str, ...], _EDGELOOP] = key(
        (), "Sends Edgeloop itself along, for scripts that import it: `core`, or its extras."
    )
