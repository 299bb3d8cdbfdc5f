"""The JSON behind the pages, and what is live, by a real server."""

from __future__ import annotations

import csv
import io
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from edgeloop.jobs.client import Jobs
from edgeloop.jobs.spec import spec_of_script
from edgeloop.settings import Settings
from edgeloop.store import open_store, parse_location
from edgeloop.view.portal.app import create_app
from edgeloop.workspace import Workspace
from tests.cli.conftest import command, edgeloop, project
from tests.conftest import STORE_KINDS, StoreUnderTest
from tests.jobs.waiting import eventually
from tests.peers.ports import free_port
from tests.portal.farm import NASTY, NASTY_TAG, SHOWN, files, rows
from tests.portal.live import Events, Live
from tests.portal.serving import Site, portal_here

__all__ = ["command", "edgeloop", "project"]

COUNT = 120


@pytest.fixture(scope="module")
def running(farm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A portal on a copy of the farm, which tests may change."""
    project = tmp_path_factory.mktemp("running") / "project"
    shutil.copytree(farm, project)
    with portal_here(project) as site:
        yield site


# Reading


def test_models_come_by_pages_with_counts(reading: TestClient):
    got = reading.get("/api/v1/models", params={"size": 7, "page": 2}).json()
    assert (got["total"], got["matching"], got["page"], got["pages"]) == (COUNT, COUNT, 2, 18)
    names = sorted(str(row["name"]) for row in rows(COUNT))
    assert [model["name"] for model in got["models"]] == names[7:14]
    assert sum(got["counts"].values()) == COUNT


def test_models_are_filtered_and_sorted(reading: TestClient):
    got = reading.get(
        "/api/v1/models", params={"status": "complete", "sort": "latency_ms", "descending": "true"}
    ).json()["models"]
    latencies = [model["values"]["mean"] for model in got]
    assert latencies == sorted(latencies, reverse=True)
    assert {model["status"] for model in got} == {"complete"}


def test_one_model_has_its_row_stages_and_files(reading: TestClient):
    got = reading.get(f"/api/v1/models/{SHOWN}").json()
    assert got["model"]["name"] == SHOWN
    assert [stage["name"] for stage in got["stages"]][:2] == ["convert", "benchmark"]
    assert {file["name"]: file["size"] for file in got["files"]} == {
        name: len(content) for name, content in files().items()
    }


def test_a_file_comes_as_it_is_and_never_as_a_page(reading: TestClient):
    for name, content in files().items():
        got = reading.get(f"/api/v1/models/{SHOWN}/files/{name}")
        assert got.content == content
        assert got.headers["content-type"] == "application/octet-stream"
        assert got.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        assert "sandbox" in got.headers["content-security-policy"]


@pytest.mark.parametrize(
    "name", ["../../store.db", "..%2F..%2Fstore.db", "no.onnx", "%2e%2e", "a\\b"]
)
def test_only_files_of_the_model_can_be_had(reading: TestClient, name: str):
    got = reading.get(f"/api/v1/models/{SHOWN}/files/{name}")
    assert got.status_code in (307, 400, 404)
    assert b"SQLite" not in got.content


def test_hostile_names_and_tags_are_plain_texts(reading: TestClient):
    got = reading.get("/api/v1/models", params={"tag": NASTY_TAG}).json()
    assert [(model["name"], model["tags"]) for model in got["models"]] == [(NASTY, [NASTY_TAG])]
    one = reading.get(f"/api/v1/models/{httpx.URL('http://x').join(NASTY).raw_path.decode()[1:]}")
    assert one.headers["content-type"] == "application/json"
    page = reading.get("/", params={"tag": NASTY_TAG})
    assert page.status_code == 200
    assert "<script>alert" not in page.text and "<img src=x" not in page.text


def test_the_models_of_a_filter_are_exported_as_csv(reading: TestClient):
    asked = {"text": "calm-*", "status": "error", "columns": "latency_ms,f1_1k"}
    answer = reading.get("/api/v1/models.csv", params=asked)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''default.csv"
    reason = "Converting failed: the operator GridSample has no counterpart on the chip."
    assert answer.text == f"name,status,mean,f1_1k,error\ncalm-ibis,error,,,{reason}\n"
    whole = list(csv.DictReader(io.StringIO(reading.get("/api/v1/models.csv").text)))
    assert len(whole) == 120 and {"name", "device", "macs"} <= whole[0].keys()
    assert whole[0]["status"].startswith("running") and "stages" not in whole[0]


def test_front_devices_searches_and_jobs_are_there(reading: TestClient):
    front = reading.get("/api/v1/pareto").json()
    assert reading.get("/api/v1/pareto", params={"x": "mean"}).json()["points"] == front["points"]
    assert front["points"] and front["points"][0]["is_front"] and 0 < front["hypervolume"] <= 1
    devices = reading.get("/api/v1/devices").json()
    assert len(devices["now"]) == 12 and devices["days"]
    states = {(line["machine"], line["device"]): line["state"] for line in devices["machines"]}
    boards = ("adb:3f9a21", "adb:77c1", "adb:90de", "adb:a001", "adb:b002")
    assert [states["lab-1", board] for board in boards] == [
        *("idle", "hot", "unplugged", "unauthorized", "plugged")
    ]
    assert (states["lab-1", ""], states["quant", ""], states[NASTY, ""]) == ("busy", "idle", "dead")
    assert states["bench-0", "htp:snapdragon-8-gen-2"] == "busy"  # known by its lease alone
    page = reading.get("/devices").text
    assert all(state in page for state in ("unauthorized", "unplugged", "dead", "plugged"))
    assert reading.get("/api/v1/usage", params={"days": 2}).json()["days"]
    searches = reading.get("/api/v1/searches").json()["searches"]
    assert [search["name"] for search in searches] == ["faces"]
    search = reading.get("/api/v1/searches/faces").json()
    assert search["search"]["candidates"] == len(search["candidates"]) > 0
    assert search["curve"][-1][1] == search["search"]["hypervolume"]
    assert reading.get("/api/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("models/nobody", 404),
        ("models/nobody/files", 404),
        ("models?experiment=nowhere", 404),
        ("models?experiment=../x", 400),
        ("jobs/nobody", 404),
        ("jobs/nobody/log", 404),
        ("jobs/..%2f..", 404),
        ("searches/..", 404),
        ("events?experiment=nowhere", 404),
        ("nothing", 404),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(reading: TestClient, path: str, status: int):
    got = reading.get(f"/api/v1/{path}")
    assert got.status_code == status
    assert got.json()["detail"]


def test_the_description_names_what_there_is(reading: TestClient):
    paths = reading.get("/api/openapi.json").json()["paths"]
    assert {"/api/v1/models", "/api/v1/events", "/api/v1/models/{name}/reset"} <= set(paths)
    assert reading.get("/docs").status_code == 404


@pytest.mark.parametrize("kind", STORE_KINDS)
def test_every_kind_of_store_is_shown(
    kind: str, make_place: Callable[[str], StoreUnderTest], tmp_path: Path
):
    place = make_place(kind)
    key = place.url.partition("AccountKey=")[2].partition(";")[0]
    settings = Settings.load(tmp_path, place.environ)
    with Workspace(settings, open_store(parse_location(place.url))) as workspace:
        workspace.store.models("default").insert("a", {"status": "new", "n": 2**40})
        workspace.store.blobs.put("default/a/notes.txt", b"hello")
        with TestClient(create_app(workspace), "http://localhost:8750") as client:
            got = client.get("/api/v1/models").json()
            assert [(model["name"], model["values"]["n"]) for model in got["models"]] == [
                ("a", 2**40)
            ]
            assert client.get("/api/v1/models/a/files/notes.txt").content == b"hello"
            for page in ("/", "/models/a", "/devices", "/metrics"):
                got = client.get(page)
                assert got.status_code == 200
                assert "AccountKey" not in got.text and "password" not in got.text
                assert key == "" or key not in got.text


def test_a_store_that_is_away_is_said_and_breaks_no_page(tmp_path: Path):
    nowhere = f"postgresql://me:s3cr3t@127.0.0.1:{free_port()}/db?blobs=file://{tmp_path}/files"
    with (
        Workspace(Settings.load(tmp_path, {}, store=nowhere)) as workspace,
        TestClient(create_app(workspace), "http://localhost:8750") as client,
    ):
        page = client.get("/")
        assert page.status_code == 200
        assert "cannot be reached" in page.text and "s3cr3t" not in page.text
        assert client.get("/api/v1/health").json()["status"] == "stale"
        assert client.get("/api/v1/models").json()["models"] == []
        refused = client.get("/api/v1/models/a")
        assert refused.status_code == 503
        assert "s3cr3t" not in refused.json()["detail"]
        assert 'edgeloop_store_up{experiment="default"} 0' in client.get("/metrics").text


# Live


@pytest.mark.slow
def test_a_change_in_the_store_is_told(running: Site):
    events = Events(running.at("/api/v1/events"))
    eventually(lambda: events.told)
    assert events.told[0][1]["all"]
    with running.workspace() as workspace:
        workspace.store.models("default").insert("live-one", {"status": "new"})
        eventually(lambda: "live-one" in events.names())
        got = httpx.get(running.at("/api/v1/models"), params={"text": "live-one"}).json()
        assert got["matching"] == 1
        workspace.catalog.delete("live-one")
    eventually(lambda: any("live-one" in data.get("gone", ()) for _, data in events.told))


@pytest.mark.slow
def test_whoever_comes_back_is_told_what_was_missed_and_nothing_else(running: Site):
    first = Events(running.at("/api/v1/events"))
    eventually(lambda: first.told)
    last = first.told[-1][1]["event"]
    with running.workspace() as workspace:
        workspace.store.models("default").insert("missed-one", {"status": "new"})
        eventually(lambda: "missed-one" in first.names())
        again = Events(running.at("/api/v1/events"), {"Last-Event-ID": last})
        eventually(lambda: "missed-one" in again.names())
        assert not any(data["all"] for _, data in again.told)
        stranger = Events(running.at("/api/v1/events"), {"Last-Event-ID": "feedcafe-1"})
        eventually(lambda: stranger.told)
        assert stranger.told[0][1]["all"]


@pytest.mark.slow
def test_a_job_shows_its_log_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    go = tmp_path / "go"
    project = tmp_path / "project"
    project.mkdir()
    (project / "edgeloop.yaml").write_text("experiment: default\n")
    script = project / "slow.py"
    script.write_text(
        "import pathlib, sys, time\n"
        "print('first grüße password=hunter2hunter2', flush=True)\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)\n"
        "print('second', flush=True)\n"
    )
    monkeypatch.chdir(project)
    run = Jobs.open().submit(spec_of_script(str(script), [], {}))[0]
    with portal_here(project) as site:
        api = site.at(f"/api/v1/jobs/{run.name}")
        events = Events(f"{api}/log/events")

        def said() -> str:
            return "".join(data["text"] for kind, data in events.told if kind == "log")

        eventually(lambda: "first grüße password=***\n" in said())
        assert "second" not in said()
        go.touch()
        eventually(lambda: "second\n" in said())
        eventually(lambda: events.ended.is_set() and events.told[-1][0] == "end")
        whole = httpx.get(f"{api}/log").json()
        assert whole["text"] == said()
        assert whole["is_final"] and whole["end"] == whole["size"]
        rest = httpx.get(f"{api}/log", params={"offset": 6, "limit": 16}).json()
        assert (rest["start"], rest["text"]) == (6, "grüße password")
        for offset in range(rest["end"], 40):  # not even from the middle of the secret
            part = httpx.get(f"{api}/log", params={"offset": offset, "limit": 16}).json()
            assert "unter" not in part["text"] and "2h" not in part["text"]
        eventually(lambda: httpx.get(api).json()["job"]["state"] == "completed")


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_though_somebody_listens(farm: Path):
    portal = Live(farm)
    events = Events(f"{portal.address}api/v1/events")
    eventually(lambda: events.told)
    code, err = portal.end(signal.SIGINT)
    assert (code, err) == (130, "Stopped; the portal is closed.\n")
    assert events.ended.wait(30)


# Starting


@pytest.mark.server
def test_a_port_that_is_taken_is_said_in_a_sentence(edgeloop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = edgeloop("portal", "--port", port).sentence
    assert f"127.0.0.1:{port} is in use" in said and "--port 0" in said


def test_without_the_packages_it_says_what_to_install(edgeloop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'edgeloop[portal]'" in edgeloop("portal", "--port", 0).sentence
