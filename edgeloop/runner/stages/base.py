"""What a stage gets and what it returns. Stages only compute: they touch neither table nor blobs,
so that a lost lease can never leave half a result."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name

from edgeloop.errors import (
    BadInput,
    EdgeloopError,
    NotConverted,
    NotFound,
    OtherDataset,
    UnusableModel,
)
from edgeloop.graph.count import LayerTiming, add_times
from edgeloop.graph.info import shapes_from
from edgeloop.graph.isolated import graph_pool
from edgeloop.models.columns import is_true, place_suffix
from edgeloop.models.plan import FOR, STAGES, Plan, records_of, targets_of
from edgeloop.platforms import (
    DEFAULT_PRECISION,
    AttributesLatency,
    CompilesQuantized,
    Device,
    GraphInfo,
    LayerCost,
    LayerCosts,
    LayerTime,
    Measurement,
    MixesPrecision,
    Precision,
    PrecisionPlan,
    Toolchain,
    converted_by,
    is_converted,
)
from edgeloop.settings import cache_folder
from edgeloop.store import Changes, Value, Values
from edgeloop.tasks import (
    Samples,
    TakesOutputs,
    Task,
    TensorsTask,
    check_data,
    reading_data,
)

_REMEMBERED_MODELS = 100


@dataclass(frozen=True)
class Sizes:
    """How many images: for calibration, for the quick F1 and for the thorough one; for PR curves,
    where F1 itself comes from class maps; and to judge the steps of recovery by."""

    calibration: int = 1_000
    quick: int = 1_000
    thorough: int = 10_000
    curve: int = 100
    recovery: int = 64


class CachingToolchain:
    """A toolchain that inspects each model once, however many stages ask; by the file's content,
    since every stage has a copy of its own. Of many models the last ones are remembered."""

    def __init__(self, toolchain: Toolchain) -> None:
        self.name = toolchain.name
        self.convert = toolchain.convert
        self.close = toolchain.close
        self._inspect = toolchain.inspect
        self._seen: dict[str, GraphInfo] = {}
        self._lock = threading.Lock()
        if isinstance(toolchain, MixesPrecision):
            self.convert_plan = toolchain.convert_plan
            self.calibrate_tensors = toolchain.calibrate_tensors
            self.quantize_plan = toolchain.quantize_plan
        if isinstance(toolchain, CompilesQuantized):
            self.simplify = toolchain.simplify
            self.compile = toolchain.compile

    def inspect(self, model: Path) -> GraphInfo:
        with model.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        info = self._seen.get(digest)
        if info is not None:
            return info
        with self._lock:
            info = self._seen.get(digest)
            if info is None:
                info = self._inspect(model)
                newest = list(self._seen.items())[-_REMEMBERED_MODELS:]
                self._seen = {**dict(newest), digest: info}
        return info


@dataclass(frozen=True)
class Equipment:
    """The tools of a worker. Its device stages run on `device`, which takes what `toolchain` makes;
    `host` is always there. `converters` are all toolchains of this machine, by name."""

    toolchain: Toolchain
    host: Device
    task: Task
    device: Device
    converters: Mapping[str, Toolchain] = field(default_factory=dict)
    chips: tuple[str, ...] = ()
    precision: Precision | PrecisionPlan = DEFAULT_PRECISION
    sizes: Sizes = field(default_factory=Sizes)
    calibration: TensorsTask | None = None  # what to calibrate on; None: the task's images
    fallback: TensorsTask | None = None  # for models that do not fit the task; None: they fail
    recover: tuple[str, ...] = ()  # steps that recover accuracy; none: not asked for
    judge: Device | None = None  # the device that scores these steps; None: the host
    attributor: AttributesLatency | None = None  # for `--layers`; None: not asked for
    dataset: str = ""  # of the experiment, as `task` has it; empty: the experiment names none


@dataclass(frozen=True)
class Assignment:
    """One stage of one model: its row as it was claimed, its files here, a folder to work in."""

    model: str
    stage: str
    row: Values
    files: Mapping[str, Path]
    folder: Path
    target: str = ""  # the further toolchain that it is converted with; empty: the main one

    @cached_property
    def onnx(self) -> Path:
        """The model with fixed sizes and in float32, as toolchains and runtimes take it: the file
        that was uploaded, or a copy of the same name in the stage's folder."""
        path, shapes = self.uploaded, shapes_from(self.row.get("shapes"))
        return graph_pool().prepare(path, shapes, self.folder / "prepared")

    @cached_property
    def named_onnx(self) -> Path:
        """The model under the name that the files of this conversion begin with."""
        if not self.target:
            return self.onnx
        return Path(shutil.copyfile(self.onnx, self.onnx.with_name(f"{self.stem}.onnx")))

    @property
    def stem(self) -> str:
        """What the names of files begin with that conversion makes: a further toolchain's have its
        name in theirs."""
        return f"{self.uploaded.stem}.{self.target}" if self.target else self.uploaded.stem

    @property
    def uploaded(self) -> Path:
        """Old rows may not say its name, but have only one."""
        named = self.files.get(str(self.row.get("model_name", "")))
        plain = [p for n, p in self.files.items() if n.endswith(".onnx") and not is_converted(n)]
        if named is None and len(plain) != 1:
            raise BadInput(reason=f"{self.model} has {len(plain)} .onnx files; one is needed")
        return named or plain[0]

    @property
    def toolchain(self) -> str:
        """What `convert` converted it with; rows of older versions do not say so, their files
        do."""
        return str(self.row.get("toolchain") or "") or converted_by(self.files)

    def conversion(self, toolchain: str) -> frozenset[str] | None:
        """The names of the files that this toolchain made; None if it has not converted it."""
        records = records_of(self.row)
        for name, record in records.items():
            stage = STAGES.get(name.partition(" ")[0])
            made_by = name.partition(" ")[2] or self.toolchain
            is_its = stage is not None and stage.converts and made_by in ("", toolchain)
            if is_its and record.files:
                return frozenset(record.files)
        return frozenset(self.files) if self.toolchain in ("", toolchain) else None

    def calibration(self, toolchain: str) -> Value | None:
        """What it was calibrated on for this toolchain."""
        is_main = self.toolchain in ("", toolchain)
        return self.row.get("calibration" + ("" if is_main else place_suffix(FOR, toolchain)))

    def find(self, suffix: str, toolchain: str = "") -> Path | None:
        """The file that conversion made with this ending, if it made one."""
        made = self.conversion(toolchain) if toolchain else None
        matching = {
            name: path
            for name, path in self.files.items()
            if name.endswith(suffix) and _is_whole(name, suffix) and (made is None or name in made)
        }
        if len(matching) < 2:
            return next(iter(matching.values()), None)
        return matching.get(f"{self.uploaded.stem}{suffix}")

    def artefact(self, suffix: str, toolchain: str) -> Path:
        """The file that a device runs, by its suffix; without one the uploaded model.

        Toolchains may make files of the same name that differ inside (qnn and snpe both make DLC
        files), so the model must have been converted by the one that the device needs.
        """
        if not suffix:
            return self.onnx
        if self.conversion(toolchain) is None:
            raise NotConverted(model=self.model, toolchain=toolchain)
        path = self.find(suffix, toolchain) if self.files else None
        if path is None:
            reason = (
                f"{self.model} has no quantized model (*{suffix}); reset it to convert it again"
            )
            raise BadInput(reason=reason)
        return path


@dataclass(frozen=True)
class Result:
    """Columns for the row (None: emptied), files by the names they get, and a line for people."""

    columns: Changes
    files: Mapping[str, Path]
    summary: str


def perform(work: Assignment, equipment: Equipment) -> Result:
    """Do one stage, with the function that the plan names. For a further device or toolchain it
    sees the row as that one's, and its results get places of their own."""
    stage = Plan(tuple(STAGES.values()))[work.stage]
    asked = targets_of(work.row).dataset
    is_short = is_true(work.row.get("benchmark_only"))
    if stage.needs_data and not is_short and asked not in ("", equipment.dataset):
        raise OtherDataset(model=work.model, dataset=asked)
    function = resolve_name(stage.work)
    target = stage.target if stage.converts else ""
    view = replace(work, row=stage.view(work.row), stage=stage.kind or stage.name, target=target)
    result: Result = function(view, equipment)
    files = result.files
    if stage.target and not stage.converts:
        files = {f"{Path(n).stem}{stage.suffix}{Path(n).suffix}": p for n, p in files.items()}
    return replace(result, columns=stage.place(result.columns, work.row), files=files)


@dataclass(frozen=True)
class Chosen:
    """The task of a model; `because` says why it is not the one the runner has a dataset for."""

    task: Task
    because: str = ""


def choose_task(work: Assignment, equipment: Equipment, info: GraphInfo) -> Chosen:
    """The runner's task where the model fits it, else its fallback; raises UnusableModel."""
    try:
        check_fits(work, equipment.task, info)
    except UnusableModel as error:
        if equipment.fallback is None:
            raise
        return Chosen(equipment.fallback, str(error.fields["reason"]))
    return Chosen(equipment.task)


def calibration_samples(work: Assignment, equipment: Equipment, info: GraphInfo) -> Samples:
    """What was given for it, else the dataset's images where the model takes one, else random."""
    count = equipment.sizes.calibration
    source: Task = equipment.calibration or equipment.task
    with reading_data():
        if isinstance(source, TensorsTask):
            return source.inputs(info, count, "calibration", work.onnx)
        if info.image is not None:
            return source.calibration(info.height, info.width, count)
    return TensorsTask().inputs(info, count, "calibration", work.onnx)


def check_fits(work: Assignment, task: Task, info: GraphInfo) -> None:
    """Raises UnusableModel where this task cannot score such outputs: no other attempt could. A
    dataset that cannot be read comes first, since it says which outputs the task takes."""
    if isinstance(task, TensorsTask):
        return
    try:
        if info.image is None:
            inputs = ", ".join(f"{one.name} {list(one.shape)}" for one in info.inputs)
            raise BadInput(reason=f"the task {task.name} takes one RGB image; it takes {inputs}")
        if isinstance(task, TakesOutputs):
            task.check_outputs({one.name: one.shape for one in info.outputs})
        elif len(info.outputs) > 1:
            names = ", ".join(one.name for one in info.outputs)
            raise BadInput(reason=f"the task {task.name} scores one output; it has {names}")
        else:
            task.check_output(info.output_shape)
    except (BadInput, NotFound, OSError) as error:
        with reading_data():
            check_data(task)
            if not isinstance(error, BadInput):
                raise
        raise UnusableModel(file=work.uploaded.name, reason=str(error)) from None


def _is_whole(name: str, suffix: str) -> bool:
    """`.dlc` is also how `.quant.dlc` ends, and that how `.classes.quant.dlc` does."""
    return not name.removesuffix(suffix).endswith((".quant", ".classes"))


# The cost of every layer, for `runner --layers`. A stage does not fail without it; its line in the
# log says why it is missing.


def complete_table(equipment: Equipment, files: Mapping[str, Path], quantized: str) -> str:
    """Write the times of layers into the table that conversion made. Returns why not; empty where
    it was done, or not asked for."""
    table = next((path for name, path in files.items() if name.endswith(".layers.csv")), None)
    if equipment.attributor is None or table is None:
        return ""
    costs = _costs(equipment.attributor, files[quantized])
    if isinstance(costs, str):
        return costs
    timings = [
        LayerTiming(cost.name, cost.members, cost.time_us, cost.share) for cost in costs.layers
    ]
    add_times(table, timings, costs.device)
    return ""


def with_layers(measured: Measurement, equipment: Equipment, model: Path) -> Measurement:
    """A device that measures layers knows better; one that estimates them has done so before, for
    the table, and remembers it."""
    device = equipment.device
    if equipment.attributor is None or measured.layers or not isinstance(device, AttributesLatency):
        return measured
    costs = _costs(device, model)
    if isinstance(costs, str):
        return measured
    layers = tuple(LayerTime(_title(cost), cost.operator, cost.time_us) for cost in costs.layers)
    return replace(measured, layers=layers)


def _title(cost: LayerCost) -> str:
    others = len(cost.members) - 1
    return f"{cost.name} +{others}" if others > 0 else cost.name


def _costs(device: AttributesLatency, model: Path) -> LayerCosts | str:
    try:
        return device.attribute(model, cache=cache_folder() / "layers")
    except EdgeloopError as error:
        return f"no cost of layers: {error}"
