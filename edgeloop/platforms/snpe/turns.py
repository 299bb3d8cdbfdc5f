"""Scheduling of one runner's sessions on a board.

One tool runs at a time. Whoever began first goes first, so that sessions do not run in lockstep:
while one is amid its runs, another gets ready. Files may travel while a tool runs, but never while
one runs alone: a benchmark beside a push would measure the push.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count


class TurnRefusedError(Exception):
    """The runner is ending, or something else goes first, and this stage has not begun."""


class Turns:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = count()
        self._want_alone: set[tuple[int, int]] = set()
        self._waiting: set[tuple[int, int]] = set()
        self._reserved: set[int] = set()
        self._kept: set[int] = set()  # by `reserve`: their files may still have to travel
        self._begun: set[int] = set()
        self._checks: dict[int, Callable[[], None]] = {}
        self._refusals: dict[int, Exception] = {}
        self._closed = False
        self._holder: tuple[int, int] | None = None
        self._alone = False
        self._alone_since = 0.0
        self._travelling = 0

    @property
    def alone_s(self) -> float:
        """How long one session has had the board alone; 0: none has."""
        return time.monotonic() - self._alone_since if self._alone else 0.0

    def rank(self) -> int:
        """A place in the queue, for all runs of a stage."""
        return next(self._numbers)

    def check_first(self, rank: int, check: Callable[[], None] | None) -> None:
        """Call this before the first turn of this place; what it raises refuses all its turns."""
        with self._changed:
            self._refusals.pop(rank, None)
            if check is None:
                self._checks.pop(rank, None)
            else:
                self._checks[rank] = check

    def refusal(self, rank: int) -> Exception | None:
        """Why the check refused this place its turn, if it did."""
        return self._refusals.get(rank)

    def reserve(self, rank: int) -> None:
        """Nobody behind this place gets a turn before it had one, or until `forget`."""
        with self._changed:
            self._begun.discard(rank)
            self._reserved.add(rank)
            self._kept.add(rank)
            self._changed.notify_all()

    def forget(self, rank: int) -> None:
        """The stage of this place is over."""
        with self._changed:
            self._checks.pop(rank, None)
            self._refusals.pop(rank, None)
            self._begun.discard(rank)
            self._reserved.discard(rank)
            self._kept.discard(rank)
            self._changed.notify_all()

    def close(self) -> None:
        """Stages that had a turn may go on; those that had none are refused theirs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @contextmanager
    def tool(self, rank: int, alone: bool = False) -> Iterator[None]:
        """This session may run a tool; with `alone`, nothing travels meanwhile."""
        ticket = (rank, next(self._numbers))
        with self._changed:
            self._waiting.add(ticket)
            if alone:
                self._want_alone.add(ticket)
            try:
                self._changed.wait_for(lambda: self._is_next(ticket) or self._is_refused(rank))
                if self._is_refused(rank):
                    raise TurnRefusedError
                self._holder = ticket
                self._waiting.discard(ticket)
                if rank not in self._begun:
                    self._check(rank)
                    self._begun.add(rank)
                    self._reserved.discard(rank)
                    self._kept.discard(rank)
                if alone:
                    self._alone, self._alone_since = True, time.monotonic()
                    self._changed.wait_for(lambda: not self._travelling)
            except BaseException:
                self._leave(ticket)
                raise
        try:
            yield
        finally:
            with self._changed:
                self._leave(ticket)

    @contextmanager
    def kept_for(self, rank: int) -> Iterator[None]:
        """Nobody behind this place in the queue gets a turn meanwhile, though no tool runs."""
        with self._changed:
            self._reserved.add(rank)
        try:
            yield
        finally:
            with self._changed:
                self._reserved.discard(rank)
                self._changed.notify_all()

    @contextmanager
    def travel(self) -> Iterator[None]:
        """Bytes may go to the board or come from it. Benchmarks that are ready go first."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._alone_next())
            self._travelling += 1
        try:
            yield
        finally:
            with self._changed:
                self._travelling -= 1
                self._changed.notify_all()

    def _is_next(self, ticket: tuple[int, int]) -> bool:
        if self._holder is not None or ticket != min(self._waiting):
            return False
        return ticket[0] <= min(self._reserved, default=ticket[0])

    def _check(self, rank: int) -> None:
        """It may take a while, and others may get ready meanwhile; none of them gets a turn."""
        check = self._checks.pop(rank, None)
        if check is None:
            return
        self._changed.release()
        try:
            check()
        except Exception as error:
            self._refusals[rank] = error
            raise TurnRefusedError from error
        finally:
            self._changed.acquire()

    def _is_refused(self, rank: int) -> bool:
        return rank in self._refusals or (self._closed and rank not in self._begun)

    def _alone_next(self) -> bool:
        """A benchmark that is ready and may begin: one behind a place that is kept may not."""
        if self._holder is not None or not self._waiting:
            return False
        first = min(self._waiting)
        return first in self._want_alone and first[0] <= min(self._kept, default=first[0])

    def _leave(self, ticket: tuple[int, int]) -> None:
        self._waiting.discard(ticket)
        self._want_alone.discard(ticket)
        if self._holder == ticket:
            self._holder, self._alone = None, False
        self._changed.notify_all()
