"""Rows, files and records that no Edgeloop wrote: one of them must not hide all the others."""

from __future__ import annotations

import json
import math
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from edgeloop.store import Value
from edgeloop.view.portal.views import pareto
from edgeloop.workspace import Workspace
from tests.portal.conftest import MakeClient

GOOD: dict[str, Value] = {
    "status": "complete",
    "mean": 0.002,
    "stdev": 2.0,
    "f1_1k": 0.9,
    "quantized": True,
    "device": "host",
}
DEEP = "[" * 100_000


def held(since: str, expires: str = "1.9e9", owner: str = '"m"') -> dict[str, Value]:
    record = f'{{"token": "t", "owner": {owner}, "since": {since}, "expires": {expires}}}'
    return {"status": "running f1_10k", "stages": f'{{"f1_10k": {record}}}'}


def files(text: str) -> dict[str, Value]:
    return {"stages": f'{{"convert": {{"files": {text}}}}}'}


ODD: dict[str, dict[str, Value]] = {
    "no-number": {"mean": math.nan, "f1_1k": math.inf, "iteration": -math.inf},
    "too-large": {"mean": 1e306, "f1_1k": 1e308, "stdev": 1e308},
    "far-below": {"mean": 1e302, "f1_1k": -1e308},
    "since-nan": held("NaN", "NaN"),
    "since-infinity": held("Infinity", "-Infinity"),
    "since-huge": held("1e30", "1e30"),
    "since-digits": held("1" + "0" * 400, "1" + "0" * 400),
    "owner-list": held("1.7e9", owner='["a"]'),
    "files-number": files("5"),
    "files-list": files('["a", 5]'),
    "files-mixed": files('{"a": 5, "b": null}'),
    "deep-stages": {"stages": DEEP},
    "deep-tags": {"tags": DEEP},
    "deep-runs": {"mean": None, "total_inference_avg": DEEP},
    "late": {"since": "9999-12-31T23:59:59-23:00"},
    "control": {"device": "a\x01b\x1b[31mc\ufffe"},
    "רשת-😀": {"error": "\u202e" + "e" * 50_000, "status": "error"},
    "esc\x1b[31mape": {},
}
PAGES = ("/", "/?sort=mean", "/?sort=since", "/pareto", "/devices", "/metrics", "/parts/table")
ANSWERS = ("/api/v1/models?size=100", "/api/v1/pareto", "/api/v1/devices")


def insert(workspace: Workspace, rows: dict[str, dict[str, Value]]) -> None:
    table = workspace.store.models(workspace.experiment)
    for name, values in rows.items():
        table.insert(name, {"name": name, **GOOD, **values})


def test_odd_rows_are_shown_among_the_others(make_client: MakeClient, workspace: Workspace):
    insert(workspace, {**ODD, "fine": {}})
    client = make_client()
    own = [f"/models/{quote(name)}" for name in ODD if name.isprintable()]
    for path in (*PAGES, *ANSWERS, *own):
        assert client.get(path).status_code == 200, path
    assert client.get("/api/v1/models").json()["total"] == len(ODD) + 1
    compared = client.get("/api/v1/pareto").json()
    assert math.isfinite(compared["hypervolume"])
    assert all(math.isfinite(point["x"] + point["y"]) for point in compared["points"])


def test_damaged_files_hide_nothing_of_their_model(make_client: MakeClient, workspace: Workspace):
    insert(workspace, {"fine": {}})
    damaged = {
        "perf_results_1.csv": bytes(range(256)) * 20,
        "test_results_f1_1k.csv": b"metric,a\nf1," + b"x" * 200_000,
        "pr_curve_f1_1k.csv": b'class,"recall\n' + b"y" * 200_000,
        "pr_curve_f1_1k.png": b"\x89PNG\r\n\x1a\ncut",
    }
    for name, content in damaged.items():
        workspace.store.blobs.put(f"{workspace.experiment}/fine/{name}", content)
    got = make_client().get("/models/fine")
    assert got.status_code == 200
    assert all(name in got.text for name in damaged)


def test_a_layer_with_a_control_character_in_its_name_is_drawn(
    make_client: MakeClient, workspace: Workspace
):
    insert(workspace, {"fine": {}})
    perf = "what,name,operator,time_us,kind\nlayer,a\x01b,Conv,5,measured\n"
    workspace.store.blobs.put(f"{workspace.experiment}/fine/perf_results_1.csv", perf.encode())
    assert "a\ufffdb" in make_client().get("/models/fine").text


def test_a_front_of_equal_models_is_drawn_in_part_and_counted_whole(
    make_client: MakeClient, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pareto, "MOST_POINTS", 3)
    insert(workspace, {f"tie-{number}": {} for number in range(10)} | {"beaten": {"f1_1k": 0.1}})
    client = make_client()
    found = client.get("/api/v1/pareto").json()
    assert [point["name"] for point in found["points"]] == ["tie-0", "tie-3", "tie-6"]
    assert (found["front"], found["hidden"]) == (10, 8)
    page = client.get("/pareto").text
    assert "<b>10</b><span>on the front</span>" in page and "The front, 10 models" in page


@pytest.mark.parametrize(
    ("of_record", "of_status"),
    [
        ({}, {"started": math.nan, "ended": math.inf}),
        ({}, {"started": 1e30, "ended": 1e31}),
        ({"created": "9999-12-31T23:59:59-23:00"}, {}),
    ],
)
def test_a_job_with_odd_values_has_its_page(
    workspace: Workspace, make_client: MakeClient, of_record: dict, of_status: dict
):
    write_job(workspace, "odd", of_record, of_status)
    client = make_client()
    assert client.get("/jobs/odd").status_code == 200
    assert jobs_shown(client) == ["odd"]


def test_a_job_whose_record_is_nonsense_is_named_and_hides_no_other(
    workspace: Workspace, make_client: MakeClient
):
    write_job(workspace, "fine")
    write_job(workspace, "wrong", {"params": [1]})
    write_job(workspace, "odd", {"command": [1, "a b"]})
    client = make_client()
    assert jobs_shown(client) == ["fine"]
    for name in ("wrong", "odd"):
        assert f"runs/{name}/job.json: is damaged" in client.get("/jobs").text
        got = client.get(f"/api/v1/jobs/{name}")
        assert got.status_code == 502 and "is damaged" in got.json()["detail"]


def test_of_very_many_jobs_the_newest_are_shown(
    workspace: Workspace, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("edgeloop.view.portal.views.jobs.MOST_JOBS", 2)
    for number in range(1, 4):
        write_job(workspace, f"j-{number}", {"created": f"2026-01-0{number}T00:00:00+00:00"})
    client = make_client()
    assert jobs_shown(client) == ["j-3", "j-2"]
    assert client.get("/api/v1/jobs").json()["counts"] == {"completed": 3}
    assert "1 older jobs are not shown" in client.get("/jobs").text


def jobs_shown(client: TestClient) -> list[str]:
    return [job["name"] for job in client.get("/api/v1/jobs").json()["jobs"]]


def write_job(
    workspace: Workspace, name: str, of_record: dict | None = None, of_status: dict | None = None
) -> None:
    folder = Path(workspace.settings.project) / "runs" / name
    folder.mkdir(parents=True)
    record = {
        "id": f"{name}-1-qmwz4sk2tt",
        "name": name,
        "created": "2026-01-01T00:00:00+00:00",
        "experiment": "default",
        "spec": {"code": ".", "script": "t.py", "compute": "local"},
        "compute": "local",
        "kind": "local",
        "config": {"kind": "local"},
        "store": "",
        "code": "d11a0bd7727d6f320499c04d24c21093fd6a284b",
        "inputs": [],
        "command": ["python", "t.py"],
        "params": {},
        "tags": [],
        "attempt": 1,
        "parent": None,
        **(of_record or {}),
    }
    status = {"state": "completed", "exit_code": 0, **(of_status or {})}
    (folder / "job.json").write_text(json.dumps(record))
    (folder / "state.json").write_text(json.dumps({"status": status, "cancel_asked": False}))
