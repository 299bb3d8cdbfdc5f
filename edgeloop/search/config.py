"""What a search is told: a YAML file, `key=value` words that change it, and nothing unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import model_validator

from edgeloop._util.schema import Count, PlainText, Section, Whole, key, validated, with_overrides
from edgeloop._util.values import (
    POSITIVE_TIME,
    SIZE,
    Reads,
    choice,
    items,
    matching,
    number,
    plain_text,
    shown,
    suggestion,
    whole,
    words,
)
from edgeloop._util.yaml import Origin, read_document
from edgeloop.errors import BadInput, BadSetting
from edgeloop.jobs.spec import ENVIRONMENT
from edgeloop.node.ticket import Environment
from edgeloop.search.base import device_of, on_device, value_of
from edgeloop.settings import check_variables, filled_in
from edgeloop.tasks import FACE_CLASSES

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema


# The keys of a search file: what each may hold, its default and its meaning.


MINIMISED = (
    "params",
    "macs",
    "memory_bytes",
    "host_latency_ms",
    "chip_latency_ms",
    "ddr_bytes",
    "farm_latency_ms",
)
MAXIMISED = ("val_iou", "val_f1", "farm_f1")
VALUES = (*MINIMISED, *MAXIMISED)
TRAINED = ("val_iou", "val_f1")
CHIP = ("chip_latency_ms", "ddr_bytes")
PROXIES = ("synflow", "naswot", "grad_norm")
SAMPLERS = ("default", "tpe", "nsga2", "gp", "random")
DEFAULT_CHIP = "htp:qcs8550"  # calibrated: its estimates have an interval
_MEANING = {
    "params": "Parameters of the exported graph.",
    "macs": "Multiply-accumulate operations of the exported graph.",
    "memory_bytes": "Weights and the most activations alive at once, both in 8 bits.",
    "host_latency_ms": "Median latency with ONNX Runtime on this CPU, one thread.",
    "chip_latency_ms": "The compiler's latency estimate for a chip, before any training.",
    "ddr_bytes": "Traffic with the memory outside the chip per inference, by the compiler.",
    "farm_latency_ms": "Latency measured by a runner, through the status table.",
    "val_iou": "Mean IoU on the validation set after partial training.",
    "val_f1": "F1 on the validation set after partial training.",
    "farm_f1": "F1 of the trained and quantized model, measured by a runner.",
}
_OF_SEVERAL = " With several chips: for each, or `{CHIP: [least, most]}`."


def _number(value: object) -> float:
    """YAML reads 1e4 as a text; people do not."""
    try:
        parsed = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        parsed = math.nan
    if math.isnan(parsed):
        raise ValueError(f"must be a number, not {shown(value)}")
    return parsed


def _finite(value: object) -> float:
    parsed = _number(value)
    if math.isinf(parsed):
        raise ValueError(f"must be finite, not {shown(value)}")
    return parsed


def _range(value: object) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"must be [least, most], not {shown(value)}")
    low, high = map(_number, value)
    if low > high:
        raise ValueError(f"allows nothing: {low:g} is above {high:g}")
    return low, high


def _chip_range(value: object) -> tuple[float, float] | dict[str, tuple[float, float]]:
    """One for all chips, or one by the name of each."""
    if not isinstance(value, dict):
        return _range(value)
    by_device = {}
    for device, limits in value.items():
        try:
            by_device[device_name(device)] = _range(limits)
        except ValueError as error:
            raise ValueError(f"of {device} {error}") from None
    return by_device


def device_name(value: object) -> str:
    """In tables, names of devices are separated by blanks."""
    return "-".join(plain_text(value).split())


def _device_names(value: object) -> tuple[str, ...]:
    names = tuple(map(device_name, items(value)))
    if not all(names):
        raise ValueError("must be names of chips, for example [htp:qcs8550, htp:x-elite]")
    return names


def _sides(value: object) -> tuple[int, int]:
    sides = value if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2:
        raise ValueError("must be a side, for example 128, or [height, width]")
    height, width = map(_SIDE.read, sides)
    return height, width  # type: ignore[return-value]


def _task(value: object) -> object:
    from edgeloop.tasks import task_names

    return choice(*task_names()).read(value)


def _proxies(value: object) -> list[str]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list such as [synflow, naswot], not {shown(value)}")
    return list(dict.fromkeys(str(_PROXY.read(name)) for name in value))


_PROXY = choice(*PROXIES)
_PROXY_NAMES = {"type": "array", "items": _PROXY.schema}
_SIDE = whole(8)
SEARCH_NAME = matching(r"[A-Za-z0-9][A-Za-z0-9_-]{2,39}", "3 to 40 letters, digits, - and _")
_PAIR = {"type": "array", "items": {"type": ["number", "string"]}, "minItems": 2, "maxItems": 2}
_SIZES = {"anyOf": [_SIDE.schema, {"type": "array", "items": _SIDE.schema}]}
_Count = Annotated[int | None, whole(1)]
_Amount = Annotated[float | None, number()]
_Time = Annotated[float | None, POSITIVE_TIME]
_Goal = Annotated[str | None, choice("min", "max")]
_Number = Annotated[float | None, Reads(_finite, {"type": ["number", "string"]})]
_Range = Annotated[tuple[float, float] | None, Reads(_range, _PAIR)]
_CHIP_PAIRS = {"anyOf": [_PAIR, {"type": "object", "additionalProperties": _PAIR}]}
_ChipRange = Annotated[
    tuple[float, float] | dict[str, tuple[float, float]] | None, Reads(_chip_range, _CHIP_PAIRS)
]
_DEVICES = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
_NAMES = {"type": ["array", "string"], "items": {"type": "string"}}
NO_LIMIT = (-math.inf, math.inf)


class ConstraintKeys(Section):
    """Limits `[least, most]`: a candidate outside of them is not trained and never wins."""

    params: _Range = key(None, _MEANING["params"])
    macs: _Range = key(None, _MEANING["macs"])
    memory_bytes: _Range = key(None, _MEANING["memory_bytes"])
    host_latency_ms: _Range = key(None, _MEANING["host_latency_ms"])
    chip_latency_ms: _ChipRange = key(None, _MEANING["chip_latency_ms"] + _OF_SEVERAL)
    ddr_bytes: _ChipRange = key(None, _MEANING["ddr_bytes"] + _OF_SEVERAL)
    farm_latency_ms: _Range = key(None, _MEANING["farm_latency_ms"])
    val_iou: _Range = key(None, _MEANING["val_iou"])
    val_f1: _Range = key(None, _MEANING["val_f1"])
    farm_f1: _Range = key(None, _MEANING["farm_f1"])


class SearchKeys(Section):
    """What is searched, and how."""

    name: Annotated[str, SEARCH_NAME] = key(
        "", "Its folder, study and experiment; by default the name of the file."
    )
    space: PlainText = key(
        "hourglass", "`hourglass`, `archai-hourglass`, `small-classifier`, or `my_space.py:build`."
    )
    options: dict[str, Any] = key(dict, "Options of the space.")
    size: Annotated[tuple[int, int], Reads(_sides, _SIZES)] = key(
        (64, 64), "Side of the input, or `[height, width]`."
    )
    classes: Annotated[int | None, whole(2)] = key(
        None, "Classes that the model predicts; by default those of the dataset."
    )
    budget: Count = key(24, "Candidates; without a pool, including those that are screened out.")
    pool: Whole = key(
        32, "Candidates that are screened for each one that is trained; 0: each is trained."
    )
    sampler: Annotated[str, choice(*SAMPLERS)] = key("default", "What proposes the next candidate.")
    seed: Whole = key(0, "Seed of the sampler.")
    workers: Count = key(1, "Candidates evaluated at a time; by default 4 per GPU, or 1 without.")
    batch: Whole = key(0, "Evaluate in batches of this size; 0: asynchronously.")
    proxies: Annotated[list[str], Reads(_proxies, _PROXY_NAMES)] = key(
        list, "Zero-cost proxies that the sampler learns from: `synflow`, `naswot`, `grad_norm`."
    )
    constraints: ConstraintKeys = key(ConstraintKeys, "Limits `[least, most]`.")
    retries: Whole = key(1, "Retries after faults that the candidate did not cause.")
    failures: Whole = key(10, "More failed candidates end the search.")
    iteration: Count = key(10, "Candidates per iteration, for tables and the column `iteration`.")
    publish: Annotated[Literal["front", "none"], choice("front", "none")] = key(
        "front", "Whether trained models of the front join the status table."
    )
    earlier: Annotated[tuple[str, ...], Reads(words, _NAMES)] = key(
        (), "Earlier searches to start from: names, folders or jobs; also `--from`.", "[]"
    )
    folder: PlainText = key("", "Where results go, in the project; by default `searches/NAME`.")


class EarlyStoppingKeys(Section):
    """Candidates train in rungs: they pause, and only some of them continue."""

    first: _Count = key(None, "The first pause, in epochs or steps; 1 epoch or 1/27 by default.")
    factor: Annotated[int | None, whole(2)] = key(
        None, "Each pause comes after this many times as much training; 3 by default."
    )
    longest: _Count = key(
        None, "The most epochs or steps between two pauses; a ninth of the training by default."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_switch(cls, value: object) -> object:
        return {} if isinstance(value, bool) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(core_schema), {"type": "boolean"}]}


class TrainKeys(Section):
    """How a candidate is trained, and where."""

    epochs: _Count = key(None, "Epochs; 1 by default.")
    steps: _Count = key(None, "Optimizer steps, instead of epochs.")
    batch: _Count = key(None, "Batch size; 16 on a CPU, 64 on a GPU by default.")
    learning_rate: Annotated[float | None, number(is_open=True)] = key(
        None, "Peak learning rate; 4e-3 by default."
    )
    seed: Annotated[int | None, whole()] = key(None, "Seed; 0 by default.")
    images: _Count = key(None, "Training images to use; all by default.")
    validation_images: _Count = key(None, "Validation images; all by default.")
    patience: _Count = key(None, "Stop after this many epochs without a better F1.")
    early_stopping: EarlyStoppingKeys | None = key(
        None, "Stop what can no longer be on the front: `true`, or with these keys."
    )
    device: PlainText = key("", "`cpu`, `cuda` or `auto`.")
    compute: PlainText = key("", "Train as jobs on this compute instead of here.")
    cpus: _Amount = key(None, "CPU cores per job; 1 by default.")
    gpus: _Amount = key(None, "GPUs per job; 0 by default.")
    memory: Annotated[int | None, SIZE] = key(None, "Memory per job.")
    timeout: _Time = key(None, "How long one training may take.")
    at_once: _Count = key(
        None,
        "Trainings at a time; by default `workers`, and on a GPU as many as there is room for.",
    )
    group: _Count = key(None, "Candidates per job; 1 by default.")
    pipeline: _Count = key(None, "Jobs submitted together, after screening; 1 by default.")
    environment: Annotated[Environment | None, ENVIRONMENT] = key(
        None, "Of the jobs, as in a job file; by default the compute's own."
    )


class CountedKeys(Section):
    """Counted in the graph."""

    goal: _Goal = key(None, "`min` or `max`.")
    worst: _Number = key(
        None, "Where its hypervolume begins; by default a little beyond the first ten results."
    )
    best: _Number = key(None, "Its ideal; by default 0 if minimised, 1 for a score.")


class HostLatencyKeys(CountedKeys):
    """Measured on this machine."""

    repeats: _Count = key(None, "Timed runs; 20 by default.")
    warm_up: Annotated[int | None, whole()] = key(None, "Untimed runs; 3 by default.")


class ChipKeys(CountedKeys):
    """Estimated by the compiler."""

    device: PlainText = key("", f"The chip; `{DEFAULT_CHIP}` by default.")
    devices: Annotated[tuple[str, ...], Reads(_device_names, _DEVICES)] = key(
        (), "Several chips, each with a front of its own, instead of one.", "[]"
    )


class FarmLatencyKeys(CountedKeys):
    """Measured by a runner."""

    device: PlainText = key("", "Only runners with this device; any by default.")
    timeout: _Time = key(None, "How long to wait for a runner; 1h by default.")


class FarmF1Keys(CountedKeys):
    """Measured by a runner, after training."""

    stage: PlainText = key("", "The stage that measures it; `f1_1k` by default.")
    timeout: _Time = key(None, "How long to wait for a runner; 1h by default.")


class TrainedKeys(CountedKeys):
    """Needs training."""

    train: TrainKeys | None = key(None, "How candidates are trained.")


class ObjectiveKeys(Section):
    """One or more values to minimise or maximise."""

    params: CountedKeys | None = key(None, _MEANING["params"])
    macs: CountedKeys | None = key(None, _MEANING["macs"])
    memory_bytes: CountedKeys | None = key(None, _MEANING["memory_bytes"])
    host_latency_ms: HostLatencyKeys | None = key(None, _MEANING["host_latency_ms"])
    chip_latency_ms: ChipKeys | None = key(None, _MEANING["chip_latency_ms"])
    ddr_bytes: ChipKeys | None = key(None, _MEANING["ddr_bytes"])
    farm_latency_ms: FarmLatencyKeys | None = key(None, _MEANING["farm_latency_ms"])
    val_iou: TrainedKeys | None = key(None, _MEANING["val_iou"])
    val_f1: TrainedKeys | None = key(None, _MEANING["val_f1"])
    farm_f1: FarmF1Keys | None = key(None, _MEANING["farm_f1"])


class FarmKeys(Section):
    """What holds for every value that a runner measures."""

    timeout: _Time = key(None, "How long to wait for a runner; 1h by default.")
    device: PlainText = key("", "Only runners with this device.")
    stage: PlainText = key("", "The stage that measures F1; `f1_1k` by default.")


class SearchFile(Section):
    """A search for architectures."""

    search: SearchKeys = key(SearchKeys, "What is searched, and how.")
    objectives: ObjectiveKeys = key(ObjectiveKeys, "Values to minimise or maximise.")
    data: PlainText = key("", "The dataset to train with: one of the project, or a folder.")
    store: PlainText = key("", "The store, instead of the project's own.")
    experiment: PlainText = key("", "The experiment; by default the name of the search.")
    task: Annotated[str, Reads(_task, {"type": "string"})] = key(
        "", "What the model predicts; by default inferred from its output."
    )
    farm: FarmKeys | None = key(None, "Options of every value from a runner.")


Goal = Literal["min", "max"]

_WHERE_AND_WHEN = (
    "compute",
    "cpus",
    "gpus",
    "memory",
    "timeout",
    "at_once",
    "group",
    "pipeline",
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
        value = self.options.get(end)
        return None if value is None else float(str(value))


@dataclass(frozen=True)
class SearchFront:
    """What candidates are compared by: all objectives or, for one chip of several, its own and
    those that belong to no chip. `places` are their places among all objectives; `name` is the
    chip's, empty where there are not several."""

    name: str
    objectives: tuple[Objective, ...]
    places: tuple[int, ...]


# Rungs: where trainings pause, and what a candidate has reached.


Unit = Literal["epochs", "steps"]

_PARTS = 9  # of a training; no rung is longer than one of them


@dataclass(frozen=True)
class Rungs:
    """Trainings of `total` epochs (or steps) pause at `first`, `first·factor`, … below `total`, but
    never train for more than `longest` between two pauses: by default a ninth of the training, or
    `factor` if that is more. Forecasts become sharp late in a training: pauses there save most.

    Examples:
        >>> Rungs(total=27).pauses
        (1, 3, 6, 9, 12, 15, 18, 21, 24)
        >>> Rungs(total=27, longest=27).pauses
        (1, 3, 9)
        >>> Rungs(total=27).after(9)
        12
    """

    total: int
    first: int = 1
    factor: int = 3
    unit: Unit = "epochs"
    longest: int | None = None

    def __post_init__(self) -> None:
        if self.first < 1 or self.factor < 2 or (self.longest is not None and self.longest < 1):
            reason = "early stopping: first and longest must be 1 or more, factor 2 or more"
            raise BadInput(reason=reason)

    @property
    def pauses(self) -> tuple[int, ...]:
        longest = self.longest or max(self.factor, -(-self.total // _PARTS))
        marks, at = [], self.first
        while at < self.total:
            marks.append(at)
            at = min(at * self.factor, at + longest)
        return tuple(marks)

    @property
    def marks(self) -> tuple[int, ...]:
        """The pauses and the end."""
        return (*self.pauses, self.total)

    def text(self, reached: int) -> str:
        return f"after {reached} of {self.total} {self.unit}"

    def after(self, reached: int) -> int:
        """Where a training that has come so far ends next."""
        return next((mark for mark in self.marks if mark > reached), self.total)


def rungs_of(train: Mapping[str, object]) -> Rungs | None:
    """From the keys of `train:`; None without early stopping. The first pause of steps is after
    1/27 of them unless it is given."""
    written = train.get("early_stopping")
    if written is None or written is False:
        return None
    keys = written if isinstance(written, Mapping) else {}
    unit: Unit = "steps" if train.get("steps") else "epochs"
    total = int(str(train.get(unit) or 1))
    factor = int(str(keys.get("factor") or 3))
    usual = 1 if unit == "epochs" else max(1, total // factor**3)
    longest = int(str(keys["longest"])) if keys.get("longest") else None
    return Rungs(total, int(str(keys.get("first") or usual)), factor, unit, longest)


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
        placed = [
            (place, objective)
            for place, objective in enumerate(self.objectives)
            if objective.device in ("", device)
        ]
        places, objectives = zip(*placed, strict=True)
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
                keys = objective.options.get("train") or {}
                named = {"task": self.task} if self.task else {}
                return {**(keys if isinstance(keys, Mapping) else {}), **named}
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
    written = {name: objective for name in CHIP if (objective := getattr(keys.objectives, name))}
    several = {name: objective.devices for name, objective in written.items() if objective.devices}
    single = {name: objective.device for name, objective in written.items() if objective.device}
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
    objectives: list[Objective] = []
    for name, value in written.items() if isinstance(written, Mapping) else ():
        options = dict(value or {})
        goal = options.pop("goal", None) or ("min" if name in MINIMISED else "max")
        for device in _devices_of(name, devices):
            objectives.append(Objective(on_device(name, device), cast("Goal", goal), options))
    if not objectives:
        reason = f"must name at least one of {', '.join(VALUES)}"
        raise origin.wrong(("objectives",), reason)
    for objective in objectives:
        _check_scale(objective, origin)
    first, *others = [o for o in objectives if o.options.get("train")] or [objectives[0]]
    for other in others:
        if other.options["train"] != first.options["train"]:
            reason = f"must be that of {first.name}: a candidate is trained once"
            raise origin.wrong(("objectives", other.name, "train"), reason)
    return tuple(objectives)


def _check_scale(objective: Objective, origin: Origin) -> None:
    worst, best_written = objective.limit("worst"), objective.limit("best")
    best = objective.ideal if best_written is None else best_written
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
    ranges: dict[str, tuple[float, float]] = {}
    for value, limits in keys.search.constraints.model_dump(exclude_none=True).items():
        if not isinstance(limits, Mapping):
            ranges |= {on_device(value, device): limits for device in _devices_of(value, devices)}
            continue
        for device in limits:
            if device not in devices:
                hint = suggestion(device, devices, "its chips are") if devices else "it has one"
                reason = f"names {device}, which is not among the chips of the search: {hint}"
                raise origin.wrong(("search", "constraints", value), reason)
        ranges |= {on_device(value, device): limits.get(device, NO_LIMIT) for device in devices}
    return ranges


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
