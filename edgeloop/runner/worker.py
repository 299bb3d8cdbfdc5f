"""One worker: claims a stage, fetches its files, performs it, stores the result, commits the row.

The life of a stage, in the order of the methods below:

    claim    `_next`         what is urgent, what was claimed ahead, else the best hint
    load     `_fetch`        the heartbeat starts, then the files arrive in a folder of its own
    work     `_perform`      `perform` computes; it touches neither table nor blobs
    commit   `_hand_in`      files first, then the row, provided the lease still holds
    or       `_settle`       whose fault a failure is, and what becomes of the lease

An attempt stores its files in a hidden folder of its own. Only after the row names them do they get
their plain names, so a worker that dies or loses its lease never leaves half a result.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal

from edgeloop._util.files import sha256_of
from edgeloop._util.system import progress_shown_to, show_progress
from edgeloop.errors import (
    BadInput,
    BadModel,
    BlobBehindLink,
    Conflict,
    DatasetMisfit,
    DatasetUnavailable,
    DeviceUnavailable,
    EdgeloopError,
    FileDamaged,
    LeaseLost,
    LocalFileError,
    MemoryExceeded,
    MissingExtra,
    ModelFailed,
    ModelRefused,
    NoSuchPrecision,
    NotConverted,
    NotFound,
    OtherDataset,
    StoreError,
    WorkerFailed,
)
from edgeloop.models.files import check_upload
from edgeloop.models.leases import Lease, Leases, Outcome
from edgeloop.models.runners import CurrentStage
from edgeloop.platforms import SharedDevice, TakesTurns
from edgeloop.runner.coordinator import Coordinator, DeviceSessions, ModelFilter
from edgeloop.runner.presence import RunnerEvent, record_use
from edgeloop.runner.resources import CpuPool, NoCpusError, WorkFolder, fetch_files
from edgeloop.runner.stages.base import Assignment, Equipment, Result, perform
from edgeloop.workspace import Workspace

HAND_IN_PATIENCE_S = 300.0
HEARTBEAT_END_S = 2.0
NOT_YET_DELAY_S = 15.0
LOOK_AGAIN_S = 2.5  # by then an idle runner would have taken what is left

# The machine, its device or the store failed: the attempt does not count.
INFRASTRUCTURE = (
    StoreError,
    LocalFileError,
    WorkerFailed,
    MissingExtra,
    DeviceUnavailable,
    OSError,
    DatasetUnavailable,
    ImportError,
)
# This machine cannot do this model, and another one may.
FOR_OTHERS = (DatasetMisfit, MemoryExceeded, MemoryError)
# The experiment has asked for something else meanwhile: for another conversion, for other data.
NOT_YET = (NotConverted, OtherDataset)
# In the model itself: another attempt, here or elsewhere, would end in the same way.
HOPELESS = (BadModel, ModelRefused, NoSuchPrecision)

Ending = Literal["done", "failed", "released"]


def store_and_commit(workspace: Workspace, leases: Leases, lease: Lease, result: Result) -> None:
    """Files first; the row only while the lease holds. Repeating it does no harm."""
    stored = workspace.catalog.stored
    stage = workspace.plan[lease.stage]
    further = stage.target if stage.converts else ""
    toolchain = further or str(result.columns.get("toolchain") or "")
    keys = stored.put_attempt(lease.model, lease.token, result.files, toolchain)
    sha256 = {name: sha256_of(path) for name, path in result.files.items()}
    leases.commit(lease, Outcome(result.columns, keys, sha256))
    stored.publish(lease.model, lease.token, result.files)


class Heartbeat:
    """A context manager around the work; `lease` is the current lease.

    An unreachable store is no reason to stop: the lease may still hold when it is back.
    """

    def __init__(self, leases: Leases, lease: Lease, interval_s: float) -> None:
        self._leases = leases
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.lease = lease
        self.lost = threading.Event()

    def begin(self) -> None:
        """What was claimed ahead begins now; raises LeaseLost when an idle runner has taken it."""
        if self.lease.queued:
            self.lease = self._leases.begin(self.lease)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def stop(self, timeout_s: float) -> None:
        """End it from another thread, before the store closes. A request that does not end in time
        is left alone: whatever becomes of it is not reported."""
        self._done.set()
        self._thread.join(timeout_s)

    def _beat(self) -> None:
        while not self._done.wait(self._interval_s):
            try:
                self.lease = self._leases.renew(self.lease)
            except LeaseLost:
                self.lost.set()
                return
            except EdgeloopError:
                continue
            except Exception:
                if self._done.is_set():  # the store was closed under this request
                    return
                raise


@dataclass(frozen=True)
class PreparedStage:
    """A claimed stage with its files fetched; its heartbeat runs until `held` is closed."""

    work: Assignment
    heartbeat: Heartbeat
    held: ExitStack


class PreemptedError(Exception):
    """Something more urgent comes first, and the stage has not begun."""


@dataclass(frozen=True)
class RunnerContext:
    """What all workers of a runner share. `only` says which models it takes; `stopping` is set when
    it should end, `outdated` when the experiment turned out to ask for something else."""

    workspace: Workspace
    folder: WorkFolder
    stopping: threading.Event
    report: Callable[[RunnerEvent], None]
    only: ModelFilter = field(default_factory=ModelFilter)
    cpus: CpuPool = field(default_factory=CpuPool)
    outdated: threading.Event = field(default_factory=threading.Event)


class Worker:
    """Works for one device, or for the machine itself where `served_device` is empty.

    A device that several workers share, each in a session of its own, has one worker per `hand`:
    while the tool of one runs there, another hands in its results and fetches its next files. A
    worker that has its device alone (`hand` is None) claims its next stage ahead instead.
    """

    def __init__(
        self,
        context: RunnerContext,
        equipment: Equipment,
        capabilities: Collection[str],
        served_device: str = "",
        hand: int | None = None,
        sessions: DeviceSessions | None = None,
    ) -> None:
        workspace = context.workspace
        node = workspace.settings.node
        # A bare machine name in a row is a lock of Archai's, so the machine's own has an ending.
        self.name = f"{node}/{served_device}" if served_device else f"{node}:runner"
        self.equipment = equipment
        self.capabilities = capabilities
        self.served_device = served_device
        self.hand = hand
        self.progressed_s = time.monotonic()
        self.ended: Counter[str] = Counter()  # stages, by how they ended
        self.last_error: tuple[float, str] = (0.0, "")  # when, by this machine's clock
        self._context = context
        self._workspace = workspace
        self._stopping = context.stopping
        self._leases: Leases = workspace.leases()
        self._sessions = sessions or DeviceSessions()
        self._backoff = self._sessions.backoff
        self._current: PreparedStage | None = None
        self._began, self._began_s = 0.0, 0.0  # by the clock of the day, and by the steady one
        self._ahead: Future[PreparedStage | None] | None = None
        self._urgent: Lease | None = None  # what the stage before gave way to
        self._stage_over = threading.Event()
        self._has_given_up = False
        self._heartbeats: list[Heartbeat] = []  # of every lease that this worker holds

    @property
    def doing(self) -> CurrentStage | None:
        """The stage under way, and since when by this machine's clock."""
        current = self._current
        if current is None or current.heartbeat.lease.queued:
            return None
        return CurrentStage(current.work.stage, current.work.model, self._began)

    @property
    def device_error(self) -> str:
        """Why its device cannot be used; empty if it can."""
        return str(self._backoff.error) if self._backoff.is_of_device else ""

    @property
    def trouble(self) -> Exception | None:
        """The error that kept its last look from finding anything, if there was one."""
        return self._backoff.error

    @property
    def best_rank(self) -> str | None:
        """That of the stage which it would claim now; None where there is none, or no answer."""
        with contextlib.suppress(StoreError, Conflict, OSError):
            return self._leases.best_rank(self.capabilities, only=self._context.only)
        return None

    def run_once(self) -> bool:
        """Whether there was a stage to perform."""
        with progress_shown_to(self._progressed):
            prepared = self._next(thorough=True)
            if prepared is None:
                return self.ended.total() > 0
            return self._perform(prepared)

    def run(self, coordinator: Coordinator, drain: bool) -> None:
        """Until told to stop or, on a drain, until no worker of the runner finds work."""
        with ThreadPoolExecutor(1, "prefetch") as prefetch, progress_shown_to(self._progressed):
            while not self._stopping.is_set():
                show_progress()
                news = coordinator.look(self)
                ended_before = self.ended.total()
                prepared = self._next(thorough=drain)
                coordinator.looked(self)
                if prepared is not None:
                    if self.hand is None:
                        self._stage_over.clear()
                        self._ahead = prefetch.submit(self._look_ahead)
                    self._perform(prepared)
                    self._stage_over.set()
                    coordinator.tell()
                elif self.ended.total() > ended_before:  # its files could not be fetched
                    coordinator.tell()
                elif self._wait_out_backoff(drain):
                    coordinator.disturbed()
                elif not coordinator.wait(self, news, drain):
                    break
            coordinator.looked(self)
            self._release_unbegun()

    def stop(self) -> None:
        """What waits for its turn on a shared device does not begin any more."""
        if isinstance(self.equipment.device, SharedDevice):
            self.equipment.device.stop()

    def give_up(self) -> None:
        """The grace time is over: the stage under way and the one claimed ahead return to the
        queue, and their attempts do not count."""
        # From now on errors are those of tools that end with the runner: no fault of the model.
        # They are neither reported nor written, since the store may be closed by then.
        self._has_given_up = True
        current, began_s = self._current, self._began_s
        for heartbeat in tuple(self._heartbeats):
            heartbeat.stop(HEARTBEAT_END_S)
            with contextlib.suppress(StoreError, Conflict):
                self._leases.release(heartbeat.lease)
        if current is not None:
            self._say("released", current.work, began_s, "given back")

    def _progressed(self) -> None:
        self.progressed_s = time.monotonic()

    def _wait_out_backoff(self, drain: bool) -> bool:
        """Whether the last look ended in backoff. Nothing found then does not mean nothing left:
        a drain looks again, and after enough failures raises the error instead of ending."""
        left_s = self._backoff.left_s
        if left_s <= 0:
            self._backoff.found_nothing()
            return False
        if drain and self._backoff.is_too_much and self._backoff.error is not None:
            raise self._backoff.error
        self._stopping.wait(left_s)
        return True

    # Claim: what comes next.

    def _next(self, thorough: bool) -> PreparedStage | None:
        """What is urgent, what was claimed ahead, else the best hint. A thorough look that finds
        none reads the rows themselves, since hints may be missing."""
        prepared = self._next_urgent() or self._next_ahead()
        if prepared is not None:
            return prepared
        ended_before = self.ended.total()
        prepared = self._claim()
        has_failed = self.ended.total() > ended_before
        if prepared is None and thorough and not has_failed and not self._stopping.is_set():
            try:
                self._leases.sweep()
            except (StoreError, OSError) as error:
                self._back_off(error)
            prepared = self._claim()
        return prepared

    def _next_urgent(self) -> PreparedStage | None:
        """What the last stage gave way to; its turn on the device is kept until it has begun."""
        lease, self._urgent = self._urgent, None
        if lease is None:
            return None
        self._sessions.claimed(self, lease)
        prepared = self._fetch(lease)
        if prepared is None:
            self._drop_turn()
        return prepared

    def _next_ahead(self) -> PreparedStage | None:
        """What was claimed ahead, unless an idle runner took it or something urgent came."""
        ahead, self._ahead = self._ahead, None
        prepared = ahead.result() if ahead is not None else None
        if prepared is None:
            return None
        try:
            self._begin(prepared)
            return prepared
        except PreemptedError:
            prepared.held.close()
            self._release(prepared)
            return self._next_urgent()
        except LeaseLost:
            prepared.held.close()
        except (StoreError, Conflict, OSError) as error:
            prepared.held.close()
            self._back_off(error)
        return None

    def _look_ahead(self) -> PreparedStage | None:
        """In the prefetch thread, while a stage runs. Idle runners come first: what they leave is
        claimed a little later, if the stage still runs then."""
        prepared = self._claim(ahead=True)
        if prepared is None and not self._stage_over.wait(LOOK_AGAIN_S):
            prepared = self._claim(ahead=True)
        return prepared

    def _claim(self, ahead: bool = False) -> PreparedStage | None:
        """The best ready stage with its files. Failures of the store, the device or this machine
        (no file descriptor left, for example) start a backoff and are not raised."""
        if self._stopping.is_set() or self._backoff.left_s > 0:
            return None
        try:
            if self._backoff.is_of_device:
                self._check_device()
            lease = self._claim_lease(ahead)
            return None if lease is None else self._fetch(lease)
        except (StoreError, Conflict, DeviceUnavailable, OSError) as error:
            self._back_off(error)
            return None

    def _claim_lease(self, ahead: bool) -> Lease | None:
        only = self._context.only
        # One session of a device chooses at a time. Otherwise two that look at once would both
        # claim as if the device were free, and keep the second stage from an idle machine.
        with self._sessions.choosing:
            if ahead or self._sessions.has_others(self):
                lease = self._leases.claim_ahead(
                    self.capabilities, self.name, only=only, after=self._sessions.last_rank
                )
            else:
                lease = self._leases.claim(self.capabilities, self.name, only=only)
            if lease is not None and not ahead:
                self._sessions.claimed(self, lease)
            return lease

    def _check_device(self) -> None:
        """Nothing is claimed for a device that is gone: another machine may have one."""
        device = self.equipment.device
        if isinstance(device, SharedDevice):
            device.acquire()
        else:
            device.probe()

    # Load: the files of what was claimed.

    def _fetch(self, lease: Lease) -> PreparedStage | None:
        """The stage with its files; None if they could not be fetched, which is settled here."""
        began_s = time.monotonic()
        with ExitStack() as opened:
            # Before the files: fetching a large model may take longer than a lease lasts.
            interval_s = self._workspace.settings.lease_seconds / 3
            heartbeat = opened.enter_context(Heartbeat(self._leases, lease, interval_s))
            self._heartbeats.append(heartbeat)
            opened.callback(self._heartbeats.remove, heartbeat)
            try:
                folder = opened.enter_context(self._context.folder.stage_folder())
                files = fetch_files(self._context.folder, self._workspace, lease, folder / "in")
                check_upload(lease.row, files)
                (folder / "out").mkdir()
            except (EdgeloopError, OSError) as error:
                self._sessions.ended(self)
                self._settle(heartbeat.lease, error)
                if not isinstance(error, INFRASTRUCTURE):
                    self._say("failed", lease, began_s, str(error))
                return None
            work = Assignment(lease.model, lease.stage, lease.row.values, files, folder / "out")
            return PreparedStage(work, heartbeat, opened.pop_all())

    # Work: the stage itself.

    def _perform(self, prepared: PreparedStage) -> bool:
        """Whether the stage began."""
        work, began_s = prepared.work, time.monotonic()
        start, self._began_s = datetime.now(UTC), began_s
        self._began, self._current = start.timestamp(), prepared
        with prepared.held:
            try:
                self._begin_in_turn(prepared)
                stage = self._workspace.plan[work.stage]
                turn = self._context.cpus.turn(self._stopping) if stage.uses_all_cpus else None
                with turn or contextlib.nullcontext():
                    result = perform(work, self.equipment)
                self._hand_in(prepared, result)
            except LeaseLost as error:
                if prepared.heartbeat.lease.queued:  # an idle runner took it before it began
                    return False
                if not self._has_given_up:  # then `give_up` itself has released it
                    self._say("released", work, began_s, str(error))
            except NoCpusError:
                self._release(prepared)
            except PreemptedError:
                self._release(prepared)
                return False
            except Exception as error:  # noqa: BLE001 - a model must never stop the runner
                if self._has_given_up:  # and released it: this is the end of its tools
                    return True
                self._settle(prepared.heartbeat.lease, error)
                is_ending = self._stopping.is_set() and isinstance(error, DeviceUnavailable)
                is_ours = isinstance(error, (*INFRASTRUCTURE, *FOR_OTHERS, *NOT_YET))
                text = "given back" if is_ending else str(error) or type(error).__name__
                self._say("released" if is_ours else "failed", work, began_s, text)
            else:
                self._backoff.clear()
                self._say("done", work, began_s, result.summary)
            finally:
                self._current = None
                self._sessions.ended(self)
                if not self._has_given_up:
                    self._record(work, start)
        return True

    def _begin_in_turn(self, prepared: PreparedStage) -> None:
        """On a shared device a stage begins with its first turn there: another session may have
        been quicker, whichever claimed first."""
        device, work = self.equipment.device, prepared.work

        def begin() -> None:
            if prepared.heartbeat.lease.queued or isinstance(device, TakesTurns):
                self._begin(prepared)
                self._began = time.time()
            self._context.report(RunnerEvent("begun", work.model, work.stage))

        if isinstance(device, TakesTurns):
            device.before_turn(begin)
        else:
            begin()

    def _begin(self, prepared: PreparedStage) -> None:
        """What was claimed ahead begins, unless something more urgent can be done now: then raises
        PreemptedError."""
        lease = prepared.heartbeat.lease
        device = self.equipment.device
        # Choosing and beginning are one step: no other session may begin something in between that
        # the urgent stage should have preceded.
        with self._sessions.choosing:
            with contextlib.suppress(StoreError, Conflict):
                self._urgent = self._leases.claim_urgent(
                    self.capabilities, self.name, than=lease.rank, only=self._context.only
                )
            if self._urgent is not None:
                if isinstance(device, TakesTurns):
                    device.keep_turn()
                raise PreemptedError
            prepared.heartbeat.begin()
            self._sessions.claimed(self, prepared.heartbeat.lease)

    def _record(self, work: Assignment, start: datetime) -> None:
        """A shared device is in use while a tool runs there; any other for the whole stage."""
        device, usage = self.equipment.device, self._workspace.store.usage()
        uses = [(start, datetime.now(UTC))]
        if isinstance(device, SharedDevice):
            uses = device.take_uses()
        for begin, end in uses:
            record_use(
                usage,
                device.name,
                begin,
                end,
                model=work.model,
                stage=work.stage,
                owner=self.name,
            )

    # Commit, or settle what went wrong.

    def _hand_in(self, prepared: PreparedStage, result: Result) -> None:
        """Store the files, then the row. An unreachable store is tried again for a while: the
        result may have cost hours, and repeating a commit does no harm."""
        deadline = time.monotonic() + HAND_IN_PATIENCE_S
        while True:
            lease = prepared.heartbeat.lease
            try:
                return store_and_commit(self._workspace, self._leases, lease, result)
            except (LeaseLost, BadInput):
                # This result will never count, so the files of this attempt are orphaned.
                with contextlib.suppress(StoreError):
                    self._workspace.catalog.stored.clear_attempt(lease.model, lease.token)
                raise
            except StoreError as error:
                if time.monotonic() > deadline or self._stopping.is_set():
                    raise
                self._back_off(error)
                self._stopping.wait(self._backoff.left_s)

    def _settle(self, lease: Lease, error: Exception) -> None:
        """Decide whose fault an error is. Only the model's own counts as an attempt; a fault of the
        store, the disk or the device never does, nor does the end of the runner's own tools."""
        if self._has_given_up:
            return  # `give_up` has released the lease
        try:
            if isinstance(error, BlobBehindLink):  # time does not help; other models may be fine
                self._context.only.decline(lease.model)
                self.ended["unreachable"] += 1
                self._context.report(RunnerEvent("note", text=str(error)))
                self._leases.release(lease)
            elif isinstance(error, NOT_YET):
                self._context.outdated.set()
                self._leases.release(lease, NOT_YET_DELAY_S)
            elif isinstance(error, INFRASTRUCTURE):
                self._back_off(error)
                self._leases.release(lease)  # at once: another machine may do better
            elif isinstance(error, FOR_OTHERS):
                self._context.only.decline(lease.model)
                self._leases.pass_on(lease, str(error) or "this machine has not enough memory")
            elif isinstance(error, FileDamaged):
                self._leases.set_aside(lease, str(error))
            elif isinstance(error, (BadInput, ModelFailed, NotFound)):
                self._leases.fail(lease, str(error), is_final=isinstance(error, HOPELESS))
            else:
                self._leases.fail(lease, f"{type(error).__name__}: {error}")
        except (StoreError, Conflict) as later:
            self._back_off(later)

    def _back_off(self, error: Exception) -> None:
        """Each failure in a row makes the next look come later."""
        self._backoff.add(error)
        if not self._stopping.is_set():
            text = f"{str(error).rstrip('.')}. Trying again, with growing pauses."
            self._context.report(RunnerEvent("note", text=text))

    def _release_unbegun(self) -> None:
        """At the end: what was claimed and has not begun returns to the queue."""
        prepared = self._ahead.result() if self._ahead is not None else None
        if prepared is not None:
            prepared.held.close()
            self._release(prepared)
        if self._urgent is not None:
            with contextlib.suppress(StoreError, Conflict):
                self._leases.release(self._urgent)
            self._drop_turn()

    def _release(self, prepared: PreparedStage) -> None:
        lease = prepared.heartbeat.lease
        try:
            self._leases.release(lease)
        except LeaseLost:
            return  # an idle runner has it
        except (StoreError, Conflict) as error:
            self._context.report(RunnerEvent("note", lease.model, lease.stage, text=str(error)))

    def _drop_turn(self) -> None:
        if isinstance(self.equipment.device, TakesTurns):
            self.equipment.device.drop_turn()

    def _say(self, state: Ending, work: Assignment | Lease, began_s: float, text: str) -> None:
        self.ended[state] += 1
        if state == "failed" or (state == "released" and not self._stopping.is_set()):
            self.last_error = (time.time(), f"{work.stage} {work.model}: {text}")
        seconds = time.monotonic() - began_s
        self._context.report(RunnerEvent(state, work.model, work.stage, seconds, text))
