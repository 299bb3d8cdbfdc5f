"""Trying again after a failure that may pass: with growing delays, and with an end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Result = TypeVar("Result")


def delays(first_s: float = 0.5, longest_s: float = 15.0) -> Iterator[float]:
    """Exponential backoff: each delay is twice the one before, up to `longest_s`."""
    delay = first_s
    while True:
        yield delay
        delay = min(2 * delay, longest_s)


def retry(
    action: Callable[[], Result],
    on: type[Exception] | tuple[type[Exception], ...],
    patience_s: float,
    first_s: float = 0.5,
    longest_s: float = 15.0,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """What `action` returns. An error of the kinds in `on` is tried again until `patience_s` have
    passed, then raised; any other is raised at once."""
    deadline = clock() + patience_s
    for delay in delays(first_s, longest_s):
        try:
            return action()
        except on:
            left = deadline - clock()
            if left <= 0:
                raise
        sleep(min(delay, left))
    raise AssertionError("delays never end")
