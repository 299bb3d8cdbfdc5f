"""Explicit-state exploration: every order of table operations, faults and ticks, within bounds.

A state is the content of both tables, the time, what is left of each kind of trouble, the write
that is still on its way, and where every actor stands. All parts are interned, so a state is a
tuple of small numbers, and equal states are met once. What an actor does next depends on nothing
but its own answers, and what a table answers on nothing but its content; both are computed once and
remembered. That makes a transition a few look-ups, while every decision is made by the real code.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from edgeloop.errors import RowChanged, RowExists
from tests.protocol.actors import (
    Actor,
    Answer,
    Call,
    Configuration,
    Ending,
    Heart,
    Memory,
    Paused,
    Person,
    Tape,
    Worker,
    frozen_result,
    virtual_machine,
)
from tests.protocol.invariants import Content, Judge, Write
from tests.protocol.tables import Request, Sheet, perform

START_S = 1_000.0  # so that no time is the 0 that means never

Thing = TypeVar("Thing", bound=Hashable)
State = tuple[int, ...]


class Interner(Generic[Thing]):
    """Things as numbers, and back."""

    def __init__(self) -> None:
        self.things: list[Thing] = []
        self._numbers: dict[Thing, int] = {}

    def __call__(self, thing: Thing) -> int:
        number = self._numbers.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number

    def __getitem__(self, number: int) -> Thing:
        return self.things[number]


class Node(NamedTuple):
    """Where an actor stands: between calls, or within one and waiting for the answer."""

    actor: int
    memory: Memory
    call: Call | None = None
    begun: tuple[float, float] = (0.0, 0.0)
    answers: tuple[int, ...] = ()
    request: int = -1
    content: int = -1  # when a claim began, where the order of claims is judged


class OnItsWay(NamedTuple):
    """A write whose sender has given up waiting; it may arrive at any time, or never."""

    request: int
    actor: int
    call: Call
    memory: Memory


class Step(NamedTuple):
    """One transition: who does what, about which request, and what came of it. It is put into words
    only for a trace."""

    actor: int  # -1: time
    what: str
    call: Call | None = None
    request: int = -1
    result: int = -1
    ending: Ending | None = None


@dataclass(frozen=True)
class Violation:
    message: str
    trace: list[str]

    def __str__(self) -> str:
        lines = [f"{number:3d}. {line}" for number, line in enumerate(self.trace, 1)]
        return "\n".join([f"violated: {self.message}", *lines])


@dataclass
class Explored:
    configuration: Configuration
    states: int = 0
    transitions: int = 0
    contents: int = 0  # distinct tables from which a lone worker was sent to finish everything
    seconds: float = 0.0
    is_whole: bool = False
    violations: list[Violation] = field(default_factory=list)


def explore(
    configuration: Configuration, most_states: int | None = None, most_violations: int = 1
) -> Explored:
    """All states within the configuration's bounds, or the first that many, breadth first, so that
    the trace of a violation is a shortest one."""
    began = time.perf_counter()
    with virtual_machine(configuration.patches), _little_garbage():
        explorer = _Explorer(configuration)
        explored = explorer.run(most_states, most_violations)
    explored.seconds = time.perf_counter() - began
    return explored


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Millions of small tuples that stay would be searched for cycles again and again."""
    thresholds = gc.get_threshold()
    gc.set_threshold(500_000, 20, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


# Where the parts of a state stand; after these comes one node per actor.
LATE = "times out; it may arrive later"
TWICE = "arrives twice"
ARRIVES = "arrives late"
CONTENT, TICKS, FAULTS, CRASHES, JUMPS, JUMPED, FLIGHT, FIRST_NODE = range(8)


class _Explorer:
    def __init__(self, configuration: Configuration) -> None:
        self._of = configuration
        self._actors: list[Actor] = [
            Worker(f"w{number + 1}", configuration) for number in range(configuration.workers)
        ]
        self._workers = len(self._actors)
        if configuration.heartbeats:
            self._actors += [Heart(worker.name, configuration) for worker in self._actors]
        if configuration.deeds_left:
            self._actors.append(Person("p9", configuration))
        self._contents: Interner[Content] = Interner()
        self._requests: Interner[Request] = Interner()
        self._answers: Interner[Answer] = Interner()
        self._results: Interner[tuple[str, Any]] = Interner()
        self._nodes: Interner[Node] = Interner()
        self._flights: Interner[OnItsWay | None] = Interner()
        self._flights(None)
        self._applied: dict[tuple[int, int], tuple[int, int]] = {}
        self._started: dict[tuple[int, Call, int, int, int], tuple[int, Ending | None]] = {}
        self._stepped: dict[tuple[int, int, int, int], tuple[int, Ending | None]] = {}
        self._judge = Judge(configuration)

    def run(self, most_states: int | None, most_violations: int) -> Explored:
        explored = Explored(self._of)
        first = self._first_state()
        parents: dict[State, tuple[State, Step] | None] = {first: None}
        frontier = deque([first])
        while frontier:
            state = frontier.popleft()
            for message in self._judge.of_content(self._contents[state[CONTENT]], self._now(state)):
                self._note(explored, message, parents, state)
            for following, step, messages in self._successors(state):
                explored.transitions += 1
                if following not in parents:
                    parents[following] = (state, step)
                    frontier.append(following)
                for message in messages:
                    self._note(explored, message, parents, state, step, following)
            if len(explored.violations) >= most_violations:
                break
            if most_states is not None and len(parents) >= most_states:
                break
        explored.states = len(parents)
        explored.is_whole = not frontier and not explored.violations
        explored.contents = self._judge.contents
        return explored

    def _first_state(self) -> State:
        of = self._of
        sheets = {"models": Sheet(), "hints": Sheet()}
        for number, name in enumerate(of.models):
            row = {"name": name, "status": "new", "model_date": f"2026-01-0{number + 1}"}
            sheets["models"].write(name, row)
        if of.has_hints:
            self._judge.sweep(sheets, START_S)
        content = self._contents((sheets["models"].frozen(), sheets["hints"].frozen()))
        nodes = [self._nodes(Node(i, actor.initial())) for i, actor in enumerate(self._actors)]
        return (content, 0, of.faults, of.crashes, of.jumps, 0, 0, *nodes)

    def _successors(self, state: State) -> Iterator[tuple[State, Step, list[str]]]:
        for index, actor in enumerate(self._actors):
            number = state[FIRST_NODE + index]
            node = self._nodes[number]
            if node.call is None:
                if isinstance(actor, Heart):  # it beats for what its worker holds now
                    whose = self._nodes[state[FIRST_NODE + index - self._workers]]
                    node = node._replace(memory=node.memory._replace(lease=whose.memory.lease))
                    number = self._nodes(node)
                for call in actor.choices(node.memory, self._now(state)):
                    after, _ = self._start(number, call, state)
                    yield self._moved(state, index, after), Step(index, "begins", call), []
            else:
                yield from self._answered(state, index, node)
            if index < self._workers:
                yield from self._troubled(state, index, node)
        if state[FLIGHT]:
            yield self._delivered(state)
        if state[TICKS] < self._of.ticks:
            ticked = _with(state, TICKS, state[TICKS] + 1)
            yield ticked, Step(-1, f"{self._of.tick_s:.0f} s pass"), []

    def _troubled(
        self, state: State, index: int, node: Node
    ) -> Iterator[tuple[State, Step, list[str]]]:
        """What may befall a worker's machine at any moment."""
        if state[CRASHES] and (node.call is not None or node.memory.lease is not None):
            after = state
            for each in range(index, len(self._actors), self._workers):
                if each == index or isinstance(self._actors[each], Heart):
                    memory = self._nodes[state[FIRST_NODE + each]].memory
                    fresh = Node(each, self._actors[each].after_crash(memory))
                    after = self._moved(after, each, self._nodes(fresh))
            spent = _with(after, CRASHES, state[CRASHES] - 1)
            yield spent, Step(index, "crashes and is started again"), []
        if state[JUMPS] and not state[JUMPED] >> index & 1:
            jumped = _with(state, JUMPED, state[JUMPED] | (1 << index))
            jumped = _with(jumped, JUMPS, state[JUMPS] - 1)
            yield jumped, Step(index, "has a clock that is a year ahead"), []

    def _answered(
        self, state: State, index: int, node: Node
    ) -> Iterator[tuple[State, Step, list[str]]]:
        """The request is answered; or, if it is a write and there is trouble left, it times out and
        stays on its way, or it arrives twice and the second answer is the one that comes back."""
        number = state[FIRST_NODE + index]
        content, result = self._apply(state[CONTENT], node.request)
        yield self._with_answer(state, index, node, number, content, result)
        if not state[FAULTS] or not self._requests[node.request].is_write:
            return
        if not state[FLIGHT]:
            assert node.call is not None
            flight = self._flights(OnItsWay(node.request, index, node.call, node.memory))
            result = self._results(("StoreUnavailable", None))
            late = _with(_with(state, FLIGHT, flight), FAULTS, state[FAULTS] - 1)
            timed_out = self._with_answer(late, index, node, number, state[CONTENT], result)
            yield timed_out[0], Step(index, LATE, node.call, node.request), timed_out[2]
        twice, result = self._apply(content, node.request)
        if content != state[CONTENT]:
            less = _with(state, FAULTS, state[FAULTS] - 1)
            following, step, messages = self._with_answer(less, index, node, number, twice, result)
            yield following, step._replace(what=TWICE), messages

    def _with_answer(
        self, state: State, index: int, node: Node, number: int, content: int, result: int
    ) -> tuple[State, Step, list[str]]:
        after, ending = self._advance(number, result, state, index)
        messages = self._judged(state, content, index, node)
        if ending is not None and node.call is not None:
            messages += self._judge.of_ending(self._contents[content], node.call, ending)
            lease = self._nodes[after].memory.lease
            if node.content >= 0 and lease is not None:
                first, last = self._contents[node.content], self._contents[content]
                messages += self._judge.of_order(first, last, lease, self._now(state))
        step = Step(index, "", node.call, node.request, result, ending)
        return _with(self._moved(state, index, after), CONTENT, content), step, messages

    def _delivered(self, state: State) -> tuple[State, Step, list[str]]:
        flight = self._flights[state[FLIGHT]]
        assert flight is not None
        content, result = self._apply(state[CONTENT], flight.request)
        node = Node(flight.actor, flight.memory, flight.call, request=flight.request)
        messages = self._judged(state, content, flight.actor, node)
        landed = _with(_with(state, FLIGHT, 0), CONTENT, content)
        return landed, Step(flight.actor, ARRIVES, flight.call, flight.request, result), messages

    def _judged(self, state: State, content: int, index: int, node: Node) -> list[str]:
        if content == state[CONTENT]:
            return []
        assert node.call is not None
        write = Write(
            self._contents[state[CONTENT]][0],
            self._contents[content][0],
            self._actors[index].name,
            node.call,
            node.memory,
            self._now(state),
        )
        return self._judge.of_write(write)

    def _apply(self, content: int, request: int) -> tuple[int, int]:
        """The content after a request, and its result."""
        found = self._applied.get((content, request))
        if found is None:
            models, hints = self._contents[content]
            reuses = self._of.reuses_versions
            sheets = {"models": Sheet(models, reuses), "hints": Sheet(hints, reuses)}
            asked = self._requests[request]
            try:
                result = ("value", frozen_result(perform(sheets, asked)))
            except (RowChanged, RowExists) as error:
                result = (type(error).__name__, None)
            if asked.is_write:
                content_after = (sheets["models"].frozen(), sheets["hints"].frozen())
                found = self._contents(content_after), self._results(result)
            else:
                found = content, self._results(result)
            self._applied[content, request] = found
        return found

    def _start(self, number: int, call: Call, state: State) -> tuple[int, Ending | None]:
        index = self._nodes[number].actor
        is_ahead = state[JUMPED] >> index & 1
        content = state[CONTENT] if self._of.judges_order and call.name == "claim" else -1
        key = (number, call, state[TICKS], is_ahead, content)
        found = self._started.get(key)
        if found is None:
            begun = (self._wall(state, index), self._now(state))
            first = Node(index, self._nodes[number].memory, call, begun, content=content)
            found = self._run(first, ())
            self._started[key] = found
        return found

    def _advance(
        self, number: int, result: int, state: State, index: int
    ) -> tuple[int, Ending | None]:
        is_ahead = state[JUMPED] >> index & 1
        key = (number, result, state[TICKS], is_ahead)
        found = self._stepped.get(key)
        if found is None:
            node = self._nodes[number]
            assert node.call is not None
            kind, value = self._results[result]
            answer = Answer(kind, value, self._wall(state, index), self._now(state))
            answers = (*node.answers, self._answers(answer))
            found = self._run(node, answers)
            self._stepped[key] = found
        return found

    def _run(self, node: Node, answers: tuple[int, ...]) -> tuple[int, Ending | None]:
        """Run the real code of a call with these answers, to its next request or its end."""
        assert node.call is not None
        tape = Tape([self._answers[number] for number in answers], *node.begun)
        try:
            memory, ending = self._actors[node.actor].run(node.call, node.memory, tape)
        except Paused:
            assert tape.request is not None
            waiting = node._replace(answers=answers, request=self._requests(tape.request))
            return self._nodes(waiting), None
        return self._nodes(Node(node.actor, memory)), ending

    def _now(self, state: State) -> float:
        return START_S + state[TICKS] * self._of.tick_s

    def _wall(self, state: State, index: int) -> float:
        skew = self._of.skews_s[index] if index < self._workers else 0.0
        jump = self._of.jump_s if state[JUMPED] >> index & 1 else 0.0
        return self._now(state) + skew + jump

    def _moved(self, state: State, index: int, node: int) -> State:
        return _with(state, FIRST_NODE + index, node)

    def _words(self, step: Step) -> str:
        parts = [self._actors[step.actor].name] if step.actor >= 0 else []
        parts += [f"{step.call}:"] if step.call and step.request >= 0 else []
        parts += [_shown(self._requests[step.request])] if step.request >= 0 else []
        parts += [step.what] if step.what else []
        parts += [str(step.call)] if step.call and step.request < 0 else []
        if step.result >= 0:
            is_write = self._requests[step.request].is_write
            parts.append(f"→ {_said(self._results[step.result], is_write)}")
        parts += [f"and ends: {step.ending.outcome}"] if step.ending else []
        return " ".join(parts)

    def _note(
        self,
        explored: Explored,
        message: str,
        parents: dict[State, tuple[State, Step] | None],
        state: State,
        last: Step | None = None,
        following: State | None = None,
    ) -> None:
        steps: list[tuple[Step, State]] = []
        at, reached = parents[state], state
        while at is not None:
            steps.append((at[1], reached))
            reached = at[0]
            at = parents[reached]
        steps.reverse()
        if last is not None and following is not None:
            steps.append((last, following))
        lines, content = [], -1
        for step, after in steps:
            changed = f"\n     {self._judge.shown(self._contents[after[CONTENT]])}"
            shown = changed if after[CONTENT] != content else ""
            content = after[CONTENT]
            lines.append(self._words(step) + shown)
        explored.violations.append(Violation(message, lines))


def _with(state: State, place: int, value: int) -> State:
    return (*state[:place], value, *state[place + 1 :])


def _said(result: tuple[str, Any], is_write: bool) -> str:
    kind, value = result
    if kind != "value":
        return kind
    if value is None:
        return "done" if is_write else "nothing"
    what, content = value
    if what == "row":
        return f"{content[0]} version {content[1]}"
    return f"{len(content)} rows"


def _shown(request: Request) -> str:
    if request.operation in ("query", "due", "insert_many"):
        return f"{request.table}.{request.operation}"
    key, *rest = request.arguments
    version = f" if version {rest[0]}" if rest and isinstance(rest[0], str) else ""
    return f"{request.table}.{request.operation}({key}{version})"
