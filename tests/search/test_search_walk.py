"""Whole searches of tiny nets as a person runs them, from a file to a measured front; one of them
with trainings that take no time, without the farm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from edgeloop.jobs.client import Jobs
from edgeloop.settings import Settings
from tests.peers.ray import RayCluster
from tests.search.program import Program

pytestmark = pytest.mark.slow

QUICK = {"steps": 6, "batch": 8, "learning_rate": 1e-2, "device": "cpu"}
LAPTOP = {"chip_latency_ms": {"device": "htp:qcs8550"}, "val_iou": {"train": QUICK}}

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def edgeloop(program: Program) -> Program:
    program.settings(benchmark_runs=2)
    return program


@pytest.fixture
def start(edgeloop: Program) -> Iterator[Start]:
    """Commands that are ended when the test is."""
    started = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        started.append(edgeloop.start(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("quick")
def test_a_search_ends_with_a_published_front_that_is_then_trained_in_full(edgeloop: Program):
    file = edgeloop.write("laptop", LAPTOP, workers=2, budget=3)
    done = edgeloop("search", file)
    assert done.code == 0, done.err
    assert done.err.splitlines()[-1] == "Results in searches/laptop"
    assert "3 candidates · 0 screened out · 3 trained · front: " in done.out
    on_front = [row for row in edgeloop.table("laptop") if row["is_pareto"] == "1"]
    front = [row["name"] for row in on_front]
    assert front and f"front: {len(front)}" in done.out
    assert all(name in done.out for name in front) and "id_" not in done.out
    pareto = {path.name for path in (edgeloop.folder / "searches/laptop/pareto").iterdir()}
    ids = [row["arch_id"] for row in on_front]
    assert pareto == {f"{arch_id}.{kind}" for arch_id in ids for kind in ("json", "onnx")}
    trained = edgeloop.trainings("laptop")
    assert len(trained) == 3
    assert "continue it with --resume" in edgeloop("search", file).sentence
    rows = edgeloop.status("laptop")
    for name, arch_id in zip(front, ids, strict=True):
        assert rows[name]["architecture"] == rows[f"{name}.trained"]["architecture"] == arch_id
        assert rows[f"{name}.trained"]["status"] == "new"
        assert rows[f"{name}.trained"]["val_iou"] == rows[name]["val_iou"]

    full = edgeloop("search", "train", "laptop", "--epochs", 2, "--json").json
    assert sorted(row["name"] for row in full) == sorted(front)
    assert not any(row["error"] for row in full)
    assert edgeloop.trainings("laptop") == trained, "nothing is trained twice"
    rows = edgeloop.status("laptop")
    for row in full:
        name = row["name"]
        assert row["final_val_iou"] > row["val_iou"] == rows[name]["val_iou"]
        assert rows[name]["final_val_iou"] == row["final_val_iou"]
        assert rows[f"{name}.full"]["final_val_iou"] == row["final_val_iou"]


@pytest.mark.soak
def test_a_laptop_finds_a_front_that_the_farm_measures_and_retrains_it(edgeloop: Program):
    file = edgeloop.write("laptop", LAPTOP, workers=2, pool=3)

    # search
    done = edgeloop("search", file)
    assert done.code == 0, done.err
    assert "4 candidates · 0 screened out · 4 trained · front: " in done.out
    assert "(reference: " in done.out
    found = edgeloop.table("laptop")
    assert len({row["arch_id"] for row in found}) == 4
    ids = {row["name"]: row["arch_id"] for row in found if row["is_pareto"] == "1"}
    front = list(ids)
    assert front and f"front: {len(front)}" in done.out
    pareto = {path.name for path in (edgeloop.folder / "searches/laptop/pareto").iterdir()}
    assert pareto == {f"{arch_id}.{kind}" for arch_id in ids.values() for kind in ("json", "onnx")}

    # once more
    trained = edgeloop.trainings("laptop")
    assert len(trained) == 4
    again = edgeloop("search", file, "--resume")
    assert again.code == 0 and again.out == done.out
    assert edgeloop.trainings("laptop") == trained, "nothing is trained twice"

    # the farm
    runner = edgeloop("runner", "--device", "htp:qcs8550", "-e", "laptop", "--drain")
    assert runner.code == 0, runner.err
    rows = edgeloop.status("laptop")
    for name in front:
        row = rows[f"{name}.trained"]
        assert row["status"] == "complete" and row["mean"] > 0 and 0 <= row["f1_1k"] <= 1
        assert row["val_iou"] == rows[name]["val_iou"]
    others = {row["name"] for row in found} - set(front)
    assert all(f"{name}.trained" not in rows for name in others)

    # train-pareto
    answered = edgeloop("search", "train", "laptop", "--epochs", 2, "--json").json
    full = {row["name"]: row for row in answered}
    assert sorted(full) == sorted(front)
    rows = edgeloop.status("laptop")
    for name in front:
        assert rows[name]["val_iou"] == full[name]["val_iou"]
        assert rows[name]["final_val_iou"] == full[name]["final_val_iou"]
        assert rows[f"{name}.full"]["final_val_iou"] == full[name]["final_val_iou"]
    shown = edgeloop("pareto", "-e", "laptop", "--x", "mean", "--y", "final_val_iou", "--json").json
    assert {row["name"] for row in shown} <= {f"{name}.full" for name in front} and shown
    edgeloop("download", f"{front[0]}.full", "-e", "laptop", "--output", "files")
    known = edgeloop.folder / f"searches/laptop/pareto/{ids[front[0]]}.json"
    assert json.loads((edgeloop.folder / "files/architecture.json").read_text()) == json.loads(
        known.read_text()
    )
    trained = edgeloop.trainings("laptop", "full/training")
    table = edgeloop("search", "train", "laptop", "--epochs", 2)
    assert "partial IoU  full IoU" in table.out
    assert edgeloop.trainings("laptop", "full/training") == trained


@pytest.mark.soak
def test_the_same_on_a_cluster(edgeloop: Program, ray_cluster: RayCluster):
    cluster = {"kind": "ray", "address": ray_cluster.address}
    edgeloop.settings(benchmark_runs=1, computes={"cluster": cluster})
    file = edgeloop.write("cluster", LAPTOP, workers=2)
    on_it = ("compute=cluster", "cpus=0.5", "group=2", "at_once=2")
    words = [f"objectives.val_iou.train.{word}" for word in on_it]
    done = edgeloop("search", file, "search.budget=3", *words)
    assert done.code == 0, done.err
    found = edgeloop.table("cluster")
    assert [row["state"] for row in found] == ["complete"] * 3
    runs = Jobs(Settings.load(edgeloop.folder)).select(()).runs
    assert {run.record.compute for run in runs} == {"cluster"} and len(runs) <= 3
    front = [row["name"] for row in found if row["is_pareto"] == "1"]
    rows = edgeloop.status("cluster")
    assert all(rows[f"{name}.trained"]["status"] == "new" for name in front)

    full = edgeloop(
        "search", "train", "cluster", "--epochs", 1, "--compute", "cluster", "--json"
    ).json
    assert sorted(row["name"] for row in full) == sorted(front)
    assert not any(row["error"] for row in full)


@pytest.mark.soak
def test_runners_measure_candidates_while_the_search_goes_on(edgeloop: Program, start: Start):
    objectives = {
        "farm_latency_ms": {"device": "htp:qcs8550"},
        "farm_f1": {},
        "val_iou": {"train": QUICK},
    }
    file = edgeloop.write("farm", objectives, budget=2, workers=2)
    start("runner", "--device", "htp:qcs8550", "-e", "farm")
    done = edgeloop("search", file, "farm.timeout=4m")
    assert done.code == 0, done.err
    rows = edgeloop.status("farm")
    for item in edgeloop.table("farm"):
        assert item["state"] == "complete", item["reason"]
        model = rows[item["name"]]
        assert float(item["farm_latency_ms"]) == pytest.approx(1000 * model["mean"])
        assert float(item["farm_f1"]) == rows[f"{item['name']}.trained"]["f1_1k"]
