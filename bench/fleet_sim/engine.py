"""A simulated engine: it finds nodes for runners, loses them, and starts their runners again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bench.fleet_sim.kernel import Kernel, Node
from bench.fleet_sim.threads import VirtualEvent
from edgeloop.operate.fleet.launcher import Launcher, RunnerOrder, RunnerState
from edgeloop.runner.worker import Worker


@dataclass(eq=False)
class Machine:
    """A node with a runner on it."""

    order: RunnerOrder
    node: Node
    stopping: VirtualEvent
    began: float
    workers: list[Worker] = field(default_factory=list)

    @property
    def is_board(self) -> bool:
        return bool(self.order.device)

    @property
    def is_ready(self) -> bool:
        return bool(self.workers)

    @property
    def is_busy(self) -> bool:
        return any(worker._current is not None for worker in self.workers)


class SimEngine(Launcher):
    """`serve` is what a runner does on its machine; it returns when the runner has ended. Nodes of
    boards are never lost: they stand in a laboratory."""

    def __init__(
        self,
        kernel: Kernel,
        assumed: Mapping[str, Any],
        boards: int,
        lost_per_min: float,
        frozen_share: float,
        seed: int,
        serve: Callable[[Machine], None],
    ) -> None:
        self._kernel, self._assumed, self._random = kernel, assumed, Random(seed)
        self._boards = [f"adb:board-{number:03d}" for number in range(boards)]
        self._lost_per_min, self._frozen_share = lost_per_min, frozen_share
        self._serve = serve
        self._orders: dict[str, RunnerOrder] = {}
        self._draining: set[str] = set()
        self.machines: dict[str, Machine] = {}
        self.lost: Counter[str] = Counter()
        self.node_s = 0.0
        self.gone: Callable[[Node], None] = lambda node: None

    def start(self, order: RunnerOrder) -> None:
        if order.id not in self._orders:
            self._orders[order.id] = order
            self._place(order)

    def states(self) -> Mapping[str, RunnerState]:
        return {name: self._state(name) for name in self._orders}

    def orders(self) -> Mapping[str, RunnerOrder]:
        return dict(self._orders)

    def drain(self, runner: str) -> None:
        if runner in self.machines:
            self._draining.add(runner)
            self.machines[runner].stopping.set()
        else:
            self._orders.pop(runner, None)

    def kill(self, runner: str) -> None:
        self._orders.pop(runner, None)
        if machine := self.machines.pop(runner, None):
            self._kernel.at(self._kernel.now, lambda: self._power_off(machine))

    def devices(self) -> Sequence[str]:
        return self._boards

    def close(self) -> None:
        """Power everything off: the simulation is over."""
        for machine in list(self.machines.values()):
            self._power_off(machine)

    def linux(self) -> Iterator[Machine]:
        return (machine for machine in self.machines.values() if not machine.is_board)

    def boards(self) -> Iterator[Machine]:
        return (machine for machine in self.machines.values() if machine.is_board)

    def _state(self, name: str) -> RunnerState:
        if name in self._draining:
            return "draining"
        return "running" if name in self.machines else "waiting"

    def _place(self, order: RunnerOrder) -> None:
        """A node for it, after a while; a board's is there."""
        start_s = 0.0 if order.device else self._assumed["start_s"] * self._random.uniform(0.5, 1.5)
        self._kernel.at(self._kernel.now + start_s, lambda: self._boot(order))

    def _boot(self, order: RunnerOrder) -> None:
        if order.id not in self._orders or order.id in self.machines:
            return
        skew_s = self._random.uniform(-1, 1) * self._assumed["clock_skew_s"]
        node = Node(order.id, skew_s)
        machine = Machine(order, node, VirtualEvent(self._kernel), self._kernel.now)
        self.machines[order.id] = machine
        self._kernel.spawn(lambda: self._run(machine), node)
        if self._lost_per_min > 0 and not order.device:
            self._doom(machine)

    def _run(self, machine: Machine) -> None:
        self._serve(machine)
        name = machine.order.id
        if self.machines.get(name) is machine:
            del self.machines[name]
            self._retire(machine)
            self._orders.pop(name, None)
            self._draining.discard(name)

    def _doom(self, machine: Machine) -> None:
        """Every node is as likely to be lost in the next minute as any other."""
        life_s = self._random.expovariate(self._lost_per_min / 60)
        self._kernel.at(self._kernel.now + life_s, lambda: self._lose(machine))

    def _lose(self, machine: Machine) -> None:
        name = machine.order.id
        if self.machines.get(name) is not machine:
            return
        if self._random.random() < self._frozen_share:
            self.lost["frozen"] += 1
            silent_s = self._assumed["freeze_s"] * self._random.uniform(0.5, 1.5)
            machine.node.frozen_until = self._kernel.now + silent_s
            self._doom(machine)
            return
        self.lost["killed"] += 1
        del self.machines[name]
        self._power_off(machine)
        if name in self._draining:
            self._draining.discard(name)
            self._orders.pop(name, None)
        elif name in self._orders:
            self._place(machine.order)

    def _power_off(self, machine: Machine) -> None:
        self._retire(machine)
        self._kernel.kill(machine.node)

    def _retire(self, machine: Machine) -> None:
        if not machine.is_board:
            self.node_s += self._kernel.now - machine.began
        self.gone(machine.node)
