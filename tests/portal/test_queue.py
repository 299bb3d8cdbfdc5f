"""Waiting work for scalers: as KEDA reads it, and the same wherever one looks."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from edgeloop.errors import StoreUnavailable
from edgeloop.models.runners import RunnerDevice, RunnerEntry, columns_of
from edgeloop.store import Record, Table
from edgeloop.workspace import Workspace
from tests.cli.running import run_command
from tests.portal.test_metrics import LINE

MakeClient = Callable[..., TestClient]
BOARD_CAN = ("device", "device@snapdragon-888", "device@adb:8c2f", "device@snpe")


def keda_prometheus(text: str, location: str) -> float:
    """What the metrics-api scaler makes of a page: the first series of this name that has all
    these labels. That there is none is an error, not a 0."""
    name, _, inside = location.removesuffix("}").partition("{")
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', inside))
    for line in text.splitlines():
        match = None if line.startswith("#") else LINE.fullmatch(line)
        if match and match[1] == name:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            if wanted.items() <= labels.items():
                return float(match[3])
    raise LookupError(location)


def keda_json(found: Any, location: str) -> float:
    """The number at a path of gjson, in which a dot of a name is escaped."""
    for part in re.split(r"(?<!\\)\.", location):
        found = found[part.replace("\\.", ".")]
    assert isinstance(found, int | float) and not isinstance(found, bool)
    return found


def register(workspace: Workspace, node: str, *devices: RunnerDevice, age_s: float = 0.0) -> None:
    entry = RunnerEntry(f"{node}|1", node, workspace.experiment, toolchain="snpe", devices=devices)
    beat = workspace.store.now() - age_s
    workspace.store.runners().insert(entry.id, {**columns_of(entry), "beat": beat})


def fill(workspace: Workspace) -> None:
    """A bit of everything: claimed, stalled, claimed ahead, retried, in error, of other tools."""
    now, models = time.time(), workspace.store.models(workspace.experiment)
    done = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
    done |= {"status": "waiting", "toolchain": "qnn", "f1_onnx": 0.8}
    held = {"token": "t", "owner": "n", "since": now - 900, "attempts": 1}

    def stages(stage: str, **record: object) -> dict[str, Any]:
        return {"node": "n", "stages": json.dumps({stage: {**held, **record}})}

    rows: dict[str, dict[str, Any]] = {
        **{f"new-{i}": {"status": "new"} for i in range(4)},
        "prior": {"status": "new", "priority": 0},
        "running": {"status": "running convert", **stages("convert", expires=now + 600)},
        "stalled": {"status": "running convert", **stages("convert", expires=now - 600)},
        "ahead": {"status": "queued on n", **stages("convert", expires=now + 600, queued=True)},
        "late": {**done, "stages": json.dumps({"benchmark": {"not_before": now + 600}})},
        "pinned": {**done, "device": "htp:snapdragon-888", "total_inference_avg": "[0.1]"},
        "dotted": {**done, "device": "adb:10.0.0.5:5555"},
        "by-archai": {**done, "toolchain": "", "stages": ""},
        "foreign": {"status": "new", "node": "archai-host"},
        "failed": {**done, "status": "error", "device": "htp:snapdragon-888"},
        "complete": {**done, "status": "complete", "device": "htp:hexagon-v73"},
        "odd": {"status": "new", "stages": '{"convert": {"token": 1, "expires": []}}'},
        "no-status": {},
    }
    models.insert_many({name: {"name": name, **row} for name, row in rows.items()}.items())
    register(workspace, "bench", RunnerDevice("", can=("quantize", "onnx")))
    register(workspace, "gone", RunnerDevice("adb:8c2f", can=BOARD_CAN), age_s=100)


@pytest.fixture
def told(make_client: MakeClient, workspace: Workspace) -> Iterator[tuple[Any, str]]:
    """The JSON and the metrics of a filled table."""
    fill(workspace)
    client = make_client()
    yield client.get("/api/queue").json(), client.get("/metrics").text


def test_portal_and_command_tell_the_same(
    told: tuple[Any, str], workspace: Workspace, tmp_path: Path
):
    found, page = told
    done = run_command(
        ["queue", "--json"], tmp_path, {"EDGELOOP_STORE": f"sqlite:{tmp_path}/store"}
    )
    lines = {line["capability"]: line for line in done.json}
    assert (
        lines["linux"]["ready"] == 4 + 1 + 1 + 1 + 1 + 9
    )  # new, prior, stalled, ahead, odd; f1_onnx
    assert list(lines) == [
        *("linux", "device", "adb:10.0.0.5:5555", "htp:snapdragon-888", "snapdragon-888", "snpe"),
    ]
    names = {"waiting_total": "ready", "work_running": "running", "work_blocked": "blocked"}
    names |= {"runners_wanted": "runners", "runners_able": "have"}
    for capability, line in lines.items():
        path = capability.replace(".", "\\.")
        for metric, key in names.items():
            location = f'edgeloop_{metric}{{experiment="default",capability="{capability}"}}'
            of_json = {"runners": "wanted"}.get(key, key)
            assert keda_prometheus(page, location) == line[key], location
            assert keda_json(found, f"{path}.{of_json}") == line[key], location
        for stage, count in line["stages"].items():
            assert keda_json(found, f"{path}.stages.{stage}") == count
    for key in ("ready", "running", "blocked"):
        assert found["total"][key] == sum(line[key] for line in lines.values())
    waiting = {stage: keda_json(found, f"total.stages.{stage}") for stage in ("convert", "f1_onnx")}
    for stage, count in waiting.items():
        location = f'edgeloop_waiting{{stage="{stage}"}}'
        assert keda_prometheus(page, location) == count


def test_a_number_is_there_even_if_nothing_waits(make_client: MakeClient, workspace: Workspace):
    """A missing one is an error of the scaler."""
    client = make_client()
    for capability in ("linux", "device"):
        page, found = client.get("/metrics").text, client.get("/api/queue").json()
        for metric in ("waiting_total", "work_running", "oldest_seconds", "runners_wanted"):
            assert keda_prometheus(page, f'edgeloop_{metric}{{capability="{capability}"}}') == 0
        assert keda_json(found, f"{capability}.ready") == keda_json(found, "total.wanted") == 0
    for state in ("working", "idle", "dead"):
        assert keda_prometheus(page, f'edgeloop_runners{{state="{state}"}}') == 0
    with pytest.raises(LookupError):
        keda_prometheus(page, 'edgeloop_waiting_total{capability="htp:snapdragon-888"}')
    asked = {"capability": ["htp:snapdragon-888", "linux", "total"]}
    page = client.get("/metrics", params=asked).text
    assert keda_prometheus(page, 'edgeloop_waiting_total{capability="htp:snapdragon-888"}') == 0
    found = client.get("/api/queue", params=asked).json()
    assert keda_json(found, "htp:snapdragon-888.ready") == 0


def test_conversion_has_a_number_for_each_toolchain(make_client: MakeClient, workspace: Workspace):
    """Also where nothing waits for it: a scaler of that line asks for it all the same."""
    devices = {"qcs8550": "snpe:qcs8550", "htp:x-elite": "qnn:x-elite"}
    targets = json.dumps({"primary": "qcs8550", "devices": devices})
    asked = {"benchmark_only": 1, "targets": targets}
    done = {"quantized": True, "toolchain": "snpe", "device": "qcs8550", "quantized_for_qnn": True}
    rows = {"new": {"status": "new"}, "done": {"status": "complete", **done}}
    models = workspace.store.models(workspace.experiment)
    models.insert_many((name, {"name": name, **row, **asked}) for name, row in rows.items())
    register(workspace, "sdk", RunnerDevice("", can=("quantize", "quantize@snpe", "onnx")))
    client = make_client()
    page, found = client.get("/metrics").text, client.get("/api/queue").json()
    for toolchain, have in (("snpe", 1), ("qnn", 0)):
        line = f"convert {toolchain}"
        assert keda_json(found, f"{line}.wanted") == 1
        assert keda_json(found, f"{line}.have") == have
        assert keda_prometheus(page, f'edgeloop_waiting_total{{capability="{line}"}}') == 1
    assert keda_prometheus(page, 'edgeloop_waiting{stage="convert qnn"}') == 1
    assert keda_json(found, "linux.wanted") == 0
    models.update(record_of(models, "new"), {"status": "complete", **done})
    found = make_client().get("/api/queue", params={"capability": "convert tvm"}).json()
    for line in ("convert snpe", "convert qnn", "convert tvm"):
        assert keda_json(found, f"{line}.wanted") == 0
    assert "<td>convert snpe</td>" in make_client().get("/devices").text


def record_of(models: Table, name: str) -> Record:
    record = models.get(name)
    assert record is not None
    return record


def test_types_of_finished_models_and_of_dead_runners_are_not_forgotten(told: tuple[Any, str]):
    found, page = told
    for capability in ("htp:hexagon-v73", "snapdragon-888"):
        location = f'edgeloop_waiting_total{{experiment="default",capability="{capability}"}}'
        assert keda_prometheus(page, location) == 0
        assert keda_json(found, f"{capability}.have") == 0
    assert found["runners"] == {"working": 0, "idle": 1, "dead": 1}
    assert keda_prometheus(page, 'edgeloop_runners{state="dead"}') == 1


def test_one_experiment_at_a_time(make_client: MakeClient, workspace: Workspace):
    fill(workspace)
    workspace.store.models("other").insert("a", {"status": "new", "benchmark_only": 1})
    client = make_client()
    found = client.get("/api/queue?experiment=other").json()
    assert (found["experiment"], found["total"]["ready"]) == ("other", 1)
    assert found["runners"] == {"working": 0, "idle": 0, "dead": 0}
    page = client.get("/metrics?experiment=other").text
    assert keda_prometheus(page, 'edgeloop_waiting_total{experiment="other"}') == 1
    assert client.get("/api/queue?experiment=nobody").status_code == 404


def test_both_need_the_token(make_client: MakeClient):
    client = make_client(token="secret-of-the-farm", host="0.0.0.0")
    for path in ("/api/queue", "/metrics"):
        assert client.get(path).status_code == 401
        headers = {"authorization": "Bearer secret-of-the-farm"}
        assert client.get(path, headers=headers).status_code == 200


def test_a_store_that_never_answered_is_an_error_and_not_a_zero(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
):
    def away(*_: object) -> None:
        raise StoreUnavailable(store="s", reason="refused")

    monkeypatch.setattr("edgeloop.view.portal.feed.Feed.refresh", away)
    client = make_client()
    answer = client.get("/api/queue")
    assert answer.status_code == 503 and "work is unknown" in answer.json()["detail"]
    assert "edgeloop_waiting_total" not in client.get("/metrics").text


def test_the_page_of_devices_shows_waiting_work_and_the_dead(
    make_client: MakeClient, workspace: Workspace
):
    fill(workspace)
    page = make_client().get("/devices").text
    row = re.search(r"<tr><td>linux</td>(.*?)</tr>", page)
    assert row, page
    assert re.findall(r'<td class="n">(\d+)</td>', row[1])[:2] == ["17", "1"]
    assert re.search(r">dead</span> <b>1</b>", page)
    assert "its runner (process 0) no longer answers" in page
