"""Virtual time: threads as greenlets that switch only where a real thread would wait.

One task runs at a time, so a simulation with the same seed is the same to the last event. A machine
can die (its tasks end where they wait, and can reach nothing any more) or freeze (its tasks sleep
through what happens meanwhile, and go on as if nothing had been).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

EPOCH = 1_800_000_000.0  # a moment of 2027: lease times are seconds since 1970


@dataclass(eq=False)
class Node:
    """A machine. `skew_s` is how far its clock is off."""

    name: str = "outside"
    skew_s: float = 0.0
    is_dead: bool = False
    frozen_until: float = 0.0
    tasks: set[Task] = field(default_factory=set)


class Task:
    """One thread. A wait has a number, so that only the first of several wakers wakes it."""

    __slots__ = ("call", "ended", "greenlet", "node", "waits")

    def __init__(self, kernel: Kernel, node: Node, call: Callable[[], object]) -> None:
        self.node, self.call, self.waits = node, call, 0
        self.greenlet = greenlet(kernel.perform, kernel.hub)
        self.ended = False


class Kernel:
    def __init__(self) -> None:
        self.now = EPOCH
        self.hub = getcurrent()
        self.events = 0
        self.errors: list[BaseException] = []
        self._heap: list[tuple[float, int, object, int]] = []
        self._numbers = itertools.count()
        self._tasks: dict[greenlet, Task] = {}
        self.outside = Node()

    @property
    def task(self) -> Task | None:
        return self._tasks.get(getcurrent())

    @property
    def node(self) -> Node:
        task = self.task
        return self.outside if task is None else task.node

    def spawn(self, call: Callable[[], object], node: Node | None = None) -> Task:
        parent = self.task
        own = node or (parent.node if parent else self.outside)
        task = Task(self, own, call)
        self._tasks[task.greenlet] = task
        own.tasks.add(task)
        self._push(self.now, task, task.waits)
        return task

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call something at that time, outside of all tasks; it must not wait."""
        self._push(when, call, 0)

    def sleep(self, seconds: float) -> None:
        task = self._running()
        task.waits += 1
        heapq.heappush(
            self._heap, (self.now + max(seconds, 0.0), next(self._numbers), task, task.waits)
        )
        self.hub.switch()

    def pause(self, timeout_s: float | None) -> tuple[Task, int]:
        """Begin a wait that `wake` or the time limit ends; `suspend` follows."""
        task = self._running()
        task.waits += 1
        if timeout_s is not None:
            self._push(self.now + max(timeout_s, 0.0), task, task.waits)
        return task, task.waits

    def suspend(self) -> None:
        self.hub.switch()

    def wake(self, waiter: tuple[Task, int]) -> None:
        task, number = waiter
        if task.waits == number:
            self._push(self.now, task, number)

    def kill(self, node: Node) -> None:
        """Power off: no task of the machine does anything any more."""
        node.is_dead = True
        for task in list(node.tasks):
            task.waits += 1
            if not task.ended:
                task.greenlet.throw(GreenletExit)
                self._forget(task)

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Until that time, until nothing is left to happen, or until it is over."""
        heap = self._heap
        while heap and not is_over():
            when, _, what, number = heapq.heappop(heap)
            if when > until:
                self._push(when, what, number)
                self.now = until
                return
            if not isinstance(what, Task):
                self.now = max(self.now, when)
                what()  # type: ignore[operator]
                continue
            if what.waits != number or what.ended:
                continue
            if what.node.frozen_until > when:
                self._push(what.node.frozen_until, what, number)
                continue
            self.now = max(self.now, when)
            self.events += 1
            what.greenlet.switch()
            if self.errors:
                raise self.errors[0]

    def perform(self) -> None:
        """What a task's greenlet runs."""
        task = self._tasks[getcurrent()]
        try:
            task.call()
        except GreenletExit:
            pass
        except Exception as error:
            self.errors.append(error)
        self._forget(task)

    def check_alive(self) -> None:
        """What a dead machine does at its end (`finally`) reaches nobody."""
        task = self.task
        if task is not None and task.node.is_dead:
            raise GreenletExit

    def _running(self) -> Task:
        task = self._tasks[getcurrent()]
        if task.node.is_dead:
            raise GreenletExit
        return task

    def _push(self, when: float, what: Any, number: int) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), what, number))

    def _forget(self, task: Task) -> None:
        task.ended = True
        task.node.tasks.discard(task)
        self._tasks.pop(task.greenlet, None)
