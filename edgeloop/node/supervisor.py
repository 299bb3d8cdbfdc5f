"""The supervisor: lays out the job, runs the command, copies what it writes, and reports the end.

It is not a child of the launcher. Ray, for example, kills the launcher with all its children; the
supervisor survives that, sees the lifeline close and finishes the job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from edgeloop._util.system import descendants, start_time
from edgeloop.errors import BadInput, BlobMissing, EdgeloopError
from edgeloop.node import command
from edgeloop.node.blobs import open_from_job
from edgeloop.node.command import Background, Canceled, Events, PeriodicTask, with_retries
from edgeloop.node.datasets import Datasets
from edgeloop.node.environment import (
    EnvironmentBuilder,
    Interpreter,
    JobLog,
    JobSecrets,
    LogCopier,
    NodeEnvironment,
    Scratch,
    SupervisorNote,
    stored_log,
)
from edgeloop.node.layout import (
    JobFolders,
    deliver,
    fetch_outputs,
    fill,
    lay_out,
    variables_for,
    with_library,
    write_library,
)
from edgeloop.node.outputs import (
    CANCELED,
    FAILED,
    CreatedFiles,
    JobFinisher,
    JobOutcome,
    KeptFiles,
    OutputCopier,
    StateWriter,
    latest_metrics,
    stored_progress,
)
from edgeloop.node.ticket import (
    FINAL_STATES,
    EarlierOutputs,
    JobProgress,
    Ticket,
    WrapperOrder,
    access_key,
    cancel_key,
    expires_at,
    from_json,
    order_key,
    ticket_key,
)
from edgeloop.store.base import Access, Blobs

Result = TypeVar("Result")

_KEPT_PACE = 15  # how much rarer files outside outputs/ are looked at than those in it
_ALREADY_RUNNING = 75  # "temporary failure": another wrapper has the job


@dataclass(frozen=True)
class PreparedJob:
    """Everything that a start of the command needs except the number of the attempt."""

    folders: JobFolders
    interpreter: Interpreter


def supervise(order: WrapperOrder, scratch: Scratch, here: NodeEnvironment, lifeline: int) -> int:
    """Run the job to its end; returns the exit code for the compute."""
    command.adopt_orphans()
    with scratch.locked() as alone:
        if not alone:
            log = JobLog(scratch.log, JobSecrets(scratch))
            log.write("this job already runs here; this second wrapper does nothing")
            return _ALREADY_RUNNING
        return Supervisor(order, scratch, here, Events(lifeline)).run()


class Supervisor:
    """One job. All state between two lines of `run` is in the store or in the scratch folder."""

    def __init__(
        self, order: WrapperOrder, scratch: Scratch, here: NodeEnvironment, events: Events
    ) -> None:
        self._pace = order.pace
        self._scratch = scratch
        self._here = here
        self._events = events
        self._secrets = JobSecrets(scratch)
        self._log = JobLog(scratch.log, self._secrets)
        self._blobs: Blobs = open_from_job(order.access)
        self._holds_signature = expires_at(order.access) is not None
        self._renewal = AccessRenewal(self._blobs, order.access, scratch.job)
        self._log_copier = LogCopier(scratch.log, self._blobs, scratch.job, self._secrets)
        self._created = CreatedFiles(scratch.work, scratch.before)
        self._outputs = OutputCopier(
            scratch.outputs, self._created, self._blobs, scratch.job, self._log.write_once
        )
        self._kept = KeptFiles(
            scratch.outputs, self._created, self._blobs, scratch.job, self._log.write_once
        )
        progress = JobProgress("preparing", 1, here.node, time.time())
        self._state = StateWriter(self._blobs, scratch.job, progress, self._secrets)
        self._tasks = self._make_tasks()

    def run(self) -> int:
        earlier: JobProgress | None = None
        try:
            earlier = self._wait_for(lambda: stored_progress(self._blobs, self._scratch.job))
            if earlier is not None and earlier.state in FINAL_STATES:
                self._log.write(f"this job has already ended: {earlier.state}")
                return earlier.exit_code or (0 if earlier.state == "completed" else FAILED)
            outcome = self._work(self._ticket(earlier), earlier)
        except Canceled:
            outcome = self._canceled(None)
        except EdgeloopError as error:
            outcome = JobOutcome("failed", FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the outputs must be saved
            reason = f"the wrapper failed: {type(error).__name__}: {error}"
            outcome = JobOutcome("failed", FAILED, reason)
        return self._finish(outcome)

    def _ticket(self, earlier: JobProgress | None) -> Ticket:
        """An earlier wrapper of this job that was lost, for example with its machine, counts as an
        attempt."""
        try:
            content = self._wait_for(
                lambda: self._blobs.read_document(ticket_key(self._scratch.job))
            )
        except BlobMissing:
            raise BadInput(reason="The job's ticket is not in the store") from None
        ticket = Ticket.from_json(content)
        if earlier is not None:
            ticket = replace(ticket, attempt=max(ticket.attempt, earlier.attempt + 1))
        self._secrets.write(ticket.secret_values())
        return ticket

    def _work(self, ticket: Ticket, earlier: JobProgress | None) -> JobOutcome:
        served = any(place.variable for place in ticket.targets)
        self._state.change(attempt=ticket.attempt, compute_stores=served)
        self._write_note(ticket.attempt)
        for task in self._tasks.values():
            task.start()
        self._report_state()
        prepared = self._wait_for(lambda: self._prepare(ticket, earlier))
        result = self._attempts(ticket, prepared)
        outcome = self._outcome(ticket, prepared, result)
        return self._deliver(ticket, prepared.folders, outcome)

    def _outcome(
        self, ticket: Ticket, prepared: PreparedJob, result: command.CommandResult
    ) -> JobOutcome:
        if result.how == "canceled":
            return self._canceled(result.exit_code)
        if result.how == "timeout":
            reason = f"ran longer than {ticket.timeout_s:g} s and was ended"
            return JobOutcome("failed", command.TIMED_OUT, reason, result.exit_code)
        if result.exit_code != 0:
            return JobOutcome("failed", result.exit_code, result.reason(), result.exit_code)
        return self._publish(ticket, prepared.folders)

    def _prepare(self, ticket: Ticket, earlier: JobProgress | None) -> PreparedJob:
        patience_s = self._pace.patience_s
        if earlier is not None and self._log.size() == 0:
            for piece in stored_log(self._blobs, ticket.id):
                self._log.restore(piece)
        log = self._log.write
        folders = lay_out(ticket, self._scratch, self._blobs, self._here, log, patience_s)
        write_library(self._scratch.library)
        written_folders = [folders.outputs, *folders.made.values()]
        if (folders.data / "outputs").is_symlink():
            written_folders.append(folders.data / "outputs")
        skipped = [path.relative_to(self._scratch.work).as_posix() for path in written_folders]
        self._created.remember(ticket.outputs, skipped, ticket.kept_bytes)
        sources = [EarlierOutputs(ticket.id)] if earlier is not None else []
        sources += [EarlierOutputs(ticket.previous)] if ticket.previous else []
        for source in (*sources, *ticket.earlier):
            fetch = partial(fetch_outputs, source, self._scratch, self._created, self._blobs)
            with_retries(fetch, patience_s)
        builder = EnvironmentBuilder(
            self._here,
            self._scratch.work,
            self._log,
            self._scratch.log,
            self._pace.install_s,
            self._variables(ticket, ticket.attempt, folders),
        )
        return PreparedJob(folders, builder.interpreter(ticket))

    def _attempts(self, ticket: Ticket, prepared: PreparedJob) -> command.CommandResult:
        """All attempts have the same outputs folder, so that a script can continue."""
        deadline = None if ticket.timeout_s is None else time.monotonic() + ticket.timeout_s
        last = ticket.attempt + ticket.retries
        for attempt in range(ticket.attempt, last + 1):

            def started(pid: int, attempt: int = attempt) -> None:
                self._write_note(attempt, pid)
                since = self._state.progress.started or time.time()
                self._state.change(state="running", attempt=attempt, started=since)
                self._report_state()

            ready = self._command(ticket, attempt, prepared)
            start = self._log.size()
            result = command.run(ready, self._events, ticket.grace_s, deadline, started)
            is_python = ready.arguments[0] == prepared.interpreter.python
            python = prepared.interpreter.python if is_python else ""
            result = replace(result, last_line=self._log.last_line(start), python=python)
            if result.how != "by itself" or result.exit_code == 0 or attempt == last:
                break
            self._log.write(f"attempt {attempt} failed: {result.reason()}; starting it again")
        return result

    def _command(
        self, ticket: Ticket, attempt: int, prepared: PreparedJob
    ) -> command.PreparedCommand:
        arguments = fill(ticket.command, ticket, attempt, prepared.folders)
        if not arguments:
            raise BadInput(reason="The job's command is empty")
        if arguments[0] in ("python", "python3"):
            arguments[0] = prepared.interpreter.python
        variables = self._variables(ticket, attempt, prepared.folders)
        variables.update(prepared.interpreter.variables(variables))
        variables = with_library(variables, self._scratch.library)
        work, log = self._scratch.work, self._scratch.log
        return command.PreparedCommand(ticket.id, arguments, work, log, variables)

    def _variables(self, ticket: Ticket, attempt: int, folders: JobFolders) -> dict[str, str]:
        """Edgeloop as it was sent comes before one that the node has, whatever its version."""
        variables = {**self._here.variables, **variables_for(ticket, attempt, folders)}
        if folders.package is not None:
            path = filter(None, (str(folders.package), variables.get("PYTHONPATH")))
            variables["PYTHONPATH"] = os.pathsep.join(path)
        return variables

    def _report_state(self) -> None:
        self._tasks["state"].trigger()

    def _write_note(self, attempt: int, pid: int = 0) -> None:
        started = self._state.progress.started
        process_started = start_time(pid) if pid else ""
        note = SupervisorNote(self._here.node, attempt, started, pid, process_started)
        self._scratch.write_note(note)

    def _publish(self, ticket: Ticket, folders: JobFolders) -> JobOutcome:
        """The command has succeeded: from here on it is too late to cancel."""
        published: dict[str, int] = {}
        datasets = Datasets(self._blobs, node=self._here.node)
        for name, folder in folders.writes.items():
            try:
                if not any(folder.iterdir()):
                    raise BadInput(reason=f"{name} was not published: the job left it empty")
                push = partial(datasets.push, name, folder, message=f"by job {ticket.name}")
                pushed = with_retries(push, self._pace.patience_s)
            except (EdgeloopError, OSError) as error:
                return JobOutcome("failed", FAILED, str(error), 0, published)
            published[name] = pushed.reference.version
            self._log.write(f"published {name}, version {pushed.reference.version}")
        return JobOutcome("completed", 0, exit_code=0, published=published)

    def _deliver(self, ticket: Ticket, folders: JobFolders, outcome: JobOutcome) -> JobOutcome:
        """Send what the command wrote for URLs, even if it failed: these are folders without
        versions, as a mount would be."""
        for place in ticket.targets:
            folder = folders.targets[place.name]
            if folder.is_symlink():  # it is there already
                continue
            try:
                with_retries(
                    partial(deliver, place, folder, self._log.write), self._pace.patience_s
                )
            except (EdgeloopError, OSError) as error:
                reason = f"{place.name} was not sent to {place.url}: {error}"
                if outcome.state != "completed":
                    self._log.write(reason)
                    continue
                outcome = replace(outcome, state="failed", code=FAILED, reason=reason)
        return outcome

    def _canceled(self, exit_code: int | None) -> JobOutcome:
        return JobOutcome("canceled", CANCELED, self._events.canceled, exit_code)

    def _finish(self, outcome: JobOutcome) -> int:
        command.kill_all(lambda: descendants(os.getpid()))
        for task in self._tasks.values():
            task.stop()
        code = JobFinisher(
            scratch=self._scratch,
            node=self._here.node,
            log=self._log,
            log_copier=self._log_copier,
            outputs=self._outputs,
            kept=self._kept,
            created=self._created,
            state=self._state,
            patience_s=self._pace.patience_s,
        ).finish(outcome)
        if self._holds_signature:  # no further start of this job needs its order
            with suppress(EdgeloopError):
                self._blobs.delete([order_key(self._scratch.job)])
        return code

    def _wait_for(self, action: Callable[[], Result]) -> Result:
        """With retries, in a thread, so that a cancel need not wait for it."""
        work = Background(lambda: with_retries(action, self._pace.patience_s), self._events)
        return work.run()

    def _make_tasks(self) -> dict[str, PeriodicTask]:
        def copy_outputs() -> None:
            metrics = latest_metrics(self._scratch.outputs / "metrics.jsonl")
            if metrics and self._state.change(metrics=metrics):
                self._report_state()
            self._outputs.copy()

        def put_state() -> None:
            self._state.change(log_bytes=self._log_copier.bytes_sent)
            self._state.put()
            self._renewal.look()
            if self._blobs.size(cancel_key(self._scratch.job)) is not None:
                self._events.cancel()

        actions = {
            "log": (self._log_copier.copy, self._pace.log_s),
            "outputs": (copy_outputs, self._pace.outputs_s),
            "kept": (self._kept.copy, _KEPT_PACE * self._pace.outputs_s),
            "state": (put_state, self._pace.heartbeat_s),
        }
        return {
            name: PeriodicTask(name, action, every_s, self._log.write_once)
            for name, (action, every_s) in actions.items()
        }


# Newer access to the store for a job that runs for longer than its first one is valid.
#
# A signature ends by itself. A user who looks at a job that runs for days, with a command or the
# portal, leaves a newer one beside its ticket, and the job takes it before its own ends.


MARGIN_S = 3 * 24 * 3600.0  # before its end, an access is worth replacing
LOOK_S = 600.0


class AccessRenewal:
    def __init__(
        self, blobs: Blobs, access: Access, job: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._blobs = blobs
        self._key = access_key(job)
        self._ends = expires_at(access)
        self._clock = clock
        self._looked = float("-inf")

    def look(self) -> None:
        """Called at each heartbeat; now and then it reads one small file, if that is worth it."""
        now = self._clock()
        if self._ends is None or now < self._ends - MARGIN_S or now - self._looked < LOOK_S:
            return
        self._looked = now
        renew = getattr(self._blobs, "renew", None)
        if renew is None:
            return
        with suppress(EdgeloopError, ValueError, TypeError, KeyError, AttributeError):
            access = from_json(Access, self._blobs.read_document(self._key))
            ends = expires_at(access)
            if ends is not None and ends > self._ends:
                renew(access)
                self._ends = ends
