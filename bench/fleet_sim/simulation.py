"""One simulated fleet: models, runners, boards, a supervisor, and what happens to them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from bench.fleet_sim.backends import BACKENDS, Backend, Outage
from bench.fleet_sim.engine import Machine, SimEngine
from bench.fleet_sim.kernel import EPOCH, Kernel, Node
from bench.fleet_sim.ledger import SimLedger, Verdict
from bench.fleet_sim.machines import (
    CHIP,
    OwnCpus,
    SimBoard,
    SimFolder,
    SimWorkspace,
    Statistics,
    Workload,
    equipment_with,
)
from bench.fleet_sim.patches import virtual_product
from bench.fleet_sim.tables import SimStore
from bench.fleet_sim.threads import VirtualEvent
from edgeloop.errors import EdgeloopError
from edgeloop.models.leases import Leases
from edgeloop.models.plan import default_plan, utc
from edgeloop.operate.fleet.records import Bounds, ExperimentShare, Fleets, FleetSpec
from edgeloop.operate.fleet.supervisor import FleetSupervisor
from edgeloop.runner.coordinator import Coordinator, DeviceSessions
from edgeloop.runner.presence import Presence, RunnerEvent
from edgeloop.runner.worker import RunnerContext, Worker

LINUX = ("quantize", "onnx")
_KINDS = ("device", "device-accuracy", "device-float")
DEVICE = (*_KINDS, *(f"{kind}@{CHIP}" for kind in _KINDS))
EXPERIMENT = "sim"
EVERY_SECOND = 100
FINAL = ("complete", "error")


@dataclass(frozen=True)
class Scenario:
    """What is simulated."""

    models: int = 300
    runners: int = 20
    boards: int = 3
    hours: float = 300.0
    profile: str = "azure"
    preempted_per_min: float = 0.0
    frozen_share: float = 0.2
    outages: tuple[Outage, ...] = ()
    bad: float = 0.0
    seed: int = 1
    is_elastic: bool = True
    idle_s: float = 30.0


@dataclass
class Samples:
    """Of machines of one kind, second by second: how many there were, and what they did while work
    that they can do was waiting."""

    alive_s: float = 0.0
    waiting_s: float = 0.0
    computing_s: float = 0.0
    handing_in_s: float = 0.0
    all_alive_s: float = 0.0
    all_computing_s: float = 0.0
    last_work_s: float = 0.0

    def add(self, alive: int, computing: int, handing_in: int, waits: bool) -> None:
        self.all_alive_s += alive
        self.all_computing_s += computing
        if waits:
            self.waiting_s += 1
            self.alive_s += alive
            self.computing_s += computing
            self.handing_in_s += handing_in

    @property
    def idle_share(self) -> float:
        """Neither computing nor handing in, while work waits."""
        return 1 - (self.computing_s + self.handing_in_s) / self.alive_s if self.alive_s else 0.0


@dataclass
class SimulationResult:
    scenario: Scenario
    verdict: Verdict
    seconds: float
    is_over: bool
    linux: Samples
    boards: Samples
    backend: Backend
    seen: Statistics
    ledger: SimLedger
    workload: Workload
    lost_nodes: Counter[str]
    node_hours: float
    linux_done_s: float
    events: int
    took_s: float
    notes: Counter[str]
    left_s: Mapping[str, float]

    @property
    def stages_per_hour(self) -> float:
        return 3600 * sum(self.ledger.accepted.values()) / self.seconds

    @property
    def models_per_hour(self) -> float:
        """By the stages that runners do, while they had work."""
        return 3600 * self.ledger.accepted["f1_onnx"] / (self.linux_done_s or self.seconds)


def assumptions() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load(
        Path(__file__).with_name("assumptions.yaml").read_text()
    )
    return found


class Simulation:
    def __init__(self, scenario: Scenario, assumed: Mapping[str, Any] | None = None) -> None:
        self.scenario, self.assumed = scenario, assumed or assumptions()
        self.kernel, self.random = Kernel(), Random(scenario.seed)
        profile = self.assumed["profiles"][scenario.profile]
        backend = BACKENDS[scenario.profile]
        self.backend = backend(self.kernel, profile, scenario.outages, Random(scenario.seed + 2))
        self.store = SimStore(self.backend, self.assumed["files"])
        self.plan = default_plan()
        self.ledger, self.seen = SimLedger(), Statistics()
        self.workload = Workload(
            self.kernel, self.ledger, self.assumed, scenario.seed, scenario.bad
        )
        self.samples = {"linux": Samples(), "boards": Samples()}
        self.notes: Counter[str] = Counter()
        nodes = (scenario.boards, scenario.preempted_per_min, scenario.frozen_share)
        self.engine = SimEngine(
            self.kernel, self.assumed["nodes"], *nodes, scenario.seed + 3, self._serve
        )
        self.engine.gone = lambda node: self.backend.forget(id(node))
        self._is_over = False
        self._linux_done_s = 0.0
        self._unfinished: list[str] = []

    def run(self) -> SimulationResult:
        began = time.monotonic()
        scenario, end = self.scenario, EPOCH + self.scenario.hours * 3600
        with virtual_product(self.kernel, self.workload, self.seen, scenario.seed, self.tick_s):
            self._upload()
            self.kernel.spawn(self._supervise, Node("supervisor"))
            self.kernel.at(EPOCH + 1, self._sample)
            self.kernel.run(end, lambda: self._is_over)
            self.engine.close()
        return self._outcome(time.monotonic() - began)

    @property
    def tick_s(self) -> float:
        """Of the registry's thread. It writes every 10 s, and after 3 s at the earliest; so a tick
        of 3 s writes nearly as often as one of 1 s, and costs the simulation a third."""
        return 1.0 if self.scenario.runners <= EVERY_SECOND else 3.0

    def _upload(self) -> None:
        """All models are there at the start, uploaded one after another, with their hints."""
        models, queue = self.store.models(EXPERIMENT), self.store.queue(EXPERIMENT)
        leases = Leases(models, queue, self.plan)
        for number in range(self.scenario.models):
            name = f"model-{number:06d}"
            values = {
                "name": name,
                "status": "new",
                "content": f"{number:064x}",
                "model_date": utc(EPOCH - 86_400 + 0.5 * number),
                "model_name": "net.onnx",
            }
            models.assign(name, values)
            self.store.blobs.place(f"{EXPERIMENT}/{name}/net.onnx")
            for key, hint in leases._queue._wanted(name, values):
                queue.assign(key, hint)
            self._unfinished.append(name)

    def _supervise(self) -> None:
        """The real supervisor, as if somebody had run `edgeloop fleet up`."""
        scenario, workspace = self.scenario, self._workspace(self.kernel.node)
        least = 0 if scenario.is_elastic else scenario.runners
        spec = FleetSpec(
            runners=Bounds(least, scenario.runners),
            experiments={EXPERIMENT: ExperimentShare()},
            devices=("adb",),
            idle_seconds=scenario.idle_s,
        )
        fleets = Fleets(self.store)
        fleets.declare(spec, "local", "simulated")
        record = fleets.claim(spec.name, "simulated")
        supervisor = FleetSupervisor(
            workspace.settings,
            self.store,
            record,
            self.engine,
            clock=lambda: self.kernel.now,
            wait=self._pause,
        )
        supervisor.run()
        raise AssertionError("the supervisor has ended before the simulation")

    def _pause(self, seconds: float) -> bool:
        self.kernel.sleep(seconds)
        return False

    def _serve(self, machine: Machine) -> None:
        """As `runner.loop.run`: workers side by side, and the runner's row in the registry."""
        workspace = self._workspace(machine.node)
        context = RunnerContext(
            workspace,
            SimFolder(),  # type: ignore[arg-type]
            machine.stopping,  # type: ignore[arg-type]
            self._report,
            cpus=OwnCpus(),  # type: ignore[arg-type]
        )
        if machine.is_board:
            crew = self._board_crew(machine, context)
        else:
            crew = [Worker(context, equipment_with(None), LINUX)]
        coordinator = Coordinator(len(crew))
        presence = Presence(workspace, crew, (), self._report)
        self.kernel.spawn(presence._run)
        machine.workers.extend(crew)
        ended = [self._work(machine, worker, coordinator) for worker in crew]
        for event in ended:
            event.wait()
        presence._done.set()
        try:
            presence._registry.remove(presence.entry.id)
        except EdgeloopError as error:
            self.notes[type(error).__name__] += 1  # it is shown as dead, and forgotten

    def _board_crew(self, machine: Machine, context: RunnerContext) -> list[Worker]:
        name = machine.order.device
        board = SimBoard(self.kernel, name, self.assumed["board_transfer_s"])
        sessions = DeviceSessions()
        return [
            Worker(context, equipment_with(device), DEVICE, name, hand, sessions)
            for hand, device in enumerate((board, board.open_session()))
        ]

    def _work(self, machine: Machine, worker: Worker, coordinator: Coordinator) -> VirtualEvent:
        ended = VirtualEvent(self.kernel)

        def run() -> None:
            worker.run(coordinator, drain=False)
            ended.set()

        self.kernel.spawn(run, machine.node)
        return ended

    def _sample(self) -> None:
        queue = self.store.queue(EXPERIMENT)
        linux = sum(1 for machine in self.engine.linux() if machine.is_ready)
        boards = [machine for machine in self.engine.boards() if machine.is_ready]
        for kind, count, capabilities in (
            ("linux", linux, LINUX),
            ("boards", len(boards), DEVICE),
        ):
            computing, handing_in = self.workload.computing[kind], self.seen.handing_in[kind]
            if kind == "boards":  # two sessions take turns: what waits there is not computing
                computing = min(computing, sum(1 for machine in boards if machine.is_busy))
                handing_in = min(handing_in, count - computing)
            waits = queue.open_count(capabilities) > 0
            self.samples[kind].add(count, computing, handing_in, waits)
            if kind == "linux" and (waits or computing):
                self._linux_done_s = self.kernel.now - EPOCH
        if int(self.kernel.now - EPOCH) % 10 == 0:
            self._check_over()
        self.kernel.at(self.kernel.now + 1, self._sample)

    def _check_over(self) -> None:
        """Looks at models from the end of a list until one is found that is not finished."""
        rows = self.store.models(EXPERIMENT).rows
        while self._unfinished and rows[self._unfinished[-1]].values["status"] in FINAL:
            self._unfinished.pop()
        self._is_over = not self._unfinished

    def _workspace(self, node: Node) -> SimWorkspace:
        return SimWorkspace(self.store, node.name, self.seen, lambda: self.kernel.now + node.skew_s)

    def _report(self, event: RunnerEvent) -> None:
        if event.state in ("failed", "note"):
            self.notes[f"{event.state}: {_kind(event.text)}"] += 1

    def _work_s(self) -> dict[str, float]:
        """Seconds of work that there were at the start, by who does it; from some of the models."""
        names = [f"model-{number:06d}" for number in range(min(self.scenario.models, 2_000))]
        scale = self.scenario.models / max(len(names), 1)
        work = {"linux": 0.0, "boards": 0.0}
        for stage in self.plan.stages:
            kind = "boards" if stage.capability.startswith("device") else "linux"
            seconds = sum(self.workload.seconds(name, stage.name) for name in names)
            work[kind] += stage.runs * scale * seconds
        return work

    def _outcome(self, took_s: float) -> SimulationResult:
        bad = {
            name: "" for name in self.store.models(EXPERIMENT).rows if self.workload.is_bad(name)
        }
        rows = self.store.models(EXPERIMENT).rows.values()
        return SimulationResult(
            scenario=self.scenario,
            verdict=self.ledger.check(rows, self.plan, bad, self._is_over),
            seconds=self.kernel.now - EPOCH,
            is_over=self._is_over,
            linux=self.samples["linux"],
            boards=self.samples["boards"],
            backend=self.backend,
            seen=self.seen,
            ledger=self.ledger,
            workload=self.workload,
            lost_nodes=self.engine.lost,
            node_hours=self.engine.node_s / 3600,
            linux_done_s=self._linux_done_s,
            events=self.kernel.events,
            took_s=took_s,
            notes=self.notes,
            left_s=self._work_s(),
        )


def _kind(text: str) -> str:
    """A message without the names in it, to count how often there was one."""
    words = [word for word in text.split() if not any(c.isdigit() for c in word)]
    return " ".join(words)[:90]
