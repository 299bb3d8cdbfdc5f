"""Each verb on the embedded store: what it does, prints and answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop.models.leases import Leases, Outcome
from tests.cli.conftest import Edgeloop
from tests.cli.running import blobs_of, hints_of, rows_of
from tests.nets import save_external, save_tiny
from tests.test_docs import BY_NAME, WITHOUT_A_STORE

# Groups are looked at, command by command, in tests/test_docs.py.
COMMANDS = sorted(name for name in BY_NAME if " " not in name)
CONVERTED = {
    "quantized": True,
    "macs": 5_000_000_000,
    "params": 9,
    "shape": "[1]",
    "output_shape": "[1]",
}


@pytest.fixture
def herd(project: Path, edgeloop: Edgeloop) -> dict[str, Path]:
    """Three models: brave-otter, brave-owl (with external data) and calm-heron."""
    files = {
        "brave-otter": save_tiny(project / "a.onnx", 1),
        "brave-owl": save_external(project / "b.onnx", 2),
        "calm-heron": save_tiny(project / "c.onnx", 3),
    }
    for name, path in files.items():
        assert edgeloop("upload", path, "--name", name, "--tag", name[:5]).code == 0
    return files


def rows() -> dict[str, dict[str, object]]:
    with Workspace.open() as workspace:
        return rows_of(workspace.store)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_has_an_example(edgeloop: Edgeloop, name: str, flag: str):
    said = edgeloop(name, flag)
    assert said.code == 0
    assert "Example: edgeloop " + name in said.out
    wanted = {"--json"} if name in WITHOUT_A_STORE else {"--experiment", "--json", "--store"}
    for option in wanted:
        assert option in said.out


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_wrong_use(edgeloop: Edgeloop, name: str):
    said = edgeloop(name, "--no-such-option")
    assert said.code == 2 and "--no-such-option" in said.err and "Usage:" in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["upload"],
        ["download"],
        ["reset"],
        ["delete"],
        ["unlock"],
        ["priority"],
        ["priority", "x"],
        ["priority", "x", "soon"],
        ["priority", "x", "1.5"],
        ["priority", "x", "²"],
        ["upload", "a.onnx", "--priority", "-1"],
        ["upload", "a.onnx", "--priority", "high"],
        ["upload", "a.onnx", "b.onnx", "--name", "x"],
        ["status", "--csv", "x.csv", "--json"],
        ["status", "--watch", "--json"],
        ["status", "--csv", "-", "--watch"],
        ["status", "--watch", "--interval", "0"],
    ],
    ids=" ".join,
)
def test_wrong_use_ends_with_2_and_stores_nothing(
    edgeloop: Edgeloop, project: Path, arguments: list[str]
):
    save_tiny(project / "a.onnx", 1)
    save_tiny(project / "b.onnx", 2)
    said = edgeloop(*arguments)
    assert said.code == 2, said
    assert "Error: " in said.err and "Traceback" not in said.err
    assert not (project / ".edgeloop").exists()


def test_the_version_is_told(edgeloop: Edgeloop):
    assert edgeloop("--version").out.startswith("edgeloop 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "no-such"],
        ["status", "no-*"],
        ["download", "no-such", "--list"],
        ["download", "no-such"],
        ["reset", "no-such"],
        ["delete", "no-such", "--yes"],
        ["unlock", "no-such"],
        ["priority", "no-such", "1"],
    ],
    ids=" ".join,
)
def test_a_model_that_is_not_there_is_named(
    herd: dict[str, Path], edgeloop: Edgeloop, arguments: list[str]
):
    before = rows()
    assert f"no model '{arguments[1]}' in experiment 'default'" in edgeloop(*arguments).sentence
    assert rows() == before


def test_an_empty_store_says_what_to_do_next(edgeloop: Edgeloop, project: Path):
    said = edgeloop("status")
    assert said.code == 0 and "Next: edgeloop upload" in said.out
    assert edgeloop("status", "--json").json == []
    assert edgeloop("download", "--list", "--json").json == []
    assert edgeloop("experiment", "list", "--json").json == []
    assert not (project / ".edgeloop").exists()


def test_reading_never_makes_an_experiment(herd: dict[str, Path], edgeloop: Edgeloop):
    edgeloop("status", "-e", "other")
    edgeloop("download", "--list", "-e", "other")
    assert edgeloop("experiment", "list", "--json").json == [{"name": "default", "models": 3}]


# upload


def test_upload_allots_a_friendly_name_and_says_it(edgeloop: Edgeloop, project: Path):
    save_tiny(project / "net.onnx")
    said = edgeloop("upload", "net.onnx")
    (name,) = rows()
    assert said.out.startswith(name) and "net.onnx" in said.out
    assert "1 model uploaded" in said.out
    assert said.out.endswith("Next: edgeloop runner -e default; then edgeloop status -e default\n")
    elsewhere = edgeloop("upload", "net.onnx", "-e", "forty").out
    assert elsewhere.endswith("Next: edgeloop runner -e forty; then edgeloop status -e forty\n")
    assert rows()[name]["model_name"] == "net.onnx"


def test_upload_keeps_the_options_in_the_row(edgeloop: Edgeloop, project: Path):
    save_tiny(project / "net.onnx")
    edgeloop(
        *("upload", "net.onnx", "--name", "x1", "--priority", "0", "--benchmark-only"),
        *("--tag", "a", "--tag", "größe"),
    )
    row = rows()["x1"]
    assert (row["priority"], row["benchmark_only"]) == (0, 1)
    assert json.loads(str(row["tags"])) == ["a", "größe"]


def test_the_same_file_twice_is_recognised_and_said(herd: dict[str, Path], edgeloop: Edgeloop):
    said = edgeloop("upload", herd["calm-heron"])
    assert said.code == 0 and "calm-heron" in said.out and "already uploaded" in said.out
    assert edgeloop("upload", herd["calm-heron"], "--json").json[0]["new"] is False
    assert len(rows()) == 3


def test_the_same_file_under_another_name_is_stored_again(
    herd: dict[str, Path], edgeloop: Edgeloop
):
    assert edgeloop("upload", herd["calm-heron"], "--name", "second").code == 0
    assert rows()["second"]["content"] == rows()["calm-heron"]["content"]
    with Workspace.open() as workspace:
        assert {"default/second/c.onnx", "default/calm-heron/c.onnx"} <= set(
            blobs_of(workspace.store)
        )


def test_the_same_file_under_the_same_name_changes_nothing(
    herd: dict[str, Path], edgeloop: Edgeloop
):
    before = rows()
    said = edgeloop("upload", herd["calm-heron"], "--name", "calm-heron", "--json")
    assert said.json[0]["new"] is False and rows() == before
    edgeloop("upload", herd["calm-heron"], "--name", "second")
    before = rows()
    said = edgeloop("upload", herd["calm-heron"], "--name", "second", "--json")
    assert (said.json[0]["name"], said.json[0]["new"]) == ("second", False) and rows() == before


def test_another_file_under_a_taken_name_is_refused(herd: dict[str, Path], edgeloop: Edgeloop):
    before = rows()
    said = edgeloop("upload", herd["brave-otter"], "--name", "calm-heron")
    assert "'calm-heron' is taken" in said.sentence and "--name" in said.sentence
    assert rows() == before


def test_equal_files_in_one_folder_are_stored_once(edgeloop: Edgeloop, project: Path):
    for number in range(8):
        save_tiny(project / f"nets/{number}.onnx", seed=5)
    uploaded = edgeloop("upload", "nets", "--json").json
    assert len({item["name"] for item in uploaded}) == 1 and len(rows()) == 1
    assert [item["new"] for item in uploaded].count(True) == 1


def test_a_bad_file_among_good_ones_does_not_stop_them(edgeloop: Edgeloop, project: Path):
    for number in range(3):
        save_tiny(project / f"nets/{number}.onnx", seed=number)
    (project / "nets/1.onnx").write_text("no model")
    said = edgeloop("upload", "nets")
    assert "1.onnx was not uploaded" in said.sentence
    assert {row["model_name"] for row in rows().values()} == {"0.onnx", "2.onnx"}
    assert "2 models uploaded" in said.out


def test_a_name_with_a_folder_of_two_models_is_wrong_use(edgeloop: Edgeloop, project: Path):
    save_tiny(project / "nets/1.onnx", 1)
    save_tiny(project / "nets/2.onnx", 2)
    assert edgeloop("upload", "nets", "--name", "x").code == 2
    assert not (project / ".edgeloop").exists()


# status


def test_status_shows_the_models(herd: dict[str, Path], edgeloop: Edgeloop):
    lines = edgeloop("status").out.splitlines()
    assert lines[0].split()[0] == "name" and [line.split()[0] for line in lines[1:]] == sorted(herd)
    assert all("new" in line for line in lines[1:])


def test_status_takes_names_and_globs_each_model_once(herd: dict[str, Path], edgeloop: Edgeloop):
    said = edgeloop("status", "calm-heron", "brave-*", "calm-*", "--json").json
    assert [row["name"] for row in said] == ["calm-heron", "brave-otter", "brave-owl"]


def test_status_takes_a_tag(herd: dict[str, Path], edgeloop: Edgeloop):
    said = edgeloop("status", "--tag", "brave", "--json").json
    assert {row["name"] for row in said} == {"brave-otter", "brave-owl"}
    assert edgeloop("status", "--tag", "none", "--json").json == []


def test_status_says_which_machine_does_what(herd: dict[str, Path], edgeloop: Edgeloop):
    with Workspace.open() as workspace:
        leases = workspace.leases()
        lease = leases.claim(["quantize"], "bench-1")
        assert lease is not None
        (row,) = edgeloop("status", lease.model, "--json").json
        assert (row["status"], row["node"]) == ("running convert", "bench-1")
        assert "running convert (0 s)" in edgeloop("status", lease.model).out
        leases.fail(lease, "the tool said no")
    assert "(last error: convert: the tool said no)" in edgeloop("status", lease.model).out


def test_control_characters_of_a_row_do_not_reach_the_terminal(
    herd: dict[str, Path], edgeloop: Edgeloop
):
    with Workspace.open() as workspace:
        table = workspace.store.models("default")
        table.update(workspace.catalog.get("calm-heron"), {"error": "\x1b[2J\x07"})
    assert "\x1b" not in edgeloop("status").out and "\x07" not in edgeloop("status").out


def test_nan_is_null_in_json(herd: dict[str, Path], edgeloop: Edgeloop):
    with Workspace.open() as workspace:
        table = workspace.store.models("default")
        table.update(
            workspace.catalog.get("calm-heron"), {"mean": float("nan"), "stdev": float("-inf")}
        )
    said = edgeloop("status", "calm-heron", "--json")
    assert "NaN" not in said.out and "Infinity" not in said.out
    assert (said.json[0]["mean"], said.json[0]["stdev"]) == (None, None)
    assert edgeloop("status", "calm-heron").code == 0


# list and download


def test_list_shows_every_file(herd: dict[str, Path], edgeloop: Edgeloop):
    said = edgeloop("download", "--list", "brave-*")
    assert "weights.bin" in said.out and "a.onnx" in said.out and "c.onnx" not in said.out


def test_download_makes_a_folder_of_the_models_name(
    herd: dict[str, Path], edgeloop: Edgeloop, project: Path
):
    assert edgeloop("download", "brave-owl").code == 0
    assert sorted(path.name for path in (project / "brave-owl").iterdir()) == [
        "b.onnx",
        "weights.bin",
    ]


def test_download_takes_only_what_matches(herd: dict[str, Path], edgeloop: Edgeloop, project: Path):
    said = edgeloop("download", "brave-owl", "--output", "out", "--match", "*.bin", "--json").json
    assert said == [{"name": "brave-owl", "file": "out/weights.bin"}]
    assert [path.name for path in (project / "out").iterdir()] == ["weights.bin"]


def test_download_of_nothing_fails_and_says_so(
    herd: dict[str, Path], edgeloop: Edgeloop, project: Path
):
    said = edgeloop("download", "brave-owl", "--output", "out", "--match", "*.dlc")
    assert said.code == 1 and "No file matches '*.dlc'" in said.err
    assert not (project / "out").exists()
    assert edgeloop("download", "brave-owl", "--match", "*.dlc", "--json").code == 1


def test_download_overwrites_an_older_copy(
    herd: dict[str, Path], edgeloop: Edgeloop, project: Path
):
    (project / "out").mkdir()
    (project / "out/c.onnx").write_text("old")
    assert edgeloop("download", "calm-heron", "--output", "out").code == 0
    assert (project / "out/c.onnx").read_bytes() == herd["calm-heron"].read_bytes()


# reset, unlock, priority


def test_reset_clears_results_and_stale_files_and_keeps_the_model(
    herd: dict[str, Path], edgeloop: Edgeloop
):
    with Workspace.open() as workspace:
        leases = workspace.leases()
        lease = leases.claim(["quantize"], "n", only=lambda name: name == "calm-heron")
        assert lease is not None
        key = ".attempts/1/model.dlc"
        workspace.store.blobs.put(f"default/calm-heron/{key}", b"dlc")
        leases.commit(lease, Outcome(CONVERTED, {"model.dlc": key}))
    assert [f["file"] for f in edgeloop("download", "--list", "calm-heron", "--json").json] == [
        "model.dlc",
        "c.onnx",
    ]
    said = edgeloop("reset", "calm-heron", "--stage", "convert", "--json").json
    assert said[0]["reset"] == ["convert", "benchmark", "f1_1k", "f1_1k_f", "f1_10k"]
    row = rows()["calm-heron"]
    assert not set(CONVERTED) & set(row) and row["status"] == "new"
    assert [f["file"] for f in edgeloop("download", "--list", "calm-heron", "--json").json] == [
        "c.onnx"
    ]


def test_reset_of_a_stage_that_is_not_there_names_those_that_are(
    herd: dict[str, Path], edgeloop: Edgeloop
):
    before = rows()
    said = edgeloop("reset", "calm-heron", "--stage", "f1_1000")
    assert "there is no stage 'f1_1000'" in said.sentence and "f1_1k" in said.sentence
    assert rows() == before


def failing(leases: Leases, can: str, name: str = "calm-heron") -> None:
    for _ in range(3):
        lease = leases.claim([can], "n", only=lambda model: model == name)
        assert lease is not None
        leases.fail(lease, "no")


def test_reset_failed_lets_models_in_error_be_tried_again_and_keeps_what_is_done(
    herd: dict[str, Path], edgeloop: Edgeloop
):
    assert edgeloop("reset").code == 2
    said = edgeloop("reset", "--failed")
    assert (said.code, said.out) == (0, "No model is in error in experiment 'default'.\n")
    with Workspace.open() as workspace:
        leases = workspace.leases()
        lease = leases.claim(["quantize"], "n", only=lambda name: name == "calm-heron")
        assert lease is not None
        leases.commit(lease, Outcome(CONVERTED))
        failing(leases, "device")
        assert rows()["calm-heron"]["status"] == "error"
        before = {name: row for name, row in rows().items() if name != "calm-heron"}
        said = edgeloop("reset", "--failed", "--json").json
        stages = ["benchmark", "f1_1k", "f1_1k_f", "f1_10k"]
        assert said == [{"name": "calm-heron", "reset": stages}]
        after = rows()
        row = after.pop("calm-heron")
        assert row["quantized"] is True and "error" not in row and after == before
        assert leases.claim(["device"], "n", only=lambda name: name == "calm-heron") is not None


def test_reset_lets_a_model_in_error_be_tried_again(herd: dict[str, Path], edgeloop: Edgeloop):
    with Workspace.open() as workspace:
        failing(workspace.leases(), "quantize")
        assert workspace.model("calm-heron").row["status"] == "error"
        assert "error: convert: no" in edgeloop("status", "calm-heron").out
        assert edgeloop("reset", "calm-heron").code == 0
        assert "error" not in rows()["calm-heron"]
        only = workspace.leases().claim(["quantize"], "n", only=lambda name: name == "calm-heron")
        assert only is not None and only.attempt == 1


def test_unlock_frees_one_machines_claims(herd: dict[str, Path], edgeloop: Edgeloop):
    with Workspace.open() as workspace:
        leases = workspace.leases()
        first, second = leases.claim(["quantize"], "dead"), leases.claim(["quantize"], "alive")
        assert first is not None and second is not None
        said = edgeloop("unlock", "--node", "dead", "--json").json
        assert said == [{"name": first.model, "unlocked": ["convert"]}]
        assert rows()[first.model]["node"] == "" and rows()[second.model]["node"] == "alive"
        again = leases.claim(["quantize"], "x", only=lambda name: name == first.model)
        assert again is not None and again.token != first.token


def test_unlock_of_a_machine_that_holds_nothing_says_so(herd: dict[str, Path], edgeloop: Edgeloop):
    said = edgeloop("unlock", "--node", "nobody")
    assert said.code == 0 and "nobody holds nothing" in said.out
    assert "was not held" in edgeloop("unlock", "calm-heron").out


def test_priority_is_set_and_given_back(herd: dict[str, Path], edgeloop: Edgeloop):
    assert edgeloop("priority", "calm-heron", "0", "--json").json == [
        {"name": "calm-heron", "priority": 0}
    ]
    with Workspace.open() as workspace:
        best = workspace.leases().claim(["quantize"], "n")
        assert best is not None and best.model == "calm-heron"
    assert edgeloop("priority", "calm-heron", "auto").code == 0
    assert "priority" not in rows()["calm-heron"]


# asking


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["reset", "*"], ["unlock", "*"], ["priority", "brave-*", "3"]],
    ids=" ".join,
)
def test_a_change_to_several_models_without_an_answer_changes_nothing(
    herd: dict[str, Path], command: Edgeloop, arguments: list[str]
):
    before = rows()
    said = command(*arguments)
    assert said.code == 1 and "brave-otter" in said.err and "Traceback" not in said.err
    assert command(*arguments, stdin="n\n").code == 1
    assert rows() == before


def test_yes_on_stdin_resets_what_was_shown(herd: dict[str, Path], command: Edgeloop):
    said = command("reset", "brave-*", stdin="y\n")
    assert said.code == 0 and "brave-otter" in said.err and "brave-owl" in said.err


@pytest.mark.parametrize("names", [["calm-heron"], ["brave-*"]], ids=str)
def test_a_deletion_without_a_terminal_needs_yes(
    herd: dict[str, Path], command: Edgeloop, names: list[str]
):
    before = rows()
    for answer in (None, "y\n"):
        said = command("delete", *names, stdin=answer)
        assert said.code == 2 and "add --yes" in said.err and "Traceback" not in said.err
    assert rows() == before


def test_purge_deletes_for_good(herd: dict[str, Path], edgeloop: Edgeloop):
    said = edgeloop("delete", "calm-heron", "--purge", "--yes")
    assert (said.out, said.err) == ("calm-heron: deleted for good\n", "")
    with Workspace.open() as workspace:
        assert "calm-heron" not in rows_of(workspace.store)
        assert not blobs_of(workspace.store, "default/calm-heron/")
        assert not any("calm-heron" in hint for hint in hints_of(workspace.store))


def test_a_deleted_model_can_be_uploaded_again(herd: dict[str, Path], edgeloop: Edgeloop):
    edgeloop("delete", "calm-heron", "--yes")
    said = edgeloop("upload", herd["calm-heron"], "--json").json
    assert said[0]["new"] is True and said[0]["name"] in rows()


# experiments


def test_experiments_are_apart_from_each_other(herd: dict[str, Path], edgeloop: Edgeloop):
    assert edgeloop("upload", herd["calm-heron"], "-e", "2nd_run-1", "--json").json[0]["new"]
    assert edgeloop("experiment", "list", "--json").json == [
        {"name": "2nd_run-1", "models": 1},
        {"name": "default", "models": 3},
    ]
    assert "2nd_run-1" in edgeloop("experiment", "list").out
    assert edgeloop("experiment", "list", "-e", "default", "--json").json == [
        {"name": "default", "models": 3}
    ]
    assert len(edgeloop("status", "-e", "2nd_run-1", "--json").json) == 1
