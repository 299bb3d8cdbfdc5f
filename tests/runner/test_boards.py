"""Runners with boards: real processes, the real client, the real daemon. Whatever a board does, the
table is right in the end, and nobody holds anything."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edgeloop.models.plan import StageRecord, records_of
from edgeloop.store import Values
from edgeloop.workspace import Workspace
from tests.conftest import clean_environ
from tests.jobs.waiting import eventually
from tests.kept import kept
from tests.peers.board import VirtualBoard
from tests.runner.conftest import NETS, SIZES, Farm, busy_machine

STAGES = ("convert", "benchmark", "f1_onnx", "f1_1k", "f1_1k_f", "f1_10k")
NET = NETS / "unet-w8.onnx"
NAMES = ONE, OTHER, _ = ("calm-heron", "wise-otter", "late-robin")
LEASE = "/data/local/tmp/edgeloop/lease"
SETTINGS = """
lease_seconds: 4
clock_margin_seconds: 0.5
benchmark_runs: 2
curve_images: 4
board_tool_seconds: 8
board_transfer_seconds: 5
board_probe_seconds: 2
"""


@pytest.fixture(scope="module")
def prepared(faces: Path, sdk: Path, tmp_path_factory: pytest.TempPathFactory) -> Farm:
    """Three models, converted and tested on the host, as a runner without a board leaves them."""
    environ = {**clean_environ(), "SNPE_ROOT": str(sdk)}

    def prepare(folder: Path) -> None:
        (folder / "edgeloop.yaml").write_text(SETTINGS + "toolchain: snpe\n")
        made = Farm(folder, faces, environ)
        for name in NAMES:
            made.edgeloop("upload", str(NET), "--name", name)
        done = made.edgeloop("runner", "--drain", "--dataset", str(faces), *SIZES)
        assert "6 stages done" in done.stdout, done.stdout
        shutil.rmtree(folder / ".edgeloop" / "work")

    folder = kept("prepared-for-boards", tmp_path_factory.mktemp("prepared"), prepare)
    return Farm(folder, faces, environ)


@dataclass
class Started(Farm):
    """Remembers its runners, so that a failed test leaves none."""

    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def runner(self, *more: str, device: str = "htp") -> subprocess.Popen[str]:
        self.started.append(super().runner(*more, device=device))
        return self.started[-1]


@pytest.fixture
def farm(prepared: Farm, tmp_path: Path) -> Iterator[Farm]:
    folder = tmp_path / "project"
    shutil.copytree(prepared.folder, folder)
    made = Started(folder, prepared.faces, dict(prepared.environ))
    yield made
    for runner in made.started:
        if runner.poll() is None:
            runner.kill()
            runner.communicate()


@pytest.fixture
def board(boards: Callable[..., VirtualBoard], farm: Farm) -> VirtualBoard:
    running = boards("a")
    farm.environ.update(running.environ)
    running.warm_up()
    return running


def rows_of(farm: Farm) -> list[Values]:
    with farm.workspace() as workspace:
        return workspace.status()


def check_complete(farm: Farm, *names: str) -> list[Values]:
    rows = [row for row in rows_of(farm) if not names or row["name"] in names]
    for row in rows:
        assert (row["status"], row["node"]) == ("complete", ""), row
        assert "error" not in row
        assert all(records_of(row)[stage].attempts == 0 for stage in STAGES)
        assert len(json.loads(str(row["total_inference_avg"]))) == 2
        assert row["f1_10k"] == pytest.approx(row["f1_onnx"], abs=0.1)
    return rows


def held_by_somebody(farm: Farm) -> list[StageRecord]:
    return [r for row in rows_of(farm) for r in records_of(row).values() if r.is_held]


def running_tool(board: VirtualBoard) -> bool:
    return bool(list((board.data / "local/tmp/edgeloop/run").glob("*/tool.log")))


def set_lease(farm: Farm, seconds: int) -> None:
    settings = farm.folder / "edgeloop.yaml"
    settings.write_text(
        settings.read_text().replace("lease_seconds: 4", f"lease_seconds: {seconds}")
    )


def be_patient(farm: Farm) -> None:
    """No time limit decides a test, however slow the machine."""
    set_lease(farm, 60)
    settings = farm.folder / "edgeloop.yaml"
    patient = {"tool_seconds: 8": 300, "transfer_seconds: 5": 60, "probe_seconds: 2": 60}
    for limit, seconds in patient.items():
        line = f"{limit.partition(':')[0]}: {seconds}"
        settings.write_text(settings.read_text().replace(limit, line))


def ended(runner: subprocess.Popen[str]) -> str:
    output, _ = runner.communicate(timeout=200)
    return output


def test_a_board_fills_all_six_stages_of_three_models(
    farm: Farm, board: VirtualBoard, tmp_path: Path
) -> None:
    farm.drain(device=f"adb:{board.serial}")

    rows = check_complete(farm)
    assert len(rows) == 3
    for row in rows:
        assert (row["device"], row["boards"]) == ("snapdragon-888", f"adb:{board.serial}")
        assert row["toolchain"] == "snpe"
        assert row["latency_kind"] == "measured"
        folder = tmp_path / str(row["name"])
        with farm.workspace() as workspace:
            workspace.model(str(row["name"])).download(folder)
        with (folder / "perf_results_2.csv").open() as file:
            lines = list(csv.DictReader(file))
        assert {"total", "sample", "layer", "condition"} == {line["what"] for line in lines}
        assert any(line["name"] == "hottest before °C" for line in lines)
        assert (folder / "pr_curve_f1_1k.png").stat().st_size > 1_000
    assert board.shell(f"ls {LEASE}").returncode != 0, "the board is free again"
    used = json.loads(farm.edgeloop("devices", "usage", "--json").stdout)
    inside = sum(run.ended_s - run.started_s for run in board.tool_runs())
    (seconds,) = [use["seconds"] for use in used if use["device"] == f"adb:{board.serial}"]
    assert inside * 0.8 <= seconds <= inside + 0.2 * len(board.tool_runs())


@pytest.mark.soak
def test_two_boards_of_one_runner_share_the_models(
    farm: Farm, board: VirtualBoard, boards: Callable[..., VirtualBoard]
) -> None:
    """Both boards run a tool at the same time: of two models, none has two."""
    other = boards("b")
    other.warm_up()
    be_patient(farm)
    for each in (board, other):
        each.set_tool(hang=True)

    two = (
        "--benchmark-only",
        "--subset",
        ONE,
        "--subset",
        OTHER,
        "--device",
        f"adb:{other.serial}",
    )
    runner = farm.runner(*two, device=f"adb:{board.serial}")

    eventually(lambda: running_tool(board) and running_tool(other), 200)
    runner.send_signal(signal.SIGTERM)
    runner.send_signal(signal.SIGTERM)
    ended(runner)


def test_equal_boards_are_one_device_type_and_one_that_left_strands_nothing(
    farm: Farm, board: VirtualBoard, boards: Callable[..., VirtualBoard]
) -> None:
    be_patient(farm)
    other = boards("b")
    other.warm_up()
    once = ("--benchmark-only", "--subset", ONE, "--runs", "1")
    farm.drain(*once, device=f"adb:{board.serial}")
    with farm.workspace() as workspace:  # as an older version pinned it
        models = workspace.store.models(workspace.experiment)
        old = models.get(OTHER)
        assert old is not None
        runs = {"total_inference_avg": "[0.01]", "mean": 0.01, "stdev": 0.0}
        models.update(old, {"device": f"adb:{other.serial}", **runs})
        workspace.leases().sweep()
    board.unplug()

    two = ("--benchmark-only", "--subset", ONE, "--subset", OTHER)
    farm.drain(*two, device="snapdragon-888")

    rows = {str(row["name"]): row for row in rows_of(farm) if row.get("device")}
    assert {row["device"] for row in rows.values()} == {"snapdragon-888"}
    assert all(len(json.loads(str(row["total_inference_avg"]))) == 2 for row in rows.values())
    assert rows[ONE]["boards"] == f"adb:{board.serial}, adb:{other.serial}"
    assert rows[OTHER]["boards"] == f"adb:{other.serial}"
    by_board = json.loads(str(rows[ONE]["board_runs"]))
    assert [by_board[f"adb:{b.serial}"] for b in (board, other)] == [
        [run] for run in json.loads(str(rows[ONE]["total_inference_avg"]))
    ]
    assert rows[ONE]["run_spread"] == "n/a", "no board has two runs"
    means = [statistics.mean(by_board[f"adb:{each.serial}"]) for each in (board, other)]
    expected = 100.0 * statistics.stdev(means) / statistics.mean(means)  # 0 if a tick tells no more
    assert float(str(rows[ONE]["board_spread"])) == pytest.approx(expected)
    assert "board_spread" not in rows[OTHER]

    def found(device: str) -> set[str]:
        wanted = ("pareto", "--y", "f1_onnx", "--device", device, "--json")
        listed = json.loads(farm.edgeloop("status", "--device", device, "--json").stdout)
        front = json.loads(farm.edgeloop(*wanted).stdout)
        assert front
        return {row["name"] for row in listed}

    assert found("snapdragon-888") == found("Snapdragon 888") == {ONE, OTHER}
    assert found(f"adb:{board.serial}") == {ONE}


@pytest.mark.soak
def test_an_urgent_model_goes_next_on_a_board_before_those_that_wait_there(
    farm: Farm, board: VirtualBoard
) -> None:
    be_patient(farm)
    board.set_tool(hang=True)
    farm.runner("--benchmark-only", device=f"adb:{board.serial}")

    def statuses() -> dict[str, str]:
        return {str(row["name"]): str(row["status"]) for row in rows_of(farm)}

    def on_board() -> list[str]:
        return [s for s in statuses().values() if s == "running benchmark" or board.serial in s]

    eventually(lambda: running_tool(board) and len(on_board()) == 3, 200)
    assert any(s.startswith("queued on ") for s in on_board()), "one session at least only waits"
    late = ("--name", "late", "--priority", "0", "--benchmark-only")
    farm.edgeloop("upload", str(NET), *late)
    eventually(lambda: statuses()["late"] == "waiting", 200)

    tools = [(pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in board.processes()]
    for pid, command in tools:
        if b"-android/snpe-net-run\0" in command:
            os.kill(pid, signal.SIGKILL)

    def running() -> list[str]:
        return [name for name, status in statuses().items() if status == "running benchmark"]

    eventually(lambda: running_tool(board) and running() == ["late"], 200)


@pytest.mark.parametrize(
    "mishap",
    [
        "unplugged",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("killed", "hung", "server")),
    ],
)
def test_a_drain_goes_on_when_the_board_is_back(
    farm: Farm, board: VirtualBoard, mishap: str
) -> None:
    if mishap == "hung":  # the one that is noticed by a time limit
        set_lease(farm, 20)
    else:
        be_patient(farm)
    board.set_tool(hang=True, times=1)
    runner = farm.runner("--drain", "--subset", ONE, device=f"adb:{board.serial}")
    eventually(lambda: running_tool(board))

    if mishap == "killed":
        board.kill()
    elif mishap == "hung":
        board.freeze()
    elif mishap == "unplugged":
        board.unplug()
    else:
        board.server.kill()
    eventually(lambda: not held_by_somebody(farm))
    if mishap == "hung":
        board.thaw()
    elif mishap == "server":
        board.server.start()
    else:
        board.restart()
    board.set_tool()

    output = ended(runner)
    assert runner.returncode == 0, output
    assert "The model is not to blame" in output, output
    check_complete(farm, ONE)


def test_a_drain_ends_with_the_reason_when_a_board_stays_away_and_the_other_goes_on(
    farm: Farm, board: VirtualBoard, boards: Callable[..., VirtualBoard]
) -> None:
    other = boards("b")
    other.warm_up()
    with (farm.folder / "edgeloop.yaml").open("a") as file:
        file.write("board_patience_seconds: 2\n")
    board.set_tool(hang=True)
    runner = farm.runner(
        *("--drain", "--benchmark-only", "--device", f"adb:{other.serial}"),
        device=f"adb:{board.serial}",
    )
    eventually(lambda: running_tool(board))
    board.unplug()

    output = ended(runner)

    assert runner.returncode != 0
    assert "not connected" in output
    rows = rows_of(farm)
    assert not held_by_somebody(farm)
    assert {row["boards"] for row in rows} == {f"adb:{other.serial}"}, "the other did them all"


def test_a_runner_told_to_stop_frees_the_board_and_its_models(
    farm: Farm, board: VirtualBoard
) -> None:
    board.set_tool(delay_s=0.1)
    runner = farm.runner("--benchmark-only", device=f"adb:{board.serial}")
    eventually(lambda: running_tool(board) and len(held_by_somebody(farm)) == 3)

    runner.send_signal(signal.SIGTERM)

    output = ended(runner)
    assert runner.returncode == 0, output
    assert output.count("given back\n") == 2, "those that waited for their turn do not begin"
    assert any("total_inference_avg" in row for row in rows_of(farm)), "the one under way ended"
    assert all(r.attempts == 0 for row in rows_of(farm) for r in records_of(row).values())
    assert board.shell(f"ls {LEASE}").returncode != 0
    assert not held_by_somebody(farm)


@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_long_run_on_a_board_is_given_back_in_time_even_where_the_board_hangs(
    farm: Farm, board: VirtualBoard, hangs: bool
) -> None:
    """On a busy machine; a board that hangs at the end costs no more than one answer of it."""
    grace_s = 0.5
    set_lease(farm, 60)
    settings = farm.folder / "edgeloop.yaml"
    settings.write_text(settings.read_text().replace("probe_seconds: 2", "probe_seconds: 6"))
    board.set_tool(hang=True, times=1)
    one = ("--benchmark-only", "--subset", ONE)
    with busy_machine():
        runner = farm.runner(*one, "--grace", str(grace_s), device=f"adb:{board.serial}")
        eventually(lambda: running_tool(board), 120)
        if hangs:
            board.freeze()
        runner.send_signal(signal.SIGTERM)
        output, _ = runner.communicate(timeout=grace_s + 15)

    assert runner.returncode == 0, output
    assert "0 stages done, 1 given back." in output, output
    assert "Traceback" not in output and "Exception" not in output, output
    assert not held_by_somebody(farm), "another runner may take it at once"
    assert all(r.attempts == 0 for row in rows_of(farm) for r in records_of(row).values())
    if hangs:
        board.thaw()
    else:
        assert board.shell(f"ls {LEASE}").returncode != 0, "and the board"
    farm.drain(*one, device=f"adb:{board.serial}")
    (row,) = [row for row in rows_of(farm) if row["name"] == ONE]
    assert row["boards"] == f"adb:{board.serial}"


@pytest.mark.soak
def test_a_killed_runner_leaves_a_board_that_the_next_one_can_use(
    farm: Farm, board: VirtualBoard
) -> None:
    board.set_tool(hang=True, times=1)
    runner = farm.runner(device=f"adb:{board.serial}")
    eventually(lambda: running_tool(board))
    runner.kill()
    runner.communicate()
    board.set_tool()
    held = held_by_somebody(farm)
    assert held
    eventually(lambda: time.time() > max(record.expires for record in held) + 1)

    farm.drain("--subset", ONE, device=f"adb:{board.serial}")

    check_complete(farm, ONE)


SCORES = ("f1_1k", "f1_1k_f", "f1_10k")


@pytest.mark.parametrize(
    ("fault", "unknown"),
    [
        ({"fail": True}, SCORES),
        pytest.param({"fewer": 1}, SCORES, marks=pytest.mark.soak),
        # Whole numbers are never NaN.
        pytest.param({"nan": True}, ("f1_1k_f",), marks=pytest.mark.soak),
    ],
)
def test_a_tool_that_fails_is_written_into_the_row_and_no_number_is(
    farm: Farm, board: VirtualBoard, fault: dict[str, object], unknown: tuple[str, ...]
) -> None:
    one = ("--subset", ONE)
    farm.drain("--benchmark-only", *one, device=f"adb:{board.serial}")
    board.set_tool(**fault)  # type: ignore[arg-type]

    farm.drain("--ok-if-errors", *one, device=f"adb:{board.serial}")

    (row,) = [row for row in rows_of(farm) if row["name"] == ONE]
    assert row["status"] == "error"
    assert str(row["error"]).startswith("f1_1")
    assert not set(unknown) & set(row)
    assert 3 in [record.attempts for record in records_of(row).values()]


def test_devices_names_chip_and_model_of_each_board_or_says_what_to_do_about_it(
    farm: Farm, board: VirtualBoard, boards: Callable[..., VirtualBoard]
) -> None:
    """Over TCP the adb server itself says nothing of what a board is."""
    phone = {"ro.product.model": "Phone\x1b[31m 13", "ro.soc.model": "SM8550"}
    other = boards("b", properties=phone)
    names = [f"adb:{each.serial}" for each in (board, other)]

    def listed() -> list[dict[str, str]]:
        rows = json.loads(farm.edgeloop("devices", "--device", "adb:*", "--json").stdout)
        return sorted(rows, key=lambda row: names.index(row["device"]))

    assert [(row["device"], row["chip"], row["model"], row["state"]) for row in listed()] == [
        (names[0], "snapdragon-888", "Virtual Board 888", "ready: Virtual Board 888, Android 13"),
        (names[1], "snapdragon-8-gen-2", "Phone[31m 13", "ready: Phone[31m 13, Android 13"),
    ]
    table = farm.edgeloop("devices", "--device", "adb:*").stdout
    assert "snapdragon-888" in table and "Virtual Board 888" in table
    settings = farm.folder / "edgeloop.yaml"
    settings.write_text(settings.read_text().replace("probe_seconds: 2", "probe_seconds: 0.5"))
    other.freeze()
    board.unauthorise()
    refused, hung = listed()
    assert "accept the dialog" in refused["state"] and refused["chip"] == ""
    assert hung["state"] == "it did not answer within 0.5 s"
    other.thaw()


# The program itself, but what its runner says of itself is never older than a moment.
TALKATIVE = """
from edgeloop.cli import main
from edgeloop.runner import presence
presence.TICK_S = presence.SOONEST_S = 0.5
main()
"""


def test_the_states_of_a_runners_boards_are_seen_from_other_machines(
    farm: Farm, board: VirtualBoard, boards: Callable[..., VirtualBoard]
) -> None:
    """Hot, busy and unplugged; beside it a board that nobody uses, plugged in and unauthorized. A
    second runner does not get the board that is in use. The runner has a name of its own, which
    is not the one by which the machine that looks would list its boards."""
    settings = farm.folder / "edgeloop.yaml"
    settings.write_text(settings.read_text().replace("tool_seconds: 8", "tool_seconds: 300"))
    farm.program = ("-c", TALKATIVE)
    other = boards("b")
    board.set_temperature(0, 95_000)
    board.set_tool(hang=True)
    here = farm.environ
    farm.environ = {**here, "EDGELOOP_NODE": "lab-1"}
    runner = farm.runner("--subset", ONE, device=f"adb:{board.serial}")
    farm.environ = here

    def states(workspace: Workspace) -> dict[str, str]:
        return {d.device: d.state for entry in workspace.runners() for d in entry.devices}

    def celsius(workspace: Workspace) -> dict[str, float | None]:
        return {d.device: d.celsius for entry in workspace.runners() for d in entry.devices}

    used, unused = f"adb:{board.serial}", f"adb:{other.serial}"
    with farm.workspace() as workspace:
        eventually(lambda: states(workspace).get(used) == "hot", 120)
        eventually(lambda: celsius(workspace).get(used) == 95.0)
        eventually(lambda: states(workspace).get(unused) == "plugged")
        other.unauthorise()
        eventually(lambda: states(workspace).get(unused) == "unauthorized")
        board.set_temperature(0, 40_000)
        eventually(lambda: states(workspace).get(used) == "busy")
        seen = json.loads(farm.edgeloop("devices", "--watch", "--json").stdout)
        lines = {line["device"]: line for line in seen}
        assert sorted(line["device"] for line in seen if line["device"]) == sorted([used, unused])
        assert (lines[used]["state"], lines[used]["doing"]) == ("busy", [f"benchmark {ONE}"])
        assert lines[used]["machine"] == lines[unused]["machine"] == "lab-1"
        assert workspace.settings.node != "lab-1"
        assert "accept the dialog" in lines[unused]["detail"]
        second = farm.runner("--drain", device=used)
        refusal = ended(second)
        assert second.returncode != 0
        assert "is in use by" in refusal and "Traceback" not in refusal
        board.unplug()
        eventually(lambda: states(workspace).get(used) == "unplugged")
    runner.send_signal(signal.SIGTERM)
    runner.send_signal(signal.SIGTERM)
    ended(runner)
