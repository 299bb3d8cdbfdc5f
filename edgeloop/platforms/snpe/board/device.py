"""A board over USB or TCP: the chip itself, measured. The quantized model runs on its DSP, the
float one on its CPU.

Batches gathered into runs that are worth a tool's start, two of them under way at once.
"""

from __future__ import annotations

import math
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import cast

from edgeloop._util.yaml import read_yaml
from edgeloop.errors import BadInput, ModelFailed
from edgeloop.graph import (
    DLC_CLASSES,
    DLC_INPUT,
    DLC_OUTPUT,
    GraphInfo,
    Shape,
    TensorInfo,
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
from edgeloop.platforms.snpe.board.adb import Adb
from edgeloop.platforms.snpe.board.board import Board
from edgeloop.platforms.snpe.board.conditions import conditions, peak_rss_bytes, power_mw
from edgeloop.platforms.snpe.board.files import InputFile
from edgeloop.platforms.snpe.board.outputs import class_maps, full_outputs
from edgeloop.platforms.snpe.board.run import ToolRun
from edgeloop.platforms.snpe.dlc import DlcTensors, read_tensors
from edgeloop.platforms.snpe.options import BoardOptions
from edgeloop.platforms.snpe.profile import RunProfile, profile_of, with_names
from edgeloop.platforms.snpe.sdk import Sdk
from edgeloop.platforms.snpe.tensors import board_input, channels_last, is_float, is_moved
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
    *("ro.product.model", "ro.board.platform", "ro.build.version.release", "ro.soc.model"),
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
    known = [_chips()[name] for name in plain if name in _chips()]
    return next(iter([*known, *filter(None, plain)]), "")


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
        script = "\n".join(f"getprop {name}" for name in _PROPERTIES)
        found = self._adb.shell(script).text.splitlines()
        model, platform, release, soc = (*(line.strip() for line in found), "", "", "", "")[:4]
        self.device_type = chip_of(soc, platform)
        parts = [model or "a board", platform, f"Android {release}" if release else ""]
        line = ", ".join(part for part in parts if part)
        version = self._sdk.version or "of unknown version" if self._sdk else "missing"
        return "".join(c for c in f"{line}; SDK {version}" if c.isprintable())

    def condition(self) -> DeviceCondition:
        found = self._adb.condition()
        if found.state != "ready" or self._shared is None:
            return found
        celsius = self._shared.celsius
        if self._shared.is_cooling:
            text = f"a benchmark waits until it is below {self._options.hot_c:g} °C"
            return DeviceCondition("hot", text, celsius)
        return replace(found, celsius=celsius)

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
        yield from self._inferred(_Work(model, made, dlc, kind, read, is_native, size), batches)

    def infer_classes(
        self, model: Path, info: GraphInfo, kind: Kind, batches: Iterator[Tensors]
    ) -> Iterator[Output]:
        def read(files: Mapping[str, bytes], runs: int) -> Tensors:
            return {DLC_CLASSES: class_maps(files, runs, info)}

        is_native, size = self.board.sdk.writes_native_files, 4 * info.height * info.width
        work = _Work(model, info, DlcTensors(), kind, read, is_native, size)
        return (found[DLC_CLASSES] for found in self._inferred(work, batches))

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
        """A hot board rests until it is cool or the patience is over, and nobody warms it."""
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
        found: dict[str, str | float] = {
            "board": self.name,
            "sdk": board.sdk.version,
            "perf_profile": PERFORMANCE,
            "inputs": self._options.benchmark_inputs,
            **conditions(run.text("before"), run.text("after")),
        }
        if waited_s:
            found["cooled down s"] = waited_s
        if waited_s >= self._options.cool_limit_s:
            found["note"] = f"measured hot: not below {self._options.hot_c:g} °C in {waited_s:g} s"
        seconds = total.total_us / 1e6
        watched = run.text("power")
        return Measurement(
            seconds,
            (seconds,),
            layers=layers,
            conditions=found,
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
    found = []
    for start in range(0, sample_count(samples), info.batch):
        run = filled(cut(samples, start, start + info.batch), info)
        files = {}
        for name, tensor in zip(names, info.inputs, strict=True):
            given = run[tensor.name]
            if is_pixels(given, tensor):
                files[name] = InputFile(given[0] if info.batch == 1 else given)
            else:
                values = board_input(given.reshape(tensor.shape), tensor, _shape(name, tensor, dlc))
                files[name] = InputFile(values)
        found.append(files)
    return found


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
