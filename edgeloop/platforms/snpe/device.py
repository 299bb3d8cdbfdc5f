"""A board over USB or TCP: the chip itself, measured. The quantized model runs on its DSP, the
float one on its CPU.

Batches gathered into runs that are worth a tool's start, two of them under way at once.
"""

from __future__ import annotations

import csv
import math
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

import numpy as np

from edgeloop._util.yaml import read_yaml
from edgeloop.errors import BadInput, ModelFailed
from edgeloop.graph.info import GraphInfo, Shape, TensorInfo
from edgeloop.graph.variants import (
    DLC_CLASSES,
    DLC_INPUT,
    DLC_OUTPUT,
    dlc_names,
    single_sample_info,
)
from edgeloop.platforms.base import Artefacts, DeviceCondition, Kind, LayerTime, Measurement
from edgeloop.platforms.batching import (
    check_batch,
    cut,
    filled,
    is_pixels,
    joined,
    random_batch,
    sample_count,
)
from edgeloop.platforms.snpe import BoardOptions
from edgeloop.platforms.snpe.adb import Adb
from edgeloop.platforms.snpe.board import Board
from edgeloop.platforms.snpe.dlc import (
    DlcTensors,
    Encoding,
    board_input,
    channels_last,
    is_float,
    is_moved,
    read_tensors,
)
from edgeloop.platforms.snpe.files import InputFile
from edgeloop.platforms.snpe.run import ToolRun, conditions, peak_rss_bytes, power_mw
from edgeloop.platforms.snpe.sdk import Sdk, run_tool
from edgeloop.tasks import Output, Tensors

_FIRST_BATCHES = (5, 4)  # results soon, and few drawn before; but every start of a tool costs


@dataclass(frozen=True)
class Group:
    """Batches that go through one run of the tool."""

    lengths: tuple[int, ...]
    samples: Tensors


def groups(batches: Iterator[Tensors], info: GraphInfo, most: int) -> Iterator[Group]:
    gathered: list[Tensors] = []
    sizes = iter(_FIRST_BATCHES)
    limit = next(sizes, None)
    for batch in batches:
        check_batch(batch, info)
        gathered.append(batch)
        count = sum(sample_count(each) for each in gathered)
        if count >= most or (limit is not None and len(gathered) >= limit):
            yield _group(gathered)
            gathered, limit = [], next(sizes, None)
    if gathered:
        yield _group(gathered)


def _group(batches: list[Tensors]) -> Group:
    return Group(tuple(sample_count(batch) for batch in batches), joined(batches))


def in_order(gathered: Iterator[Group], work: Callable[[Group], Tensors]) -> Iterator[Tensors]:
    pool = ThreadPoolExecutor(2, thread_name_prefix="board")
    waiting: deque[tuple[Group, Future[Tensors]]] = deque()
    try:
        for group in gathered:
            waiting.append((group, pool.submit(work, group)))
            if len(waiting) > 1:
                yield from _batches(*waiting.popleft())
        while waiting:
            yield from _batches(*waiting.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _batches(group: Group, future: Future[Tensors]) -> Iterator[Tensors]:
    whole, start = future.result(), 0
    for length in group.lengths:
        yield cut(whole, start, start + length)
        start += length


_ARTEFACTS: Artefacts = {"quantized": ".quant.dlc", "float": ".dlc"}
_CLASS_ARTEFACTS: Artefacts = {"quantized": ".classes.quant.dlc", "float": ".classes.dlc"}
PERFORMANCE = "high_performance"
_DIFFERENT_INPUTS = 5
_RUN_SAMPLES = 256
_RUN_BYTES = 128 * 10**6
_PROFILE_S = 60.0
_PROPERTIES = (
    "ro.product.model",
    "ro.board.platform",
    "ro.build.version.release",
    "ro.soc.model",
)

_NATIVE = ("--userbuffer_auto", "--use_native_output_files")

Read = Callable[[Mapping[str, bytes], int], Tensors]


@cache
def _chips() -> dict[str, str]:
    return cast(dict[str, str], read_yaml(Path(__file__).with_name("chips.yaml")).value)


def chip_of(soc: str, platform: str) -> str:
    """Our name of a board's chip; one that we do not know goes by its own name; empty: it says
    nothing."""
    plain = [re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-") for text in (soc, platform)]
    listed = [_chips()[name] for name in plain if name in _chips()]
    return next(iter([*listed, *filter(None, plain)]), "")


@dataclass(frozen=True)
class BoardProperties:
    """What a board says of itself; empty where it says nothing."""

    model: str
    platform: str
    release: str
    soc: str

    @classmethod
    def read(cls, adb: Adb, limit_s: float | None = None) -> BoardProperties:
        script = "\n".join(f"getprop {name}" for name in _PROPERTIES)
        text = adb.shell(script, limit_s).text
        lines = ["".join(c for c in line if c.isprintable()) for line in text.splitlines()]
        return cls(*(*(line.strip() for line in lines), "", "", "", "")[:4])

    @property
    def chip(self) -> str:
        return chip_of(self.soc, self.platform)


class AdbDevice:
    """A session on a board; `open_session` gives further ones, all on the same board and lease."""

    chip = ""
    float_kind: Kind = "float"
    artefacts = _ARTEFACTS
    class_artefacts = _CLASS_ARTEFACTS
    sessions = 3

    def __init__(
        self,
        serial: str,
        sdk: Sdk | None,
        program: str = "adb",
        options: BoardOptions | None = None,
        board: Board | None = None,
    ) -> None:
        self.name = f"adb:{serial}"
        self.device_type = ""  # known from the first probe on
        self._options = options or BoardOptions()
        self._sdk = sdk
        limits = self._options.call_s, self._options.probe_s
        self._adb = board.adb if board is not None else Adb(serial, program, *limits)
        self._shared = board
        self._uses: list[tuple[datetime, datetime]] = []
        self._counting = threading.Lock()
        self._place: int | None = None
        self._keeps_place = False
        self._check: Callable[[], None] | None = None

    @property
    def board(self) -> Board:
        if self._shared is None:
            if self._sdk is None:
                reason = (
                    f"{self.name} needs Qualcomm's Neural Processing SDK: install it and set "
                    "SNPE_ROOT to its folder ('edgeloop doctor' says more)"
                )
                raise BadInput(reason=reason)
            self._shared = Board(self._adb, self._sdk, self._options)
        return self._shared

    def probe(self) -> str:
        self._adb.probe()
        said = BoardProperties.read(self._adb)
        self.device_type = said.chip
        android = f"Android {said.release}" if said.release else ""
        line = ", ".join(filter(None, (said.model or "a board", said.platform, android)))
        version = self._sdk.version or "of unknown version" if self._sdk else "missing"
        return f"{line}; SDK {version}"

    def condition(self) -> DeviceCondition:
        reported = self._adb.condition()
        if reported.state != "ready" or self._shared is None:
            return reported
        celsius = self._shared.celsius
        if self._shared.is_cooling:
            text = f"a benchmark waits until it is below {self._options.hot_c:g} °C"
            return DeviceCondition("hot", text, celsius)
        return replace(reported, celsius=celsius)

    def open_session(self) -> AdbDevice:
        session = AdbDevice(self._adb.serial, self._sdk, options=self._options, board=self.board)
        session.device_type = self.device_type
        return session

    def acquire(self) -> None:
        self.board.open()

    def stop(self) -> None:
        self.board.turns.close()

    def take_uses(self) -> list[tuple[datetime, datetime]]:
        """Called at the end of a stage: for the next one this session queues again."""
        with self._counting:
            uses, self._uses = self._uses, []
            self._check = None
            if not self._keeps_place:
                self._leave_place()
        return uses

    def before_turn(self, check: Callable[[], None] | None) -> None:
        self._check = check

    def keep_turn(self) -> None:
        with self._counting:
            if self._place is not None:
                self._keeps_place = True
                self.board.turns.reserve(self._place)

    def drop_turn(self) -> None:
        with self._counting:
            if self._keeps_place:
                self._leave_place()

    def _leave_place(self) -> None:
        if self._place is not None:
            self.board.turns.forget(self._place)
        self._place, self._keeps_place = None, False

    def measure(self, model: Path, info: GraphInfo) -> Measurement:
        """The mean of a run's inferences, as the SDK's own profile says it; nothing else happens
        on the board meanwhile. A hot board is let cool down first."""
        board, dlc = self.board, read_tensors(model)
        feeds = _runs(random_batch(info, _DIFFERENT_INPUTS * info.batch), info, dlc)
        with board.watched(), board.placed(model, feeds) as (container, lines):
            count = max(1, self._options.benchmark_inputs)
            listed = [lines[number % len(lines)] for number in range(count)]
            told = [*_outputs_asked(info), *_resized(info, dlc)]
            arguments = [*_arguments("quantized"), *told, "--profiling_level", "basic"]
            run, waited_s = self._run_cool(board, container, arguments, listed)
        return self._measurement(model, board, run, waited_s)

    def infer(
        self, model: Path, info: GraphInfo, kind: Kind, batches: Iterator[Tensors]
    ) -> Iterator[Tensors]:
        dlc = read_tensors(model)
        made = _in_dlc(info, dlc)
        coded = kind == "quantized" and _is_coded(made, dlc)
        is_native = coded and self.board.sdk.writes_native_files

        def read(files: Mapping[str, bytes], runs: int) -> Tensors:
            return full_outputs(files, runs, made, dlc, is_native)

        size = 4 * sum(math.prod(made.sample_shape(tensor)) for tensor in made.outputs)
        yield from self._inferred(
            _Work(
                model=model,
                info=made,
                dlc=dlc,
                kind=kind,
                read=read,
                is_native=is_native,
                bytes_each=size,
            ),
            batches,
        )

    def infer_classes(
        self, model: Path, info: GraphInfo, kind: Kind, batches: Iterator[Tensors]
    ) -> Iterator[Output]:
        def read(files: Mapping[str, bytes], runs: int) -> Tensors:
            return {DLC_CLASSES: class_maps(files, runs, info)}

        is_native, size = self.board.sdk.writes_native_files, 4 * info.height * info.width
        work = _Work(
            model=model,
            info=info,
            dlc=DlcTensors(),
            kind=kind,
            read=read,
            is_native=is_native,
            bytes_each=size,
        )
        return (outputs[DLC_CLASSES] for outputs in self._inferred(work, batches))

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
        self._adb.close()

    def _inferred(self, work: _Work, batches: Iterator[Tensors]) -> Iterator[Tensors]:
        """Two groups are under way at once: while one is in the tool, the other's files travel."""
        if work.kind == "fp16":
            raise BadInput(reason="a board runs quantized and float models; fp16 is for htp")
        most = max(1, min(_RUN_SAMPLES, _RUN_BYTES // max(1, work.bytes_each)))
        rank = self._rank()

        def outputs(group: Group) -> Tensors:
            return self._group_outputs(work, rank, group)

        return in_order(groups(batches, work.info, most), outputs)

    def _group_outputs(self, work: _Work, rank: int, group: Group) -> Tensors:
        board = self.board
        arguments = [
            *_arguments(work.kind),
            *_outputs_asked(work.info),
            *(_NATIVE if work.is_native else ()),
        ]
        feeds = _runs(group.samples, work.info, work.dlc)
        with board.watched(), board.placed(work.model, feeds) as (container, lines):
            run = board.run(rank, container, arguments, lines)
        self._note(run)
        files = {} if run is None else run.files
        outputs = {name.removeprefix("out/"): content for name, content in files.items()}
        return cut(work.read(outputs, len(lines)), 0, sum(group.lengths))

    def _run_cool(
        self, board: Board, container: str, arguments: list[str], inputs: list[str]
    ) -> tuple[ToolRun, float]:
        """A hot board rests without other work until it has cooled, or for a limited time."""
        options, waited_s, rank = self._options, 0.0, self._rank()
        with ExitStack() as resting:
            while True:
                limit_c = 1e3 if waited_s >= options.cool_limit_s else options.hot_c
                run = board.run(rank, container, arguments, inputs, limit_c)
                if run is not None:
                    self._note(run)
                    return run, waited_s
                if not waited_s:
                    resting.enter_context(board.turns.kept_for(rank))
                board.note_cooling(options.cool_poll_s)
                if board.closing.wait(options.cool_poll_s):
                    raise board.adb.unavailable("this runner is stopping")
                waited_s += options.cool_poll_s

    def _measurement(self, model: Path, board: Board, run: ToolRun, waited_s: float) -> Measurement:
        total = _profile(run, "out", board.sdk)
        if total is None:
            raise ModelFailed(reason="the board's tool left no profile, so there is no latency")
        detailed = _profile(run, "layers", board.sdk) or total
        layers = tuple(LayerTime(*layer) for layer in with_names(detailed, model).layers)
        circumstances: dict[str, str | float] = {
            "board": self.name,
            "sdk": board.sdk.version,
            "perf_profile": PERFORMANCE,
            "inputs": self._options.benchmark_inputs,
            **conditions(run.text("before"), run.text("after")),
        }
        if waited_s:
            circumstances["cooled down s"] = waited_s
        if waited_s >= self._options.cool_limit_s:
            circumstances["note"] = (
                f"measured hot: not below {self._options.hot_c:g} °C in {waited_s:g} s"
            )
        seconds = total.total_us / 1e6
        watched = run.text("power")
        return Measurement(
            seconds,
            (seconds,),
            layers=layers,
            conditions=circumstances,
            peak_rss_bytes=peak_rss_bytes(watched),
            power_mw=power_mw(watched),
        )

    def _rank(self) -> int:
        """All runs of a stage have one place in the queue of the board's sessions."""
        with self._counting:
            if self._place is None:
                self._place = self.board.turns.rank()
                self.board.turns.check_first(self._place, self._check)
            elif self._keeps_place:  # this is the stage that the last one gave way to
                self._keeps_place = False
                self.board.turns.check_first(self._place, self._check)
            return self._place

    def _note(self, run: ToolRun | None) -> None:
        if run is not None:
            with self._counting:
                self._uses.append((run.ended - timedelta(seconds=run.seconds), run.ended))


@dataclass(frozen=True)
class _Work:
    """One stage's inference: `info` is of the graph in the DLC, which may take fewer samples at a
    time than the model."""

    model: Path
    info: GraphInfo
    dlc: DlcTensors
    kind: Kind
    read: Read
    is_native: bool
    bytes_each: int


def _in_dlc(info: GraphInfo, dlc: DlcTensors) -> GraphInfo:
    return info if dlc.batch in (None, info.batch) else single_sample_info(info)


def _is_coded(info: GraphInfo, dlc: DlcTensors) -> bool:
    """Whether all outputs can be read in the types that the DLC has them in."""
    names = dlc_names(DLC_OUTPUT, len(info.outputs))
    return all(
        name in dlc.encodings or not is_float(tensor)
        for name, tensor in zip(names, info.outputs, strict=True)
    )


def _runs(samples: Tensors, info: GraphInfo, dlc: DlcTensors) -> list[dict[str, InputFile]]:
    """The files of every run by the names of inputs on the board. Images stay pixels until they are
    sent: what lies on the board already is known by those."""
    names = dlc_names(DLC_INPUT, len(info.inputs))
    runs = []
    for start in range(0, sample_count(samples), info.batch):
        run = filled(cut(samples, start, start + info.batch), info)
        files = {}
        for name, tensor in zip(names, info.inputs, strict=True):
            values_taken = run[tensor.name]
            if is_pixels(values_taken, tensor):
                files[name] = InputFile(values_taken[0] if info.batch == 1 else values_taken)
            else:
                values = board_input(
                    values_taken.reshape(tensor.shape), tensor, _shape(name, tensor, dlc)
                )
                files[name] = InputFile(values)
        runs.append(files)
    return runs


def _outputs_asked(info: GraphInfo) -> list[str]:
    """The tool gives the outputs of the last layer alone, unless it is told."""
    if len(info.outputs) == 1:
        return []
    return ["--set_output_tensors", ",".join(dlc_names(DLC_OUTPUT, len(info.outputs)))]


def _resized(info: GraphInfo, dlc: DlcTensors) -> Iterator[str]:
    """For a DLC that takes one sample, and is to take as many as the model does."""
    if dlc.batch in (None, info.batch):
        return
    for name, tensor in zip(dlc_names(DLC_INPUT, len(info.inputs)), info.inputs, strict=True):
        shape = tensor.shape
        if tensor.layout != "NHWC" and is_moved(shape, _shape(name, tensor, dlc)):
            shape = channels_last(shape)
        yield from ("--input_name", name, "--input_dimensions", ",".join(map(str, shape)))


def _shape(name: str, tensor: TensorInfo, dlc: DlcTensors) -> Shape | None:
    """That of an input in the DLC, for as many samples as the tensor has."""
    shape = dlc.shapes.get(name)
    return (tensor.shape[0], *shape[1:]) if shape and dlc.batch is not None else shape


def _profile(run: ToolRun, folder: str, sdk: Sdk) -> RunProfile | None:
    """What the SDK's own program reads from a log of the run."""
    logs = [c for name, c in run.files.items() if name.startswith(f"{folder}/SNPEDiag") and c]
    if not logs:
        return None
    with tempfile.TemporaryDirectory(prefix="edgeloop-board-") as place:
        log = Path(place) / "SNPEDiag_0.log"
        log.write_bytes(logs[0])
        return profile_of(log, sdk, _PROFILE_S)


def _arguments(kind: Kind) -> list[str]:
    dsp = ["--use_dsp"] if kind == "quantized" else []
    return [*dsp, "--perf_profile", PERFORMANCE]


# From the raw files of a run on a board to arrays: counted, sized and checked before they are
# scored. The type of a file follows from its size; images have their channels last.


_RESULT = re.compile(r"Result_(\d+)/(.+)\.raw")


def full_outputs(
    files: Mapping[str, bytes], runs: int, info: GraphInfo, dlc: DlcTensors, is_native: bool
) -> Tensors:
    """All outputs of all runs by the model's own names, each (n, …) in the layout and type of the
    model's own output. `info` is that of the graph in the DLC."""
    results = _results(files, runs, info)
    by_name = {}
    for name, tensor in zip(dlc_names(DLC_OUTPUT, len(info.outputs)), info.outputs, strict=True):
        raws = [_chosen(result, name, tensor) for result in results]
        shape = dlc.shapes.get(name)
        is_turned = is_moved(tensor.shape, shape, _has_channels_first(info, tensor))
        whole = _checked(raws, tensor, dlc.encodings.get(name), is_native)
        if is_turned:
            whole = np.moveaxis(whole.reshape(runs, *channels_last(tensor.shape)), -1, 2)
        samples = whole.reshape(runs * info.batch, *info.sample_shape(tensor))
        by_name[tensor.name] = samples.astype(tensor.dtype, copy=False)
    return by_name


def _checked(
    raws: list[bytes], tensor: TensorInfo, encoding: Encoding | None, is_native: bool
) -> Output:
    size = math.prod(tensor.shape)
    whole: Output = np.stack([_values(raw, size, tensor, encoding, is_native) for raw in raws])
    if whole.dtype.kind == "f" and not np.isfinite(whole).all():
        reason = f"its output {tensor.name!r} on the board is not all numbers (NaN or infinite)"
        raise ModelFailed(reason=reason)
    return whole if is_float(tensor) else np.rint(whole).astype(tensor.dtype)


def class_maps(files: Mapping[str, bytes], count: int, info: GraphInfo) -> Output:
    """(n, H, W) whole numbers below the number of classes."""
    tensor = info.outputs[0]
    shape = tensor.shape[1:]
    first = _has_channels_first(info, tensor)
    classes, sides = (shape[0], shape[1:]) if first else (shape[-1], shape[:-1])
    raws = [_chosen(result, DLC_CLASSES, tensor) for result in _results(files, count, info)]
    maps = [_classes(raw, math.prod(sides), classes) for raw in raws]
    return np.stack(maps).reshape(count, *sides)


def _has_channels_first(info: GraphInfo, tensor: TensorInfo) -> bool:
    """Of an image's output: where the sides are tells it; others follow the input."""
    image = next((each for each in info.inputs if each.layout), None)
    if image is None:
        return True
    sides, shape = (image.height, image.width), tensor.shape[1:]
    return shape[1:] == sides or (shape[:-1] != sides and image.layout == "NCHW")


def _results(files: Mapping[str, bytes], count: int, info: GraphInfo) -> list[Mapping[str, bytes]]:
    """One for each run, in order: the files of its outputs."""
    by_run: dict[int, dict[str, bytes]] = {}
    for name, content in files.items():
        if match := _RESULT.fullmatch(name):
            by_run.setdefault(int(match[1]), {})[match[2]] = content
    if sorted(by_run) != list(range(count)):
        what = "images" if info.image is not None and info.batch == 1 else "runs"
        raise ModelFailed(reason=f"the board returned {len(by_run)} results for {count} {what}")
    return [by_run[number] for number in range(count)]


def _chosen(outputs: Mapping[str, bytes], name: str, tensor: TensorInfo) -> bytes:
    """The file of an output; one that stands alone may be called as the tool likes."""
    if len(outputs) == 1 and name in (DLC_OUTPUT, DLC_CLASSES):
        return next(iter(outputs.values()))
    for file, content in outputs.items():
        if file.removesuffix(":0") in (name, tensor.name):
            return content
    there = "one output" if len(outputs) == 1 else f"{len(outputs)} outputs"
    raise ModelFailed(reason=f"the board returned {there}, and {tensor.name!r} is not among them")


def _values(
    raw: bytes, size: int, tensor: TensorInfo, encoding: Encoding | None, is_native: bool
) -> Output:
    if len(raw) == 4 * size:
        return np.frombuffer(raw, np.float32 if is_float(tensor) or not is_native else np.int32)
    for width, kind in ((1, np.uint8), (2, np.uint16)):
        if len(raw) == width * size and encoding is not None and encoding.bits == 8 * width:
            return encoding.dequantize(np.frombuffer(raw, kind))
    raise ModelFailed(
        reason=f"its output {tensor.name!r} on the board has {len(raw)} bytes for {size} values"
    )


def _classes(raw: bytes, size: int, classes: int) -> Output:
    """One or two bytes each, or whole numbers or floats of four, whichever makes sense."""
    if len(raw) == size:
        class_map = np.frombuffer(raw, np.uint8)
    elif len(raw) == 2 * size:
        class_map = np.frombuffer(raw, np.uint16)
    elif len(raw) == 4 * size:
        class_map = np.frombuffer(raw, np.int32)
        if size and not 0 <= int(class_map.min()) <= int(class_map.max()) < classes:
            floats = np.frombuffer(raw, np.float32)
            if not (np.isfinite(floats).all() and (floats == np.floor(floats)).all()):
                raise ModelFailed(reason="its class maps on the board are not whole numbers")
            class_map = floats.astype(np.int64)
    else:
        raise ModelFailed(reason=f"a class map on the board has {len(raw)} bytes for {size} pixels")
    if size and not 0 <= int(class_map.min()) <= int(class_map.max()) < classes:
        reason = f"its class maps on the board have classes beyond its {classes}"
        raise ModelFailed(reason=reason)
    return class_map.astype(np.uint8 if classes <= 256 else np.uint16)


# Reads the profile of a run on a board: `snpe-diagview` turns its log into a table, here.
#
# The table's columns changed over the versions, so cells are found by what they hold: a name, then
# the first number behind it, then its unit. On the DSP layers are counted in cycles, which have no
# fixed length; their times are then their shares of the whole, and the profile says so.


_TOTALS = ("avg_total_inference_time", "total_inference_time")
_LAYER = re.compile(r"(?:avg_)?layer[_ ]?(?:time[_ ]?)?:?\s*(.+)")
_NUMBERED = re.compile(r"\d+")
_NUMBERED_LAYER = re.compile(r"layer (\d+)")
_UNITS = {"us": 1.0, "usec": 1.0, "µs": 1.0, "microseconds": 1.0, "ms": 1e3, "ns": 1e-3, "s": 1e6}
_RUNTIMES = ("cpu", "gpu", "dsp", "aip", "htp", "none")


class ProfiledLayer(NamedTuple):
    name: str
    operator: str
    time_us: float


@dataclass(frozen=True)
class RunProfile:
    """`total_us` is an inference's mean over the run. `from_cycles`: the layers' times are shares
    of the total by their cycles, not measured times."""

    total_us: float
    layers: tuple[ProfiledLayer, ...] = ()
    from_cycles: bool = False


def with_names(profile: RunProfile, model: Path) -> RunProfile:
    """Layers that the tool knows by number only, named by the table that conversion laid beside
    the DLC; left as they are where there is none."""
    stem = model.name.removesuffix(".dlc").removesuffix(".quant")
    try:
        with model.with_name(f"{stem}.layers.csv").open(newline="", encoding="utf-8") as file:
            rows = [(row["name"], row["operator"]) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError):
        return profile
    numbers = [_NUMBERED_LAYER.fullmatch(layer.name) for layer in profile.layers]
    layers = tuple(
        ProfiledLayer(*rows[int(number[1])], layer.time_us)
        if number and int(number[1]) < len(rows)
        else layer
        for layer, number in zip(profile.layers, numbers, strict=True)
    )
    return replace(profile, layers=layers)


class _DiagEntry(NamedTuple):
    name: str
    value: float
    unit: str


def profile_of(log: Path, sdk: Sdk, limit_s: float = 60.0) -> RunProfile:
    """The profile in `SNPEDiag_0.log`; raises ModelFailed where no time can be read from it."""
    if not log.is_file() or not log.stat().st_size:
        raise ModelFailed(reason="the board's tool left no profile, so there is no latency")
    with TemporaryDirectory(prefix="edgeloop-profile-") as folder:
        table = Path(folder) / "profile.csv"
        arguments = ["--input_log", str(log.resolve()), "--output", str(table)]
        text = run_tool(sdk, "snpe-diagview", arguments, limit_s)
        if table.is_file():
            text = table.read_text(encoding="utf-8", errors="replace") or text
    return read_profile(text)


def read_profile(text: str) -> RunProfile:
    """The text of diagview's CSV or, failing that, of what it prints."""
    entries = list(_cells(text)) or list(_lines(text))
    totals = {entry.name: entry for entry in reversed(entries)}  # the first of a name wins
    total = next((totals[name] for name in _TOTALS if name in totals), None)
    if total is None or not math.isfinite(total.value) or total.value <= 0:
        raise ModelFailed(reason="the board's profile has no total inference time")
    total_us = total.value * _UNITS.get(total.unit, 1.0)
    layer_entries = [
        (match[1], e) for e in entries if (match := _LAYER.fullmatch(e.name)) is not None
    ]
    cycles = sum(entry.value for _, entry in layer_entries if entry.unit == "cycles")
    layers = tuple(
        ProfiledLayer(
            f"layer {name}" if _NUMBERED.fullmatch(name) else name,
            "",
            entry.value / cycles * total_us
            if entry.unit == "cycles" and cycles
            else entry.value * _UNITS.get(entry.unit, 1.0),
        )
        for name, entry in layer_entries
    )
    return RunProfile(total_us, layers, from_cycles=cycles > 0)


def _cells(text: str) -> Iterable[_DiagEntry]:
    """Rows of a CSV. Where name and value stand is said by a header; without one the second and
    the fourth cell are tried, as older versions have them, then a name and the number behind it."""
    places: tuple[int, int] | None = None
    for row in csv.reader(text.replace("\0", "").splitlines()):
        cells = [cell.strip() for cell in row]
        folded = [cell.lower().replace(" ", "_") for cell in cells]
        if "message_name" in folded and "message_value" in folded:
            places = folded.index("message_name"), folded.index("message_value")
            continue
        for name, value in (places,) if places else ((1, 3), *_pairs(cells)):
            if name < len(cells) > value and _is_name(cells[name]):
                number = _number(cells[value])
                if number is not None:
                    unit = next((cell for cell in folded if cell in (*_UNITS, "cycles")), "us")
                    yield _DiagEntry(_plain(cells[name]), number, unit)
                    break


def _pairs(cells: list[str]) -> Iterable[tuple[int, int]]:
    name = next((place for place, cell in enumerate(cells) if _is_name(cell)), len(cells))
    return ((name, value) for value in range(name + 1, len(cells)))


def _lines(text: str) -> Iterable[_DiagEntry]:
    """What diagview prints: `Total Inference Time: 3318 us`, `0: 162014 cycles : DSP`."""
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        value = _number(words[0]) if words else None
        if not colon or value is None:
            continue
        unit = words[1].lower() if len(words) > 1 else "us"
        name = _plain(name)
        yield _DiagEntry(f"layer_{name}" if _NUMBERED.fullmatch(name) else name, value, unit)


def _plain(name: str) -> str:
    folded = name.strip().lower().replace(" ", "_")
    return folded if folded in _TOTALS else _layer_name(name.strip(), folded)


def _layer_name(name: str, folded: str) -> str:
    """A layer keeps the spelling of its own name; only what stands before it is folded."""
    match = _LAYER.match(folded)
    return f"layer_{name[len(name) - len(match[1]) :]}" if match else folded


def _is_name(cell: str) -> bool:
    return bool(cell) and _number(cell) is None and cell.lower() not in (*_UNITS, *_RUNTIMES)


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
