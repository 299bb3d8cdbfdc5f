"""The keys of a job file: what each may hold, and what it becomes.

A job file is read as texts, so that a learning rate of `1e-3` reaches the script as it was typed;
a key that is empty counts as not given. Whether files are there is checked by `spec`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
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
    items,
    matching,
    number,
    plain_text,
    shown,
    words,
)
from edgeloop.errors import BadInput, BadName
from edgeloop.jobs.computes.base import Resources
from edgeloop.jobs.protocol.ticket import Environment
from edgeloop.jobs.sweep import split_values

NAME_LIMIT = 100
MADE_NAME_LIMIT = 120  # of a sweep's member or an attempt: NAME-00012.3
RESERVED_NAMES = frozenset({"all", "last"})  # they select jobs
DEFAULT_PRIORITY = 100
DEFAULT_GRACE_S = 30.0
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_FILES = "must be 'here', a requirements.txt or a conda .yaml file"
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


def _words(value: object) -> tuple[str, ...]:
    """A list as it is; a text split as a shell would, though none ever sees it."""
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError:
            raise ValueError(f"has a quote that is never closed: {shown(value)}") from None
    return tuple(_argument(word) for word in items(value))


def _command(value: object) -> tuple[str, ...]:
    command = _words(value)
    if not command or not command[0]:
        raise ValueError("must name a program")
    return command


def _dataset(value: object) -> str:
    from edgeloop.data import parse_reference

    return _named_as(value, parse_reference)


def _new_dataset(value: object) -> str:
    from edgeloop.data import check_name

    return _named_as(value, check_name)


def _named_as(value: object, check: Callable[[str], object]) -> str:
    name = plain_text(value)
    try:
        check(name)
    except BadName as error:
        raise ValueError(f"cannot hold {name!r}: {error.fields['reason']}") from None
    return name


def _environment(value: object) -> Environment:
    """`here`, a file by its ending, `{requirements: FILE}`, `{conda: FILE}` or `{image: NAME}`."""
    if value == "here":
        return Environment()
    if isinstance(value, Mapping) and set(value) == {"image"}:
        image = plain_text(value["image"])
        if not _IMAGE.fullmatch(image):
            expected = "the name of an image, for example ghcr.io/acme/train:3"
            raise ValueError(f"must be {expected}, not {image!r}")
        return Environment("image", image)
    if isinstance(value, Mapping) and len(value) == 1 and set(value) <= {"requirements", "conda"}:
        kind, file = next(iter(value.items()))
        return Environment(kind, Path(plain_text(file)).as_posix())
    if isinstance(value, str):
        return Environment(_kind_of(value), Path(value).as_posix())
    raise ValueError(_FILES)


def _kind_of(file: str) -> Literal["requirements", "conda"]:
    suffix = Path(file).suffix
    if suffix == ".txt":
        return "requirements"
    if suffix in (".yml", ".yaml"):
        return "conda"
    raise ValueError(f"{_FILES}, not {file!r}")


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


def _param_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
        raise ValueError(f"may hold names of letters, digits, '_', '.' and '-', not {name!r}")
    return name


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"may hold names of letters, digits and '_', not {name!r}")
    if name.startswith("EDGELOOP_"):
        raise ValueError(f"cannot hold {name}: Edgeloop sets these variables itself")
    return name


def _tags(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words(value, _TAG.read)))


_NAME = Reads(lambda value: check_job_name(plain_text(value)), PLAIN_TEXT.schema)
_PATH = Reads(lambda value: Path(plain_text(value)).as_posix(), {"type": "string"})
_Argument = Annotated[str, Reads(_single, SCALAR)]
_ParamName = Annotated[str, Reads(_param_name, {"type": "string"})]
_VariableName = Annotated[str, Reads(_variable_name, {"type": "string"})]


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
    command: Annotated[tuple[str, ...], Reads(_command, _WORDS)] = key(
        (), "The program and its arguments, as a list or one text; no shell is used."
    )
    args: Annotated[tuple[str, ...], Reads(_words, _WORDS)] = key(
        (), "Arguments; `{outputs}`, `{input:NAME}` and `{PARAM}` are filled in."
    )
    code: PlainText = key(".", "The folder that travels with the job.")
    data: Annotated[tuple[str, ...], Reads(lambda value: words(value, _dataset), _SEVERAL)] = key(
        (), "Datasets to lay out before it starts, for example `working/faces@3`."
    )
    writes: Annotated[
        tuple[str, ...], Reads(lambda value: words(value, _new_dataset), _SEVERAL)
    ] = key((), "Datasets that it creates; their new versions are stored.")
    environment: Annotated[Environment, Reads(_environment, _ENVIRONMENT)] = key(
        Environment, "`here`, a requirements.txt, a conda .yaml file, or `{image: NAME}`."
    )
    compute: Annotated[str, matching(_PLAIN, "the name of a compute, as in edgeloop.yaml")] = key(
        "", "Where it runs: a name under `computes` in edgeloop.yaml."
    )
    resources: ResourceKeys = key(ResourceKeys, "What the job needs of each machine.")
    tags: Annotated[tuple[str, ...], Reads(_tags, _SEVERAL)] = key((), "Words to select jobs by.")
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
