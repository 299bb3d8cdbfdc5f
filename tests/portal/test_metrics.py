"""What a scaler and a dashboard read."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from edgeloop.errors import StoreUnavailable
from edgeloop.workspace import Workspace
from tests.nets import save_tiny

MakeClient = Callable[..., TestClient]
LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (NaN|[-+0-9.e]+)')


def read(text: str) -> dict[str, float]:
    """Every line must be one of the format, or a comment that belongs to what follows."""
    found = {}
    for line in text.splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            continue
        match = LINE.fullmatch(line)
        assert match, line
        found[line.rpartition(" ")[0]] = float(match[3])
    return found


def test_waiting_and_running_follow_the_work(
    make_client: MakeClient, workspace: Workspace, tmp_path: Path
):
    client = make_client()
    for number in range(3):
        workspace.upload(save_tiny(tmp_path / f"net{number}.onnx", seed=number), f"net{number}")

    def numbers() -> dict[str, float]:
        client.app.state.portal.feed().refresh()  # type: ignore[attr-defined]
        return read(client.get("/metrics").text)

    before = numbers()
    assert before['edgeloop_waiting{experiment="default",stage="convert"}'] == 3
    assert before['edgeloop_waiting{experiment="default",stage="f1_onnx"}'] == 3
    assert before['edgeloop_waiting{experiment="default",stage="f1_1k"}'] == 0
    assert before['edgeloop_models{experiment="default",status="new"}'] == 3
    lease = workspace.leases().claim(["quantize"], "bench-1")
    assert lease is not None
    after = numbers()
    assert after['edgeloop_waiting{experiment="default",stage="convert"}'] == 2
    assert after['edgeloop_running{experiment="default",stage="convert"}'] == 1
    assert after['edgeloop_busy_nodes{experiment="default"}'] == 1
    assert after['edgeloop_store_up{experiment="default"}'] == 1
    assert 0 <= after['edgeloop_feed_age_seconds{experiment="default"}'] < 60
    assert after["edgeloop_scrape_seconds"] >= 0


def test_a_machine_that_fell_silent_is_stalled_and_its_work_waits_again(
    make_client: MakeClient, workspace: Workspace
):
    held = {"token": "t", "owner": "dead", "since": 1.0, "expires": time.time() - 3_600}
    row = {"name": "a", "status": "running convert", "node": "dead"}
    workspace.store.models("default").insert("a", {**row, "stages": json.dumps({"convert": held})})
    found = read(make_client().get("/metrics").text)
    assert found['edgeloop_stalled{experiment="default",stage="convert"}'] == 1
    assert found['edgeloop_running{experiment="default",stage="convert"}'] == 0
    assert found['edgeloop_waiting{experiment="default",stage="convert"}'] == 1
    assert found['edgeloop_busy_nodes{experiment="default"}'] == 0


def test_odd_texts_of_rows_break_no_line(make_client: MakeClient, workspace: Workspace):
    workspace.store.models("default").insert("a", {"status": 'q"uote\\back\nline'})
    found = read(make_client().get("/metrics").text)
    assert found['edgeloop_models{experiment="default",status="q\\"uote\\\\back\\nline"}'] == 1


def test_a_store_that_never_answered_is_not_a_store_without_work(
    make_client: MakeClient, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    def away(*_: object) -> None:
        raise StoreUnavailable(store="s", reason="refused")

    monkeypatch.setattr("edgeloop.view.portal.feed.Feed.refresh", away)
    text = make_client().get("/metrics").text
    assert "edgeloop_waiting" not in text
    assert 'edgeloop_store_up{experiment="default"} 0' in text
