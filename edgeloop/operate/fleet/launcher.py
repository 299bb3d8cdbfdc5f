"""The seam between a fleet and the engine that starts its runners: processes, Ray, …"""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edgeloop._util.processes import KeptProcess, ProcessState
from edgeloop._util.system import python_module

# waiting: the engine has no place for it yet, or is starting it again
RunnerState = ProcessState
NODE_VARIABLE = "EDGELOOP_NODE"
GRACE_S, AFTER_GRACE_S = 30.0, 30.0


@dataclass(frozen=True)
class RunnerOrder:
    """One runner that an engine is to start, and to start again if it dies.

    `id` is also the runner's node name, so that its row in the registry and its leases are found by
    it. `words` are further options of `edgeloop runner` and never hold a secret. `resources` are
    the engine's own: a board is on the machine that has the resource of its name.
    """

    id: str
    experiment: str
    device: str = ""  # of a platform; empty: the machine itself
    cpus: int = 1  # 0: it reserves none, as a board's runner
    resources: Mapping[str, float] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of `python -m edgeloop.operate.fleet.start`, which becomes the runner."""
        cpus = ("--cpus", str(self.cpus)) if self.cpus else ()
        device = ("--device", self.device) if self.device else ()
        return ("--experiment", self.experiment, *cpus, *device, *self.words)

    @property
    def grace_s(self) -> float:
        """How long the runner may take to finish its stage; it ends itself after that."""
        with suppress(ValueError, IndexError):
            return float(self.words[self.words.index("--grace") + 1])
        return GRACE_S

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunnerOrder:
        fields = json.loads(text)
        fields["words"] = tuple(fields.get("words", ()))
        return cls(**fields)


class RunnerProcess(KeptProcess):
    """One runner as a process of this machine; the local keeper and Ray's actor hold one each. A
    `command` is kept alive instead of the runner, until it ends with exit code 0."""

    def __init__(
        self,
        order: RunnerOrder,
        environ: Mapping[str, str],
        log: Path | None = None,
        python: str = sys.executable,
        cwd: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        command: Sequence[str] = (),
    ) -> None:
        self.python = python
        runner = python_module("edgeloop.operate.fleet.start", *order.arguments, python=python)
        super().__init__(
            command or runner,
            {**environ, NODE_VARIABLE: order.id},
            log,
            cwd,
            grace_s=order.grace_s + AFTER_GRACE_S,
            until_success=bool(command),
            clock=clock,
        )


@dataclass(frozen=True)
class StartedSupervisor:
    """A supervisor that was started somewhere and has yet to report through the store.

    `where` is shown to people. `failure` is empty while it lives or may still come; else it says
    in one sentence why it will not.
    """

    where: str
    failure: Callable[[], str] = lambda: ""


class Launcher(ABC):
    """Starts and ends runners. What dies without having been ended is started again."""

    @abstractmethod
    def start(self, order: RunnerOrder) -> None:
        """Start a runner. Nothing happens if there is one with this id."""

    @abstractmethod
    def states(self) -> Mapping[str, RunnerState]:
        """All runners of the fleet by id, including those that an earlier supervisor started."""

    @abstractmethod
    def orders(self) -> Mapping[str, RunnerOrder]:
        """What they were started with, by id."""

    @abstractmethod
    def drain(self, runner: str) -> None:
        """Let a runner finish its stage within its grace period, then end it for good."""

    @abstractmethod
    def kill(self, runner: str) -> None:
        """End a runner at once and for good. Its leases expire."""

    @abstractmethod
    def devices(self) -> Sequence[str]:
        """The boards on machines of this engine, by their device names."""

    def places(self, cpus: int) -> int | None:
        """How many runners with so many CPUs can ever be at work; None: unknown, because
        machines come and go."""
        return None

    def toolchains(self) -> Collection[str] | None:
        """What its machines can convert with; None: unknown until a runner there has told."""
        return None

    def notes(self) -> Mapping[str, str]:
        """Why runners wait, by id: no machine has such a board, a program that ends at once."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Give back connections. Runners go on."""
