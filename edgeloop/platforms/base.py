"""The seam to a vendor: a platform has a toolchain that converts models, and devices that run them.

A vendor is a class, registered by an entry point of the group `edgeloop.platforms`. Edgeloop then
converts, benchmarks and scores models with it; nothing else has to know the vendor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

from edgeloop._util.health import HealthCheck
from edgeloop.errors import BadInput
from edgeloop.graph.bits import TunableTensor
from edgeloop.graph.count import DeployedMemory
from edgeloop.graph.info import GraphInfo
from edgeloop.platforms.precision import Precision, PrecisionPlan

if TYPE_CHECKING:
    from edgeloop._util.schema import Section
    from edgeloop.settings import Settings
    from edgeloop.tasks import Output, Samples, Tensors


Kind = Literal["float", "quantized", "fp16"]
Artefacts = Mapping[Kind, str]
DEFAULT_PRECISION: Precision = "a8w8-per-channel"


class Platform:
    """One vendor. Creating it must be cheap: import the vendor's libraries inside the methods.

    `device_names` are what people write, for example `("htp", "htp:CHIP")`; what stands before the
    colon decides which platform opens a device.
    """

    name: ClassVar[str]
    device_names: ClassVar[tuple[str, ...]] = ()
    has_toolchain: ClassVar[bool] = True
    has_boards: ClassVar[bool] = False
    """Whether its devices are plugged into one machine, each with a name of its own. A fleet gives
    every board a runner on that machine, and pods of Kubernetes have none."""
    converter: ClassVar[str] = ""
    """The platform whose toolchain makes the files that these devices run; empty: this one."""
    file_suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the toolchain's files. No platform before has the first: it tells who made it."""
    settings: ClassVar[type[Section] | None] = None
    """Keys of its own in `edgeloop.yaml`; read them with `settings.section(...)`."""

    def open_toolchain(self, settings: Settings) -> Toolchain:
        """Raises an EdgeloopError that says how to install what is missing."""
        raise BadInput(reason=f"the platform {self.name} has no toolchain of its own")

    def open_device(self, name: str, settings: Settings) -> Device:
        """`name` is the whole name, with what stands after the colon. Whether the device is there
        is for its `probe` to say."""
        raise BadInput(reason=f"the platform {self.name} has no devices")

    def list_devices(self, settings: Settings) -> Iterable[ListedDevice]:
        """What `edgeloop devices` shows; quick, and no error where nothing is there. By default
        every device name; one with a part in capitals stands for names of its own."""
        for name in self.device_names:
            _, _, rest = name.partition(":")
            state = f"write your {rest.lower()}" if rest.isupper() else ListedDevice.state
            yield ListedDevice(name, state=state)

    def describe(self, listed: ListedDevice, settings: Settings) -> ListedDevice:
        """With the chip and the model of an attached device, for which it may be asked: a person
        waits for this, runners do not. One that does not answer says so in its state."""
        return listed

    def devices_of_type(self, chip: str, settings: Settings) -> Sequence[str]:
        """Names of the attached devices of this type, for example all boards with a chip."""
        return ()

    def health(self, settings: Settings) -> Iterable[HealthCheck]:
        """Lines for `edgeloop doctor`: what is installed, and how to get what is missing."""
        return ()

    def leftovers(
        self, device: str, settings: Settings, older_s: float
    ) -> Sequence[DeviceLeftover]:
        """What lies on an attached device and was not used for so long, for `edgeloop gc --boards`.
        Only looks; raises DeviceUnavailable, and DeviceBusy where a runner uses the device."""
        return ()

    def check_benchmark(self, name: str, settings: Settings) -> None:
        """Raises BadInput where this device has no latency to give: before a runner starts."""

    def check_toolchain(self, settings: Settings) -> None:
        """Raises an EdgeloopError where this machine lacks what conversion needs. Quick."""

    def open_estimator(self, name: str, settings: Settings, limit_s: float) -> Estimator:
        """Latency of untrained graphs, for searches; only for platforms that can estimate it."""
        raise BadInput(reason=f"{name} cannot estimate the latency of untrained models")

    def open_estimators(
        self, names: Sequence[str], settings: Settings, limit_s: float
    ) -> Mapping[str, Estimator]:
        """One per device, asked in turn about each model. Override it where devices share work."""
        return {name: self.open_estimator(name, settings, limit_s) for name in names}

    def calibrate(
        self,
        name: str,
        chip: str,
        measured: Sequence[MeasuredModel],
        settings: Settings,
        source: str = "",
    ) -> LatencyProfile:
        """Fit the estimate to models measured on a board, and keep the profile as `name`;
        `source` says where the measurements came from."""
        raise BadInput(reason=f"the platform {self.name} has no latency estimate to calibrate")


class Toolchain(Protocol):
    """From an ONNX file to what a device runs."""

    name: str  # the platform's

    def inspect(self, model: Path) -> GraphInfo:
        """Check that the model can be used; raises BadModel with the reason in plain words."""

    def convert(
        self,
        model: Path,
        calibration: Samples,
        folder: Path,
        precision: Precision = DEFAULT_PRECISION,
        chips: tuple[str, ...] = (),
    ) -> Converted:
        """Write the quantized model and whatever else the devices need to `folder`. `chips` are
        those of the devices, where something is compiled for each of them."""

    def close(self) -> None: ...


@runtime_checkable
class Versioned(Protocol):
    """A toolchain that says which compiler it is: `edgeloop gate` compares latencies of the same
    one only."""

    version: str


@dataclass(frozen=True)
class Converted:
    """The files that conversion made, by the names they get in the model's folder. `memory` is
    what the model as it was quantized needs; None where the toolchain does not know. `refused` are
    chips whose compiler does not take it, while others do."""

    info: GraphInfo
    precision: str  # as in the table: a8w8, …, or mixed: and the digest of the plan
    files: Mapping[str, Path]
    quantized: str  # its name in `files`
    notes: tuple[str, ...] = field(default=())
    memory: DeployedMemory | None = None
    refused: tuple[str, ...] = ()

    @property
    def memory_or_guess(self) -> DeployedMemory | None:
        """Where the toolchain does not know, that of the graph with all its weights in 8 bits and
        its activations in what the precision says."""
        guess = self.info.memory
        if self.memory is not None or guess is None:
            return self.memory
        wide = self.precision == "a16w8"
        peak = guess.activations_16bit if wide else guess.activations_8bit
        return DeployedMemory(guess.weights_8bit, peak)


PROBE = ".probe"
"""What the name of an output that `quantize_plan` adds has behind that of its tensor."""


@dataclass(frozen=True)
class CalibratedModel:
    """What calibration found, for any number of plans: the float model in which tensors have the
    names that plans use, those that can have bits of their own, and the smallest and largest value
    of every activation. `pixels` are inputs that are given images."""

    info: GraphInfo
    model: Path
    tensors: tuple[TunableTensor, ...]
    ranges: Mapping[str, tuple[float, float]]
    pixels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@runtime_checkable
class MixesPrecision(Protocol):
    """A toolchain that gives every tensor the bits that a plan says: `convert_plan` for
    `--precision mixed:FILE`, the other two methods for `edgeloop precision`."""

    def convert_plan(
        self,
        model: Path,
        calibration: Samples,
        folder: Path,
        plan: PrecisionPlan,
        chips: tuple[str, ...] = (),
    ) -> Converted:
        """As `convert`, with the bits of a plan; its name is the precision of the result."""

    def calibrate_tensors(self, model: Path, calibration: Samples, folder: Path) -> CalibratedModel:
        """Find the ranges of all tensors, once; what is written lies in `folder`."""

    def quantize_plan(
        self,
        calibrated: CalibratedModel,
        plan: PrecisionPlan,
        target: Path,
        outputs: Sequence[str] = (),
    ) -> Sequence[str]:
        """Write the quantized model that the devices run. Behind its own outputs it gives the
        activations that `outputs` names, each as an output with `PROBE` behind its name. Returns
        those that it has. Raises BadInput for a plan that names tensors the model does not have,
        ModelRefused for bits that they cannot have."""


def convert_as(
    toolchain: Toolchain,
    model: Path,
    calibration: Samples,
    folder: Path,
    precision: Precision | PrecisionPlan,
    chips: tuple[str, ...] = (),
) -> Converted:
    """With a precision's name or with a plan; raises BadInput where the toolchain takes none."""
    if not isinstance(precision, PrecisionPlan):
        return toolchain.convert(model, calibration, folder, precision, chips)
    mixing = check_mixes(toolchain)
    return mixing.convert_plan(model, calibration, folder, precision, chips)


def check_mixes(toolchain: Toolchain) -> MixesPrecision:
    if isinstance(toolchain, MixesPrecision):
        return toolchain
    reason = f"the toolchain {toolchain.name} gives all tensors the same bits: use a precision such"
    raise BadInput(reason=f"{reason} as a16w8 with it, or a device of the toolchain qnn")


@runtime_checkable
class CompilesQuantized(Protocol):
    """A toolchain whose quantized models are ONNX files with QuantizeLinear and DequantizeLinear,
    and that compiles one whose numbers were changed: what `runner --recover` needs."""

    def simplify(self, model: Path, target: Path) -> None:
        """Write the float graph that `convert` quantizes: operators have the names that they have
        in the quantized model."""

    def compile(
        self, quantized: Path, name: str, folder: Path, chips: tuple[str, ...] = ()
    ) -> Mapping[str, Path]:
        """Write what the devices run to `folder`, by the names that `convert` gives these files;
        `name` is that of the model's own file. It takes the place of those that `convert` made."""


class Device(Protocol):
    """Something that runs models, or knows how long that takes."""

    name: str  # as in the table: host, htp:qcs8550, adb:SERIAL
    chip: str  # what to compile for; empty where nothing is compiled
    float_kind: Kind  # how it runs the model that was not quantized: float, or fp16
    artefacts: Artefacts  # suffix of the file for each kind; a kind left out: the uploaded model

    def probe(self) -> str:
        """A line about the device; raises when it is not there."""

    def measure(self, model: Path, info: GraphInfo) -> Measurement:
        """One benchmark run of the quantized model."""

    def infer(
        self, model: Path, info: GraphInfo, kind: Kind, batches: Iterator[Tensors]
    ) -> Iterator[Tensors]:
        """All outputs of batches of inputs, by name, in order, as they become ready.

        Every array has n samples, each of the model's own shape without the batch. An image is also
        taken as (n, H, W, 3) uint8. `model` is the file that `artefacts` names for the kind.
        """

    def close(self) -> None: ...


@dataclass(frozen=True)
class Measurement:
    """One benchmark run. `seconds` is what goes into the row: the median of the samples, or the
    calibrated estimate.

    An estimate says so. `low_s` to `high_s` is where the time on the chip is expected to be, with
    the probability `coverage`; a coverage of None says that no data supports one. Without an
    interval, `basis` says why; with one, it says where it comes from. `missing_ops` counts steps
    that the estimate leaves out: the time is then a lower bound, and has no interval. `raw_us`,
    `low_us` and `high_us` are what the tool said before calibration. `is_deterministic`: another
    run would give the same number, so one is enough.
    """

    seconds: float
    samples_s: tuple[float, ...]
    is_estimate: bool = False
    raw_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    coverage: float | None = None
    basis: str = ""
    missing_ops: int = 0
    is_deterministic: bool = False
    profile: str = ""
    is_calibrated: bool = False
    layers: tuple[LayerTime, ...] = ()
    conditions: Mapping[str, str | float] = field(default_factory=dict)
    ddr_bytes: int | None = None
    """Traffic of one inference with the memory outside the chip, where the compiler says it."""
    peak_rss_bytes: int | None = None
    """The most memory that the process that ran it had."""
    power_mw: float | None = None
    """The mean power of the whole board while it ran."""

    @property
    def low_ms(self) -> float | None:
        return None if self.low_s is None else 1000 * self.low_s

    @property
    def high_ms(self) -> float | None:
        return None if self.high_s is None else 1000 * self.high_s


@dataclass(frozen=True)
class LayerTime:
    name: str
    operator: str
    time_us: float | None = None


@runtime_checkable
class GivesClasses(Protocol):
    """A device that returns class maps (n, H, W) where a model takes one image and has a graph that
    ends in them: they are a small part of the bytes of full outputs."""

    class_artefacts: Artefacts

    def infer_classes(
        self, model: Path, info: GraphInfo, kind: Kind, batches: Iterator[Tensors]
    ) -> Iterator[Output]:
        """As `infer`, of the file that `class_artefacts` names; `info` is the whole model's."""


@runtime_checkable
class SharedDevice(Protocol):
    """A device that should never wait for its host: several sessions use it at once, so that files
    travel and results are handed in while another session's tool runs there. Sessions queue inside
    the device; the device itself is locked against other machines."""

    sessions: int

    def open_session(self) -> Device:
        """Another session on the same device, with a record of its own."""

    def acquire(self) -> None:
        """Lock it for this process until it is closed; raises DeviceBusy."""

    def stop(self) -> None:
        """Stages that have run something there may finish; all others get DeviceUnavailable."""

    def take_uses(self) -> list[tuple[datetime, datetime]]:
        """When this session's tools ran there, since the last call."""


Availability = Literal["ready", "hot", "unplugged", "unauthorized", "offline"]


@dataclass(frozen=True)
class DeviceCondition:
    """Whether a device could be used now, and how hot it was; `detail` says what to do about it."""

    state: Availability = "ready"
    detail: str = ""
    celsius: float | None = None


@runtime_checkable
class HasCondition(Protocol):
    """A device that can go away while a runner uses it, such as a board on a cable."""

    def condition(self) -> DeviceCondition:
        """Quick, and without disturbing what runs there; asked every few seconds."""


def device_type(device: Device) -> str:
    """What models are pinned to: of several equal boards any one will do, so a board gives the name
    of its chip as `device_type`. Other devices are their own type."""
    return str(getattr(device, "device_type", "")) or device.name


@runtime_checkable
class TakesTurns(Protocol):
    """A shared device that says when a stage gets its first turn: then it begins, unless something
    more urgent has come up since it was claimed."""

    def before_turn(self, check: Callable[[], None] | None) -> None:
        """Call this when the next stage of this session gets its first turn, before anything runs.
        What it raises ends the stage, and comes out of it."""

    def keep_turn(self) -> None:
        """The stage gives way to another one of this session: no other session is served before
        that has had its turn, or until `drop_turn`."""

    def drop_turn(self) -> None:
        """No such stage follows after all."""


class Estimator(Protocol):
    """Latency of models that are not trained yet: neither calibration nor a device is needed."""

    conditions: str  # what the numbers depend on: chip, profile, version of the compiler

    def warm(self) -> None:
        """Load the libraries now, so that the first model does not wait for that."""

    def inspect(self, model: Path) -> GraphInfo: ...

    def latency_ms(self, model: Path) -> float: ...

    def kill(self) -> None:
        """End a call that is under way in another thread."""

    def close(self) -> None: ...


@runtime_checkable
class EstimatesIntervals(Protocol):
    """An estimator that knows how far its numbers may be off."""

    def estimate(self, model: Path) -> Measurement: ...


@dataclass(frozen=True)
class ErrorInterval:
    """The time on a board is between `low` and `high` times the predicted one, for the share
    `coverage` of networks left out of the fit; None: too few for a share. `widened_by`: it is that
    of all networks, made wider by the errors of so many of one kind."""

    low: float
    high: float
    networks: int
    coverage: float | None = None
    widened_by: int = 0


@dataclass(frozen=True)
class LatencyProfile:
    """What turns a compiler's estimate into the time on a board: a + b · estimate.

    `error_percent` is the median error on models that were left out of the fit. `intervals` are by
    kind of network, `any` for all of them; a profile without one has no interval to show.
    `range_us` are the fastest and the slowest model of the fit; nothing is known outside of it.
    `terms` are weights of graph features that correct the logarithm of the time. `formats` are the
    profiles of other number formats (`w8a16`, `float`) than this one's.
    """

    name: str
    soc: int
    a_us: float
    b: float
    models: int
    error_percent: float
    source: str
    intervals: Mapping[str, ErrorInterval] = field(default_factory=dict)
    range_us: tuple[float, float] | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    form: str = "w8a8"
    formats: Mapping[str, LatencyProfile] = field(default_factory=dict)

    def for_format(self, form: str) -> LatencyProfile | None:
        return self if form == self.form else self.formats.get(form)


@dataclass(frozen=True)
class MeasuredModel:
    """A quantized model, and its latency on a board."""

    quantized: Path
    latency_ms: float


@dataclass(frozen=True)
class ListedDevice:
    """A row of `edgeloop devices`."""

    device: str
    estimate: str = "measured"
    profile: str = ""
    state: str = "ready"
    is_attached: bool = False
    """Plugged into this machine: runners report it even while it is not in use."""
    condition: DeviceCondition = DeviceCondition()
    chip: str = ""
    model: str = ""


@dataclass(frozen=True)
class DeviceLeftover:
    """One kind of thing on a device. `remove` looks again, and returns how many went."""

    device: str
    kind: str
    names: Sequence[str]
    sizes: Sequence[int]
    why: str
    remove: Callable[[], int] = field(repr=False, compare=False)


# The cost of every layer of a model, from devices that can tell it without running the model.


@dataclass(frozen=True)
class LayerCost:
    """What a layer adds to the latency, and its share of the whole.

    Layers that cannot be told apart are one entry: `members` has their names in the order of the
    graph, `name` is that of the one that computes most. What writing the outputs takes is an entry
    without members."""

    name: str
    operator: str
    output: tuple[int, ...]
    time_us: float
    share: float
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerCosts:
    """The latency of a model, by layer. The entries and `unattributed_us` add up to `total_us`:
    what a compiler would say of the whole, `raw_us`, corrected by the device's profile if it has
    one. `notes` are reasons to trust it less. The time on the chip is expected from `low_us` to
    `high_us`, with the probability `coverage`; None where no data supports one. `missing_ops` are
    steps that the total leaves out: it is a lower bound then."""

    device: str
    total_us: float
    raw_us: float
    layers: tuple[LayerCost, ...]
    unattributed_us: float = 0.0
    is_calibrated: bool = False
    notes: tuple[str, ...] = ()
    compiles: int = 0
    missing_ops: int = 0
    low_us: float | None = None
    high_us: float | None = None
    coverage: float | None = None


@runtime_checkable
class AttributesLatency(Protocol):
    """A device that can say which layers of a model take the time, without running it."""

    def attribute(
        self,
        model: Path,
        workers: int | None = None,
        cache: Path | None = None,
        limit_s: float = 60.0,
        progress: Callable[[int, int], None] | None = None,
    ) -> LayerCosts:
        """`model` is a float model or one that the toolchain quantized. At most `workers` processes
        work at once. What was found is kept in `cache`, also if this is killed. After `limit_s`
        the result is what is known by then; the next call continues."""
