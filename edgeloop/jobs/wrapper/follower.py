"""The wrapper on the other nodes of a job that has several.

It lays out the same code and data and runs the same command, with the variables that its compute
set for this node (RANK, MASTER_ADDR, …). The first node alone speaks for the job: this one writes
nothing to the store, neither outputs nor log nor state.
"""

from __future__ import annotations

import os
import shutil

from edgeloop.errors import EdgeloopError
from edgeloop.jobs.handover import Handover
from edgeloop.jobs.wrapper import processes
from edgeloop.jobs.wrapper.ending import FAILED, Outcome
from edgeloop.jobs.wrapper.events import Canceled, Events
from edgeloop.jobs.wrapper.keeper import Keeper
from edgeloop.jobs.wrapper.repeat import Repeating
from edgeloop.jobs.wrapper.scratch import Scratch
from edgeloop.jobs.wrapper.settings import Surroundings
from edgeloop.jobs.wrapper.variables import Places


def follow(handover: Handover, scratch: Scratch, here: Surroundings, lifeline: int) -> int:
    """Run this node's part to its end; the exit code for the compute."""
    processes.adopt_orphans()
    return Follower(handover, scratch, here, Events(lifeline)).run()


class Follower(Keeper):
    def run(self) -> int:
        try:
            outcome = self._work(self._ticket(None), None)
        except Canceled:
            outcome = self._canceled(None)
        except EdgeloopError as error:
            outcome = Outcome("failed", FAILED, str(error))
        return self._finish(outcome)

    def _make_threads(self) -> dict[str, Repeating]:
        return {}

    def _say_state(self) -> None:
        pass

    def _publish(self, ticket: object, places: Places) -> Outcome:
        return Outcome("completed", 0, exit_code=0)

    def _finish(self, outcome: Outcome) -> int:
        processes.end_all(lambda: processes.descendants(os.getpid()))
        if outcome.reason:
            self._log.say(outcome.reason)
        shutil.rmtree(self._scratch.folder, ignore_errors=True)
        return outcome.code
