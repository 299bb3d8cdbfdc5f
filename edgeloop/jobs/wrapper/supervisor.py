"""The keeper: lays out, runs the command, copies what it writes, and has the last word.

It is no child of the front, so that who ends the front with all its children (as Ray does, and
soon) does not end the keeper: it sees the lifeline close and finishes what is to be finished.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from edgeloop.data import Datasets
from edgeloop.errors import BadInput, BlobMissing, EdgeloopError
from edgeloop.jobs.protocol.handover import Handover
from edgeloop.jobs.protocol.ticket import FINAL_STATES, Progress, Ticket, ticket_key
from edgeloop.jobs.wrapper import command, processes
from edgeloop.jobs.wrapper.ending import (
    CANCELED,
    FAILED,
    Ending,
    Outcome,
    StateWriter,
    latest_metrics,
    stored_progress,
)
from edgeloop.jobs.wrapper.environment import Surroundings
from edgeloop.jobs.wrapper.environments import Builder, Interpreter
from edgeloop.jobs.wrapper.events import Background, Canceled, Events
from edgeloop.jobs.wrapper.layout import Places, bring_outputs, fill, lay_out, variables_for
from edgeloop.jobs.wrapper.log import Log, LogCopier, stored_log
from edgeloop.jobs.wrapper.outputs import OutputCopier
from edgeloop.jobs.wrapper.repeat import Repeating, patiently
from edgeloop.jobs.wrapper.scratch import Note, Scratch
from edgeloop.store import Blobs, open_access

Result = TypeVar("Result")

_ALREADY = 75  # "temporary failure": another wrapper has the job


@dataclass(frozen=True)
class Prepared:
    """Everything that a start of the command needs but the number of the attempt."""

    places: Places
    interpreter: Interpreter


def keep(handover: Handover, scratch: Scratch, here: Surroundings, lifeline: int) -> int:
    """Run the job to its end; the exit code for the compute."""
    processes.adopt_orphans()
    with scratch.held() as alone:
        if not alone:
            Log(scratch.log).say("this job runs here already; this second wrapper does nothing")
            return _ALREADY
        return Keeper(handover, scratch, here, Events(lifeline)).run()


class Keeper:
    """One job. What happens between two lines of `run` is in the store or in the scratch folder."""

    def __init__(
        self, handover: Handover, scratch: Scratch, here: Surroundings, events: Events
    ) -> None:
        self._pace = handover.pace
        self._scratch = scratch
        self._here = here
        self._events = events
        self._log = Log(scratch.log)
        self._blobs: Blobs = open_access(handover.access)
        self._log_copier = LogCopier(scratch.log, self._blobs, scratch.job)
        self._outputs = OutputCopier(scratch.outputs, self._blobs, scratch.job, self._log.say_once)
        progress = Progress("preparing", 1, here.node, time.time())
        self._state = StateWriter(self._blobs, scratch.job, progress)
        self._threads = self._make_threads()

    def run(self) -> int:
        earlier: Progress | None = None
        try:
            earlier = self._wait_for(lambda: stored_progress(self._blobs, self._scratch.job))
            if earlier is not None and earlier.state in FINAL_STATES:
                self._log.say(f"this job is over already: {earlier.state}")
                return earlier.exit_code or (0 if earlier.state == "completed" else FAILED)
            outcome = self._work(self._ticket(earlier), earlier)
        except Canceled:
            outcome = self._canceled(None)
        except EdgeloopError as error:
            outcome = Outcome("failed", FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the outputs must be saved
            outcome = Outcome("failed", FAILED, f"the wrapper failed: {_name(error)}: {error}")
        return self._finish(outcome)

    def _ticket(self, earlier: Progress | None) -> Ticket:
        """A wrapper of this job that was lost before, as with its machine, counts as an attempt."""
        try:
            content = self._wait_for(lambda: self._blobs.read(ticket_key(self._scratch.job)))
        except BlobMissing:
            raise BadInput(reason="The job's ticket is not in the store") from None
        ticket = Ticket.from_json(content)
        if earlier is not None:
            ticket = replace(ticket, attempt=max(ticket.attempt, earlier.attempt + 1))
        return ticket

    def _work(self, ticket: Ticket, earlier: Progress | None) -> Outcome:
        self._state.change(attempt=ticket.attempt)
        self._note(ticket.attempt)
        for thread in self._threads.values():
            thread.start()
        self._say_state()
        prepared = self._wait_for(lambda: self._prepare(ticket, earlier))
        ended = self._attempts(ticket, prepared)
        if ended.how == "canceled":
            return self._canceled(ended.exit_code)
        if ended.how == "timeout":
            reason = f"ran longer than {ticket.timeout_s:g} s and was ended"
            return Outcome("failed", command.TIMED_OUT, reason, ended.exit_code)
        if ended.exit_code != 0:
            return Outcome("failed", ended.exit_code, ended.reason(), ended.exit_code)
        return self._publish(ticket, prepared.places)

    def _prepare(self, ticket: Ticket, earlier: Progress | None) -> Prepared:
        patience_s = self._pace.patience_s
        if earlier is not None and self._log.size() == 0:
            for piece in stored_log(self._blobs, ticket.id):
                self._log.restore(piece)
        places = lay_out(ticket, self._scratch, self._blobs, self._here.cache, patience_s)
        sources = [ticket.id] if earlier is not None else []
        sources += [ticket.previous] if ticket.previous else []
        for job in sources:
            patiently(partial(bring_outputs, job, self._scratch, self._blobs), patience_s)
        variables = {**self._here.variables, **variables_for(ticket, ticket.attempt, places)}
        builder = Builder(
            self._here,
            self._scratch.work,
            self._log,
            self._scratch.log,
            self._pace.install_s,
            variables,
        )
        return Prepared(places, builder.interpreter(ticket))

    def _attempts(self, ticket: Ticket, prepared: Prepared) -> command.Ended:
        """The same outputs folder each time, so that a script can go on where it was."""
        deadline = None if ticket.timeout_s is None else time.monotonic() + ticket.timeout_s
        last = ticket.attempt + ticket.retries
        for attempt in range(ticket.attempt, last + 1):
            call = self._call(ticket, attempt, prepared)
            ended = command.run(
                call,
                self._events,
                ticket.grace_s,
                deadline,
                partial(self._started, attempt),
            )
            if ended.how != "by itself" or ended.exit_code == 0 or attempt == last:
                break
            self._log.say(f"attempt {attempt} failed: {ended.reason()}; starting it again")
        return ended

    def _call(self, ticket: Ticket, attempt: int, prepared: Prepared) -> command.Call:
        arguments = fill(ticket.command, ticket, attempt, prepared.places)
        if not arguments:
            raise BadInput(reason="The job's command is empty")
        if arguments[0] in ("python", "python3"):
            arguments[0] = prepared.interpreter.python
        variables = {**self._here.variables, **variables_for(ticket, attempt, prepared.places)}
        variables |= prepared.interpreter.variables(variables)
        work, log = self._scratch.work, self._scratch.log
        return command.Call(ticket.id, arguments, work, log, variables)

    def _started(self, attempt: int, pid: int) -> None:
        self._note(attempt, pid)
        started = self._state.progress.started or time.time()
        self._state.change(state="running", attempt=attempt, started=started)
        self._say_state()

    def _say_state(self) -> None:
        self._threads["state"].poke()

    def _note(self, attempt: int, pid: int = 0) -> None:
        started = self._state.progress.started
        born = processes.born(pid) if pid else ""
        self._scratch.note(Note(self._here.node, attempt, started, pid, born))

    def _publish(self, ticket: Ticket, places: Places) -> Outcome:
        """The command has succeeded: from here on it is too late to cancel."""
        published: dict[str, int] = {}
        datasets = Datasets(self._blobs, node=self._here.node)
        for name, folder in places.writes.items():
            try:
                if not any(folder.iterdir()):
                    raise BadInput(reason=f"{name} was not published: the job left it empty")
                push = partial(datasets.push, name, folder, message=f"by job {ticket.name}")
                pushed = patiently(push, self._pace.patience_s)
            except (EdgeloopError, OSError) as error:
                return Outcome("failed", FAILED, str(error), 0, published)
            published[name] = pushed.reference.version
            self._log.say(f"published {name}, version {pushed.reference.version}")
        return Outcome("completed", 0, exit_code=0, published=published)

    def _canceled(self, exit_code: int | None) -> Outcome:
        return Outcome("canceled", CANCELED, self._events.canceled, exit_code)

    def _finish(self, outcome: Outcome) -> int:
        processes.end_all(lambda: processes.descendants(os.getpid()))
        for thread in self._threads.values():
            thread.stop()
        return Ending(
            self._scratch,
            self._here.node,
            self._log,
            self._log_copier,
            self._outputs,
            self._state,
            self._pace.patience_s,
        ).finish(outcome)

    def _wait_for(self, action: Callable[[], Result]) -> Result:
        """Done beside, with patience, so that a cancel need not wait for it."""
        work = Background(lambda: patiently(action, self._pace.patience_s), self._events)
        return work.run()

    def _make_threads(self) -> dict[str, Repeating]:
        actions = {
            "log": (self._log_copier.copy, self._pace.log_s),
            "outputs": (self._copy_outputs, self._pace.outputs_s),
            "state": (self._put_state, self._pace.heartbeat_s),
        }
        return {
            name: Repeating(name, action, every_s, self._log.say_once)
            for name, (action, every_s) in actions.items()
        }

    def _copy_outputs(self) -> None:
        metrics = latest_metrics(self._scratch.outputs / "metrics.jsonl")
        if metrics and self._state.change(metrics=metrics):
            self._threads["state"].poke()
        self._outputs.copy()

    def _put_state(self) -> None:
        self._state.change(log_bytes=self._log_copier.bytes_sent)
        self._state.put()


def _name(error: Exception) -> str:
    return type(error).__name__
