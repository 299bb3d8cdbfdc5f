"""The keys of a search file: what each may hold, its default and its meaning."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from edgeloop._util.schema import Section
from edgeloop._util.values import (
    PLAIN_TEXT,
    POSITIVE_TIME,
    SIZE,
    Reads,
    choice,
    matching,
    number,
    shown,
    whole,
)

MINIMISED = ("params", "macs", "host_latency_ms", "chip_latency_ms", "farm_latency_ms")
MAXIMISED = ("val_iou", "val_f1", "farm_f1")
VALUES = (*MINIMISED, *MAXIMISED)
TRAINED = ("val_iou", "val_f1")
SAMPLERS = ("default", "tpe", "nsga2", "gp", "random")
DEFAULT_CHIP = "htp:snapdragon-888"
_MEANING = {
    "params": "Parameters of the exported graph.",
    "macs": "Multiply-accumulate operations of the exported graph.",
    "host_latency_ms": "Median latency with ONNX Runtime on this CPU, one thread.",
    "chip_latency_ms": "The compiler's latency estimate for a chip, before any training.",
    "farm_latency_ms": "Latency measured by a runner, through the status table.",
    "val_iou": "Mean IoU on the validation set after partial training.",
    "val_f1": "F1 on the validation set after partial training.",
    "farm_f1": "F1 of the trained and quantized model, measured by a runner.",
}


def _number(value: object) -> float:
    """YAML reads 1e4 as a text; people do not."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise ValueError(f"must be a number, not {shown(value)}")
    return found


def _range(value: object) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"must be [least, most], not {shown(value)}")
    low, high = map(_number, value)
    if low > high:
        raise ValueError(f"allows nothing: {low:g} is above {high:g}")
    return low, high


def _sides(value: object) -> tuple[int, int]:
    sides = value if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2:
        raise ValueError("must be a side, for example 128, or [height, width]")
    height, width = map(_SIDE.read, sides)
    return height, width  # type: ignore[return-value]


def _task(value: object) -> object:
    from edgeloop.tasks import task_names

    return choice(*task_names()).read(value)


_SIDE = whole(8)
SEARCH_NAME = matching(r"[A-Za-z0-9][A-Za-z0-9_-]{2,39}", "3 to 40 letters, digits, - and _")
_PAIR = {"type": "array", "items": {"type": ["number", "string"]}, "minItems": 2, "maxItems": 2}
_SIZES = {"anyOf": [_SIDE.schema, {"type": "array", "items": _SIDE.schema}]}
_Text = Annotated[str, PLAIN_TEXT]
_Count = Annotated[int | None, whole(1)]
_Amount = Annotated[float | None, number()]
_Time = Annotated[float | None, POSITIVE_TIME]
_Goal = Annotated[str | None, choice("min", "max")]
_Range = Annotated[tuple[float, float] | None, Reads(_range, _PAIR)]


class ConstraintKeys(Section):
    """Limits `[least, most]`: a candidate outside of them is not trained and never wins."""

    params: _Range = Field(None, description=_MEANING["params"])
    macs: _Range = Field(None, description=_MEANING["macs"])
    host_latency_ms: _Range = Field(None, description=_MEANING["host_latency_ms"])
    chip_latency_ms: _Range = Field(None, description=_MEANING["chip_latency_ms"])
    farm_latency_ms: _Range = Field(None, description=_MEANING["farm_latency_ms"])
    val_iou: _Range = Field(None, description=_MEANING["val_iou"])
    val_f1: _Range = Field(None, description=_MEANING["val_f1"])
    farm_f1: _Range = Field(None, description=_MEANING["farm_f1"])


class SearchKeys(Section):
    """What is searched, and how."""

    name: Annotated[str, SEARCH_NAME] = Field(
        "", description="Its folder, study and experiment; by default the name of the file."
    )
    space: _Text = Field(
        "hourglass", description="`hourglass`, `small-classifier`, or `my_space.py:build`."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the space.")
    size: Annotated[tuple[int, int], Reads(_sides, _SIZES)] = Field(
        (64, 64), description="Side of the input, or `[height, width]`."
    )
    classes: Annotated[int, whole(2)] = Field(19, description="Classes that the model predicts.")
    budget: Annotated[int, whole(1)] = Field(
        24, description="Candidates, including those that are screened out."
    )
    sampler: Annotated[str, choice(*SAMPLERS)] = Field(
        "default", description="What proposes the next candidate."
    )
    seed: Annotated[int, whole()] = Field(0, description="Seed of the sampler.")
    workers: Annotated[int, whole(1)] = Field(1, description="Candidates evaluated at a time.")
    batch: Annotated[int, whole()] = Field(
        0, description="Evaluate in batches of this size; 0: asynchronously."
    )
    constraints: ConstraintKeys = Field(
        default_factory=lambda: ConstraintKeys.model_validate({}),
        description="Limits `[least, most]` that a candidate must meet.",
    )
    retries: Annotated[int, whole()] = Field(
        1, description="Retries of an evaluation, for faults that the candidate did not cause."
    )
    failures: Annotated[int, whole()] = Field(
        10, description="The search ends if more candidates than this fail."
    )
    iteration: Annotated[int, whole(1)] = Field(
        10, description="Candidates per iteration, for tables and the column `iteration`."
    )
    publish: Annotated[Literal["front", "none"], choice("front", "none")] = Field(
        "front", description="Whether trained models of the front join the status table."
    )
    folder: _Text = Field("", description="Where results go; by default `searches/NAME`.")


class TrainKeys(Section):
    """How a candidate is trained, and where."""

    epochs: _Count = Field(None, description="Epochs; 1 by default.")
    steps: _Count = Field(None, description="Optimizer steps, instead of epochs.")
    batch: _Count = Field(None, description="Batch size; 16 on a CPU, 64 on a GPU by default.")
    learning_rate: Annotated[float | None, number(is_open=True, most=math.inf)] = Field(
        None, description="Peak learning rate; 4e-3 by default."
    )
    seed: Annotated[int | None, whole()] = Field(None, description="Seed; 0 by default.")
    images: _Count = Field(None, description="Training images to use; all by default.")
    validation_images: _Count = Field(None, description="Validation images; all by default.")
    patience: _Count = Field(None, description="Stop after this many epochs without a better F1.")
    device: _Text = Field("", description="`cpu`, `cuda` or `auto`.")
    compute: _Text = Field("", description="Train as jobs on this compute instead of here.")
    cpus: _Amount = Field(None, description="CPU cores per job; 1 by default.")
    gpus: _Amount = Field(None, description="GPUs per job; 0 by default.")
    memory: Annotated[int | None, SIZE] = Field(None, description="Memory per job.")
    timeout: _Time = Field(None, description="How long one training may take.")
    at_once: _Count = Field(None, description="Trainings at a time; `workers` by default.")
    group: _Count = Field(None, description="Candidates per job; 1 by default.")
    pipeline: _Count = Field(None, description="Jobs per Azure ML pipeline; 1 by default.")


class CountedKeys(Section):
    """Counted in the graph."""

    goal: _Goal = Field(None, description="`min` or `max`.")


class HostLatencyKeys(CountedKeys):
    """Measured on this machine."""

    repeats: _Count = Field(None, description="Timed runs; 20 by default.")
    warm_up: Annotated[int | None, whole()] = Field(None, description="Untimed runs; 3 by default.")


class ChipLatencyKeys(CountedKeys):
    """Estimated by the compiler."""

    device: _Text = Field(DEFAULT_CHIP, description="The chip.")


class FarmLatencyKeys(CountedKeys):
    """Measured by a runner."""

    device: _Text = Field("", description="Only runners with this device; any by default.")
    timeout: _Time = Field(None, description="How long to wait for a runner; 1h by default.")


class FarmF1Keys(CountedKeys):
    """Measured by a runner, after training."""

    stage: _Text = Field("", description="The stage that measures it; `f1_1k` by default.")
    timeout: _Time = Field(None, description="How long to wait for a runner; 1h by default.")


class TrainedKeys(CountedKeys):
    """Needs training."""

    train: TrainKeys | None = Field(None, description="How candidates are trained.")


class ObjectiveKeys(Section):
    """One or more values to minimise or maximise."""

    params: CountedKeys | None = Field(None, description=_MEANING["params"])
    macs: CountedKeys | None = Field(None, description=_MEANING["macs"])
    host_latency_ms: HostLatencyKeys | None = Field(None, description=_MEANING["host_latency_ms"])
    chip_latency_ms: ChipLatencyKeys | None = Field(None, description=_MEANING["chip_latency_ms"])
    farm_latency_ms: FarmLatencyKeys | None = Field(None, description=_MEANING["farm_latency_ms"])
    val_iou: TrainedKeys | None = Field(None, description=_MEANING["val_iou"])
    val_f1: TrainedKeys | None = Field(None, description=_MEANING["val_f1"])
    farm_f1: FarmF1Keys | None = Field(None, description=_MEANING["farm_f1"])


class FarmKeys(Section):
    """What holds for every value that a runner measures."""

    timeout: _Time = Field(None, description="How long to wait for a runner; 1h by default.")
    device: _Text = Field("", description="Only runners with this device.")
    stage: _Text = Field("", description="The stage that measures F1; `f1_1k` by default.")


class SearchFile(Section):
    """A search for architectures."""

    search: SearchKeys = Field(
        default_factory=lambda: SearchKeys.model_validate({}),
        description="What is searched, and how.",
    )
    objectives: ObjectiveKeys = Field(
        default_factory=lambda: ObjectiveKeys.model_validate({}),
        description="The values to minimise or maximise; at least one.",
    )
    data: _Text = Field(
        "", description="The dataset to train with: one of the project, or a folder."
    )
    store: _Text = Field("", description="The store, instead of the project's own.")
    experiment: _Text = Field("", description="The experiment; by default the name of the search.")
    task: Annotated[str, Reads(_task, {"type": "string"})] = Field(
        "", description="What the model predicts; by default inferred from its output."
    )
    farm: FarmKeys | None = Field(None, description="Options of every value from a runner.")
