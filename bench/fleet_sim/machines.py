"""The machines of a simulated fleet: real workers with simulated devices, folders and stages."""

from __future__ import annotations

import contextlib
import io
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.fleet_sim.kernel import Kernel
from bench.fleet_sim.ledger import SimLedger, benchmark_columns
from bench.fleet_sim.tables import SimStore
from edgeloop.errors import DeviceUnavailable, ModelFailed
from edgeloop.models.files import ModelFile
from edgeloop.models.leases import Lease, Leases
from edgeloop.platforms.snpe.run import TurnRefusedError, Turns
from edgeloop.runner.stages.base import Assignment, Equipment, Result
from edgeloop.settings import Settings
from edgeloop.store import Blobs, SqliteLocation
from edgeloop.workspace import Workspace

CHIP = "qcs8550"
ON_BOARDS = ("benchmark", "f1_1k", "f1_1k_f", "f1_10k")
CACHED = 2_000


class SimPath:
    """A folder or file of a simulated machine."""

    name = "file"

    def __truediv__(self, name: str) -> SimPath:
        return self

    def mkdir(self) -> None: ...

    def read_bytes(self) -> bytes:
        return b""

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO()


class SimFolder:
    """As `WorkFolder`: what this machine has fetched before is not fetched again."""

    def __init__(self) -> None:
        self._cached: dict[str, None] = {}

    @contextlib.contextmanager
    def stage_folder(self) -> Iterator[SimPath]:
        yield SimPath()

    def fetch(
        self, blobs: Blobs, files: Mapping[str, ModelFile], folder: SimPath, store: str = ""
    ) -> dict[str, SimPath]:
        missing = [file.key for file in files.values() if file.key not in self._cached]
        blobs.get_many(dict.fromkeys(missing, Path()))
        self._cached |= dict.fromkeys(missing)
        while len(self._cached) > CACHED:
            del self._cached[next(iter(self._cached))]
        return dict.fromkeys(files, SimPath())


class OwnCpus:
    """The CPUs of a node that has one runner: nobody waits for them."""

    def turn(self, stopping: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class SimBoard:
    """A session on a board, as `AdbDevice` is one: the real `Turns` decide whose tool runs."""

    sessions = 2
    chip, device_type = "", CHIP

    def __init__(self, kernel: Kernel, name: str, transfer_s: float, turns: Turns | None = None):
        self.name, self._kernel, self._transfer_s = name, kernel, transfer_s
        self.turns = turns or Turns()
        self._place: int | None = None
        self._keeps_place = False
        self._check: Callable[[], None] | None = None
        self._uses: list[tuple[datetime, datetime]] = []

    def open_session(self) -> SimBoard:
        return SimBoard(self._kernel, self.name, self._transfer_s, self.turns)

    def probe(self) -> None: ...

    def acquire(self) -> None: ...

    def stop(self) -> None:
        self.turns.close()

    def take_uses(self) -> list[tuple[datetime, datetime]]:
        uses, self._uses, self._check = self._uses, [], None
        if not self._keeps_place:
            self._leave_place()
        return uses

    def before_turn(self, check: Callable[[], None] | None) -> None:
        self._check = check

    def keep_turn(self) -> None:
        if self._place is not None:
            self._keeps_place = True
            self.turns.reserve(self._place)

    def drop_turn(self) -> None:
        if self._keeps_place:
            self._leave_place()

    def run(self, seconds: float, alone: bool) -> None:
        rank = self._rank()
        try:
            with self.turns.travel():
                self._kernel.sleep(self._transfer_s)
            with self.turns.tool(rank, alone):
                began = self._kernel.now
                self._kernel.sleep(seconds)
                self._uses.append((_utc(began), _utc(self._kernel.now)))
        except TurnRefusedError:
            stopping = DeviceUnavailable(device=self.name, reason="this runner is stopping")
            raise self.turns.refusal(rank) or stopping from None

    def _rank(self) -> int:
        if self._place is None or self._keeps_place:
            if self._place is None:
                self._place = self.turns.rank()
            self._keeps_place = False
            self.turns.check_first(self._place, self._check)
        return self._place

    def _leave_place(self) -> None:
        if self._place is not None:
            self.turns.forget(self._place)
        self._place, self._keeps_place = None, False


class Workload:
    """Stage times, results and failures; the same for a seed, whoever does the stage."""

    def __init__(
        self, kernel: Kernel, ledger: SimLedger, assumed: Mapping[str, Any], seed: int, bad: float
    ) -> None:
        self._kernel, self.ledger, self._assumed, self._seed = kernel, ledger, assumed, seed
        self._bad_share = bad
        self.computing: Counter[str] = Counter()  # how many compute now, "linux" and "boards"
        self.computed_s: Counter[str] = Counter()  # by stage, of results that were handed in
        self.wasted_s = 0.0  # of machines that died, and of leases that were lost

    def is_bad(self, model: str) -> bool:
        return self._uniform(model, "bad") < self._bad_share

    def seconds(self, model: str, stage: str) -> float:
        times = self._assumed["stages"][stage]
        common = self._assumed["model_spread"] * self._normal(model, "")
        own = times["spread"] * self._normal(model, stage)
        return float(times["median_s"] * math.exp(common + own))

    def perform(self, work: Assignment, equipment: Equipment) -> Result:
        kind = "boards" if work.stage in ON_BOARDS else "linux"
        seconds, began = self.seconds(work.model, work.stage), self._kernel.now
        self.computing[kind] += 1
        try:
            if kind == "boards":
                equipment.device.run(seconds, alone=work.stage == "benchmark")
            else:
                self._kernel.sleep(seconds)
            if work.stage == "convert" and self.is_bad(work.model):
                raise ModelFailed(reason="the compiler cannot process it")
        except BaseException:
            self.wasted_s += self._kernel.now - began
            raise
        finally:
            self.computing[kind] -= 1
        number = self.ledger.computed(work.model, work.stage)
        files = self._assumed["files"]["results"][work.stage]
        names = {f"{work.stage}-{number}-{i}.csv": SimPath() for i in range(files)}
        return Result(_columns(work, number), names, str(number))  # type: ignore[arg-type]

    def _uniform(self, *words: str) -> float:
        text = "|".join((str(self._seed), *words)).encode()
        return int.from_bytes(blake2b(text, digest_size=7).digest()) / 2**56

    def _normal(self, *words: str) -> float:
        first, second = self._uniform(*words, "1"), self._uniform(*words, "2")
        return math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)


def _columns(work: Assignment, number: int) -> dict[str, Any]:
    if work.stage == "convert":
        shapes = {"shape": "[256, 256, 3]", "output_shape": "[256, 256, 19]"}
        return {"quantized": True, "macs": number, "params": 1, "toolchain": "snpe", **shapes}
    if work.stage == "benchmark":
        return {**benchmark_columns(work.row, number), "device": CHIP}
    return {work.stage: float(number)}


class MeasuredLeases(Leases):
    """Leases that say how long a claim took."""

    def __init__(self, *args: Any, seen: Statistics, kernel: Kernel, **more: Any) -> None:
        super().__init__(*args, **more)
        self._seen, self._kernel = seen, kernel

    def claim(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        only: Callable[[str], bool] = lambda model: True,
    ) -> Lease | None:
        return self._timed(lambda: super(MeasuredLeases, self).claim(capabilities, node, only=only))

    def claim_ahead(
        self,
        capabilities: Collection[str],
        node: str,
        *,
        only: Callable[[str], bool] = lambda model: True,
        after: str = "",
    ) -> Lease | None:
        ahead = super().claim_ahead
        return self._timed(lambda: ahead(capabilities, node, only=only, after=after))

    def _timed(self, claim: Callable[[], Lease | None]) -> Lease | None:
        began = self._kernel.now
        lease = claim()
        self._seen.looks += 1
        if lease is not None:
            self._seen.claims.append(self._kernel.now - began)
        return lease

    def _lost_race(self) -> None:
        super()._lost_race()
        self._seen.races_lost += 1


class Statistics(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(looks=0, races_lost=0, claims=[], handing_in=Counter())

    looks: int
    races_lost: int
    claims: list[float]
    handing_in: Counter[str]


class SimWorkspace(Workspace):
    """A workspace of one simulated machine."""

    def __init__(self, store: SimStore, node: str, seen: Statistics, clock: Callable[[], float]):
        place = Path("/simulated")
        settings = Settings(
            project=place, location=SqliteLocation(place), experiment="sim", node=node
        )
        super().__init__(settings, store)
        self._seen, self._clock = seen, clock

    def leases(self) -> Leases:
        settings, store = self.settings, self.store
        return MeasuredLeases(
            store.models(self.experiment),
            store.queue(self.experiment),
            self.plan,
            lease_s=settings.lease_seconds,
            margin_s=settings.clock_margin_seconds,
            max_attempts=settings.max_attempts,
            clock=self._clock,
            seen=self._seen,
            kernel=store.backend.kernel,  # type: ignore[attr-defined]
        )


def equipment_with(device: Any) -> Equipment:
    host = SimpleNamespace(name="host", chip="")
    tools = SimpleNamespace(name="snpe")
    task = SimpleNamespace(name="segmentation")
    return Equipment(tools, host, task, device or host)  # type: ignore[arg-type]


def _utc(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)
