"""What there is to see, from rows as they really are."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest

from edgeloop.errors import BadName, NoSuchModel, NotFound
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.records import Run
from edgeloop.models.runners import CurrentStage, RunnerDevice, RunnerEntry, columns_of
from edgeloop.runner.presence import record_use
from edgeloop.store import Value
from edgeloop.view.portal.shapes import ParetoQuery, TableQuery
from edgeloop.view.portal.state import FEEDS, Cache, Portal, frame_of
from edgeloop.view.portal.views.devices import devices_view
from edgeloop.view.portal.views.jobs import whole_characters
from edgeloop.view.portal.views.model import model_view
from edgeloop.view.portal.views.pareto import compare_view, pareto_view
from edgeloop.view.portal.views.searches import search_view, searches_view
from edgeloop.view.portal.views.table import table_view
from edgeloop.workspace import Workspace
from tests.nets import save_tiny
from tests.portal.conftest import MakeClient
from tests.portal.farm import write_jobs

ROWS: dict[str, dict[str, Value]] = {
    "calm-heron": {"status": "complete", "mean": 0.002, "f1_1k": 0.8, "device": "htp:one"},
    "bold-lynx": {"status": "complete", "mean": 0.010, "f1_1k": 0.9, "tags": '["keep"]'},
    "bold-wren": {"status": "complete", "mean": 0.020, "f1_1k": 0.7, "f1_1k_f": "n/a"},
    "new-newt": {"status": "new"},
    "odd-otter": {"status": "error", "error": "convert: No such operator", "mean": float("nan")},
}


def held(stage: str, node: str, seconds_left: float, queued: bool = False) -> str:
    now = time.time()
    record = {"token": "t", "owner": node, "since": now - 60, "expires": now + seconds_left}
    return json.dumps({stage: {**record, "attempts": 1, "queued": queued}})


@pytest.fixture
def portal(workspace: Workspace) -> Iterator[Portal]:
    table = workspace.store.models(workspace.experiment)
    for name, values in ROWS.items():
        table.insert(name, {"name": name, **values})
    opened = Portal(workspace)
    yield opened
    opened.close()


def found(portal: Portal, **query: object) -> list[str]:
    return [line.name for line in table_view(portal, None, TableQuery(**query)).lines]  # type: ignore[arg-type]


def test_running_and_failed_models_come_first_and_then_names_as_people_count(
    workspace: Workspace, portal: Portal
):
    view = table_view(portal)
    assert [line.name for line in view.lines] == [
        "odd-otter",  # failed
        *("bold-lynx", "bold-wren", "calm-heron", "new-newt"),
    ]
    assert found(portal, sort="name") == sorted(ROWS)
    table = workspace.store.models(workspace.experiment)
    for name, status in (("net-10", "new"), ("Net-2", "new"), ("zoo", "running f1_1k")):
        table.insert(name, {"name": name, "status": status})
    portal.feed().refresh()
    assert found(portal)[:2] == ["zoo", "odd-otter"]
    assert found(portal, text="net-") == ["Net-2", "net-10"]


def test_the_table_counts_by_status(portal: Portal):
    view = table_view(portal)
    assert view.counts == {"complete": 3, "error": 1, "new": 1}
    assert (view.total, view.matching, view.pages) == (5, 5, 1)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"text": "BOLD"}, ["bold-lynx", "bold-wren"]),
        ({"text": "bold-w*"}, ["bold-wren"]),
        ({"text": "*a*"}, ["calm-heron"]),
        ({"text": "no such op"}, ["odd-otter"]),
        ({"text": "keep"}, ["bold-lynx"]),
        ({"text": "[!a-m]*"}, ["new-newt", "odd-otter"]),
        ({"status": "error"}, ["odd-otter"]),
        ({"tag": "keep"}, ["bold-lynx"]),
        ({"device": "htp:one"}, ["calm-heron"]),
        ({"stage": "convert"}, ["new-newt"]),
        ({"status": "complete", "text": "wren"}, ["bold-wren"]),
        ({"text": "'\"<>"}, []),
    ],
)
def test_filters_keep_what_they_say(portal: Portal, query: dict[str, str], names: list[str]):
    assert sorted(found(portal, **query)) == names


def test_sorting_puts_rows_without_a_value_last_either_way(portal: Portal):
    measured = ["calm-heron", "bold-lynx", "bold-wren"]
    assert found(portal, sort="mean") == [*measured, "new-newt", "odd-otter"]
    assert found(portal, sort="mean", descending=True) == [
        *reversed(measured),
        "new-newt",
        "odd-otter",
    ]
    assert found(portal, sort="no_such_column") == sorted(ROWS)
    assert found(portal, sort="name", descending=True) == sorted(ROWS, reverse=True)


def test_numbers_come_before_texts_in_one_column(workspace: Workspace, portal: Portal):
    table = workspace.store.models(workspace.experiment)
    for name, value in (("x1", 9), ("x2", "10"), ("x3", "n/a"), ("x4", 2.5)):
        table.insert(name, {"name": name, "f1_10k": value})
    portal.feed().refresh()
    assert found(portal, sort="f1_10k")[:4] == ["x4", "x1", "x2", "x3"]


def test_pages_follow_each_other_and_end(workspace: Workspace, portal: Portal):
    workspace.store.models(workspace.experiment).insert_many(
        (f"many-{number:03d}", {"status": "new"}) for number in range(120)
    )
    portal.feed().refresh()
    pages = [table_view(portal, None, TableQuery(text="many", page=page)) for page in (1, 2, 3)]
    assert [len(page.lines) for page in pages] == [50, 50, 20]
    assert [line.name for page in pages for line in page.lines] == sorted(
        line.name for page in pages for line in page.lines
    )
    assert table_view(portal, None, TableQuery(text="many", page=99)).query.page == 3
    assert table_view(portal, None, TableQuery(size=7)).query.size == 50


def test_a_line_says_which_machine_does_what_and_until_when(workspace: Workspace, portal: Portal):
    table = workspace.store.models(workspace.experiment)
    table.insert("busy", {"status": "running f1_1k", "stages": held("f1_1k", "bench-1", 60)})
    table.insert("dead", {"status": "running f1_1k", "stages": held("f1_1k", "bench-2", -60)})
    portal.feed().refresh()
    lines = {line.name: line for line in table_view(portal).lines}
    assert [(w.stage, w.node, w.is_stalled) for w in lines["busy"].work] == [
        ("f1_1k", "bench-1", False)
    ]
    assert lines["dead"].work[0].is_stalled
    assert [busy.node for busy in devices_view(portal).now] == ["bench-1", "bench-2"]
    assert found(portal, node="bench-1") == ["busy"]


def test_what_is_claimed_ahead_is_queued_and_no_machines_work(workspace: Workspace, portal: Portal):
    table = workspace.store.models(workspace.experiment)
    queued = held("benchmark", "bench-1/b1", 60, queued=True)
    table.insert("ahead", {"status": "queued on bench-1/b1", "stages": queued})
    portal.feed().refresh()
    (line,) = (line for line in table_view(portal).lines if line.name == "ahead")
    assert not line.work and not devices_view(portal).now
    (stage,) = (s for s in model_view(portal, None, "ahead").stages if s.name == "benchmark")
    assert (stage.state, stage.node) == ("queued", "bench-1/b1")


def test_equal_boards_are_found_by_their_chip_and_one_by_its_serial(
    workspace: Workspace, portal: Portal
):
    table = workspace.store.models(workspace.experiment)
    for name, serial in (("left", "b1"), ("right", "b2")):
        table.insert(name, {"device": "snapdragon-888", "boards": f"adb:{serial}"})
    portal.feed().refresh()
    assert found(portal, device="snapdragon-888") == ["left", "right"]
    assert found(portal, device="Snapdragon 888") == ["left", "right"]
    assert found(portal, device="adb:b2") == ["right"]


def test_a_real_model_walks_along_its_timeline(workspace: Workspace, portal: Portal, tmp_path):
    net = save_tiny(tmp_path / "net.onnx")
    model = workspace.upload(net, "real", tags=['a "quoted" tag'])
    stages = {stage.name: stage for stage in model_view(portal, None, "real").stages}
    assert (stages["convert"].state, stages["f1_1k"].state) == ("ready", "blocked")
    lease = workspace.leases().claim(["quantize"], "bench-1")
    assert lease is not None and lease.model == "real"
    running = {stage.name: stage for stage in model_view(portal, None, "real").stages}["convert"]
    assert (running.state, running.node, running.attempts) == ("running", "bench-1", 1)
    workspace.leases().fail(lease, "GridSample has no counterpart")
    view = model_view(portal, None, "real")
    assert view.stages[0].error == "GridSample has no counterpart"
    assert view.stages[0].state in ("retry", "ready")
    assert [file.name for file in view.files] == ["net.onnx"]
    assert view.line.tags == ('a "quoted" tag',)
    assert model.name == "real"


def test_a_model_of_two_devices_shows_the_stages_of_both(workspace: Workspace, portal: Portal):
    devices = {"qcs8550": "snpe:qcs8550", "htp:x-elite": "qnn:x-elite"}
    row: dict[str, Value] = {
        "name": "both",
        "status": "waiting",
        "quantized": True,
        "toolchain": "snpe",
        **dict.fromkeys(("macs", "params"), 1),
        **dict.fromkeys(("shape", "output_shape"), "[1]"),
        "compiled": "qcs8550",
        "device": "qcs8550",
        "quantized_for_qnn": "n/a",
        "mean_on_htp_x_elite": 0.0005,
        "latency_kind_on_htp_x_elite": "estimate",
        "targets": json.dumps({"primary": "qcs8550", "devices": devices}),
    }
    table = workspace.store.models(workspace.experiment)
    table.insert("both", row)
    converted = {"quantized_for_qnn": True, "compiled_for_qnn": "x-elite"}
    table.insert("left", {**row, "name": "left", **converted})
    portal.feed().refresh()
    stages = {stage.name: stage for stage in model_view(portal, None, "left").stages}
    assert list(stages)[:4] == ["convert", "convert qnn", "benchmark", "benchmark htp:x-elite"]
    assert stages["convert"].title == "convert snpe"
    assert stages["benchmark"].title == "benchmark qcs8550"
    assert stages["benchmark htp:x-elite"].title == "benchmark htp:x-elite"
    assert stages["convert qnn"].state == "done"
    failed = {stage.name: stage.state for stage in model_view(portal, None, "both").stages}
    assert (failed["convert"], failed["convert qnn"]) == ("done", "failed")
    assert "benchmark htp:x-elite" not in failed, "no model is there for that device"
    assert "benchmark htp:x-elite" in table_view(portal).choices.stages
    assert found(portal, stage="benchmark htp:x-elite") == ["left"]
    view = pareto_view(portal, None, ParetoQuery(x="latency_ms_on_htp_x_elite", y="macs"))
    names = [axis.column for axis in view.columns]
    assert names[names.index("mean") + 1] == "mean_on_htp_x_elite"
    assert view.x.column == "mean_on_htp_x_elite" and not view.trouble
    assert [point.is_estimate for point in view.points] == [True, True]
    headings = table_view(portal, None, TableQuery(columns=("mean_on_htp_x_elite",))).headings
    assert headings[2].title == "latency_ms_on_htp_x_elite"


def test_uses_of_devices_say_how_long_a_stage_took(workspace: Workspace, portal: Portal):
    start = datetime.now(UTC) - timedelta(minutes=5)
    usage = workspace.store.usage()
    record_use(
        usage, "htp:one", start, start + timedelta(seconds=90), model="calm-heron", stage="convert"
    )
    usage.insert("zzz-old-tool", {"name": "adb:1", "start": "nonsense", "end": ""})
    convert = model_view(portal, None, "calm-heron").stages[0]
    assert convert.seconds == pytest.approx(90)
    days = devices_view(portal).days
    assert {day.device for day in days} == {"htp:one"}
    assert sum(day.seconds for day in days) == pytest.approx(90)


def test_columns_are_chosen_from_those_that_some_model_has(workspace: Workspace, portal: Portal):
    usual = [heading.name for heading in table_view(portal).headings]
    assert usual[:5] == ["name", "status", "since", "node", "mean"] and usual[-1] == "device"
    row = {"name": "own", "iteration": 3, "my_column": "blue", "stages": "{}", "arch": "{}"}
    workspace.store.models(workspace.experiment).insert("own", row)
    portal.feed().refresh()
    asked = ("my_column", "latency_ms", "iteration", "nobody", "name")
    view = table_view(portal, None, TableQuery(text="own", columns=asked))
    shown = [(heading.name, heading.is_number) for heading in view.headings[2:]]
    assert shown == [("mean", True), ("iteration", True), ("my_column", False)]
    assert view.lines[0].cells == ("own", "", "", "3", "blue")
    offered = {heading.name for heading in view.offered}
    assert offered >= {"since", "node", "device", "mean", "f1_1k", "my_column"}
    assert not offered & {"name", "status", "error", "stages", "arch", "tags"}
    assert table_view(portal, None, TableQuery(columns=("nobody",))).headings[2].name == "since"


def test_models_side_by_side_say_what_differs_and_which_is_best(portal: Portal):
    names = ["bold-lynx", "calm-heron", "gone", "odd-otter", "bold-lynx"]
    view = compare_view(portal, None, names)
    assert [line.name for line in view.lines] == ["bold-lynx", "calm-heron", "odd-otter"]
    assert (view.missing, view.left_out, view.devices) == (("gone",), 0, ("htp:one",))
    rows = {row.column: row for row in view.differing}
    latency = rows["mean"].cells
    assert [(cell.text, cell.difference, cell.is_best) for cell in latency] == [
        *(("10", "", False), ("2", "−80 %", True), ("", "", False))
    ]
    scores = rows["f1_1k"].cells
    assert (scores[0].is_best, scores[1].difference) == (True, "−0.1000")
    assert not rows.keys() & {"name", "status", "error", "tags"}
    same = compare_view(portal, None, ["bold-lynx", "bold-lynx"])
    assert not same.differing and {row.column for row in same.equal} == {"mean", "f1_1k"}


def test_after_a_search_the_front_shows_what_the_search_knows(
    workspace: Workspace, make_client: MakeClient
):
    for name, ms, iou in (("one", 0.001, 0.4), ("two", 0.002, 0.6)):
        row = {"name": name, "mean": ms, "val_iou": iou, "status": "candidate"}
        workspace.store.models(workspace.experiment).insert(name, row)
    view = pareto_view(Portal(workspace))
    assert (view.query.y, view.front) == ("val_iou", 2)
    assert table_view(Portal(workspace)).headings[4].name == "mean"
    assert table_view(Portal(workspace)).headings[5].name == "val_iou"
    assert "on the front" in make_client().get("/pareto").text


def test_a_job_is_painted_with_its_state_only_when_it_was_asked(
    workspace: Workspace, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
):
    write_jobs(workspace)
    asking, answered = threading.Event(), threading.Event()

    def refresh(self: Jobs, runs: Sequence[Run]) -> Sequence[Run]:
        asking.set()
        answered.wait(30)
        return runs

    monkeypatch.setattr(Jobs, "refresh", refresh)
    client = make_client()
    first = client.get("/jobs").text
    assert asking.wait(30)
    assert first.count(">checking…<") == 2 and ">checking</span> <b>2</b>" in first, (
        "two have not ended, as far as their records know"
    )
    assert ">completed<" in first and 'class="state running">' not in first
    answered.set()
    until = time.monotonic() + 30
    while "checking…" in (page := client.get("/jobs").text) and time.monotonic() < until:
        time.sleep(0.05)
    assert ">running<" in page and ">queued<" in page and "as of" not in page
    shown = client.get("/api/v1/jobs").json()
    assert {job["name"] for job in shown["jobs"] if job["asked"]} == {"faces-night", "sweep-7"}


def test_a_model_is_the_best_only_if_the_intervals_tell_it_apart(
    workspace: Workspace, portal: Portal
):
    estimate = {"latency_kind": "estimate", "latency_coverage": 0.9, "status": "complete"}
    scores = {"f1_1k_low": 0.70, "f1_1k_high": 0.80, "f1_1k_images": 200}
    rows = {
        "fast": {"mean": 0.004, "latency_low_ms": 3.0, "latency_high_ms": 5.5, **scores},
        "near": {"mean": 0.005, "latency_low_ms": 4.0, "latency_high_ms": 6.5, **scores},
        "slow": {"mean": 0.009, "latency_low_ms": 7.0, "latency_high_ms": 12.0, **scores},
        "unknown": {"mean": 0.05},
    }
    for place, (name, values) in enumerate(rows.items()):
        row = {"name": name, **estimate, **values, "f1_1k": 0.75 + place / 1000, "macs": place + 1}
        workspace.store.models(workspace.experiment).insert(name, row)

    def best_of(*names: str) -> dict[str, list[bool]]:
        view = compare_view(Portal(workspace), None, names)
        return {row.column: [cell.is_best for cell in row.cells] for row in view.differing}

    near = best_of("fast", "near", "slow")
    assert near["mean"] == [False] * 3 == near["f1_1k"] and near["macs"] == [True, False, False]
    assert best_of("fast", "slow")["mean"] == [True, False]
    assert best_of("fast", "unknown")["mean"] == [False, False], "it may lie anywhere"
    view = compare_view(Portal(workspace), None, ["fast", "slow"])
    cells = {row.column: row.cells[0] for row in view.differing}
    assert (cells["mean"].text, cells["mean"].interval) == ("4", "3 – 5.5")
    assert cells["f1_1k"].interval == "0.700 – 0.800"
    titles = {row.column: row.title for row in view.differing}
    assert titles["f1_1k"] == "F1 on the device, quantized, 200 images"
    assert {row.column for row in view.raw} == {"latency_low_ms", "latency_high_ms"}


def test_every_device_and_machine_has_a_card_the_idle_and_the_lost_too(
    workspace: Workspace, portal: Portal
):
    now = workspace.store.now()
    held_here = {"token": "t", "owner": "lab-10:runner", "since": now - 9, "expires": now + 60}
    stages = json.dumps({"convert": held_here})
    workspace.store.models(workspace.experiment).insert("busy", {"name": "busy", "stages": stages})
    doing = (CurrentStage("benchmark", "calm-heron", now - 30),)
    board = RunnerDevice("adb:1", "busy", can=("device",), doing=doing, celsius=61.0)
    failed = replace(board, error="f1_1k x: unplugged", error_at=now - 500)
    for node, devices, age_s in (
        ("lab-10", (RunnerDevice(can=("quantize",)),), 0),
        ("lab-2", (RunnerDevice(can=("quantize",)), failed), 0),
        ("lost", (replace(failed, device="adb:2"),), 300),
    ):
        entry = RunnerEntry(node, node, "default", devices=devices)
        workspace.store.runners().insert(node, {**columns_of(entry), "beat": now - age_s})
    start = datetime.now(UTC) - timedelta(seconds=1)
    record_use(workspace.store.usage(), "adb:1", start, datetime.now(UTC), owner="lab-2/adb:1")
    portal.feed().refresh()
    view = devices_view(portal)
    cards = {(card.line.machine, card.line.device): card for card in view.cards}
    assert list(cards) == [("lab-2", ""), ("lab-2", "adb:1"), ("lab-10", ""), ("lost", "adb:2")]
    assert [card.line.state for card in view.cards] == ["idle", "busy", "busy", "dead"]
    used = cards["lab-2", "adb:1"]
    assert (used.line.work, used.line.celsius, used.line.error) == (doing, 61.0, failed.error)
    assert (
        used.error_at == pytest.approx(now - 500, abs=60)
        and used.today > 0 == cards["lab-2", ""].today
    )
    assert [work.model for work in cards["lab-10", ""].line.work] == ["busy"]
    lost = cards["lost", "adb:2"]
    assert lost.seen_at == pytest.approx(now - 300, abs=60) and lost.line.celsius is None
    assert [card.line.machine for card in devices_view(portal, state="dead").cards] == ["lost"]
    assert view.counts == {"busy": 2, "idle": 1, "dead": 1}


def test_the_front_is_first_and_what_has_no_number_is_counted(portal: Portal):
    view = pareto_view(portal)
    assert [(point.name, point.is_front) for point in view.points] == [
        ("calm-heron", True),
        ("bold-lynx", True),
        ("bold-wren", False),
    ]
    assert (view.missing, view.hidden, view.trouble) == (2, 0, "")
    assert 'href="#model=calm-heron"' in view.svg
    assert "style=" not in view.svg and "<script" not in view.svg


def test_columns_that_cannot_be_used_are_said(portal: Portal):
    assert "did you mean 'f1_1k'" in pareto_view(portal, None, ParetoQuery(y="f1_1kk:max")).trouble
    assert "less or more" in pareto_view(portal, None, ParetoQuery(x="size_of_it")).trouble
    assert pareto_view(portal, None, ParetoQuery(x="mean", y="mean")).trouble


@pytest.mark.slow
def test_a_huge_cloud_is_thinned_but_never_its_front(workspace: Workspace, portal: Portal):
    workspace.store.models(workspace.experiment).insert_many(
        (f"p{n:05d}", {"mean": 0.001 + n * 1e-6, "f1_1k": 0.5 + (n % 50) / 1e3})
        for n in range(4_000)
    )
    portal.feed().refresh()
    view = pareto_view(portal)
    assert len(view.points) + view.hidden == 4_003
    assert view.hidden > 0
    assert {point.name for point in view.points if point.is_front} >= {"bold-lynx"}


def test_another_experiment_of_the_store_has_its_own_rows(workspace: Workspace, portal: Portal):
    workspace.store.models("other-one").insert("elsewhere", {"status": "new"})
    assert sorted(found(portal)) == sorted(ROWS)
    lines = table_view(portal, "other-one").lines
    assert [line.name for line in lines] == ["elsewhere"]
    assert frame_of(portal, "other-one").experiments == ("default", "other-one")


def test_many_experiments_leave_the_memory_again(workspace: Workspace, portal: Portal):
    for number in range(FEEDS + 4):
        workspace.store.models(f"exp-{number}").insert("a", {})
    for number in range(FEEDS + 4):
        assert table_view(portal, f"exp-{number}").total == 1
    assert len(portal._opened) <= FEEDS
    assert table_view(portal, "exp-0").total == 1


def test_what_is_not_there_is_said(portal: Portal):
    with pytest.raises(NotFound, match="no experiment 'nowhere'"):
        table_view(portal, "nowhere")
    with pytest.raises(BadName):
        table_view(portal, "../etc")
    with pytest.raises(NoSuchModel):
        model_view(portal, None, "nobody")


def test_what_many_want_at_once_is_made_once():
    cache, made, together = Cache(2), [], Barrier(4)

    def ask(_: int) -> int:
        together.wait(30)
        return cache.get("key", lambda: made.append(1) or len(made))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [1, 1, 1, 1]


def test_what_could_not_be_made_is_tried_again_and_old_things_are_forgotten():
    cache = Cache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", lambda: 5) == 5
    for key in "bc":
        cache.get(key, lambda: 0)
    assert cache.get("a", lambda: 6) == 6


@pytest.mark.parametrize("cut", range(1, len("grüße 你好 🚀!".encode()) + 1))
def test_a_log_that_is_cut_anywhere_shows_whole_characters(cut: int):
    text = "grüße 你好 🚀!"
    content = text.encode()
    first = whole_characters(content[:cut])
    assert first.decode() + content[len(first) :].decode() == text
    assert len(first) > cut - 4


def test_bytes_that_are_no_text_are_not_waited_for():
    assert whole_characters(b"\xff\xfe\x80\x80\x80\x80\x80") == b"\xff\xfe\x80\x80\x80\x80\x80"
    assert whole_characters(b"") == b""


@pytest.mark.parametrize("place", ["searches/live", "runs/live/outputs"])
def test_a_search_that_runs_is_shown_from_its_complete_lines(portal: Portal, place: str):
    """Also one that ran as a job, by the job's name."""
    folder = portal.workspace.settings.project / place
    folder.mkdir(parents=True)
    objectives = "objectives:\n  params: {goal: min}\n  val_iou: {goal: max}\n"
    (folder / "search.yaml").write_text(f"experiment: default\n{objectives}")
    (folder / "candidates.csv").write_text(
        "number,iteration,arch_id,state,params,val_iou,reason\n"
        "0,0,id_a,complete,9,0.9,\n2,0,id_c,failed,1,,broken\n1,0,id_b,complete,5,0.5,\n"
        "3,1,id_d,complete,6,0.4,\n4,1,id_e,complete,inf,0.99,\n5,1,id_f,compl"
    )
    (folder / "hypervolume.csv").write_text("candidates,hypervolume\n1,0.5\n2,0.5\n3,0.75\n4,0.7")
    assert "live" in {line.name for line in searches_view(portal).searches}
    view = search_view(portal, None, "live")
    assert (view.search.candidates, view.search.front, view.search.hypervolume) == (5, 2, 0.75)
    assert view.search.counts == {"complete": 4, "failed": 1}
    assert view.columns[-2:] == ("is_pareto", "reason")
    assert [row["arch_id"] for row in view.front] == ["id_b", "id_a"]
    assert [row["is_pareto"] for row in view.candidates] == ["0", "0", "1", "0", "1"]
    assert [item.candidates for item in view.iterations] == [3, 2]


def test_an_estimate_is_shown_with_its_interval_and_a_lower_bound_as_one(
    workspace: Workspace, portal: Portal, make_client: MakeClient
):
    stated = {"latency_low_ms": 0.405, "latency_high_ms": 0.48, "latency_coverage": 0.9}
    shared = {"mean": 0.00044, "f1_1k": 0.95, "latency_kind": "estimate", "status": "complete"}
    runs = {"total_inference_avg": "[0.00044]", "runs": "1, deterministic"}
    basis = {"latency_basis": "errors of 40 networks"}
    table = workspace.store.models(workspace.experiment)
    table.insert("stated", {"name": "stated", **shared, **stated, **runs, **basis})
    table.insert("bound", {"name": "bound", **shared, "latency_missing_ops": 1})
    table.insert("old", {"name": "old", **shared, "latency_margin_percent": 20.0})
    lines = {line.name: line for line in table_view(Portal(workspace)).lines}
    assert str(lines["stated"].interval) == "405 – 480 µs"
    assert lines["stated"].latency_note == "errors of 40 networks"
    assert lines["old"].interval is None and "≥ 0.44" in lines["bound"].cells
    points = {point.name: point for point in pareto_view(Portal(workspace)).points}
    assert points["stated"].interval == lines["stated"].interval and "bound" not in points
    view = model_view(portal, None, "stated")
    benchmark = next(stage for stage in view.stages if stage.name == "benchmark")
    assert (benchmark.runs_done, benchmark.is_deterministic) == (1, True)
    client = make_client()
    table_page = client.get("/").text
    assert ">0.405 – 0.48<" in table_page and "Latency <small>ms</small>" in table_page
    page = client.get("/models/stated").text
    for said in ("90 % interval 405 – 480 µs", "errors of 40 networks", "1 run, deterministic"):
        assert said in page
    assert "a lower bound" in client.get("/models/bound").text
    assert "20 %" not in client.get("/models/old").text
    listed = client.get("/api/v1/pareto").json()["points"]
    expected = {"low_ms": 0.405, "high_ms": 0.48, "coverage": 0.9}
    assert next(one for one in listed if one["name"] == "stated")["interval"] == expected
