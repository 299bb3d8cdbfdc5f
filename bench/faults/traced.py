"""A plugin of pytest: times of each test and phase, and a coverage context per test."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def _now() -> tuple[float, float, float]:
    spent = os.times()
    own, children = spent.user + spent.system, spent.children_user + spent.children_system
    return time.monotonic(), own, children


def _measured(item: pytest.Item, phase: str) -> Iterator[None]:
    from coverage import Coverage

    coverage = Coverage.current()
    if coverage is not None:
        coverage.switch_context(item.nodeid)
    before = _now()
    try:
        return (yield)
    finally:
        spent = [round(b - a, 4) for a, b in zip(before, _now(), strict=True)]
        if coverage is not None:
            coverage.switch_context("")
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        file = Path(os.environ["TIMES_FOLDER"], f"{worker}.jsonl")
        with file.open("a", encoding="utf-8") as times:
            times.write(json.dumps([item.nodeid, phase, *spent]) + "\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _measured(item, "setup"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _measured(item, "call"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    return (yield from _measured(item, "teardown"))
