"""The keys of a search file: what each may hold, its default and its meaning."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import model_validator

from edgeloop._util.schema import Count, PlainText, Section, Whole, key
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
    whole,
    words,
)
from edgeloop.jobs.spec import ENVIRONMENT
from edgeloop.node.ticket import Environment

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

MINIMISED = (
    *("params", "macs", "memory_bytes"),
    *("host_latency_ms", "chip_latency_ms", "ddr_bytes", "farm_latency_ms"),
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
        found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if math.isnan(found):
        raise ValueError(f"must be a number, not {shown(value)}")
    return found


def _finite(value: object) -> float:
    found = _number(value)
    if math.isinf(found):
        raise ValueError(f"must be finite, not {shown(value)}")
    return found


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
    found = {}
    for device, limits in value.items():
        try:
            found[device_name(device)] = _range(limits)
        except ValueError as error:
            raise ValueError(f"of {device} {error}") from None
    return found


def device_name(value: object) -> str:
    """In tables, names of devices are separated by blanks."""
    return "-".join(plain_text(value).split())


def _device_names(value: object) -> tuple[str, ...]:
    found = tuple(map(device_name, items(value)))
    if not all(found):
        raise ValueError("must be names of chips, for example [htp:qcs8550, htp:x-elite]")
    return found


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
