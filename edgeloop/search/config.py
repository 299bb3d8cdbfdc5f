"""What a search is told: a YAML file, `key=value` words that change it, and nothing unknown."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from edgeloop.errors import BadSetting
from edgeloop.settings import filled_in

Goal = Literal["min", "max"]

MINIMISED = ("params", "macs", "host_latency_ms", "chip_latency_ms", "farm_latency_ms")
MAXIMISED = ("val_iou", "val_f1", "farm_f1")
VALUES = (*MINIMISED, *MAXIMISED)
TRAINED = ("val_iou", "val_f1")
SAMPLERS = ("default", "tpe", "nsga2", "gp", "random")
DEFAULT_CHIP = "htp:snapdragon-888"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{2,39}")

_TOP = ("search", "objectives", "data", "store", "experiment", "task", "farm")
_SEARCH = (
    *("name", "space", "options", "size", "classes", "budget", "sampler", "seed", "workers"),
    *("batch", "constraints", "retries", "failures", "iteration", "folder", "publish"),
)
_OBJECTIVES = {
    "params": ("goal",),
    "macs": ("goal",),
    "host_latency_ms": ("goal", "repeats", "warm_up"),
    "chip_latency_ms": ("goal", "device"),
    "farm_latency_ms": ("goal", "device", "timeout"),
    "farm_f1": ("goal", "stage", "timeout"),
    "val_iou": ("goal", "train"),
    "val_f1": ("goal", "train"),
}
_TRAIN = (
    *("epochs", "steps", "batch", "learning_rate", "seed", "images", "validation_images"),
    *("patience", "device", "compute", "cpus", "gpus", "memory", "timeout", "at_once", "group"),
    "pipeline",
)
_FARM = ("timeout", "device", "stage")
_WHOLE = {  # the least that each may be
    **dict.fromkeys(("epochs", "steps", "batch", "images", "validation_images", "patience"), 1),
    **dict.fromkeys(("at_once", "group", "pipeline", "repeats"), 1),
    **dict.fromkeys(("seed", "warm_up"), 0),
}
_AMOUNTS = ("cpus", "gpus")
_WHERE_AND_WHEN = (
    *("compute", "cpus", "gpus", "memory", "timeout", "at_once", "group", "pipeline"),
)


@dataclass(frozen=True)
class Objective:
    name: str
    goal: Goal
    options: Mapping[str, object] = field(default_factory=dict)

    def minimised(self, value: float) -> float:
        return value if self.goal == "min" else -value


@dataclass(frozen=True)
class SearchConfig:
    """Checked. `document` is the whole of it as written, for the record of what was searched: a
    `${NAME}` in it stays one, for what it stands for may be a secret."""

    name: str
    objectives: tuple[Objective, ...]
    data: str = ""
    space: str = "hourglass"
    options: Mapping[str, Any] = field(default_factory=dict)
    size: tuple[int, int] = (64, 64)
    classes: int = 19
    budget: int = 24
    sampler: str = "default"
    seed: int = 0
    workers: int = 1
    batch: int = 0  # 0: asynchronous; else so many at a time, and all must end before the next
    constraints: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    retries: int = 1
    failures: int = 10
    iteration: int = 10
    publish: Literal["front", "none"] = "front"
    folder: str = ""
    store: str = ""
    experiment: str = ""
    task: str = ""  # what the net answers
    farm: Mapping[str, object] = field(default_factory=dict)
    document: Mapping[str, object] = field(default_factory=dict, repr=False)

    @property
    def train(self) -> Mapping[str, object] | None:
        """How candidates are trained, where an objective asks for it."""
        for objective in self.objectives:
            if objective.name in TRAINED:
                found = objective.options.get("train") or {}
                named = {"task": self.task} if self.task else {}
                return {**(found if isinstance(found, Mapping) else {}), **named}
        return None

    @property
    def wanted(self) -> tuple[str, ...]:
        """All values that objectives and constraints are about."""
        names = (*(objective.name for objective in self.objectives), *self.constraints)
        return tuple(dict.fromkeys(names))

    def identity(self) -> dict[str, object]:
        """What must be the same for a search to be continued. A budget may grow, and where it is
        trained may change."""
        return {
            "space": self.space,
            "options": dict(self.options),
            "size": list(self.size),
            "classes": self.classes,
            "sampler": self.sampler,
            "seed": self.seed,
            "constraints": {name: list(pair) for name, pair in self.constraints.items()},
            "objectives": {
                o.name: {"goal": o.goal, **_decisive(o.options)} for o in self.objectives
            },
            "data": self.data,
            "task": self.task,
            "farm": _decisive(self.farm),
        }


def _decisive(options: Mapping[str, object]) -> dict[str, object]:
    """Without what says only where, or how long it may take."""
    return {
        name: _decisive(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if name not in _WHERE_AND_WHEN
    }


def read_config(path: Path, overrides: Sequence[str] = ()) -> SearchConfig:
    """Read, change, check; BadSetting says what is wrong and what was meant."""
    import yaml

    where = path.name
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadSetting(where=str(path), reason="there is no such file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise BadSetting(where=where, reason=f"cannot be read as YAML{line}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(where=where, reason=f"cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise BadSetting(where=where, reason="must hold 'search:' and 'objectives:'")
    for word in overrides:
        _override(content, word, where)
    filled = filled_in(content, where)
    assert isinstance(filled, dict)
    return replace(config_of(filled, where, path.stem), document=content)


def config_of(document: Mapping[str, object], where: str, stem: str = "search") -> SearchConfig:
    check = _Check(where)
    check.keys(document, _TOP, "")
    search = check.mapping(document.get("search", {}), "search")
    check.keys(search, _SEARCH, "search.")
    objectives = _objectives(check, check.mapping(document.get("objectives", {}), "objectives"))
    constraints = _constraints(check, search.get("constraints", {}))
    _check_training(check, [*(objective.name for objective in objectives)], constraints)
    farm = check.mapping(document.get("farm", {}), "farm")
    check.keys(farm, _FARM, "farm.")
    check.values(farm, "farm.")
    name = check.text(search.get("name", stem), "search.name")
    if not _NAME.fullmatch(name):
        raise check.wrong("search.name", f"must be 3 to 40 letters, digits, - and _, not {name!r}")
    data = check.text(document.get("data", ""), "data")
    if not data and any(objective.name in TRAINED for objective in objectives):
        raise check.wrong("data", "must name the dataset to train with, as working/faces128")
    return SearchConfig(
        name=name,
        objectives=objectives,
        data=data,
        space=check.text(search.get("space", "hourglass"), "search.space"),
        options=check.mapping(search.get("options", {}), "search.options"),
        size=_size(check, search.get("size", 64)),
        classes=check.whole(search.get("classes", 19), "search.classes", 2),
        budget=check.whole(search.get("budget", 24), "search.budget", 1),
        sampler=check.one_of(search.get("sampler", "default"), "search.sampler", SAMPLERS),
        seed=check.whole(search.get("seed", 0), "search.seed", 0),
        workers=check.whole(search.get("workers", 1), "search.workers", 1),
        batch=check.whole(search.get("batch", 0), "search.batch", 0),
        constraints=constraints,
        retries=check.whole(search.get("retries", 1), "search.retries", 0),
        failures=check.whole(search.get("failures", 10), "search.failures", 0),
        iteration=check.whole(search.get("iteration", 10), "search.iteration", 1),
        publish=check.one_of(search.get("publish", "front"), "search.publish", ("front", "none")),  # type: ignore[arg-type]
        folder=check.text(search.get("folder", ""), "search.folder"),
        store=check.text(document.get("store", "") or "", "store"),
        experiment=check.text(document.get("experiment", ""), "experiment"),
        task=_task(check, document.get("task")),
        farm=farm,
        document=document,
    )


class _Check:
    """Values of a document; what is wrong is said with its key."""

    def __init__(self, where: str) -> None:
        self._where = where

    def wrong(self, key: str, reason: str) -> BadSetting:
        return BadSetting(where=self._where, reason=f"{key} {reason}")

    def keys(self, mapping: Mapping[str, object], known: Sequence[str], prefix: str) -> None:
        for key in mapping:
            if key not in known:
                raise unknown(self._where, f"{prefix}{key}", [f"{prefix}{name}" for name in known])

    def mapping(self, value: object, key: str) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong(key, "must hold 'key: value' lines")
        return {str(name): item for name, item in value.items()}

    def text(self, value: object, key: str) -> str:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise self.wrong(key, f"must be a text, not {value!r}")
        return str(value)

    def whole(self, value: object, key: str, least: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"must be a whole number from {least} on, not {value!r}")
        return value

    def number(self, value: object, key: str) -> float:
        """YAML reads 1e4 as a text; people do not."""
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if math.isnan(number) or isinstance(value, bool):
            raise self.wrong(key, f"must be a number, not {value!r}")
        return number

    def one_of(self, value: object, key: str, known: Sequence[str]) -> str:
        if value not in known:
            near = difflib.get_close_matches(str(value), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            raise self.wrong(key, f"cannot be {value!r}: {hint}")
        return str(value)

    def values(self, mapping: Mapping[str, object], prefix: str) -> None:
        """Said now, and not by the training that meets it."""
        from edgeloop._util.units import TIME_FORMS, bytes_of, seconds_of

        for name, value in mapping.items():
            key = f"{prefix}{name}"
            if value is None:
                continue
            if name in _WHOLE:
                self.whole(value, key, _WHOLE[name])
            elif name in _AMOUNTS and not (0 <= self.number(value, key) < math.inf):
                raise self.wrong(key, f"must be 0 or more, not {value!r}")
            elif name == "learning_rate" and not (0 < self.number(value, key) < math.inf):
                raise self.wrong(key, f"must be above 0, not {value!r}")
            elif name == "timeout" and not seconds_of(str(value)):
                raise self.wrong(key, f"must be {TIME_FORMS}, not {value!r}")
            elif name == "memory" and not bytes_of(str(value)):
                raise self.wrong(key, f"must be a size like 4GB or 512MiB, not {value!r}")
            elif name in ("device", "stage", "compute"):
                self.text(value, key)


def unknown(where: str, key: str, known: Sequence[str]) -> BadSetting:
    """`search.budgt` is near `search.budget`; so is a bare `budget`."""
    by_last = {name.rpartition(".")[2]: name for name in known}
    near = difflib.get_close_matches(key.rpartition(".")[2], by_last, n=1)
    hint = f"did you mean {by_last[near[0]]!r}?" if near else f"known keys are {', '.join(known)}."
    return BadSetting(where=where, reason=f"unknown key {key!r}: {hint}")


def _objectives(check: _Check, written: Mapping[str, object]) -> tuple[Objective, ...]:
    if not written:
        raise check.wrong("objectives", f"must name at least one of {', '.join(VALUES)}")
    found = []
    for name, value in written.items():
        if name not in _OBJECTIVES:
            raise unknown(check._where, f"objectives.{name}", [f"objectives.{v}" for v in VALUES])
        options = check.mapping(value, f"objectives.{name}")
        check.keys(options, _OBJECTIVES[name], f"objectives.{name}.")
        check.values(options, f"objectives.{name}.")
        usual: Goal = "min" if name in MINIMISED else "max"
        key = f"objectives.{name}.goal"
        goal = check.one_of(options.pop("goal", usual), key, ("min", "max"))
        if "train" in options:
            train = check.mapping(options["train"], f"objectives.{name}.train")
            check.keys(train, _TRAIN, f"objectives.{name}.train.")
            check.values(train, f"objectives.{name}.train.")
            options["train"] = train
        found.append(Objective(name, goal, options))  # type: ignore[arg-type]
    trains = [o.options.get("train") for o in found if o.name in TRAINED and o.options.get("train")]
    if any(train != trains[0] for train in trains):
        raise check.wrong("objectives", "name one way to train; val_iou and val_f1 come from it")
    return tuple(found)


def _check_training(
    check: _Check, objectives: Sequence[str], constraints: Mapping[str, object]
) -> None:
    """How to train stands with an objective; without one, nothing would ever be trained."""
    if any(name in TRAINED for name in objectives):
        return
    of_training = (*TRAINED, "farm_f1")
    for key, names in (("objectives", objectives), ("search.constraints", constraints)):
        for name in names:
            if name in of_training:
                raise check.wrong(f"{key}.{name}", "needs val_iou or val_f1 among the objectives")


def _constraints(check: _Check, written: object) -> dict[str, tuple[float, float]]:
    found = {}
    for name, value in check.mapping(written, "search.constraints").items():
        key = f"search.constraints.{name}"
        if name not in VALUES:
            known = [f"search.constraints.{value}" for value in VALUES]
            raise unknown(check._where, key, known)
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise check.wrong(key, f"must be [least, most], not {value!r}")
        low, high = (check.number(item, key) for item in value)
        if low > high:
            raise check.wrong(key, f"allows nothing: {low:g} is above {high:g}")
        found[name] = (low, high)
    return found


def _task(check: _Check, value: object) -> str:
    from edgeloop.tasks import task_names

    return check.one_of(value, "task", task_names()) if value is not None else ""


def _size(check: _Check, value: object) -> tuple[int, int]:
    sides = value if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2:
        raise check.wrong("search.size", "must be a side, as 128, or [height, width]")
    height, width = (check.whole(side, "search.size", 8) for side in sides)
    return height, width


def _override(document: dict[str, Any], word: str, where: str) -> None:
    """`search.budget=24` as YAML would read it there; keys that do not exist are found later."""
    import yaml

    key, equals, text = word.partition("=")
    if not equals or not key:
        reason = f"{word!r} is no change: write key=value, as search.budget=24"
        raise BadSetting(where=where, reason=reason)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise BadSetting(where=where, reason=f"the value of {key} cannot be read") from None
    place: dict[str, Any] = document
    *path, last = key.split(".")
    if not path and key not in _TOP:
        raise unknown(where, key, [*_TOP, *(f"search.{name}" for name in _SEARCH)])
    for part in path:
        below = place.get(part)
        if not isinstance(below, dict):
            below = place[part] = {}
        place = below
    place[last] = value


Teller = Callable[[str], None]
