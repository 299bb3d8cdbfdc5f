"""status for programs and for people: CSV, and a live view."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop.cli.status import model_table
from edgeloop.cli.terminal import Screen
from edgeloop.models.catalog import read_csv, register_devices
from edgeloop.models.plan import DeviceTarget
from edgeloop.models.runners import Registry, RunnerEntry
from tests.cli.conftest import Edgeloop
from tests.cli.running import command_line, environment
from tests.cli.terminals import Terminal
from tests.nets import save_tiny

ROWS = {
    "calm-heron": {
        "name": "calm-heron",
        "status": "error",
        "error": '=HYPERLINK("http://x")',
        "macs": 5_000_000_000,
        "mean": 0.0123,
        "stdev": -1.5,
        "f1_1k_f": "n/a",
        "total_inference_avg": "[0.012, 0.0126]",
        "quantized": True,
    },
    "brave-otter": {
        "name": "brave-otter",
        "status": "new",
        "model_name": "+1-800.onnx",
        "node": "@home",
        "tags": '["a, b", "c\\n"]',
        "priority": 0,
        "theirs": "-1",
        "error": "two\r\nlines",
    },
}


@pytest.fixture
def table(project: Path) -> Iterator[Workspace]:
    with Workspace.open() as workspace:
        for name, row in ROWS.items():
            workspace.store.models("default").insert(name, row)
        yield workspace


def test_csv_round_trips(table: Workspace, edgeloop: Edgeloop, project: Path):
    said = edgeloop("status", "--csv", "out.csv")
    assert (said.code, said.out, said.err) == (0, "", "2 rows written to out.csv\n")
    assert {row["name"]: row for row in read_csv(project / "out.csv")} == ROWS


def test_csv_to_a_pipe_is_the_same_as_to_a_file(table: Workspace, command: Edgeloop, project: Path):
    piped = command("status", "--csv", "-")
    command("status", "--csv", "out.csv")
    with (project / "out.csv").open(newline="") as file:
        assert piped.out.splitlines() == file.read().splitlines()


def test_formulas_are_texts_and_numbers_are_numbers_in_the_file(
    table: Workspace, edgeloop: Edgeloop, project: Path
):
    edgeloop("status", "--csv", "out.csv")
    with (project / "out.csv").open(newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert rows["calm-heron"]["error"] == "'" + '=HYPERLINK("http://x")'
    assert rows["brave-otter"]["model_name"] == "'+1-800.onnx"
    assert rows["brave-otter"]["node"] == "'@home"
    assert rows["brave-otter"]["theirs"] == "'-1"
    assert rows["calm-heron"]["stdev"] == "-1.5"


def test_csv_replaces_an_older_file_and_leaves_no_other(
    table: Workspace, edgeloop: Edgeloop, project: Path
):
    (project / "out.csv").write_text("old")
    edgeloop("status", "--csv", "out.csv")
    assert sorted(path.name for path in project.iterdir()) == [".edgeloop", "out.csv"]
    assert len(read_csv(project / "out.csv")) == 2


@pytest.mark.parametrize("target", ["missing/out.csv", "."])
def test_csv_that_cannot_be_written_is_said(
    table: Workspace, edgeloop: Edgeloop, project: Path, target: str
):
    assert edgeloop("status", "--csv", target).sentence
    assert [path.name for path in project.iterdir()] == [".edgeloop"]


def test_json_of_everything_is_what_the_rows_hold_and_lists_are_lists(
    table: Workspace, edgeloop: Edgeloop
):
    lists = {"total_inference_avg": [0.012, 0.0126]}, {"tags": ["a, b", "c\n"]}
    expected = {
        name: {**row, **more} for (name, row), more in zip(ROWS.items(), lists, strict=True)
    }
    assert {row["name"]: row for row in edgeloop("status", "--json").json} == expected


@pytest.mark.parametrize("text", ["[1, NaN]", "[1e999]", "[1", '"text"', "[" * 100_000])
def test_a_list_that_cannot_be_read_still_gives_valid_json(
    table: Workspace, edgeloop: Edgeloop, text: str
):
    models = table.store.models("default")
    row = models.get("calm-heron")
    assert row is not None
    models.update(row, {"total_inference_avg": text})
    (said,) = json.loads(
        edgeloop("status", "calm-heron", "--json").out, parse_constant=lambda _: pytest.fail()
    )
    assert said["total_inference_avg"] in (text, [1, None], [None])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--state", "running"), {"held"}),
        (("--state", "running", "--state", "failed"), {"held", "calm-heron"}),
        (("--node", "bench-1"), {"held"}),
        (("--node", "bench"), set()),
        (("--node", "@home"), {"brave-otter"}),
        (("--locked",), {"held", "brave-otter"}),
        (("--stage", "f1_onnx"), {"held"}),
        (("--stage", "convert"), {"held", "waits"}),
        (("--stage", "convert", "--state", "new"), {"waits"}),
        (("held", "--stage", "benchmark"), set()),
    ],
    ids=lambda value: " ".join(sorted(value) if isinstance(value, set) else value),
)
def test_status_filters_by_status_node_and_stage(
    table: Workspace, edgeloop: Edgeloop, options: tuple[str, ...], found: set[str], project: Path
):
    """`held` is worked on by bench-1, and somebody else's tool holds brave-otter."""
    for number, name in enumerate(("held", "waits")):
        benchmark_only = name == "waits"
        table.upload(
            save_tiny(project / f"{name}.onnx", number), name, benchmark_only=benchmark_only
        )
    lease = table.leases().claim(["onnx"], "bench-1:runner")
    assert lease is not None and lease.model == "held"
    said = edgeloop("status", *options, "--json")
    assert {row["name"] for row in said.json} == found
    if not found:
        hint = "No model matches. 'edgeloop status -e default' shows all."
        assert hint in edgeloop("status", *options).out


def test_csv_has_the_models_that_any_tool_holds(
    table: Workspace, edgeloop: Edgeloop, project: Path
):
    table.upload(save_tiny(project / "net.onnx"), "held")
    assert table.leases().claim(["onnx"], "bench-1:runner") is not None
    said = edgeloop("status", "--locked", "--csv", "-", "--columns", "name,node")
    assert sorted(said.out.splitlines()) == [
        "brave-otter,'@home",
        "held,bench-1:runner",
        "name,node",
    ]


def test_new_models_without_a_live_runner_name_the_next_command(edgeloop: Edgeloop, project: Path):
    hint = "No runner serves experiment 'forty'. Next: edgeloop runner -e forty"

    def has_hint() -> bool:
        return hint in Terminal.output(["status", "-e", "forty"], project, 100)

    with Workspace.open(experiment="forty") as workspace:
        workspace.upload(save_tiny(project / "net.onnx"), "net")
        assert has_hint()
        piped = edgeloop("status", "-e", "forty")
        assert hint not in piped.out + piped.err, "a pipe gets the table alone"
        none = edgeloop("status", "-e", "forty", "--state", "running").out
        assert none == "No model matches. 'edgeloop status -e forty' shows all.\n"
        registry = Registry(workspace.store)
        registry.write(RunnerEntry("bench-1|1", "bench-1", "another"))
        assert has_hint()
        registry.write(RunnerEntry("bench-2|1", "bench-2", "forty"))
        assert not has_hint()
        registry.remove("bench-2|1")
        workspace.store.models("forty").insert("old", {"name": "old", "status": "complete"})
        assert not has_hint()


def test_an_unknown_stage_is_said_and_a_score_of_training_is_shown(
    table: Workspace, edgeloop: Edgeloop
):
    assert "the stages are convert" in edgeloop("status", "--stage", "f1").sentence
    assert "val_iou" not in edgeloop("status").out
    table.store.models("default").insert("id_1", {"name": "id_1", "val_iou": 0.5})
    heading, *lines = edgeloop("status").out.splitlines()
    assert "val_iou" in heading.split() and "final_val_iou" not in heading.split()
    assert [line.split()[1] for line in lines if line.startswith("id_1")] == [".500"]


def test_the_table_shows_milliseconds_and_short_counts(table: Workspace, edgeloop: Edgeloop):
    (line,) = [x for x in edgeloop("status").out.splitlines() if x.startswith("calm-heron")]
    assert line.split()[:4] == ["calm-heron", "5G", "12.3", "n/a"]


def test_a_closed_pipe_is_no_failure_of_ours(table: Workspace, project: Path):
    """`edgeloop status | head -0`"""
    ended = subprocess.run(
        ["bash", "-c", f"{' '.join(command_line(['status']))} | true; exit ${{PIPESTATUS[0]}}"],
        cwd=project,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in ended.stderr and ended.returncode in (0, 1)


def test_watch_shows_a_change_live_and_ends_well_with_ctrl_c(project: Path):
    save_tiny(project / "net.onnx")
    with Workspace.open() as workspace:
        workspace.upload("net.onnx", "calm-heron")
        terminal = Terminal(["status", "--watch", "--interval", "0.1"], project)
        terminal.read_until("calm-heron")
        terminal.read_until("new")
        lease = workspace.leases().claim(["quantize"], "bench-1")
        assert lease is not None
        terminal.read_until("running convert")
        terminal.type(b"\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.seen
    assert "Stopped watching; nothing was changed and runners continue." in terminal.seen


def test_watch_goes_on_when_there_is_nothing_yet(project: Path):
    terminal = Terminal(["status", "--watch", "--interval", "0.1"], project)
    terminal.read_until("latency_ms")
    save_tiny(project / "net.onnx")
    with Workspace.open() as workspace:
        workspace.upload("net.onnx", "calm-heron")
    terminal.read_until("calm-heron")
    terminal.type(b"\x03")
    assert terminal.wait() == 130


def test_an_estimate_is_shown_with_what_is_known_of_its_error(project: Path, edgeloop: Edgeloop):
    stated = {"latency_low_ms": 0.405, "latency_high_ms": 0.48, "latency_coverage": 0.9}
    wide = {"latency_low_ms": 0.2, "latency_high_ms": 4.0, "latency_basis": "uncalibrated"}
    bound = {"latency_missing_ops": 3, "latency_basis": "no interval"}
    rows = {"bound": bound, "old": {"latency_margin_percent": 20.0}, "stated": stated, "wide": wide}
    with Workspace.open() as workspace:
        for name, own in rows.items():
            shared = {"name": name, "status": "complete", "mean": 0.00044, "f1_1k": 0.5}
            row = {"latency_kind": "estimate", **shared, **own}
            workspace.store.models("default").insert(name, row)
        measured = {"name": "z", "mean": 0.00044, "latency_kind": "measured", **stated}
        workspace.store.models("default").insert("z", {**measured, "f1_1k": 0.4})
    heading, *lines = edgeloop("status").out.splitlines()
    assert "latency_us  90 % interval" in heading
    assert [" ".join(line[: heading.index("f1_onnx")].split()) for line in lines[:5]] == [
        "bound ≥ 440 est",
        "old 440 est",
        "stated 440 est 405 – 480",
        "wide 440 est (200 – 4000)",
        "z 440",
    ]
    front = edgeloop("pareto").out
    assert "bound" not in front, "a lower bound is not comparable with a latency"
    assert "405 – 480" in front and "latency_us" in front and "20 %" not in front
    assert "latency_ms" not in front, "its reference point is in the same unit"
    by_name = edgeloop("status", "--columns", "name,latency_us", "--sort", "latency_us").out
    assert "latency_us" in by_name.splitlines()[0]
    found = {row["name"]: row for row in edgeloop("pareto", "--json").json}
    assert found["stated"]["latency_coverage"] == 0.9 and "latency_low_ms" not in found["old"]


DEVICES = (
    DeviceTarget("qcs8550", "snpe", "qcs8550"),
    DeviceTarget("htp:x-elite", "qnn", "x-elite"),
)
CHIPS = {"qcs8550": "snpe:qcs8550", "htp:x-elite": "qnn:x-elite"}
ON_A_BOARD = {
    "status": "waiting",
    "quantized": True,
    "toolchain": "snpe",
    "compiled": "qcs8550",
    **dict.fromkeys(("macs", "params"), 1_000_000),
    **dict.fromkeys(("shape", "output_shape"), "[1]"),
    "device": "qcs8550",
    "mean": 0.002,
    "total_inference_avg": "[0.002, 0.002, 0.002, 0.002, 0.002]",
    "f1_1k": 0.9,
    "targets": json.dumps({"primary": "qcs8550", "devices": CHIPS}),
}
ON_BOTH = {
    **ON_A_BOARD,
    "quantized_for_qnn": True,
    "compiled_for_qnn": "x-elite",
    "mean_on_htp_x_elite": 0.0005,
    "latency_kind_on_htp_x_elite": "estimate",
    "f1_1k_on_htp_x_elite": 0.88,
}


@pytest.fixture
def two_devices(project: Path) -> None:
    with Workspace.open() as workspace:
        register_devices(workspace.store, "default", DEVICES)
        for name, row in {"board-only": ON_A_BOARD, "both": ON_BOTH}.items():
            workspace.store.models("default").insert(name, {"name": name, **row})


def test_columns_of_a_further_device_stand_beside_the_plain_ones(
    two_devices: None, edgeloop: Edgeloop
):
    heading, *lines = edgeloop("status").out.splitlines()
    names = heading.split()
    place = names.index("latency_ms")
    assert names[place + 1] == "latency_ms_on_htp_x_elite"
    assert names[names.index("f1_1k") + 1] == "f1_1k_on_htp_x_elite"
    both = next(line for line in lines if line.startswith("both"))
    assert both[heading.index("latency_ms") :].split()[:4] == ["2", "0.5", "est", ".900"]
    header = edgeloop("status", "--csv", "-").out.splitlines()[0].split(",")
    assert header[header.index("mean") + 1] == "mean_on_htp_x_elite"
    assert "targets" not in header


def test_options_take_columns_of_a_further_device(two_devices: None, edgeloop: Edgeloop):
    asked = "latency_ms_on_htp_x_elite"
    said = edgeloop("status", "--columns", f"name,{asked}", "--sort", f"{asked}:desc").out
    assert [line.split() for line in said.splitlines()] == [
        ["name", asked],
        ["both", "0.5", "est"],
        ["board-only"],
    ]
    found = edgeloop("status", "--json", "--columns", f"name,{asked}").json
    assert {"name": "both", "mean_on_htp_x_elite": 0.0005} in found
    wrong = edgeloop("status", "--columns", "name,latency_ms_on_htp_x_elita")
    assert wrong.code == 1 and "there is no column 'latency_ms_on_htp_x_elita'" in wrong.err


def test_a_narrow_terminal_leaves_further_devices_out_first(two_devices: None):
    with Workspace.open() as workspace:
        rows = [row.values for row in workspace.catalog.rows()]
    wide, narrow = (model_table(rows, Screen(width, 40)).splitlines()[0] for width in (200, 80))
    assert "latency_ms_on_htp_x_elite" in wide
    assert "_on_" not in narrow and "latency_ms" in narrow


def test_models_are_found_by_the_stage_that_they_wait_for_as_queue_calls_it(
    two_devices: None, edgeloop: Edgeloop
):
    def waiting(stage: str) -> list[str]:
        return [row["name"] for row in edgeloop("status", "--json", "--stage", stage).json]

    assert waiting("convert qnn") == ["board-only"]
    assert waiting("benchmark htp:x-elite") == ["both"]
    assert waiting("convert snpe") == []
    assert edgeloop("queue", "--json").json[2]["capability"] == "convert qnn"


def test_a_reset_names_the_stages_of_further_devices_too(two_devices: None, edgeloop: Edgeloop):
    said = edgeloop("reset", "both", "--stage", "benchmark", "--yes").out
    assert said == (
        "both: reset benchmark, benchmark htp:x-elite, f1_1k, f1_1k htp:x-elite, f1_1k_f, f1_10k\n"
    )
    found = edgeloop("reset", "board-only", "--stage", "convert qnn", "--yes", "--json").json
    assert found[0]["reset"] == ["convert qnn", "benchmark htp:x-elite", "f1_1k htp:x-elite"]


def test_a_front_takes_the_latency_of_a_further_device(two_devices: None, edgeloop: Edgeloop):
    asked = ("--x", "latency_ms_on_htp_x_elite", "--y", "f1_1k_on_htp_x_elite", "--json")
    (row,) = edgeloop("pareto", *asked).json
    assert row["name"] == "both"
    assert row["latency_ms_on_htp_x_elite"] == pytest.approx(0.5)
    said = edgeloop("pareto", *asked[:-1]).out
    assert "0.5 est" in said, "an estimate is marked as one, whatever the primary device measured"
    assert "est" not in edgeloop("pareto").out.partition("\n\n")[0]
