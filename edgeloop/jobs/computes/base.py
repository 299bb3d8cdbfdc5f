"""The seam between jobs and the machines that run them.

A compute starts one program, the wrapper, and can say whether it still runs. All else (code, data,
outputs, logs, exit code) is the wrapper's business and goes through the store, so a new compute is
one small file. A job is known by its id everywhere; there is no second handle to lose. To submit an
id again is harmless: a compute that has it already does nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from edgeloop.jobs.computes.options import ComputeOptions
from edgeloop.jobs.protocol.resources import Resources
from edgeloop.jobs.protocol.ticket import Environment, State
from edgeloop.store import Access, Blobs

__all__ = ["Compute", "Order", "Resources", "Seen"]


@dataclass(frozen=True)
class Order:
    """All that a compute needs to start a job. The access holds secrets: never log an order."""

    job: str
    name: str
    resources: Resources
    priority: int
    access: Access = field(repr=False)
    wrapper: str  # its key in the store
    environment: Environment = field(default_factory=Environment)  # where the compute `builds` it
    recipe: str = field(default="", repr=False)  # the text of its file
    experiment: str = ""
    timeout_s: float | None = None
    together: bool = False  # with the others of its batch, where the compute knows such a thing


@dataclass(frozen=True)
class Seen:
    """What a compute itself knows of a job: no more than whether it waits, runs or is over.

    `completed` and `failed` say how the wrapper's process ended. The wrapper's own word in the
    store, where there is one, is better. None: this compute has never heard of the job.
    """

    state: State | None
    reason: str = ""


class Compute(ABC):
    """Any machine or cluster. Every call ends within a time limit or raises ComputeUnavailable."""

    Options: ClassVar[type[ComputeOptions]]  # the model of its settings; see `options`
    name: str
    kind: str
    builds: frozenset[str] = frozenset()  # kinds of environments that need not be made on the node
    on_its_way_s: float = 60.0  # from the record of a job until the compute must know it

    @abstractmethod
    def check(self, resources: Resources) -> None:
        """Raises Infeasible, with what there is, where the job could never start."""

    @abstractmethod
    def submit(self, order: Order) -> None:
        """Take the job; it waits its turn. Taking an id twice is the same as once."""

    @abstractmethod
    def states(self, jobs: Sequence[str]) -> dict[str, Seen]:
        """An answer for each of these, with as few calls as the compute allows."""

    @abstractmethod
    def cancel(self, jobs: Sequence[str]) -> None:
        """Ask these to end, and return at once. Those that ended or are not known are fine."""

    @abstractmethod
    def logs(self, job: str) -> str:
        """What the compute itself has to say of a job whose wrapper said nothing; may be empty."""

    @abstractmethod
    def forget(self, jobs: Sequence[str]) -> None:
        """Remove what the compute keeps of jobs that are over."""

    def access_s(self, timeout_s: float | None) -> int | None:
        """How long a job's access to the store shall hold: 0 where the compute's machines have an
        identity of their own to open it by, None where the usual will do."""
        return None

    def submit_many(self, orders: Sequence[Order]) -> None:
        """A compute that can take a batch in one go does better here."""
        for order in orders:
            self.submit(order)

    def rescue(self, job: str, blobs: Blobs) -> bool:
        """Store what a job left behind where all of its processes died; True when it is done.

        Only a compute that is this very machine can; others have nothing to look at.
        """
        return False
