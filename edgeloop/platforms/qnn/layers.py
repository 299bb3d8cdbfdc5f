"""Cost per layer without a board: the compiler's estimate of growing parts of a graph."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edgeloop._util.files import make_folder, write_atomic
from edgeloop._util.isolation import WorkerProcess
from edgeloop._util.values import plural
from edgeloop.errors import MemoryExceeded, ModelFailed, ModelRefused
from edgeloop.platforms.base import LayerCost, LayerCosts, Measurement
from edgeloop.platforms.qnn.prefixes import GraphLayer

# The cost of every layer of one model on one chip, with several processes at once.


_MOST_IN_GROUP = 12

MeasuresModel = Callable[[Path], Measurement]
"""The estimate of a whole quantized model."""


@dataclass(frozen=True)
class Workshop:
    """What the work is done with: `borrow` gives a process that nobody else uses meanwhile."""

    device: str
    soc: int
    is_calibrated: bool
    borrow: Callable[[], AbstractContextManager[WorkerProcess]]
    workers: int
    call_limit_s: float


def model_costs(
    model: Path,
    shop: Workshop,
    measure: MeasuresModel,
    cache: Path | None,
    limit_s: float,
    progress: Progress | None = None,
) -> LayerCosts:
    with TemporaryDirectory(prefix="edgeloop-layers-") as name:
        folder = Path(name).resolve()
        quantized, deployed = folder / "quantized.onnx", folder / "deployed.onnx"
        found = _call(
            *(shop, "layers"),
            model=str(model.resolve()),
            quantized=str(quantized),
            deployed_as=str(deployed),
        )
        layers = [_layer(*fields) for fields in found["layers"]]
        whole = measure(quantized)
        names = [layer.name for layer in layers]

        def time_cut(count: int, copies: int) -> float:
            fields = {"model": str(deployed), "names": names, "soc": shop.soc}
            answer = _call(shop, "prefix", **fields, count=count, copies=copies)
            return float(answer["cycles"])

        known = CutTimes.remembered(cache, f"{found['digest']}-{shop.soc}-{_compiler()}")
        missing = attribute_layers(layers, time_cut, known, shop.workers, limit_s, progress)
    total_us = 1e6 * whole.seconds
    costs = layer_costs(layers, known.cuts, known.whole, total_us)
    kept = tuple(cost for cost in costs if len(cost.members) <= _MOST_IN_GROUP)
    left = [cost for cost in costs if len(cost.members) > _MOST_IN_GROUP]
    reasons = [
        f"{cost.time_us:.3g} µs of the {len(cost.members)} layers from {cost.members[0]!r} to "
        f"{cost.members[-1]!r} could not be told apart"
        for cost in left
    ]
    if missing:
        parts = plural(missing, "more part")
        reasons.append(f"{limit_s:g} s were too short for {parts}: run it again for more detail")
    return LayerCosts(
        *(shop.device, total_us, whole.raw_us or 0.0, kept),
        unattributed_us=sum(cost.time_us for cost in left),
        is_calibrated=shop.is_calibrated,
        notes=(*_notes(whole), *reasons),
        compiles=known.compiles,
        missing_ops=whole.missing_ops,
        low_us=None if whole.low_s is None else 1e6 * whole.low_s,
        high_us=None if whole.high_s is None else 1e6 * whole.high_s,
        coverage=whole.coverage,
    )


def _notes(whole: Measurement) -> list[str]:
    """Reasons to doubt the total."""
    said = str(whole.conditions.get("note") or "")
    return [text for text in (said, "" if whole.coverage else whole.basis) if text]


def _layer(
    name: str, operator: str, output: list[int], macs: int, cut_bytes: int | None
) -> GraphLayer:
    return GraphLayer(name, operator, tuple(output), macs, cut_bytes)


def _call(shop: Workshop, work: str, **fields: Any) -> dict[str, Any]:
    with shop.borrow() as process:
        return process.call(f"qnn.{work}", limit_s=shop.call_limit_s, **fields)[0]


def _compiler() -> str:
    try:
        return version("onnxruntime-qnn")
    except PackageNotFoundError:
        return "unknown"


# From the times of prefixes to the cost of layers.
#
# A prefix takes the time of its layers and that of writing its outputs. A second copy of the
# outputs says what writing costs, so the layers up to a cut take `once - (twice - once)`. These
# times should grow with every layer. Where they do not, the compiler merged layers, or writing a
# large tensor was hidden behind other work: then cuts are dropped until they grow, those that write
# much first, and the layers between two cuts that remain are one entry. Nothing is clipped, so the
# sum is the whole.


OUTPUT = "(output)"
_DOUBT = 10.0


@dataclass(frozen=True)
class TimedCut:
    """Cycles of a prefix with one copy of its outputs, and with two."""

    once: float
    twice: float

    @property
    def writing(self) -> float:
        return max(0.0, self.twice - self.once)

    @property
    def layers(self) -> float:
        return self.once - self.writing


def kept_cuts(cuts: Mapping[int, TimedCut], whole: float) -> list[int]:
    """The cuts whose times grow from 0 to the whole: as many as possible, each counted by how sure
    it is."""
    numbers = sorted(number for number, cut in cuts.items() if 0.0 <= cut.layers <= whole)
    sure = {number: whole / (whole + _DOUBT * cuts[number].writing) for number in numbers}
    best: dict[int, tuple[float, int]] = {}
    for place, number in enumerate(numbers):
        before = [
            (best[other][0], other)
            for other in numbers[:place]
            if cuts[other].layers <= cuts[number].layers
        ]
        weight, previous = max(before, default=(0.0, -1))
        best[number] = (weight + sure[number], previous)
    chain: list[int] = []
    last = max(best, key=lambda number: best[number][0], default=-1)
    while last >= 0:
        chain.append(last)
        last = best[last][1]
    return chain[::-1]


def layer_costs(
    layers: Sequence[GraphLayer], cuts: Mapping[int, TimedCut], whole: float, total_us: float
) -> list[LayerCost]:
    """In the order of the graph, and last what writing the outputs costs. Cut number n is behind
    the first n layers."""
    bounds = [0, *kept_cuts(cuts, whole), len(layers)]
    times = [*(cuts[number].layers if number else 0.0 for number in bounds[:-1]), whole]
    found = []
    for (first, last), (start, end) in zip(pairwise(bounds), pairwise(times), strict=True):
        share = (end - start) / whole if whole else 0.0
        found.append(_entry(layers[first:last], share * total_us, share))
    return found if found[-1].members or found[-1].time_us else found[:-1]


def _entry(group: Sequence[GraphLayer], time_us: float, share: float) -> LayerCost:
    """Named after the layer that computes most; of those that compute nothing, the largest."""
    if not group:
        return LayerCost(OUTPUT, "", (), time_us, share)
    main = max(group, key=lambda layer: (layer.macs, math.prod(layer.output)))
    names = tuple(layer.name for layer in group)
    return LayerCost(main.name, main.operator, main.output, time_us, share, names)


# Which prefixes are compiled, in which order, and what is remembered of them.
#
# Why prefixes: the compiler's documented profile has times of whole graphs only, and nothing in it
# says which layer a time belongs to. On chains of equal layers, where adding one to the network is
# the truth, differences of prefixes that end in channel-last bytes were exact to 1 %, apart from
# the first layer. Suffixes were worse, and so were prefixes that end in channel-first tensors, a
# slice or a reduction: the compiler moves what ends a graph into the layers before it. On networks
# whose tensors grow and shrink (inverted bottlenecks, U-Nets) writing the cut tensors hid the
# layers, until it was measured by writing them twice.
#
# The first cuts halve the network; then the part that costs most is halved, and so on. A part that
# costs next to nothing is not looked into. So what matters is known first, and a limit on the time
# costs detail, not truth. Times are remembered by the content of the graph: a run that was killed
# continues where it was.


Progress = Callable[[int, int], None]
TimeCut = Callable[[int, int], float]  # of (number of layers, copies of the outputs), in cycles
_NEXT_TO_NOTHING = 0.002  # of the whole
_METHOD = 1  # part of the name of what is remembered


@dataclass
class CutTimes:
    """What is known of the cuts of a graph. The compiler does not take those `refused`; those that
    `failed` did so on this machine, now."""

    whole: float = 0.0
    cuts: dict[int, TimedCut] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    compiles: int = 0
    path: Path | None = None

    @classmethod
    def remembered(cls, folder: Path | None, digest: str) -> CutTimes:
        """A file that cannot be read is as good as none."""
        if folder is None:
            return cls()
        path = folder / f"{digest}-{_METHOD}.json"
        found = cls(path=path)
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            known = json.loads(path.read_text(encoding="utf-8"))
            cuts = {
                int(number): TimedCut(*map(float, two)) for number, two in known["cuts"].items()
            }
            refused = {int(number) for number in known["refused"]}
            return cls(float(known["whole"]), cuts, refused, path=path)
        return found

    def remember(self) -> None:
        """Where it cannot be written, the next run starts afresh."""
        if self.path is None:
            return
        cuts = {str(number): (cut.once, cut.twice) for number, cut in sorted(self.cuts.items())}
        known = {"whole": self.whole, "cuts": cuts, "refused": sorted(self.refused)}
        with suppress(OSError):
            make_folder(self.path.parent)
            write_atomic(self.path, json.dumps(known))


def attribute_layers(
    layers: Sequence[GraphLayer],
    time_cut: TimeCut,
    known: CutTimes,
    workers: int,
    limit_s: float,
    progress: Progress | None = None,
) -> int:
    """Fill `known` with cuts until every part is one layer or costs next to nothing. Returns how
    many cuts the time was too short for."""
    end = time.monotonic() + limit_s
    if not known.whole:
        known.whole = time_cut(0, 1)
        known.compiles += 1
        known.remember()
    possible = {n for n, layer in enumerate(layers, start=1) if layer.cut_bytes is not None}
    possible -= known.refused
    running: dict[Future[TimedCut], int] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        while True:
            while len(running) < workers and time.monotonic() < end:
                number = _next_cut(layers, known, possible, set(running.values()))
                if number is None:
                    break
                running[pool.submit(_both, time_cut, number)] = number
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                _take(known, running.pop(future), future)
            known.remember()
            possible -= known.refused | known.failed
            if progress is not None:
                progress(len(known.cuts), len(possible))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if progress is not None:
        progress(len(possible), len(possible))
    return sum(len(part.cuts) for part in _parts(layers, known, possible, set()))


def _both(time_cut: TimeCut, number: int) -> TimedCut:
    return TimedCut(time_cut(number, 1), time_cut(number, 2))


def _take(known: CutTimes, number: int, future: Future[TimedCut]) -> None:
    """The whole compiles, so a part that does not says nothing of the model."""
    try:
        known.cuts[number] = future.result()
        known.compiles += 2
    except ModelRefused:
        known.refused.add(number)
    except (ModelFailed, MemoryExceeded):
        known.failed.add(number)


@dataclass(frozen=True)
class _Part:
    """The layers between two cuts, and the cuts between them that could be tried."""

    cost: float
    cuts: tuple[int, ...]

    def middle(self, layers: Sequence[GraphLayer]) -> int:
        """Of the inner half, the cut that writes least: it is the surest."""
        quarter = len(self.cuts) // 4
        inner = self.cuts[quarter : len(self.cuts) - quarter]
        centre = (inner[0] + inner[-1]) / 2
        return min(inner, key=lambda n: (layers[n - 1].cut_bytes or 0, abs(n - centre)))


def _next_cut(
    layers: Sequence[GraphLayer], known: CutTimes, possible: set[int], running: set[int]
) -> int | None:
    if len(layers) in possible - running - set(known.cuts):
        return len(layers)  # without it nobody knows what the outputs cost
    parts = _parts(layers, known, possible, running)
    costliest = max(parts, key=lambda part: part.cost, default=None)
    return None if costliest is None else costliest.middle(layers)


def _parts(
    layers: Sequence[GraphLayer], known: CutTimes, possible: set[int], running: set[int]
) -> list[_Part]:
    """Those worth looking into. A cut that is being compiled stands between its neighbours."""
    end = len(layers) + 1
    times = {0: 0.0, end: known.whole, **{n: cut.layers for n, cut in known.cuts.items()}}
    sure = sorted(times)
    for number in running:
        below = max(n for n in sure if n < number)
        above = min(n for n in sure if n > number)
        ahead = (number - below) / (above - below)
        times[number] = times[below] + ahead * (times[above] - times[below])
    found = []
    for first, last in pairwise(sorted(times)):
        cost = abs(times[last] - times[first])
        cuts = sorted(n for n in possible if first < n < last)
        if cuts and cost > _NEXT_TO_NOTHING * known.whole:
            found.append(_Part(cost, tuple(cuts)))
    return found
