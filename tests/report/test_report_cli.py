"""pareto and report as a person calls them, on a store with models and their files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from edgeloop import Workspace
from edgeloop.view.demo import open_demo
from tests.cli.running import Finished
from tests.report.pages import read, references
from tests.report.tables import table
from tests.report.test_charts import PERF, SCORES
from tests.report.test_html import EVIL, picture

Edgeloop = Callable[..., Finished]
ROWS = [
    {"name": "slow", "mean": 0.02, "stdev": 5.0, "f1_1k": 0.9, "device": "host", "params": 5},
    {"name": "quick", "mean": 0.01, "f1_1k": 0.8, "latency_kind": "estimate", "device": "htp"},
    {"name": "beaten", "mean": 0.03, "f1_1k": 0.8, "f1_1k_f": "n/a", "params": 1},
    {"name": "new", "status": "new"},
]


def fill(rows: list[dict]) -> None:
    with Workspace.open() as workspace:
        for row in rows:
            workspace.store.models("default").insert(str(row["name"]), row)


@pytest.fixture
def filled(project: Path) -> Iterator[Path]:
    fill(ROWS)
    yield project


def test_the_front_is_a_table_and_a_plot(filled: Path, edgeloop: Edgeloop):
    said = edgeloop("pareto", "--device", "*")
    lines = said.out.splitlines()
    assert lines[0].split() == ["name", "latency_ms", "f1_1k", "iteration", "device"]
    assert lines[1].split() == ["quick", "10", "est", "0.8000", "htp"]
    assert lines[2].split() == ["slow", "20", "±", "1", "0.9000", "host"]
    assert "● front   ○ front, latency estimated   · others" in lines
    assert lines[-2] == "2 of 3 models; 1 without all values left out"
    assert lines[-1] == "hypervolume 0.211 (reference: latency_ms 32, f1_1k 0.7900)"
    assert "One front across devices, whose numbers do not compare: no device" in said.err


def test_a_front_is_of_one_device_and_says_which(filled: Path, edgeloop: Edgeloop):
    fill([{"name": "quicker", "mean": 0.00031, "f1_1k": 0.7, "device": "htp"}])
    said = edgeloop("pareto", "-o", "front.svg")
    assert [line.split()[0] for line in said.out.splitlines()[1:3]] == ["quicker", "quick"]
    note = "Front of htp; not shown: no device named (1), host (1)"
    assert f"{note}. Choose with --device" in said.err
    assert note in (filled / "front.svg").read_text()
    assert "not shown" not in edgeloop("pareto", "--device", "htp").err
    edgeloop("report")
    text = (filled / "report.html").read_text()
    assert "Front of htp" in text and note in text


def test_programs_get_json_in_the_units_of_the_screen(filled: Path, edgeloop: Edgeloop):
    found = edgeloop("pareto", "--device", "host", "--json").json
    expected = {"name": "slow", "latency_ms": 20.0, "f1_1k": 0.9, "stdev": 5.0, "device": "host"}
    assert found == [expected]


def test_columns_and_goals_are_free(filled: Path, edgeloop: Edgeloop):
    options = ("--x", "mean", "--x-goal", "max", "--objective", "params:min", "--json")
    options += ("--device", "*")
    assert [row["name"] for row in edgeloop("pareto", *options).json] == ["beaten", "slow"]


def test_a_slip_of_the_hand_is_one_sentence(filled: Path, edgeloop: Edgeloop):
    assert "did you mean 'f1_1k'" in edgeloop("pareto", "--y", "f1_1kk:max").sentence
    assert "twice" in edgeloop("pareto", "--x", "mean", "--y", "latency_ms").sentence
    assert "no/front.csv" in edgeloop("pareto", "-o", "no/front.csv").sentence
    assert edgeloop("pareto", "-o", "front.pdf").code == 2


def test_no_numbers_yet_is_no_error(project: Path, edgeloop: Edgeloop):
    said = edgeloop("pareto")
    assert (said.code, said.out) == (0, "")
    assert said.err.splitlines() == [
        "There is no store at .edgeloop yet. Next: edgeloop upload MODEL.onnx"
    ]
    with Workspace.open() as workspace:
        workspace.store.models("default").insert("m", {"name": "m", "status": "new"})
    expected = "No model has latency_ms and f1_1k yet. See: edgeloop status\n"
    assert edgeloop("pareto").out == expected


@pytest.mark.slow
def test_files_are_what_their_endings_say(project: Path, edgeloop: Edgeloop):
    fill(table(12, 3))
    names = ["front.csv", "front.png", "front.svg", "front.html", "front.gif"]
    said = edgeloop("pareto", "--dark", *(part for name in names for part in ("-o", name)))
    assert said.code == 0 and said.err.splitlines() == [f"{name} written" for name in names]
    with (project / "front.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    front = edgeloop("pareto", "--json").json
    assert [row["name"] for row in rows] == [row["name"] for row in front]
    assert [float(row["latency_ms"]) for row in rows] == [row["latency_ms"] for row in front]
    assert float(rows[0]["mean"]) == pytest.approx(front[0]["latency_ms"] / 1e3)
    with Image.open(project / "front.png") as image:
        assert image.convert("RGB").getpixel((1, 1)) == (22, 24, 29)
    with Image.open(project / "front.gif") as image:
        assert image.n_frames == 3
    assert (project / "front.svg").read_text().startswith("<svg")
    assert references((project / "front.html").read_text()) == []


def test_a_terminal_without_unicode_gets_plain_characters(filled: Path, command: Edgeloop):
    said = command(
        "pareto", "--device", "*", environ={"PYTHONIOENCODING": "ascii:replace", "COLUMNS": "50"}
    )
    assert "* front   o front, latency estimated   . others" in said.out
    plot = said.out[said.out.index("\n\nf1_1k") :].splitlines()
    assert max(map(len, plot)) <= 64


def test_the_report_reads_rows_files_and_use(filled: Path, edgeloop: Edgeloop):
    with Workspace.open() as workspace:
        for name, content in {
            "perf_results_2.csv": PERF.replace("80.5", "81.5").encode(),
            "perf_results_10.csv": PERF.encode(),
            "test_results_f1_1k.csv": SCORES.encode(),
            "pr_curve_f1_1k.png": picture(),
        }.items():
            workspace.store.blobs.put(f"default/quick/{name}", content)
        workspace.store.usage().insert(
            "1", {"name": "htp", "start": "2026-11-01T10:00:00", "end": "2026-11-01T22:00:00"}
        )
    said = edgeloop("report", "-o", "all.html", "--device", "*")
    text = (filled / "all.html").read_text()
    size = len(text.encode())
    assert said.out == f"all.html written: 4 models, 2 on the front, {size / 1e3:.1f} kB\n"
    assert "/enc/Conv Conv: 80.5 µs" in text, "the last run, not the last name"
    assert "Classes, f1_1k" in text and "htp, 2026-11-01: 50.0 % of the day" in text
    assert text.count("data:image/png") == 1 and references(text) == []


def test_the_report_of_an_evil_table_is_harmless(project: Path, edgeloop: Edgeloop):
    with Workspace.open() as workspace:
        workspace.store.models("default").insert("evil", {**EVIL, "name": "<script>"})
    assert edgeloop("report", "--json").json[0]["models"] == 1
    text = (project / "report.html").read_text()
    assert not {"script", "img"} & {tag for tag, _ in read(text).elements}
    assert references(text) == []


def test_what_is_no_picture_is_not_shown_as_one(filled: Path, edgeloop: Edgeloop):
    with Workspace.open() as workspace:
        workspace.store.blobs.put("default/quick/test_results_f1_1k.csv", SCORES.encode())
        workspace.store.blobs.put("default/quick/pr_curve_f1_1k.png", b"<svg onload=alert(1)>")
    edgeloop("report", "--device", "*")
    text = (filled / "report.html").read_text()
    assert "Classes, f1_1k" in text and "data:image" not in text


@pytest.mark.slow
def test_the_demo_needs_no_store_and_makes_none(project: Path, edgeloop: Edgeloop):
    shown = edgeloop("pareto", "--demo", "-o", "front.svg")
    with open_demo() as workspace:
        assert shown.code == 0 and f"of {len(workspace.status())} models" in shown.out
    assert edgeloop("report", "--demo", "-e", "demo-host", "-o", "r.html").code == 0
    assert sorted(path.name for path in project.iterdir() if path.name != "edgeloop.yaml") == [
        "front.svg",
        "r.html",
    ]


def test_models_that_are_less_apart_are_left_out_of_the_front(project: Path, edgeloop: Edgeloop):
    whole = edgeloop("pareto", "--demo", "--json")
    apart = edgeloop("pareto", "--demo", "--apart", "50", "-o", "front.svg")
    assert len(json.loads(whole.out)) > 1 and "\n1 of " in apart.out
    assert "less than 50 % apart in latency_ms, only the best" in apart.out
    assert "less than 50 % apart" in (project / "front.svg").read_text()
    refused = edgeloop("pareto", "--demo", "--apart", "8", "--objective", "params:min")
    assert refused.code == 2 and "leave out --objective" in refused.err


def test_the_demo_has_its_own_experiments(project: Path, edgeloop: Edgeloop):
    refused = edgeloop("pareto", "--demo", "-e", "mine")
    assert refused.code == 2 and "demo and demo-host" in refused.err
    assert edgeloop("pareto", "--demo", "--store", "sqlite:x").code == 2


def test_numbers_as_large_as_there_are_fit_on_the_screen(project: Path, edgeloop: Edgeloop):
    fill(
        [
            {"name": "low", "mean": 1e-300, "f1_1k": -1e308},
            {"name": "high", "mean": 1e300, "f1_1k": 1e308},
            {"name": "beyond", "mean": 1e307, "f1_1k": 0.5},
        ]
    )
    said = edgeloop("pareto")
    assert said.code == 0
    assert said.out.splitlines()[-2].startswith("2 of 2 models; 1 without all values left out")
    assert max(map(len, said.out.splitlines())) < 200
