"""Many may use the GPU at once, but nobody while a step is being captured.

CUDA refuses much of what other threads of the process do while one of them captures a graph, and
the refusal breaks both. So every training goes in by a gate, holds it together with the others, and
makes way at each step for one that wants to be alone. A training captures once: hardly any waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import Condition


class Gate:
    """For threads that are in together; one of them may be in alone for a while."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self._want_alone = 0
        self._is_alone = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """For one who is in together with others: waits until all of them have made way."""
        with self._changed:
            self._want_alone += 1
            self._inside -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_alone and not self._inside)
            self._want_alone -= 1
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._inside += 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """For work of one who is in that does not touch the GPU and takes long."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    def make_way(self) -> None:
        """Called often, by whoever is in and has nothing under way."""
        if self._want_alone:
            self._leave()
            self._enter()

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone and not self._want_alone)
            self._inside += 1

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
