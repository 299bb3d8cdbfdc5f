"""Which prefixes are compiled, in which order, and what is remembered of them.

Why prefixes: the compiler's documented profile has times of whole graphs only, and nothing in it
says which layer a time belongs to. On chains of equal layers, where adding one to the network is
the truth, differences of prefixes that end in channel-last bytes were exact to 1 %, apart from the
first layer. Suffixes were worse, and so were prefixes that end in channel-first tensors, a slice or
a reduction: the compiler moves what ends a graph into the layers before it. On networks whose
tensors grow and shrink (inverted bottlenecks, U-Nets) writing the cut tensors hid the layers, until
it was measured by writing them twice.

The first cuts halve the network; then the part that costs most is halved, and so on. A part that
costs next to nothing is not looked into. So what matters is known first, and a limit on the time
costs detail, not truth. Times are remembered by the content of the graph: a run that was killed
continues where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from edgeloop._util.files import make_folder, write_atomic
from edgeloop.errors import MemoryExceeded, ModelFailed, ModelRefused
from edgeloop.platforms.qnn.layers.costs import TimedCut
from edgeloop.platforms.qnn.layers.prefixes import GraphLayer

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
