"""A plugin of pytest that runs some tests, in this order, and notes the first that fails.

It is copied into the tree under test, so it imports nothing of the bench.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

TESTS, NOTE = "PICKED_TESTS", "PICKED_NOTE"  # variables with the paths of both files


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed = json.loads(Path(os.environ[TESTS]).read_text(encoding="utf-8"))
    places = {name: place for place, name in enumerate(listed)}

    def place(item: pytest.Item) -> int | None:
        return places.get(item.nodeid, places.get(item.nodeid.partition("::")[0]))

    kept = [item for item in items if place(item) is not None]
    config.hook.pytest_deselected(items=[item for item in items if place(item) is None])
    items[:] = sorted(kept, key=lambda item: place(item) or 0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or report.when == "call":
        _note(report.nodeid, report.failed, report.longreprtext)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note(report.nodeid, True, report.longreprtext)


def _note(test: str, has_failed: bool, text: str) -> None:
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    why = (lines or text.strip().splitlines() or [""])[0][:300] if has_failed else ""
    with Path(os.environ[NOTE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, "failed": has_failed, "why": why}) + "\n")
