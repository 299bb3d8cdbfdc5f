"""The loop of a fleet: from its record and the waiting work to runners that start and end.

Every second: read the record, which must still have our token; count the work that waits; share the
runners out; start what is missing, and drain what is too much. It grows at once. It shrinks slowly
and by idle runners; a runner at work is told to end after its stage only if another experiment has
waited for its share, or if people want fewer. Nothing is killed, except by `fleet down --now`.

Everything that it knows is in the record, the queue, the registry and the engine. So it may die at
any moment: its successor finds the runners there and continues.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

from edgeloop._util.redact import redact
from edgeloop.errors import ComputeUnavailable, EdgeloopError, StoreError, SupervisorReplaced
from edgeloop.models.plan import CONVERTS
from edgeloop.models.runners import Registry, RunnerEntry
from edgeloop.operate.fleet.demand import (
    CONVERT,
    DEVICE,
    LINUX,
    Demand,
    DemandReader,
    conversion_group,
    group_of,
    restore_hints,
    toolchains_of,
)
from edgeloop.operate.fleet.launcher import Launcher, RunnerOrder, RunnerState
from edgeloop.operate.fleet.records import (
    DEAD_S,
    Bounds,
    FleetObservation,
    FleetRecord,
    Fleets,
    new_runner_name,
)
from edgeloop.operate.fleet.start import settings_words
from edgeloop.platforms import is_board
from edgeloop.settings import Settings
from edgeloop.store import Store
from edgeloop.store.location import open_store
from edgeloop.workspace import Workspace

TICK_S = 1.0
BEAT_S = 5.0  # between two writes of the record while nothing changes
RESTORE_S = 10.0
LONGEST_PAUSE_S = 15.0
PATIENCE_S = 10.0  # for which an experiment waits for its share before others finish early


def supervise(
    settings: Settings,
    fleet: str,
    make_launcher: Callable[[FleetRecord], Launcher],
    *,
    where: str = "",
    stop: threading.Event | None = None,
    is_alone: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Be the supervisor of a fleet until it is down, until another has taken over, or until `stop`.

    Raises Conflict while another supervisor lives; `is_alone`: the caller knows that none can.
    A store that is away is waited for. `tell` gets what happens, one line each.
    """
    stop = stop or threading.Event()
    store = open_store(settings.location)
    try:
        fleets, pause_s = Fleets(store), TICK_S
        while True:
            try:
                record = fleets.claim(fleet, where, is_alone=is_alone)
                break
            except StoreError as error:
                tell(f"waiting for the store: {error}")
                if stop.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        launcher = make_launcher(record)
        try:
            FleetSupervisor(settings, store, record, launcher, wait=stop.wait, tell=tell).run()
            if record.kind != "local":  # whose keepers end by themselves
                drain_orphans(fleets, fleet, launcher, stop.wait)
        finally:
            launcher.close()
    finally:
        store.close()


def drain_orphans(
    fleets: Fleets, name: str, launcher: Launcher, wait: Callable[[float], bool]
) -> None:
    """End the runners of a fleet whose record is gone, since nothing else would. Returns when they
    have ended, or when the fleet is declared again."""
    while True:
        with suppress(EdgeloopError):  # store or engine are away
            if fleets.get(name) is not None:
                return
            states = launcher.states()
            for id_, state in states.items():
                if state in ("waiting", "running"):
                    launcher.drain(id_)
            if all(state == "ended" for state in launcher.states().values()):
                return
        if wait(TICK_S):
            return


@dataclass
class _Seen:
    """One tick's view of the fleet."""

    record: FleetRecord
    states: Mapping[str, RunnerState]
    orders: Mapping[str, RunnerOrder]
    demand: Mapping[str, Mapping[str, Demand]] = field(default_factory=dict)
    served_boards: tuple[str, ...] = ()
    toolchains: Collection[str] | None = None  # of its machines; None: unknown

    def active(self) -> dict[str, RunnerOrder]:
        """Runners that are there or will be, and have not been told to end."""
        going = ("waiting", "running")
        return {id_: order for id_, order in self.orders.items() if self.states[id_] in going}

    @property
    def machines(self) -> dict[str, RunnerOrder]:
        return {id_: order for id_, order in self.active().items() if not is_for_board(order)}

    @property
    def boards(self) -> dict[str, tuple[str, RunnerOrder]]:
        """Runners by board, also those that are ending: a board has one at a time."""
        return {
            order.device: (id_, order)
            for id_, order in self.orders.items()
            if is_for_board(order) and self.states[id_] != "ended"
        }

    @property
    def machine_count(self) -> int:
        """All that take up a place, also those that are ending."""
        return sum(
            not is_for_board(order) and self.states[id_] != "ended"
            for id_, order in self.orders.items()
        )


class FleetSupervisor:
    """`tick` does one round; `run` ticks until the end."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        record: FleetRecord,
        launcher: Launcher,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`wait` waits for so many seconds, or until the supervisor is to stop (True)."""
        self._settings, self._store, self._launcher = settings, store, launcher
        self._fleets, self._activity = Fleets(store), RunnerActivity(store, clock)
        self._name, self._token = record.name, record.supervisor
        self._clock, self._tell = clock, tell
        self._demand_of = DemandReader(clock)
        self._wait = wait or threading.Event().wait
        self._workspaces: dict[str, Workspace] = {}
        self._restored_at: dict[str, float] = {}
        self._starved_since: dict[str, float] = {}
        self._turns = BoardTurns()
        self._held_since: dict[str, float] = {}
        self._last_tick = clock()
        self._reported: FleetObservation | None = None
        self._reported_at = -BEAT_S
        self._seen_generation = -1
        self._trouble = ""

    def run(self) -> None:
        """Until the fleet is down (its record is gone then), or another supervisor has taken over,
        or `wait` says stop, which leaves the runners to a successor."""
        pause_s = TICK_S
        while True:
            try:
                if not self.tick():
                    return
                pause_s, self._trouble = TICK_S, ""
            except SupervisorReplaced as replaced:
                self._tell(str(replaced))
                return
            except EdgeloopError as error:
                pause_s = self._troubled(str(error), pause_s)
            except Exception as error:  # noqa: BLE001 - a fleet outlives unforeseen errors
                pause_s = self._troubled(f"{type(error).__name__}: {error}", pause_s)
            if self._wait(pause_s):
                self._release()
                return

    def tick(self) -> bool:
        """One round; False once the fleet has ended. Raises SupervisorReplaced, and what store or
        engine raise: all runners are then left as they are."""
        began = self._clock()
        record = self._fleets.owned(self._name, self._token)
        try:
            seen = self._look(record)
        except ComputeUnavailable as error:
            self._report(record, replace(record.observed, note=redact(str(error))))
            raise
        if self._clock() - began > DEAD_S / 2:
            return True  # so slow that another may have our place: look again before doing anything
        self._last_tick, passed_s = began, began - self._last_tick
        if record.state != "up":
            return self._shut_down(seen)
        self._replace_outdated(seen)
        shares = self._share_out(seen)
        boards = self._serve_boards(seen, passed_s)
        self._report(record, self._observation(self._look_again(seen), shares, boards))
        return True

    # What is there

    def _look(self, record: FleetRecord) -> _Seen:
        states = self._launcher.states()
        orders = {id_: o for id_, o in self._launcher.orders().items() if id_ in states}
        if record.state == "up":
            self._activity.refresh(states)
            most = record.bounds.most
            demand = {name: self._demand(name, most) for name in record.spec.experiments}
            return _Seen(
                record,
                states,
                orders,
                demand,
                served_boards=self._served_boards(record),
                toolchains=self._toolchains(),
            )
        return _Seen(record, states, orders)

    def _look_again(self, seen: _Seen) -> _Seen:
        """With what this tick has started and drained."""
        states = self._launcher.states()
        orders = {id_: o for id_, o in self._launcher.orders().items() if id_ in states}
        return replace(seen, states=states, orders=orders)

    def _toolchains(self) -> Collection[str] | None:
        installed = self._launcher.toolchains()
        return self._activity.toolchains if installed is None else installed

    def _demand(self, experiment: str, most: int) -> Mapping[str, Demand]:
        workspace = self._workspace(experiment)
        last = self._restored_at.get(experiment, -RESTORE_S)
        is_served = self._activity.is_served(experiment)
        if not is_served and self._clock() - last >= RESTORE_S:
            self._restored_at[experiment] = self._clock()
            restore_hints(workspace, RESTORE_S)
        return self._demand_of(workspace, most)

    def _workspace(self, experiment: str) -> Workspace:
        if experiment not in self._workspaces:
            settings = replace(self._settings, experiment=experiment)
            self._workspaces[experiment] = Workspace(settings, self._store)
        return self._workspaces[experiment]

    # What is done

    def _shut_down(self, seen: _Seen) -> bool:
        for id_, state in seen.states.items():
            if seen.record.state == "ending" and state != "ended":
                self._launcher.kill(id_)
            elif state in ("waiting", "running"):
                self._launcher.drain(id_)
        left = self._look_again(seen)
        going = sum(state != "ended" for state in left.states.values())
        working = self._activity.working(left.states)
        note = "1 finishes its stage" if working == 1 else f"{working} finish their stages"
        note = note if working else ""
        observed = FleetObservation(draining=going, note=note)
        record = self._report(seen.record, observed)
        if going or record.state == "up":
            return True
        if not self._fleets.remove(record):
            return True
        self._tell(f"the fleet {self._name} is down")
        return False

    def _replace_outdated(self, seen: _Seen) -> None:
        """Runners that were told otherwise than they would be now end after their stage."""
        spec, record = seen.record.spec, seen.record
        machine = machine_order("", "", record)
        for id_, order in seen.active().items():
            template = board_order("", "", order.device, record) if is_for_board(order) else machine
            is_served = order.experiment in spec.experiments
            is_as_told = replace(order, id="", experiment="") == template
            if not is_served or not is_as_told:
                self._launcher.drain(id_)
                self._tell(f"{id_} ends after its stage: the fleet's settings have changed")
                seen.states = {**seen.states, id_: "draining"}

    def _share_out(self, seen: _Seen) -> dict[str, int]:
        record, bounds = seen.record, self._bounds(seen.record)
        have = Counter(order.experiment for order in seen.machines.values())
        shares = fair_shares(self._claims(seen, have), bounds)
        lacking = {name: share - have[name] for name, share in shares.items() if share > have[name]}
        free = max(0, bounds.most - seen.machine_count)
        self._note_starved(lacking, free)
        # In turns, so that of a few free places everybody gets some.
        while free and lacking:
            for name in list(lacking):
                if not free:
                    break
                self._start(machine_order(self._new_id(), name, record))
                lacking[name], free = lacking[name] - 1, free - 1
                if not lacking[name]:
                    del lacking[name]
        surplus = {name: have[name] - share for name, share in shares.items() if have[name] > share}
        ending = seen.machine_count - len(seen.machines)
        beyond = max(0, len(seen.machines) - bounds.most)
        self._take_back(seen, surplus, max(0, sum(lacking.values()) - ending), beyond)
        return shares

    def _bounds(self, record: FleetRecord) -> Bounds:
        """Those of the record, as far as the engine has places."""
        places = self._launcher.places(record.spec.cpus)
        bounds = record.bounds
        return (
            bounds
            if places is None
            else Bounds(min(bounds.least, places), min(bounds.most, places))
        )

    def _claims(self, seen: _Seen, have: Mapping[str, int]) -> list[Claim]:
        serves = machine_groups(seen.record, seen.toolchains)
        idle_limit_s = seen.record.spec.idle_seconds
        work = {
            name: sum(d.ready + d.running for group, d in demand.items() if serves(group))
            for name, demand in seen.demand.items()
        }
        self._activity.note_work(name for name, count in work.items() if count)
        claims = []
        for name, share in seen.record.spec.experiments.items():
            groups = [group for group in seen.demand[name] if serves(group)]
            elsewhere = self._activity.stages_elsewhere(name, seen.orders, groups)
            needed = max(0, work[name] - elsewhere)
            runners = [id_ for id_, order in seen.machines.items() if order.experiment == name]
            if in_vain := self._activity.idle_in_vain(name, runners, idle_limit_s):
                needed = min(needed, len(runners) - in_vain + 1)  # one goes on looking
            claims.append(Claim(name, needed, share.weight, share.quota, have.get(name, 0)))
        return claims

    def _note_starved(self, lacking: Mapping[str, int], free: int) -> None:
        """Since when experiments have lacked runners that no free place can give them."""
        now = self._clock()
        starved = lacking if sum(lacking.values()) > free else {}
        self._starved_since = {name: self._starved_since.get(name, now) for name in starved}

    def _take_back(self, seen: _Seen, surplus: Mapping[str, int], needed: int, beyond: int) -> None:
        """Drain runners of experiments that have too many, idle ones first: those that are idle for
        long, as many as are `beyond` the bound, and as many as others have `needed` for a while."""
        now, idle_limit_s = self._clock(), seen.record.spec.idle_seconds
        is_urgent = any(now - since >= PATIENCE_S for since in self._starved_since.values())
        idle = {id_: s for id_ in seen.machines if (s := self._activity.idle_s(id_)) is not None}
        left = dict(surplus)
        for id_, order in sorted(seen.machines.items(), key=lambda each: -idle.get(each[0], -1.0)):
            if left.get(order.experiment, 0) <= 0:
                continue
            if idle.get(id_, -1.0) >= idle_limit_s:
                reason = "it is idle"
            elif beyond > 0:
                reason = "the fleet may have fewer now"
            elif needed > 0 and (id_ in idle or is_urgent):
                reason = "another experiment has waited for it"
            else:
                continue
            beyond, needed = beyond - 1, needed - 1
            left[order.experiment] -= 1
            self._launcher.drain(id_)
            self._tell(f"{id_} of {order.experiment} ends: {reason}")
            seen.states = {**seen.states, id_: "draining"}

    def _served_boards(self, record: FleetRecord) -> tuple[str, ...]:
        there = self._launcher.devices() if may_have_boards(record) else ()
        return tuple(board for board in there if serves_board(record, board))

    def _serve_boards(self, seen: _Seen, passed_s: float) -> int:
        """One runner for each board, of the experiment whose turn it is; how many there are."""
        record, now = seen.record, self._clock()
        weights = {name: share.weight for name, share in record.spec.experiments.items()}
        for_boards = board_groups(record)
        self._turns.arrive(
            name
            for name, demand in seen.demand.items()
            if any(d.ready + d.running for group, d in demand.items() if for_boards(group))
        )
        holders = {board: order.experiment for board, (_, order) in seen.boards.items()}
        self._turns.account(holders.values(), weights, passed_s)
        boards = seen.served_boards
        for board in boards:
            current = holders.get(board, "")
            since = self._held_since.setdefault(board, now)
            others = [experiment for other, experiment in holders.items() if other != board]
            chosen = self._turns.choose(current, now - since, weights, others)
            if board not in seen.boards:
                self._start(board_order(self._new_id(), chosen, board, record))
                holders[board], self._held_since[board] = chosen, now
            elif chosen != current:
                id_, _ = seen.boards[board]
                if seen.states[id_] != "draining":
                    self._launcher.drain(id_)
                    self._tell(f"{board} goes from {current} to {chosen}")
        for board, (id_, _) in seen.boards.items():
            if board not in boards and seen.states[id_] != "draining":
                self._launcher.drain(id_)
        return len(boards)

    def _start(self, order: RunnerOrder) -> None:
        self._launcher.start(order)
        device = f" for {order.device}" if order.device else ""
        self._tell(f"{order.id} of {order.experiment} starts{device}")

    def _new_id(self) -> str:
        return new_runner_name(self._name)

    # What is told

    def _observation(self, seen: _Seen, shares: Mapping[str, int], boards: int) -> FleetObservation:
        counts = Counter(
            state for id_, state in seen.states.items() if not is_for_board(seen.orders.get(id_))
        )
        have = Counter(order.experiment for order in seen.machines.values())
        serving = sum(
            is_for_board(order) and seen.states[id_] == "running"
            for id_, order in seen.orders.items()
        )
        lines = {
            name: {
                "ready": sum(demand.ready for demand in seen.demand[name].values()),
                "running": sum(demand.running for demand in seen.demand[name].values()),
                "share": share,
                "runners": have[name],
            }
            for name, share in shares.items()
        }
        return FleetObservation(
            wanted=sum(shares.values()),
            running=counts["running"],
            waiting=counts["waiting"],
            draining=counts["draining"],
            boards=serving,
            note=self._note(seen.record, boards - serving),
            shares=lines,
        )

    def _note(self, record: FleetRecord, missing_boards: int) -> str:
        notes = Counter(self._launcher.notes().values())
        if notes:
            text, count = notes.most_common(1)[0]
            return redact(f"{count} {'waits' if count == 1 else 'wait'}: {text}")
        if missing_boards > 0:
            return f"{missing_boards} boards have no runner yet"
        most = self._bounds(record).most
        return f"there is room for {most} runners" if most < record.bounds.most else ""

    def _report(self, record: FleetRecord, observed: FleetObservation) -> FleetRecord:
        """Not more often than it tells something new, or than people need to see us alive."""
        is_new = observed != self._reported or record.generation != self._seen_generation
        if not is_new and self._clock() - self._reported_at < BEAT_S:
            return record
        after = self._fleets.report(record, observed)
        self._reported, self._reported_at = observed, self._clock()
        self._seen_generation = record.generation
        return after

    def _troubled(self, text: str, pause_s: float) -> float:
        text = redact(text)
        if text != self._trouble:
            self._tell(f"trying again: {text}")
        self._trouble = text
        return min(2 * pause_s, LONGEST_PAUSE_S)

    def _release(self) -> None:
        try:
            self._fleets.release(self._fleets.owned(self._name, self._token))
        except EdgeloopError:
            return  # a successor waits until our last beat is old


# Which runners have something to do: from the registry in the store, and from the engine.


REGISTRY_S = 3.0  # between two looks into the registry
IN_VAIN_S = 60.0  # the first claim in a large fleet may take half a minute


class RunnerActivity:
    """What is known of the runners of all experiments, looked up now and then. `toolchains` are
    what runners of the fleet have converted with so far; None before one has registered."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._registry = Registry(store)
        self._entries: list[RunnerEntry] = []
        self._entries_of: dict[str, list[RunnerEntry]] = {}  # by runner
        self._read_at = -REGISTRY_S
        self._store_s = 0.0  # the store's clock at that time
        self.toolchains: frozenset[str] | None = None
        self._waiting_since: dict[str, float] = {}
        self._work_since: dict[str, float] = {}

    def refresh(self, states: Mapping[str, RunnerState]) -> None:
        now = self._clock()
        waiting = {id_ for id_, state in states.items() if state == "waiting"}
        self._waiting_since = {id_: self._waiting_since.get(id_, now) for id_ in waiting}
        if now - self._read_at >= REGISTRY_S:
            self._entries = [entry for entry in self._registry.entries() if not entry.is_dead]
            self._entries_of = {}
            for entry in self._entries:
                self._entries_of.setdefault(entry.node, []).append(entry)
                if entry.node in states and CONVERTS in entry.capabilities:
                    self.toolchains = (self.toolchains or frozenset()) | toolchains_of(entry)
            self._read_at, self._store_s = now, self._store.now()

    def note_work(self, experiments: Iterable[str]) -> None:
        """Which experiments have work for runners now."""
        now = self._clock()
        self._work_since = {name: self._work_since.get(name, now) for name in experiments}

    def is_served(self, experiment: str) -> bool:
        """Whether any runner, of whichever fleet, is alive there."""
        return any(entry.experiment == experiment for entry in self._entries)

    def idle_s(self, runner: str) -> float | None:
        """For how long a runner has had nothing to do; None: it works, or that is unknown."""
        if runner in self._waiting_since:
            return self._clock() - self._waiting_since[runner]
        return self._registered_idle_s(runner)

    def _registered_idle_s(self, runner: str) -> float | None:
        entries = self._entries_of.get(runner, [])
        if not entries or any(entry.state != "idle" for entry in entries):
            return None
        passed_s = self._clock() - self._read_at
        return min(self._store_s - entry.since for entry in entries) + passed_s

    def idle_in_vain(self, experiment: str, runners: Iterable[str], limit_s: float) -> int:
        """How many of these runners have found nothing for long though work is there: they cannot
        take it, because it needs another dataset, for example, or waits for a retry. Those that
        still wait for a machine do not count."""
        since = self._work_since.get(experiment)
        least_s = max(limit_s, IN_VAIN_S)
        if since is None or self._clock() - since < least_s:
            return 0
        started = [runner for runner in runners if runner not in self._waiting_since]
        return sum((self._registered_idle_s(runner) or 0.0) >= least_s for runner in started)

    def stages_elsewhere(
        self, experiment: str, fleet_runners: Collection[str], groups: Collection[str]
    ) -> int:
        """Stages of these groups that runners outside the fleet are doing."""
        return sum(
            len(device.doing)
            for entry in self._entries
            if entry.experiment == experiment and entry.node not in fleet_runners
            for device in entry.devices
            if set(groups) & {group_of(can) for can in device.can}
        )

    def working(self, runners: Collection[str]) -> int:
        """How many of these are at work, looked up now."""
        entries = self._registry.entries()
        return len({entry.node for entry in entries if entry.state == "working"} & set(runners))


# Who gets how many runners, and whose turn it is on a board. Pure functions: no store, no clock.
#
# Runners are shared by weighted max-min fairness. No experiment gets more than would help, or than
# its quota allows; what one experiment does not need goes to the others in proportion to their
# weights. Of equal claims, the one that has the runner keeps it, so nothing moves while nothing
# changes.
#
# A board serves one experiment at a time. Experiments with work for it take turns, and over time
# each gets board time in proportion to its weight.


SLICE_S = 300.0  # of a board, before others may have it


@dataclass(frozen=True)
class Claim:
    """What an experiment asks for: `wanted` runners would help it, and it has `have`."""

    experiment: str
    wanted: int
    weight: float = 1.0
    quota: int | None = None
    have: int = 0

    @property
    def limit(self) -> int:
        """What it may have, whether that helps or not."""
        return 10**9 if self.quota is None else self.quota


def fair_shares(claims: Sequence[Claim], bounds: Bounds) -> dict[str, int]:
    """How many runners each experiment should have.

    As many runners as help are handed out, up to `bounds.most`. If fewer than `bounds.least` help,
    the others are kept as well, by those that have them.
    """
    shares = dict.fromkeys((claim.experiment for claim in claims), 0)
    helpful = {claim.experiment: min(claim.wanted, claim.limit) for claim in claims}
    _hand_out(claims, shares, helpful, bounds.most, keep_first=False)
    limits = {claim.experiment: claim.limit for claim in claims}
    _hand_out(claims, shares, limits, bounds.least, keep_first=True)
    return shares


def _hand_out(
    claims: Sequence[Claim],
    shares: dict[str, int],
    limits: Mapping[str, int],
    total: int,
    keep_first: bool,
) -> None:
    """One runner after the other, each to the claim that has the least of its weight (the method of
    D'Hondt, which never gives a claim less than its weight's share, rounded down)."""

    def rank(claim: Claim) -> tuple[object, ...]:
        next_share = shares[claim.experiment] + 1
        is_new = next_share > claim.have
        level = round(next_share / claim.weight, 9)
        order = (is_new, level) if keep_first else (level, is_new)
        return (*order, claim.experiment)

    left = total - sum(shares.values())
    heap = [(rank(claim), number) for number, claim in enumerate(claims)]
    heapq.heapify(heap)
    while left > 0 and heap:
        _, number = heapq.heappop(heap)
        claim = claims[number]
        if shares[claim.experiment] >= limits[claim.experiment]:
            continue
        shares[claim.experiment] += 1
        left -= 1
        heapq.heappush(heap, (rank(claim), number))


@dataclass
class BoardTurns:
    """Whose turn it is on each board. `served_s` is the board time of each experiment so far, over
    its weight; one that comes back after a pause is not owed the time of its absence."""

    slice_s: float = SLICE_S
    served_s: dict[str, float] = field(default_factory=dict)
    _active: frozenset[str] = frozenset()

    def account(
        self, holders: Iterable[str], weights: Mapping[str, float], passed_s: float
    ) -> None:
        """Note who had a board for the time that has passed, once per board."""
        for experiment in holders:
            weight = weights.get(experiment, 1.0)
            before = self.served_s.get(experiment, 0.0)
            self.served_s[experiment] = before + passed_s / weight

    def arrive(self, waiting: Iterable[str]) -> None:
        """Who has work for boards now."""
        now_active = frozenset(waiting)
        served_before = [self.served_s.get(name, 0.0) for name in self._active & now_active]
        for name in now_active - self._active:
            self.served_s[name] = max(self.served_s.get(name, 0.0), min(served_before, default=0.0))
        self._active = now_active

    def choose(
        self,
        current: str,
        held_s: float,
        weights: Mapping[str, float],
        others: Sequence[str],
    ) -> str:
        """The experiment that should have a board, which `current` has had for `held_s` seconds.

        `others` are those that have the other boards. Without work for it, a board stays where it
        is."""
        waiting = [name for name in weights if name in self._active]
        if not waiting:
            return current if current in weights else next(iter(weights), "")
        if current in waiting and held_s < self.slice_s:
            return current

        def level(name: str) -> tuple[float, bool, str]:
            soon_s = self.slice_s * others.count(name) / weights[name]
            served_s = round(self.served_s.get(name, 0.0) + soon_s, 6)
            return served_s, name != current, name

        return min(waiting, key=level)


# What the runners of a fleet are told: from its record to the options of `edgeloop runner`.


def is_for_board(order: RunnerOrder | None) -> bool:
    return order is not None and _is_board(order.device)


# Asked at every tick of a supervisor; it looks through all installed packages.
_is_board = cache(is_board)


def machine_order(name: str, experiment: str, record: FleetRecord) -> RunnerOrder:
    """A runner that converts and evaluates on a machine, with the devices that every machine has.
    It converts with every toolchain there, for whichever devices ask."""
    machine_devices = [device for device in record.spec.devices if not _is_board(device)]
    devices = tuple(word for device in machine_devices for word in ("--device", device))
    words = (*devices, *_common_words(record))
    return RunnerOrder(name, experiment, cpus=record.spec.cpus, words=words)


def may_have_boards(record: FleetRecord) -> bool:
    return _is_told_nothing(record) or any(map(_is_board, record.spec.devices))


def serves_board(record: FleetRecord, board: str) -> bool:
    """All boards that a cluster announces, unless it is told which. A board that is plugged into
    this machine may be a private phone: it is served only if it is asked for."""
    kind = board.partition(":")[0]
    return _is_told_nothing(record) or kind in record.spec.devices or board in record.spec.devices


def _is_told_nothing(record: FleetRecord) -> bool:
    return not record.spec.devices and record.kind != "local"


def board_order(name: str, experiment: str, board: str, record: FleetRecord) -> RunnerOrder:
    """A runner for one board, on the machine that has it. It leaves conversion to others."""
    words = ("--no-quantize", *_common_words(record))
    resources = {board: 1.0}
    return RunnerOrder(name, experiment, device=board, cpus=0, resources=resources, words=words)


def _common_words(record: FleetRecord) -> tuple[str, ...]:
    spec = record.spec
    settings = () if record.kind == "local" else settings_words(record.settings)
    dataset = ("--dataset", spec.dataset) if spec.dataset else ()
    task = ("--task", spec.task) if spec.task else ()
    return (*settings, *dataset, *task, "--grace", f"{spec.grace:g}", *spec.options)


def machine_groups(
    record: FleetRecord, toolchains: Collection[str] | None
) -> Callable[[str], bool]:
    """Whether a runner on a machine can do the work of a group, as `demand` names them.
    `toolchains` are what the machines convert with; None: it is tried."""
    machine_devices = [device for device in record.spec.devices if not _is_board(device)]
    kinds = {device.partition(":")[0] for device in machine_devices}
    chosen = _chosen_toolchain(record)
    can_convert = "--no-quantize" not in record.spec.options
    installed = None if toolchains is None else {conversion_group(name) for name in toolchains}

    def serves(group: str) -> bool:
        if group == LINUX:
            return True
        if group.startswith(CONVERT):
            is_chosen = not chosen or group == conversion_group(chosen)
            return can_convert and is_chosen and (installed is None or group in installed)
        return bool(machine_devices) and (group == DEVICE or group.partition(":")[0] in kinds)

    return serves


def _chosen_toolchain(record: FleetRecord) -> str:
    """The one that runners are told to convert with; empty: all that they have."""
    words = record.spec.options
    for place, word in enumerate(words):
        option, _, value = word.partition("=")
        if option == "--toolchain":
            return value or "".join(words[place + 1 : place + 2])
    return str(record.settings.get("toolchain") or "")


def board_groups(record: FleetRecord) -> Callable[[str], bool]:
    """Whether the work of a group may be for a board: all that is pinned to no other device. Their
    runners leave conversion to machines."""
    by_machines = machine_groups(record, None)
    return lambda group: (
        not group.startswith(CONVERT) and (group == DEVICE or not by_machines(group))
    )
