"""Who acts on the tables: workers and people, run by the real code, one table operation at a time.

An actor is never suspended. To learn what it does next, its call is run again from its start with
the answers that it got so far, until it asks for something that has no answer yet. So an actor in
the middle of a call is a plain value (its memory, the call, the answers), which can be compared and
kept. Clocks, random numbers and tokens come from the same tape as the answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from edgeloop.errors import Conflict, EdgeloopError, LeaseLost, StoreError, StoreUnavailable
from edgeloop.models import catalog as catalog_module
from edgeloop.models import columns as columns_module
from edgeloop.models import leases as leases_module
from edgeloop.models import queue as queue_module
from edgeloop.models import upload as upload_module
from edgeloop.models.catalog import Catalog
from edgeloop.models.columns import runs_of
from edgeloop.models.leases import Lease, Leases, Outcome
from edgeloop.models.plan import Plan, default_plan
from edgeloop.models.queue import Queue
from edgeloop.models.upload import OnnxFile, Uploader, UploadOptions, check_onnx
from edgeloop.store import Record, Value
from tests.nets import save_tiny
from tests.protocol.tables import AskingStore, Request, Row, frozen

EXPERIMENT = "default"


@dataclass(frozen=True)
class Configuration:
    """What is explored, and how far. Times are in seconds; `tick_s` is how far the clock moves at
    once, at most `ticks` times. `skews_s` are how far the clocks of the workers are off."""

    name: str
    is_atomic: bool
    stages: tuple[str, ...] = ("convert",)
    models: tuple[str, ...] = ("net",)
    workers: int = 2
    skews_s: tuple[float, ...] = (0.0, 0.0, 0.0)
    ticks: int = 3
    tick_s: float = 10.0
    lease_s: float = 20.0
    margin_s: float = 10.0
    max_attempts: int = 2
    faults: int = 0  # writes that time out, to arrive later or never, or that arrive twice
    crashes: int = 0
    jumps: int = 0
    jump_s: float = 365 * 86_400.0
    deeds: tuple[str, ...] = ()  # what a person may do
    deeds_left: int = 0
    failures: int = 0  # per worker
    releases: int = 0
    renewals: int = 1
    heartbeats: int = 0  # renewals by a thread of its own
    sweeps: int = 0
    looks_ahead: bool = False
    has_hints: bool = True
    judges_order: bool = False  # of claims among several workers; it makes more states differ
    leases: type[Leases] = Leases
    patches: tuple[tuple[str, Any], ...] = ()
    reuses_versions: bool = False

    @property
    def are_clocks_close(self) -> bool:
        skews = self.skews_s[: self.workers]
        return not self.jumps and max(skews) - min(skews) <= self.margin_s

    @property
    def plan(self) -> Plan:
        return plan_of(self.stages)

    @cached_property
    def capabilities(self) -> tuple[str, ...]:
        return tuple(stage.capability for stage in self.plan.stages)


@cache
def plan_of(names: tuple[str, ...]) -> Plan:
    """Stages of the real plan, with one column each."""
    plan = default_plan(benchmark_runs=2)
    narrow = {"convert": ("shape",), "benchmark": ("total_inference_avg",)}
    chosen = []
    for name in names:
        stage = plan[name]
        needs = tuple(need for need in stage.needs if need in names)
        chosen.append(replace(stage, fills=narrow.get(name, stage.fills), needs=needs))
    return Plan(tuple(chosen))


class Paused(BaseException):
    """The next request has no answer yet. No handler of errors may stop this."""


class Answer(NamedTuple):
    """What a request came to, and the actor's clocks then: wall and monotonic."""

    kind: str  # value, or the name of an error
    value: Any
    wall: float
    monotonic: float


class Call(NamedTuple):
    name: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.name}({self.model})"


class Memory(NamedTuple):
    """What an actor knows between two calls. `lease` is a Lease with a frozen row; `last_seen` is
    what a Leases object keeps; the rest counts what is left or was used."""

    lease: tuple[Any, ...] | None = None
    last_seen: tuple[str, float] = ("", 0.0)
    tokens: int = 0
    sweeps: int = 0
    failures: int = 0
    releases: int = 0
    renewals: int = 0
    deeds: int = 0


class Ending(NamedTuple):
    """How a call ended: ok, nothing, lost, or the name of an error."""

    outcome: str
    token: str = ""


@dataclass
class Tape:
    """The answers of one call so far. `token_prefix` and `tokens` name fresh tokens."""

    answers: Sequence[Answer]
    wall: float
    monotonic: float
    token_prefix: str = ""
    tokens: int = 0
    request: Request | None = None
    position: int = 0

    def ask(self, request: Request) -> Any:
        if self.request is not None or self.position == len(self.answers):
            self.request = self.request or request
            raise Paused
        answer = self.answers[self.position]
        self.position += 1
        self.wall, self.monotonic = answer.wall, answer.monotonic
        if answer.kind != "value":
            raise _ERRORS[answer.kind]
        return thawed(answer.value)

    def clock(self) -> float:
        return self.wall

    def new_token(self) -> str:
        self.tokens += 1
        return f"{self.token_prefix}.{self.tokens}"


def frozen_result(result: Any) -> Any:
    if isinstance(result, Record):
        return ("row", frozen_row(result))
    if isinstance(result, list):
        return ("list", tuple(frozen_result(each) for each in result))
    if isinstance(result, tuple):
        return ("pair", tuple(frozen_result(each) for each in result))
    return None


def frozen_row(record: Record) -> Row:
    return (record.key, int(record.version), frozen(record.values))


def thawed(result: Any) -> Any:
    if result is None:
        return None
    kind, content = result
    if kind == "row":
        key, version, columns = content
        return Record(key, dict(columns), str(version))
    many = [thawed(each) for each in content]
    return many if kind == "list" else tuple(many)


class Actor:
    """`name` is the owner in leases; `skew` the index of its clock."""

    def __init__(self, name: str, configuration: Configuration) -> None:
        self.name = name
        self._of = configuration

    def choices(self, memory: Memory, monotonic: float) -> Iterator[Call]:
        raise NotImplementedError

    def initial(self) -> Memory:
        raise NotImplementedError

    def after_crash(self, memory: Memory) -> Memory:
        """A new process of the same name: it knows nothing, and what was used up stays so."""
        return memory._replace(lease=None, last_seen=("", 0.0))

    def run(self, call: Call, memory: Memory, tape: Tape) -> tuple[Memory, Ending]:
        tape.token_prefix, tape.tokens = self.name, memory.tokens
        with on_tape(tape):
            memory, ending = self._run(call, memory, tape)
        return memory._replace(tokens=tape.tokens), ending

    def _run(self, call: Call, memory: Memory, tape: Tape) -> tuple[Memory, Ending]:
        raise NotImplementedError


class Worker(Actor):
    """Claims and then does what a runner may do to a lease it holds, in any order."""

    def initial(self) -> Memory:
        of = self._of
        return Memory(
            failures=of.failures, releases=of.releases, renewals=of.renewals, sweeps=of.sweeps
        )

    def choices(self, memory: Memory, monotonic: float) -> Iterator[Call]:
        if memory.lease is None:
            yield Call("claim")
            if self._of.looks_ahead:
                yield Call("claim_ahead")
            if memory.sweeps:
                yield Call("sweep")
            return
        lease = _lease(memory.lease)
        if lease.queued:
            yield Call("begin", lease.model)
        else:
            yield Call("commit", lease.model)
        if memory.renewals:
            yield Call("renew", lease.model)
        if memory.failures and not lease.queued:
            yield Call("fail", lease.model)
        if memory.releases:
            yield Call("release", lease.model)

    def _run(self, call: Call, memory: Memory, tape: Tape) -> tuple[Memory, Ending]:
        leases = self._leases(memory, tape)
        lease = None if memory.lease is None else _lease(memory.lease)
        token = "" if lease is None else lease.token
        try:
            held = self._act(leases, call, lease)
            ending = Ending("ok" if held or lease else "nothing", token)
        except LeaseLost:
            held, ending = None, Ending("lost", token)
        except (StoreError, Conflict) as error:
            held, ending = lease, Ending(type(error).__name__, token)
        used = _USES.get(call.name)
        if used:
            memory = memory._replace(**{used: getattr(memory, used) - 1})  # type: ignore[arg-type]
        kept = None if held is None else _frozen_lease(held)
        seen = vars(leases)["_last_seen"] if self._of.looks_ahead else ("", 0.0)
        return memory._replace(lease=kept, last_seen=seen), ending

    def _act(self, leases: Leases, call: Call, lease: Lease | None) -> Lease | None:
        if call.name in ("claim", "claim_ahead"):
            claimed: Lease | None = getattr(leases, call.name)(self._of.capabilities, self.name)
            return claimed
        if call.name == "sweep":
            leases.sweep()
            return None
        assert lease is not None
        if call.name in ("renew", "begin"):
            renewed: Lease = getattr(leases, call.name)(lease)
            return renewed
        if call.name == "commit":
            leases.commit(lease, Outcome(result_of(lease)))
        elif call.name == "fail":
            leases.fail(lease, "drawn by lot")
        else:
            leases.release(lease)
        return None

    def _leases(self, memory: Memory, tape: Tape) -> Leases:
        of, store = self._of, AskingStore(tape.ask, self._of.is_atomic)
        leases = of.leases(
            store.models(EXPERIMENT),
            store.queue(EXPERIMENT),
            of.plan,
            lease_s=of.lease_s,
            margin_s=of.margin_s,
            max_attempts=of.max_attempts,
            clock=tape.clock,
        )
        never, now = float("inf"), 0.0
        looks_at = now if of.looks_ahead else never
        vars(leases).update(
            _idle_sweep_at=never,
            _busy_sweep_at=never,
            _queued_look_at=looks_at,
            _last_seen=memory.last_seen,
        )
        return leases


class Heart(Worker):
    """The thread of a worker that renews its lease, whatever the worker is doing meanwhile."""

    def initial(self) -> Memory:
        return Memory(renewals=self._of.heartbeats)

    def choices(self, memory: Memory, monotonic: float) -> Iterator[Call]:
        if memory.lease is not None and memory.renewals:
            yield Call("renew", _lease(memory.lease).model)

    def _run(self, call: Call, memory: Memory, tape: Tape) -> tuple[Memory, Ending]:
        memory, ending = super()._run(call, memory, tape)
        return memory._replace(lease=None), ending


class Person(Actor):
    """Resets, deletes, uploads again, unlocks, sets priorities; whatever the workers do."""

    def initial(self) -> Memory:
        return Memory(deeds=self._of.deeds_left)

    def after_crash(self, memory: Memory) -> Memory:
        return memory

    def choices(self, memory: Memory, monotonic: float) -> Iterator[Call]:
        if memory.deeds:
            for model in self._of.models:
                for deed in self._of.deeds:
                    yield Call(deed, model)

    def _run(self, call: Call, memory: Memory, tape: Tape) -> tuple[Memory, Ending]:
        outcome = "ok"
        try:
            self._do(call, AskingStore(tape.ask, self._of.is_atomic), tape)
        except EdgeloopError as error:
            outcome = type(error).__name__
        return memory._replace(deeds=memory.deeds - 1), Ending(outcome)

    def _do(self, call: Call, store: AskingStore, tape: Tape) -> None:
        of = self._of
        if call.name == "upload":
            queue = Queue(store.queue(EXPERIMENT), of.plan, of.margin_s)
            uploader = Uploader(store, EXPERIMENT, of.plan, queue, self.name, tape.clock)
            uploader.upload(_file(call.model), call.model, UploadOptions(check=False))
            return
        if call.name == "edit":  # with another tool, which knows no hints
            models = store.models(EXPERIMENT)
            if row := models.get(call.model):
                models.update(row, {"priority": 5})
            return
        catalog = Catalog(
            *(store, EXPERIMENT, of.plan), node=self.name, margin_s=of.margin_s, clock=tape.clock
        )
        if call.name == "priority":
            catalog.set_priority(call.model, 5)
        else:
            getattr(catalog, call.name)(call.model)


def result_of(lease: Lease) -> dict[str, Value]:
    """A result that can be traced to its token."""
    if lease.stage == "benchmark":
        runs = [*runs_of(lease.row.values), mark_of(lease.token)]
        return {"total_inference_avg": json.dumps(runs)}
    return {"shape" if lease.stage == "convert" else lease.stage: lease.token}


def mark_of(token: str) -> float:
    """A token as a number: `w2.13` is 2013."""
    name, _, number = token.partition(".")
    return 1000.0 * int(name[1:]) + int(number)


@contextmanager
def virtual_machine(patches: Sequence[tuple[str, Any]] = ()) -> Iterator[None]:
    """Within it, the modules of the protocol take times, luck and tokens from the tape."""
    shims: dict[Any, dict[str, Any]] = {
        leases_module: {"time": _Time, "random": _Luck, "uuid": _Tokens},
        queue_module: {"time": _Time},
        columns_module: {"time": _Time, "random": _Luck},
        upload_module: {"uuid": _Tokens},
        catalog_module: {"time": _Time},
    }
    with ExitStack() as stack:
        for module, names in shims.items():
            stack.enter_context(mock.patch.multiple(module, **names))
        stack.enter_context(mock.patch("random.shuffle", lambda rows: None))
        for name, value in patches:
            stack.enter_context(mock.patch(name, value))
        yield


@contextmanager
def on_tape(tape: Tape) -> Iterator[None]:
    _Current.tape = tape
    yield


@dataclass
class _CurrentTape:
    tape: Tape = field(default_factory=lambda: Tape((), 0.0, 0.0))


_Current = _CurrentTape()


class _Time:
    @staticmethod
    def monotonic() -> float:
        return _Current.tape.monotonic

    @staticmethod
    def time() -> float:
        return _Current.tape.wall

    @staticmethod
    def sleep(seconds: float) -> None:
        """Time passes only where the explorer says so."""


class _Luck:
    @staticmethod
    def uniform(low: float, high: float) -> float:
        return (low + high) / 2


class _Tokens:
    @staticmethod
    def uuid4() -> Any:
        return SimpleNamespace(hex=_Current.tape.new_token())


_FOLDERS: list[TemporaryDirectory[str]] = []
_USES = {"fail": "failures", "release": "releases", "renew": "renewals", "sweep": "sweeps"}
_ERRORS: dict[str, EdgeloopError] = {
    "StoreUnavailable": StoreUnavailable(store="the store", reason="no answer"),
    "RowChanged": leases_module.RowChanged(key="?"),
    "RowExists": queue_module.RowExists(key="?"),
}


def _lease(fields: tuple[Any, ...]) -> Lease:
    *before, row, rank, queued = fields
    return Lease(*before, thawed(("row", row)), rank, queued)


def _frozen_lease(lease: Lease) -> tuple[Any, ...]:
    fields = (lease.model, lease.stage, lease.owner, lease.token, lease.attempt, lease.expires)
    return (*fields, frozen_row(lease.row), lease.rank, lease.queued)


@cache
def _file(model: str) -> OnnxFile:
    """A real file, checked as for a real upload; where its bytes go is not explored."""
    folder = TemporaryDirectory()
    _FOLDERS.append(folder)
    return check_onnx(save_tiny(Path(folder.name) / f"{model}.onnx"))
