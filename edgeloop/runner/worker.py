"""One worker: claims, fetches, performs, stores, commits; and prepares the next meanwhile.

What an attempt leaves in the store: its files first, in a hidden folder of its own, then the row,
then the files under their plain names.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal

from edgeloop._util.files import sha256_of
from edgeloop._util.system import progress_shown_to, show_progress
from edgeloop.errors import (
    BadInput,
    BlobBehindLink,
    Conflict,
    DeviceUnavailable,
    EdgeloopError,
    FileDamaged,
    LeaseLost,
    ModelFailed,
    NotFound,
    StoreError,
)
from edgeloop.models.files import check_upload
from edgeloop.models.leases import Lease, Leases, Outcome
from edgeloop.models.runners import CurrentStage
from edgeloop.platforms import SharedDevice, TakesTurns
from edgeloop.runner.coordinator import (
    FOR_OTHERS,
    HOPELESS,
    INFRASTRUCTURE,
    Backoff,
    Coordinator,
    DeviceSessions,
    ModelFilter,
)
from edgeloop.runner.presence import RunnerEvent, record_use
from edgeloop.runner.resources import CpuPool, NoCpusError, WorkFolder, fetch_files
from edgeloop.runner.stages import perform
from edgeloop.runner.stages.base import Assignment, Equipment, Result
from edgeloop.workspace import Workspace


def store_and_commit(workspace: Workspace, leases: Leases, lease: Lease, result: Result) -> None:
    """Files first; the row only while the lease holds. Repeating it does no harm."""
    stored = workspace.catalog.stored
    toolchain = str(result.columns.get("toolchain") or "")
    keys = stored.put_attempt(lease.model, lease.token, result.files, toolchain)
    sha256 = {name: sha256_of(path) for name, path in result.files.items()}
    leases.commit(lease, Outcome(result.columns, keys, sha256))
    stored.publish(lease.model, lease.token, result.files)


HAND_IN_PATIENCE_S = 300.0
LOOK_AGAIN_S = 2.5  # by then an idle runner would have taken what is left


Ending = Literal["done", "failed", "released"]


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

    def _beat(self) -> None:
        while not self._done.wait(self._interval_s):
            try:
                self.lease = self._leases.renew(self.lease)
            except LeaseLost:
                self.lost.set()
                return
            except EdgeloopError:
                continue


@dataclass(frozen=True)
class PreparedStage:
    """A claimed stage with its files fetched; its heartbeat runs until `held` is closed."""

    work: Assignment
    heartbeat: Heartbeat
    held: ExitStack


class PreemptedError(Exception):
    """Something more urgent goes first, and the stage has not begun."""


class Worker:
    """Each session on a shared device is a worker: while the tool of one runs there, another hands
    in its results and fetches its next files. Otherwise a worker looks ahead."""

    def __init__(
        self,
        name: str,
        workspace: Workspace,
        equipment: Equipment,
        folder: WorkFolder,
        capabilities: Collection[str],
        only: Callable[[str], bool],
        stopping: threading.Event,
        report: Callable[[RunnerEvent], None],
        backoff: Backoff | None = None,
        hand: int | None = None,
        served_device: str = "",
        sessions: DeviceSessions | None = None,
        cpus: CpuPool | None = None,
    ) -> None:
        self.name = name
        self.served_device = served_device  # empty: the machine itself
        self.progressed_s = time.monotonic()
        self.ended: Counter[str] = Counter()  # stages, by how they ended
        self.last_error: tuple[float, str] = (0.0, "")  # when, by this machine's clock
        self._cpus = cpus or CpuPool()
        self._workspace = workspace
        self.equipment = equipment
        self._folder = folder
        self.capabilities = capabilities
        self._only = only if isinstance(only, ModelFilter) else ModelFilter(only)
        self._stopping = stopping
        self._report = report
        self._leases: Leases = workspace.leases()
        self._backoff = backoff or Backoff()
        self.device = equipment.device.name
        self.hand = hand  # which one of a shared device; None: the device is this worker's alone
        self._sessions = sessions or DeviceSessions()
        self._urgent: Lease | None = None  # what the stage before gave way to
        self._stage_over = threading.Event()
        self._current: PreparedStage | None = None
        self._began = 0.0
        self._ahead: Future[PreparedStage | None] | None = None
        self._has_given_up = False

    @property
    def doing(self) -> CurrentStage | None:
        """The stage under way, and since when by this machine's clock."""
        current = self._current
        if current is None or current.heartbeat.lease.queued:
            return None
        return CurrentStage(current.work.stage, current.work.model, self._began)

    @property
    def device_error(self) -> str:
        """Why its device cannot be used, if that is so."""
        return str(self._backoff.error) if self._backoff.is_of_device else ""

    @property
    def trouble(self) -> Exception | None:
        """What kept its last look from finding anything, if something did."""
        return self._backoff.error

    def run(self, coordinator: Coordinator, drain: bool) -> None:
        """Until told to stop or, on a drain, until nobody of the crew has work."""
        with ThreadPoolExecutor(1, "prefetch") as prefetch, progress_shown_to(self._progressed):
            while not self._stopping.is_set():
                show_progress()
                news = coordinator.look(self)
                ended = self.ended.total()
                prepared = self._next(drain)
                coordinator.looked(self)
                if prepared is None:
                    if self.ended.total() > ended:  # its files could not be fetched
                        coordinator.tell()
                        continue
                    if self._wait_out_trouble(drain):
                        coordinator.disturbed()
                        continue
                    if not coordinator.wait(self, news, drain):
                        break
                    continue
                if self.hand is None:
                    self._stage_over.clear()
                    self._ahead = prefetch.submit(self._look_ahead)
                self._perform(prepared)
                self._stage_over.set()
                coordinator.tell()
            coordinator.looked(self)
            self._give_back()

    def _wait_out_trouble(self, drain: bool) -> bool:
        """Whether the last look ended in backoff. Nothing found then does not mean nothing left:
        a drain looks again, and after enough of it says what the backoff is instead of 'done'."""
        left = self._backoff.left_s
        if left <= 0:
            self._backoff.found_nothing()
            return False
        if drain and self._backoff.is_too_much and self._backoff.error is not None:
            raise self._backoff.error
        self._stopping.wait(left)
        return True

    def run_once(self) -> bool:
        """Whether there was a stage to perform."""
        with progress_shown_to(self._progressed):
            prepared = self._next(thorough=True)
            if prepared is None:
                return self.ended.total() > 0
            return self._perform(prepared)

    def _progressed(self) -> None:
        self.progressed_s = time.monotonic()

    def stop(self) -> None:
        """What waits for its turn on a shared device does not begin any more."""
        if isinstance(self.equipment.device, SharedDevice):
            self.equipment.device.stop()

    def give_up(self) -> None:
        """The grace time is over: what is under way goes back to the queue, uncounted, and what
        was prepared meanwhile."""
        self._has_given_up = True
        ahead = self._ahead
        is_ready = ahead is not None and ahead.done() and ahead.exception() is None
        for prepared in (self._current, ahead.result() if ahead and is_ready else None):
            if prepared is not None:
                with contextlib.suppress(StoreError, Conflict):
                    self._leases.release(prepared.heartbeat.lease)

    def _next(self, thorough: bool) -> PreparedStage | None:
        """What is urgent, what was prepared meanwhile, else a fresh look; a thorough one trusts no
        hints."""
        if (prepared := self._next_urgent() or self._next_prepared()) is not None:
            return prepared
        before = self.ended.total()
        prepared = self._prepare_quietly()
        has_failed = self.ended.total() > before
        if prepared is None and thorough and not has_failed and not self._stopping.is_set():
            self._sweep()
            prepared = self._prepare_quietly()
        return prepared

    def _next_urgent(self) -> PreparedStage | None:
        """What the last stage gave way to; its turn on the device is kept until it has begun."""
        lease, self._urgent = self._urgent, None
        if lease is None:
            return None
        self._sessions.claimed(self, lease)
        prepared = self._fetched(lease)
        if prepared is None:
            self._drop_turn()
        return prepared

    def _next_prepared(self) -> PreparedStage | None:
        """What was prepared meanwhile, unless an idle runner took it or something urgent came."""
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

    def _begin(self, prepared: PreparedStage) -> None:
        """What was claimed ahead begins, unless something more urgent can be done now."""
        lease = prepared.heartbeat.lease
        device = self.equipment.device
        with self._sessions.choosing:
            with contextlib.suppress(StoreError, Conflict):
                self._urgent = self._leases.claim_urgent(
                    self.capabilities, self.name, than=lease.rank, only=self._only
                )
            if self._urgent is not None:
                if isinstance(device, TakesTurns):
                    device.keep_turn()
                raise PreemptedError
            prepared.heartbeat.begin()
            self._sessions.claimed(self, prepared.heartbeat.lease)

    def _drop_turn(self) -> None:
        if isinstance(self.equipment.device, TakesTurns):
            self.equipment.device.drop_turn()

    def _look_ahead(self) -> PreparedStage | None:
        """What an idle runner might take is looked at again after a while, if this stage still
        runs then."""
        prepared = self._prepare_quietly(ahead=True)
        if prepared is None and not self._stage_over.wait(LOOK_AGAIN_S):
            prepared = self._prepare_quietly(ahead=True)
        return prepared

    def _sweep(self) -> None:
        try:
            self._leases.sweep()
        except (StoreError, OSError) as error:
            self._back_off(error)

    def _prepare_quietly(self, ahead: bool = False) -> PreparedStage | None:
        """Backoff with the store, the device or this machine (no descriptor, for example) is waited
        out, not passed on."""
        try:
            return self._prepare(ahead)
        except (StoreError, Conflict, DeviceUnavailable, OSError) as error:
            self._back_off(error)
            return None

    def _prepare(self, ahead: bool) -> PreparedStage | None:
        if self._stopping.is_set() or self._backoff.left_s > 0:
            return None
        if self._backoff.is_of_device:
            self._look_at_device()
        with self._sessions.choosing:
            if ahead or self._sessions.has_others(self):
                lease = self._leases.claim_ahead(
                    *(self.capabilities, self.name), only=self._only, after=self._sessions.last_rank
                )
            else:
                lease = self._leases.claim(self.capabilities, self.name, only=self._only)
            if lease is not None and not ahead:
                self._sessions.claimed(self, lease)
        return None if lease is None else self._fetched(lease)

    def _fetched(self, lease: Lease) -> PreparedStage | None:
        """The stage with its files."""
        began = time.monotonic()
        with ExitStack() as opened:
            interval = self._workspace.settings.lease_seconds / 3
            heartbeat = opened.enter_context(Heartbeat(self._leases, lease, interval))
            try:
                folder = opened.enter_context(self._folder.stage_folder())
                fetched = self._files_of(lease, folder / "in")
                (folder / "out").mkdir()
            except (EdgeloopError, OSError) as error:
                self._sessions.ended(self)
                self._blame(heartbeat.lease, error)
                if not isinstance(error, INFRASTRUCTURE):
                    self._say("failed", lease, began, str(error))
                return None
            work = Assignment(lease.model, lease.stage, lease.row.values, fetched, folder / "out")
            return PreparedStage(work, heartbeat, opened.pop_all())

    def _files_of(self, lease: Lease, folder: Path) -> dict[str, Path]:
        fetched = fetch_files(self._folder, self._workspace, lease, folder)
        check_upload(lease.row, fetched)
        return fetched

    def _look_at_device(self) -> None:
        """Nothing is claimed for a device that is gone: another machine may have one."""
        device = self.equipment.device
        if isinstance(device, SharedDevice):
            device.acquire()
        else:
            device.probe()

    def _perform(self, prepared: PreparedStage) -> bool:
        """Whether the stage began."""
        work, began = prepared.work, time.monotonic()
        start = datetime.now(UTC)
        self._began, self._current = start.timestamp(), prepared
        with prepared.held:
            try:
                self._begin_in_turn(prepared)
                is_heavy = work.stage == "convert"
                with self._cpus.turn(self._stopping) if is_heavy else contextlib.nullcontext():
                    result = perform(work, self.equipment)
                self._hand_in(prepared, result)
            except LeaseLost as error:
                if prepared.heartbeat.lease.queued:  # an idle runner took it before it began
                    return False
                self._say("released", work, began, str(error))
            except NoCpusError:
                self._leases.release(prepared.heartbeat.lease)
            except PreemptedError:
                self._release(prepared)
                return False
            except Exception as error:  # noqa: BLE001 - a model must never stop the runner
                self._blame(prepared.heartbeat.lease, error)
                is_ending = self._stopping.is_set() and isinstance(error, DeviceUnavailable)
                is_ours = self._has_given_up or isinstance(error, (*INFRASTRUCTURE, *FOR_OTHERS))
                text = "given back" if is_ending else str(error) or type(error).__name__
                self._say("released" if is_ours else "failed", work, began, text)
            else:
                self._backoff.clear()
                self._say("done", work, began, result.summary)
            finally:
                self._current = None
                self._sessions.ended(self)
                self._record(work, start)
        return True

    def _begin_in_turn(self, prepared: PreparedStage) -> None:
        """On a shared device a stage begins when it gets its first turn there: another session may
        have been quicker, whichever claimed first."""
        device, work = self.equipment.device, prepared.work

        def begin() -> None:
            if prepared.heartbeat.lease.queued or isinstance(device, TakesTurns):
                self._begin(prepared)
                self._began = time.time()
            self._report(RunnerEvent("begun", work.model, work.stage))

        if isinstance(device, TakesTurns):
            device.before_turn(begin)
        else:
            begin()

    def _record(self, work: Assignment, start: datetime) -> None:
        """A shared device is in use while a tool runs there; any other for the whole stage."""
        device, usage = self.equipment.device, self._workspace.store.usage()
        uses = [(start, datetime.now(UTC))]
        if isinstance(device, SharedDevice):
            uses = device.take_uses()
        for begin, end in uses:
            more = {"model": work.model, "stage": work.stage, "owner": self.name}
            record_use(usage, device.name, begin, end, **more)

    def _hand_in(self, prepared: PreparedStage, result: Result) -> None:
        """Files first, under this attempt's own folder; then the row, while the lease holds. A
        store that is away is asked again: the same word said twice does no harm."""
        deadline = time.monotonic() + HAND_IN_PATIENCE_S
        while True:
            lease = prepared.heartbeat.lease
            try:
                return store_and_commit(self._workspace, self._leases, lease, result)
            except (LeaseLost, BadInput):  # it will never count
                with contextlib.suppress(StoreError):
                    self._workspace.catalog.stored.clear_attempt(lease.model, lease.token)
                raise
            except StoreError as error:
                if time.monotonic() > deadline or self._stopping.is_set():
                    raise
                self._back_off(error)
                self._stopping.wait(self._backoff.left_s)

    def _blame(self, lease: Lease, error: Exception) -> None:
        """The model's fault counts as an attempt; the store's or the disk's does not, nor that the
        runner ended its tools."""
        if self._has_given_up:
            return
        try:
            if isinstance(error, BlobBehindLink):  # time does not help; other models may be fine
                self._only.decline(lease.model)
                self.ended["unreachable"] += 1
                self._report(RunnerEvent("note", text=str(error)))
                self._leases.release(lease)
            elif isinstance(error, INFRASTRUCTURE):
                self._back_off(error)
                self._leases.release(lease)  # at once: another machine may do better
            elif isinstance(error, FOR_OTHERS):
                self._only.decline(lease.model)
                self._leases.pass_on(lease, str(error) or "this machine has not enough memory")
            elif isinstance(error, (BadInput, FileDamaged, ModelFailed, NotFound)):
                self._leases.fail(lease, str(error), is_final=isinstance(error, HOPELESS))
            else:
                self._leases.fail(lease, f"{type(error).__name__}: {error}")
        except (StoreError, Conflict) as later:
            self._back_off(later)

    def _back_off(self, error: Exception) -> None:
        """Backoff that is nobody's fault: each time in a row the next look comes later."""
        self._backoff.add(error)
        if not self._stopping.is_set():
            text = f"{str(error).rstrip('.')}. Trying again, with growing pauses."
            self._report(RunnerEvent("note", text=text))

    def _give_back(self) -> None:
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
            self._report(RunnerEvent("note", lease.model, lease.stage, 0.0, str(error)))

    def _say(self, state: Ending, work: Assignment | Lease, began: float, text: str) -> None:
        self.ended[state] += 1
        if state == "failed" or (state == "released" and not self._stopping.is_set()):
            self.last_error = (time.time(), f"{work.stage} {work.model}: {text}")
        self._report(RunnerEvent(state, work.model, work.stage, time.monotonic() - began, text))
