"""What a search is told: a YAML file, `key=value` words that change it, and nothing unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from edgeloop._util.schema import validated, with_overrides
from edgeloop._util.values import suggestion
from edgeloop._util.yaml import Origin, read_document
from edgeloop.errors import BadSetting
from edgeloop.search.base import device_of, on_device, value_of
from edgeloop.search.keys import (
    CHIP,
    DEFAULT_CHIP,
    MAXIMISED,
    MINIMISED,
    NO_LIMIT,
    SEARCH_NAME,
    TRAINED,
    VALUES,
    SearchFile,
    SearchKeys,
)
from edgeloop.search.stopping import Rungs, rungs_of
from edgeloop.settings import check_variables, filled_in
from edgeloop.tasks import FACE_CLASSES

Goal = Literal["min", "max"]

_WHERE_AND_WHEN = (
    *("compute", "cpus", "gpus", "memory", "timeout", "at_once", "group", "pipeline"),
    "environment",
)
_OF_THE_HYPERVOLUME = ("worst", "best")


@dataclass(frozen=True)
class Objective:
    """In a search for several chips, a value of a chip is an objective for each of them, with the
    chip in its name."""

    name: str
    goal: Goal
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def value(self) -> str:
        """What it is called in the file: without the chip."""
        return value_of(self.name)

    @property
    def device(self) -> str:
        """The chip of several that it belongs to."""
        return device_of(self.name)

    def minimised(self, value: float) -> float:
        return value if self.goal == "min" else -value

    @property
    def ideal(self) -> float | None:
        """The best there can be: no latency or count is below 0, and no score above 1."""
        if self.goal == "min":
            return 0.0
        return 1.0 if self.name in MAXIMISED else None

    def limit(self, end: Literal["worst", "best"]) -> float | None:
        """Where its hypervolume begins or ends, if the file says so."""
        found = self.options.get(end)
        return None if found is None else float(str(found))


@dataclass(frozen=True)
class SearchFront:
    """What candidates are compared by: all objectives or, for one chip of several, its own and
    those that belong to no chip. `places` are their places among all objectives; `name` is the
    chip's, empty where there are not several."""

    name: str
    objectives: tuple[Objective, ...]
    places: tuple[int, ...]


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
    classes: int = len(FACE_CLASSES)
    budget: int = 24
    pool: int = 32  # screened for each that is trained
    sampler: str = "default"
    seed: int = 0
    workers: int = 1
    batch: int = 0  # 0: asynchronous; else so many at a time, and all must end before the next
    proxies: tuple[str, ...] = ()
    constraints: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    retries: int = 1
    failures: int = 10
    iteration: int = 10
    publish: Literal["front", "none"] = "front"
    earlier: tuple[str, ...] = ()
    folder: str = ""
    store: str = ""
    experiment: str = ""
    task: str = ""  # what the net answers
    farm: Mapping[str, object] = field(default_factory=dict)
    devices: tuple[str, ...] = ()  # chips with a front each; one chip alone has no name
    document: Mapping[str, object] = field(default_factory=dict, repr=False)
    origin: Origin = field(default=Origin("search", BadSetting), repr=False, compare=False)

    @property
    def fronts(self) -> tuple[SearchFront, ...]:
        """One per chip of several, else one."""
        return tuple(self._front(device) for device in self.devices or ("",))

    def _front(self, device: str) -> SearchFront:
        kept = [
            (place, objective)
            for place, objective in enumerate(self.objectives)
            if objective.device in ("", device)
        ]
        places, objectives = zip(*kept, strict=True)
        return SearchFront(device, tuple(objectives), tuple(places))

    @property
    def chips(self) -> tuple[str, ...]:
        """The chips that latency and traffic are estimated for."""
        options = [o.options for o in self.objectives if o.value in CHIP]
        named = [str(one["device"]) for one in options if one.get("device")]
        return self.devices or (named[0] if named else DEFAULT_CHIP,)

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
    def rungs(self) -> Rungs | None:
        """Where trainings pause, if they are stopped early."""
        return rungs_of(self.train or {})

    @property
    def says_classes(self) -> bool:
        """Whether the file names the number of classes, rather than leaving it to the dataset."""
        search = self.document.get("search")
        return isinstance(search, Mapping) and bool(search.get("classes"))

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
            **({"proxies": list(self.proxies)} if self.proxies else {}),
            "constraints": {name: list(pair) for name, pair in self.constraints.items()},
            "objectives": {
                o.value: {"goal": o.goal, **_decisive(o.options)} for o in self.objectives
            },
            "data": self.data,
            "task": self.task,
            "farm": _decisive(self.farm),
        }


def _decisive(options: Mapping[str, object]) -> dict[str, object]:
    """Without what says only where, how long it may take, or how results are summed up."""
    return {
        name: _decisive(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if name not in (*_WHERE_AND_WHEN, *_OF_THE_HYPERVOLUME)
    }


def read_config(
    path: Path, overrides: Sequence[str] = (), any_folder: bool = False
) -> SearchConfig:
    """Read, change, check; BadSetting says what is wrong and what was meant. A file may be a
    stranger's: only who types `search.folder=…` may choose one outside of the project, or who wrote
    the file (`any_folder`)."""
    content, origin = read_document(path, BadSetting)
    if not isinstance(content, dict):
        raise origin.at((), "must hold 'search:' and 'objectives:'")
    if not any_folder:
        _check_folder(content, origin)
    content, origin = with_overrides(
        SearchFile, content, overrides, origin, example="search.budget=24"
    )
    check_variables(content.get("store"), path.name, "store")
    filled = filled_in(content, path.name)
    assert isinstance(filled, dict)
    return replace(config_of(filled, origin, path.stem), document=content)


def _check_folder(content: Mapping[str, object], origin: Origin) -> None:
    search = content.get("search")
    folder = search.get("folder") if isinstance(search, Mapping) else None
    path = Path(folder) if isinstance(folder, str) else Path()
    if path.is_absolute() or ".." in path.parts or str(folder).startswith("~"):
        reason = "must be a folder of the project, for example searches/faces; for another one "
        raise origin.wrong(("search", "folder"), f"{reason}type search.folder=… after the file")


def config_of(
    document: Mapping[str, object], where: str | Origin, stem: str = "search"
) -> SearchConfig:
    origin = Origin(where, BadSetting) if isinstance(where, str) else where
    keys = validated(SearchFile, document, origin)
    devices = _devices(keys, origin)
    objectives = _objectives(document.get("objectives"), devices, origin)
    ranges = _ranges(keys, devices, origin)
    _check_training([objective.name for objective in objectives], ranges, origin)
    _check_rungs(objectives, origin)
    if not keys.data and any(objective.name in TRAINED for objective in objectives):
        reason = "must name the dataset to train with, for example working/faces128"
        raise origin.wrong(("data",), reason)
    try:
        name = keys.search.name or str(SEARCH_NAME.read(stem))
    except ValueError as error:
        raise origin.wrong(("search", "name"), str(error)) from None
    farm = document.get("farm")
    return SearchConfig(
        **{key: getattr(keys.search, key) for key in SearchKeys.model_fields}
        | {
            "name": name,
            "constraints": ranges,
            "classes": keys.search.classes or len(FACE_CLASSES),
        },
        devices=devices,
        origin=origin,
        objectives=objectives,
        data=keys.data,
        store=keys.store,
        experiment=keys.experiment,
        task=keys.task,
        farm=dict(farm) if isinstance(farm, Mapping) else {},
        document=document,
    )


def _devices(keys: SearchFile, origin: Origin) -> tuple[str, ...]:
    """The chips of a search for several: all that depends on the chip is known for each of them."""
    written = {name: found for name in CHIP if (found := getattr(keys.objectives, name))}
    several = {name: found.devices for name, found in written.items() if found.devices}
    single = {name: found.device for name, found in written.items() if found.device}
    for name in several.keys() & single.keys():
        path = ("objectives", name, "devices")
        raise origin.wrong(path, "and device cannot both be given: list all chips in devices")
    if len(set(several.values())) > 1 or (several and single):
        reason = f"must name the chips of {CHIP[0]}, or none: it then has the same"
        raise origin.wrong(("objectives", CHIP[1]), reason)
    if len(set(single.values())) > 1:
        reason = f"must be that of {CHIP[0]}; for several chips write devices: [htp:…, htp:…]"
        raise origin.wrong(("objectives", CHIP[1], "device"), reason)
    for name, devices in several.items():
        for place, device in enumerate(devices):
            if device in devices[:place]:
                path = ("objectives", name, "devices")
                raise origin.wrong(path, f"names {device} twice: a chip has one front")
    return next(iter(several.values()), ())


def _objectives(written: object, devices: Sequence[str], origin: Origin) -> tuple[Objective, ...]:
    """In the order of the file, with options as written: they are part of a search's identity."""
    found: list[Objective] = []
    for name, value in written.items() if isinstance(written, Mapping) else ():
        options = dict(value or {})
        goal = options.pop("goal", None) or ("min" if name in MINIMISED else "max")
        for device in _devices_of(name, devices):
            found.append(Objective(on_device(name, device), cast("Goal", goal), options))
    if not found:
        reason = f"must name at least one of {', '.join(VALUES)}"
        raise origin.wrong(("objectives",), reason)
    for objective in found:
        _check_scale(objective, origin)
    first, *others = [o for o in found if o.options.get("train")] or [found[0]]
    for other in others:
        if other.options["train"] != first.options["train"]:
            reason = f"must be that of {first.name}: a candidate is trained once"
            raise origin.wrong(("objectives", other.name, "train"), reason)
    return tuple(found)


def _check_scale(objective: Objective, origin: Origin) -> None:
    worst, given = objective.limit("worst"), objective.limit("best")
    best = objective.ideal if given is None else given
    if worst is None or best is None or objective.minimised(best) < objective.minimised(worst):
        return
    side = "above" if objective.goal == "min" else "below"
    reason = f"must be {side} the best value, {best:g}, not {worst:g}"
    raise origin.wrong(("objectives", objective.value, "worst"), reason)


def _devices_of(value: str, devices: Sequence[str]) -> Sequence[str]:
    """The chips that a value is known for separately."""
    return devices if devices and value in CHIP else ("",)


def _ranges(
    keys: SearchFile, devices: Sequence[str], origin: Origin
) -> dict[str, tuple[float, float]]:
    """Limits by the names of values. A chip that a limit by chip does not name has none."""
    found: dict[str, tuple[float, float]] = {}
    for value, limits in keys.search.constraints.model_dump(exclude_none=True).items():
        if not isinstance(limits, Mapping):
            found |= {on_device(value, device): limits for device in _devices_of(value, devices)}
            continue
        for device in limits:
            if device not in devices:
                known = suggestion(device, devices, "its chips are") if devices else "it has one"
                reason = f"names {device}, which is not among the chips of the search: {known}"
                raise origin.wrong(("search", "constraints", value), reason)
        found |= {on_device(value, device): limits.get(device, NO_LIMIT) for device in devices}
    return found


def _check_rungs(objectives: Sequence[Objective], origin: Origin) -> None:
    for objective in objectives:
        train = objective.options.get("train")
        rungs = rungs_of(train) if isinstance(train, Mapping) else None
        if rungs is not None and not rungs.pauses:
            reason = f"has nothing to stop: a training has {rungs.total} {rungs.unit} and would "
            path = ("objectives", objective.value, "train", "early_stopping")
            raise origin.wrong(path, f"{reason}pause after {rungs.first}; train longer")


def _check_training(
    objectives: Sequence[str], constraints: Mapping[str, object], origin: Origin
) -> None:
    """How to train stands with an objective; without one, nothing would ever be trained."""
    if any(name in TRAINED for name in objectives):
        return
    of_training = (*TRAINED, "farm_f1")
    for path, names in ((("objectives",), objectives), (("search", "constraints"), constraints)):
        for name in names:
            if name in of_training:
                reason = "needs val_iou or val_f1 among the objectives"
                raise origin.wrong((*path, name), reason)
