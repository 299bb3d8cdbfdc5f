"""The keys of a specification: what each may hold, and what it becomes.

A check takes what was written and the code folder, and returns a value or raises `Wrong`, whose
text goes on where the key ended: "retries" + "must be a whole number, not 'two'".
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from edgeloop.errors import BadInput, BadName
from edgeloop.jobs.computes.base import Resources
from edgeloop.jobs.sweep import split_values
from edgeloop.jobs.ticket import Environment
from edgeloop.jobs.units import SIZE_FORMS, TIME_FORMS, bytes_of, seconds_of

NAME_LIMIT = 100
MADE_NAME_LIMIT = 120  # of a sweep's member or an attempt: NAME-00012.3
RESERVED_NAMES = frozenset({"all", "last"})  # they select jobs
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*")
_EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{2,39}")
_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_RESOURCES = ("cpus", "gpus", "memory", "nodes", "custom")


class Wrong(Exception):
    """Why a value cannot be used; `below` names the key inside the key."""

    def __init__(self, reason: str, below: str = "") -> None:
        super().__init__(reason)
        self.below = below


def check_job_name(name: str, limit: int = NAME_LIMIT) -> str:
    """The rule of models' names: it becomes a folder, a part of keys and of other names."""
    if len(name) > limit:
        raise Wrong(f"has {len(name)} characters; {limit} are the limit")
    if not _PLAIN.fullmatch(name):
        raise Wrong(
            "may hold letters, digits, '.', '_' and '-', and begins with a letter or digit, "
            f"not {name!r}"
        )
    if name in RESERVED_NAMES:
        raise Wrong(f"cannot be {name!r}: that word selects jobs")
    return name


def plain_stem(text: str) -> str:
    """The nearest name that is allowed: `2-train (copy)` is `2-train-copy`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:40].strip("-._")
    return plain if plain and plain not in RESERVED_NAMES else "job"


def program_for(script: str, code: Path) -> tuple[str, ...]:
    """How a script is started, by its name; Wrong where it cannot be."""
    path = _file_inside(script, code)
    safe = f"./{script}" if script.startswith("-") else script
    if path.suffix == ".py":
        return ("python", safe)
    if path.suffix == ".sh":
        return ("bash", safe)
    if os.access(path, os.X_OK):
        return (f"./{script}",)
    raise Wrong(f"is neither .py nor .sh nor executable: 'chmod +x {script}', or use 'command'")


def _name(raw: object, code: Path) -> str:
    return check_job_name(_text(raw))


def _script(raw: object, code: Path) -> tuple[str, tuple[str, ...]]:
    script = Path(_text(raw)).as_posix()
    return script, program_for(script, code)


def _words(raw: object, code: Path) -> tuple[str, ...]:
    """A list as it is; a text split as a shell would, though none ever sees it."""
    if isinstance(raw, str):
        try:
            raw = shlex.split(raw)
        except ValueError:
            raise Wrong(f"has a quote that is never closed: {raw!r}") from None
    return tuple(_argument(word) for word in _list(raw))


def _command(raw: object, code: Path) -> tuple[str, ...]:
    words = _words(raw, code)
    if not words or not words[0]:
        raise Wrong("must name a program")
    return words


def _argument(raw: object) -> str:
    text = _text(raw)
    if "\0" in text:
        raise Wrong("has an argument with a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Wrong(f"has an argument that is no UTF-8 text: {text!a}") from None
    return text


def _datasets(raw: object, code: Path) -> tuple[str, ...]:
    return _each(raw, _dataset)


def _written(raw: object, code: Path) -> tuple[str, ...]:
    return _each(raw, _new_dataset)


def _dataset(raw: object) -> str:
    from edgeloop.data import parse_reference

    return _named_as(raw, parse_reference)


def _new_dataset(raw: object) -> str:
    from edgeloop.data import check_name

    return _named_as(raw, check_name)


def _named_as(raw: object, check: Callable[[str], object]) -> str:
    name = _text(raw)
    try:
        check(name)
    except BadName as error:
        raise Wrong(f"cannot hold {name!r}: {error.fields['reason']}") from None
    return name


def _environment(raw: object, code: Path) -> Environment:
    """`here`, a file by its ending, `{requirements: FILE}`, `{conda: FILE}` or `{image: NAME}`."""
    if raw == "here":
        return Environment()
    if isinstance(raw, Mapping) and set(raw) == {"image"}:
        expected = "the name of an image, as ghcr.io/acme/train:3"
        return Environment("image", _matching(raw["image"], _IMAGE, expected))
    if isinstance(raw, Mapping) and len(raw) == 1 and set(raw) <= {"requirements", "conda"}:
        kind, file = next(iter(raw.items()))
        file = _text(file)
    elif isinstance(raw, str):
        file, kind = raw, _kind_of(raw)
    else:
        raise Wrong("must be 'here', a requirements.txt or a conda .yaml file")
    _file_inside(file, code)
    return Environment(kind, Path(file).as_posix())


def _kind_of(file: str) -> Literal["requirements", "conda"]:
    suffix = Path(file).suffix
    if suffix == ".txt":
        return "requirements"
    if suffix in (".yml", ".yaml"):
        return "conda"
    raise Wrong(f"must be 'here', a requirements.txt or a conda .yaml file, not {file!r}")


def _file_inside(file: str, code: Path) -> Path:
    """A file of the code, by a path that stays in it."""
    path = code / file
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise Wrong(f"must be a path inside the code folder, not {file!r}")
    if not path.is_file():
        raise Wrong(f"names {file!r}, which is not in {code}")
    return path


def _compute(raw: object, code: Path) -> str:
    return _matching(raw, _PLAIN, "the name of a compute, as in edgeloop.yaml")


def _resources(raw: object, code: Path) -> Resources:
    given = _mapping(raw)
    for key in given:
        if key not in _RESOURCES:
            raise Wrong(f"has no key {key!r}: there are {', '.join(_RESOURCES)}")
    counted = _mapping(given.get("custom"))
    custom = {name: _number(value, f"custom.{name}") for name, value in counted.items()}
    cpus, gpus = _number(given.get("cpus", 1), "cpus"), _number(given.get("gpus", 0), "gpus")
    if cpus <= 0:
        raise Wrong("must be a number above 0", "cpus")
    nodes = _number(given.get("nodes", 1), "nodes")
    if nodes < 1 or nodes != int(nodes):
        raise Wrong("must be a whole number, 1 or more", "nodes")
    return Resources(cpus, gpus, _memory(given.get("memory")), custom, int(nodes))


def _memory(raw: object) -> int:
    if raw in (None, "", "null", "~"):
        return 0
    size = bytes_of(_text(raw))
    if not size:
        raise Wrong(f"must be {SIZE_FORMS}, not {_text(raw)!r}", "memory")
    return size


def _number(raw: object, below: str) -> float:
    try:
        number = float(_text(raw))
    except ValueError:
        number = math.nan
    if not 0 <= number < 1e9:  # what is no number fails this too
        raise Wrong(f"must be a number, not {raw!r}", below)
    return number


def _tags(raw: object, code: Path) -> tuple[str, ...]:
    expected = "plain words of letters, digits, '.', '_', '=' and '-'"
    return tuple(dict.fromkeys(_each(raw, lambda item: _matching(item, _TAG, expected))))


def _experiment(raw: object, code: Path) -> str:
    return _matching(raw, _EXPERIMENT, "3 to 40 letters, digits, '_' and '-'")


def _timeout(raw: object, code: Path) -> float:
    seconds = seconds_of(_text(raw))
    if not seconds:
        raise Wrong(f"must be {TIME_FORMS}, not {_text(raw)!r}")
    return seconds


def _grace(raw: object, code: Path) -> float:
    seconds = seconds_of(_text(raw))
    if seconds is None:
        raise Wrong(f"must be {TIME_FORMS}, not {_text(raw)!r}")
    return seconds


def _whole(raw: object, code: Path) -> int:
    text = _text(raw)
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise Wrong(f"must be a whole number, 0 or more, not {text!r}")
    return int(text)


def _params(raw: object, code: Path) -> dict[str, str]:
    return {_param(name): _argument(_single(name, value)) for name, value in _mapping(raw).items()}


def _sweep(raw: object, code: Path) -> dict[str, tuple[str, ...]]:
    """A list of values a param, or a text with commas."""
    found = {}
    for name, value in _mapping(raw).items():
        try:
            values = split_values(value) if isinstance(value, str) else _list(value)
        except BadInput as error:
            raise Wrong(f"cannot be read: {error}", name) from None
        if not values:
            raise Wrong("has no values", name)
        found[_param(name)] = tuple(_argument(_single(name, item)) for item in values)
    return found


def _param(name: str) -> str:
    if not _PARAM.fullmatch(name):
        raise Wrong(f"may hold names of letters, digits, '_', '.' and '-', not {name!r}")
    return name


def _single(name: str, value: object) -> str:
    if isinstance(value, list | tuple | Mapping):
        raise Wrong("must be a single value; quote it where it is a list for the script", name)
    return _text(value)


def _variables(raw: object, code: Path) -> dict[str, str]:
    found = {name: _argument(_single(name, value)) for name, value in _mapping(raw).items()}
    for name in found:
        if not _VARIABLE.fullmatch(name):
            raise Wrong(f"may hold names of letters, digits and '_', not {name!r}")
        if name.startswith("EDGELOOP_"):
            raise Wrong("cannot be set: Edgeloop sets these variables itself", name)
    return found


def _text(raw: object) -> str:
    if isinstance(raw, str):
        return raw
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return str(raw)
    raise Wrong(f"must be a text or a number, not {raw!r}")


def _list(raw: object) -> Sequence[object]:
    if isinstance(raw, list | tuple):
        return raw
    raise Wrong(f"must be a list, not {raw!r}")


def _each(raw: object, check: Callable[[object], str]) -> tuple[str, ...]:
    """A list, or one text where the list would have one item."""
    return tuple(check(item) for item in ([raw] if isinstance(raw, str) else _list(raw)))


def _mapping(raw: object) -> dict[str, object]:
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise Wrong(f"must hold 'key: value' lines, not {raw!r}")
    return {str(key): value for key, value in raw.items()}


def _matching(raw: object, pattern: re.Pattern[str], expected: str) -> str:
    text = _text(raw)
    if not pattern.fullmatch(text):
        raise Wrong(f"must be {expected}, not {text!r}")
    return text


def _code(raw: object, code: Path) -> str:
    return _text(raw)


KEYS: Mapping[str, Callable[[object, Path], object]] = {
    **{"name": _name, "script": _script, "command": _command, "args": _words, "code": _code},
    **{"data": _datasets, "writes": _written, "environment": _environment, "compute": _compute},
    **{"resources": _resources, "tags": _tags, "experiment": _experiment, "timeout": _timeout},
    **{"retries": _whole, "priority": _whole, "grace": _grace, "params": _params},
    **{"sweep": _sweep, "variables": _variables},
}
