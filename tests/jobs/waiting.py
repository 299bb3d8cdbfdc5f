"""Waiting for what other processes do, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeloop.jobs.client import Jobs

LIMIT_S = 60.0


def eventually(is_true: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Until it is true; an assertion if it never is."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def end_all(jobs: Jobs) -> None:
    """No job outlives its test."""
    jobs.wait(jobs.cancel(jobs.refresh(jobs.select(()).runs)), timeout_s=2 * LIMIT_S)
