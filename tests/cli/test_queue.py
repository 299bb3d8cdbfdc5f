"""`edgeloop queue`: how much work waits, how many runners would help, and who is dead."""

from __future__ import annotations

import json
from pathlib import Path

from edgeloop.models.runners import RunnerDevice, RunnerEntry, columns_of
from edgeloop.workspace import Workspace
from tests.cli.conftest import Edgeloop

BENCH = {"benchmark_only": 1}
LONG = "htp:" + "a-chip-with-quite-a-long-name-" * 3


def fill(experiment: str, count: int, **columns: object) -> None:
    with Workspace.open(experiment=experiment) as workspace:
        rows = {f"m-{i}": {"status": "new", "benchmark_only": 1, **columns} for i in range(count)}
        workspace.store.models(experiment).insert_many(rows.items())


def register(
    node: str,
    age_s: float,
    experiment: str = "default",
    can: tuple[str, ...] = ("quantize", "onnx"),
) -> None:
    with Workspace.open() as workspace:
        machine = RunnerDevice("", can=can)
        entry = RunnerEntry(f"{node}|1", node, experiment, devices=(machine,))
        beat = workspace.store.now() - age_s
        workspace.store.runners().insert(entry.id, {**columns_of(entry), "beat": beat})


def test_the_table_and_what_would_help(project: Path, edgeloop: Edgeloop):
    assert edgeloop("queue").out.endswith(
        "\n\nThere is no store at .edgeloop yet. Next: edgeloop upload MODEL.onnx\n"
    )
    fill("default", 12_345)
    converted = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
    with Workspace.open() as workspace:
        row = {"status": "waiting", **converted, "toolchain": "qnn", "device": LONG}
        workspace.store.models("default").insert("pinned", row)
        assert workspace.leases().claim(["quantize"], "bench-1:runner")
    register("bench-1", 0.0)
    for age_s, node in ((700, "lost\x1b[31m"), (7_300, "b"), (60, "c"), (80_000, "d")):
        register(node, age_s)
    said = edgeloop("queue").out
    lines = said.splitlines()
    assert lines[0].split() == [
        *("capability", "ready", "running", "blocked", "oldest", "runners", "have"),
    ]
    assert lines[1].split() == ["linux", "12345", "1", "0", "0", "s", "12346", "1"]
    assert lines[2].split() == ["device", "0", "0", "12345", "0", "0"]
    assert lines[3].startswith(f"{LONG} "), "a pipe gets all of it"
    assert lines[5] == (
        "More runners would help: 12,345 for linux, 1 for htp:a-chip-with-quite-a-lon…."
    )
    assert lines[6] == (
        "4 dead runners: c (silent for 60 s), lost�[31m (silent for 12 min), b (silent for 2 h), "
        "and 1 more."
    )
    assert "edgeloop devices --watch" in lines[7]


def test_a_toolchain_that_no_runner_has_is_named(project: Path, edgeloop: Edgeloop):
    """Twelve models for boards, three for a chip that a simulator stands for."""
    asked = {"snapdragon-888": ("snpe:snapdragon-888", 12), "htp:x-elite": ("qnn:x-elite", 3)}
    for device, (form, count) in asked.items():
        row = {"targets": json.dumps({"primary": device, "devices": {device: form}})}
        with Workspace.open() as workspace:
            rows = {f"{device[:3]}-{i}": {"status": "new", **BENCH, **row} for i in range(count)}
            workspace.store.models("default").insert_many(rows.items())
    for node in ("sdk-1", "sdk-2"):
        register(node, 0.0, can=("quantize", "quantize@snpe", "onnx"))
    register("sdk-3", 90.0, can=("quantize", "quantize@qnn", "onnx"))
    found = {line["capability"]: line for line in edgeloop("queue", "--json").json}
    assert {name: (line["ready"], line["have"]) for name, line in found.items()} == {
        "linux": (0, 2),
        "device": (0, 0),
        "convert qnn": (3, 0),
        "convert snpe": (12, 2),
        "htp:x-elite": (0, 0),
        "snapdragon-888": (0, 0),
    }
    assert found["convert snpe"]["stages"] == {"convert": 12}
    said = edgeloop("queue").out.splitlines()
    assert said[3].split() == ["convert", "qnn", "3", "0", "0", "0", "s", "3", "0"]
    assert "More runners would help: 3 for convert qnn, 10 for convert snpe." in said
    assert (
        "No live runner can do convert qnn: start one on a machine that has the toolchain qnn."
        in said
    )
    assert not any("can do convert snpe" in line for line in said)


def test_every_experiment_has_its_line(project: Path, edgeloop: Edgeloop):
    fill("faces", 2)
    fill("hands", 3, status="error")
    fill("hands-2", 1, node="archai-host")
    register("gone", 100.0, "elsewhere")
    found = edgeloop("queue", "--all-experiments", "--json").json
    ready = {line["experiment"]: line["ready"] for line in found if line["capability"] == "linux"}
    assert ready == {"faces": 2, "hands": 0, "hands-2": 0}
    assert found[0]["stages"] == {"convert": 2}
    said = edgeloop("queue", "--all-experiments").out
    assert said.startswith("faces\ncapability") and "\n\nhands-2\ncapability" in said
    assert said.endswith("\n\nMore runners would help: 2 for linux.\n"), "no word of other stores"
    assert edgeloop("queue", "-e", "hands-2").out.endswith("Nothing is ready: 2 stages blocked.\n")
    assert edgeloop("queue", "-e", "faces", "--json").json == found[:2]


def test_options_that_do_not_go_together_are_refused(project: Path, edgeloop: Edgeloop):
    for words in (("--json", "--watch"), ("-e", "faces", "--all-experiments")):
        done = edgeloop("queue", *words)
        assert done.code == 2 and "choose one of" in done.err


def test_an_experiment_without_models_says_where_they_are(project: Path, edgeloop: Edgeloop):
    fill("faces", 2)
    hint = "No models in experiment 'default'; 2 in 'faces'. Choose with --experiment."
    assert edgeloop("queue").out.splitlines()[-1] == hint
    said = edgeloop("queue", "--json")
    assert [line["ready"] for line in said.json] == [0, 0] and said.err == f"{hint}\n"
    fill("default", 1, status="complete", **DONE)
    assert edgeloop("queue").out.endswith("\nNo work is left.\n")


DONE = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
DONE |= {"mean": 0.1, "total_inference_avg": "[0.1]", "device": "host"}
