"""Tables as wide as the terminal: what is left out, what is shortened, and what has a colour."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop.cli.devices import machine_table
from edgeloop.cli.terminal import Screen, TableColumn, fit, shortened, step_bar, totals
from edgeloop.runner.machines import MachineLine
from tests.cli.conftest import Edgeloop
from tests.cli.terminals import Terminal

COLUMNS = (
    TableColumn("name", 100, 6),
    TableColumn("macs", 20, right=True),
    TableColumn("state", 90, 8),
)
ROWS = [("net-1", "5G", "complete"), ("a-long-name", "412M", "error: the chip lacks an operator")]
ERROR = "the graph has an operator that the chip does not take: GridSample in /decoder/up"


@pytest.mark.parametrize("width", [10, 18, 24, 40, 80, 200])
def test_no_line_is_wider_than_the_screen_and_no_room_is_wasted(width: int):
    table = fit(COLUMNS, ROWS, Screen(width))
    lines = [table.heading, *table.lines]
    full = max(map(len, fit(COLUMNS, ROWS, Screen()).lines))
    assert max(map(len, lines)) <= width
    assert width < 40 or max(map(len, lines)) == min(width, full)
    assert (table.left_out == ()) == (width >= 24)
    assert width >= 18 or table.left_out == ("macs", "state")
    assert width >= full or "…" in table.lines[1]


def test_texts_are_shortened_by_the_columns_of_a_terminal():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdef", 4) == "abc…"
    assert shortened("模型模型", 5) == "模型…"
    assert shortened("é" * 4, 4) == "é" * 4, "a combining accent takes no room"


def test_output_that_is_no_terminal_is_complete_and_has_no_colour():
    table = fit(COLUMNS, ROWS, Screen(), ["complete", "error"], "state")
    assert table.left_out == () and "\x1b" not in "".join(table.lines)
    assert table.lines[1].endswith("the chip lacks an operator")


def test_states_have_colours_and_control_characters_of_a_row_do_not_reach_the_terminal():
    rows = [("a\x1b[31m", "", "complete"), ("b", "", "error")]
    lines = fit(COLUMNS, rows, Screen(80, has_colour=True), ["complete", "error"], "state").lines
    assert "\x1b[32mcomplete" in lines[0] and "\x1b[31merror" in lines[1]
    assert "a�[31m" in lines[0]


def test_the_totals_say_failed_of_an_error_and_put_running_first():
    states = ["complete", "error", "running", "complete", "odd"]
    order = ("running", "failed", "complete")
    assert totals("model", states, order) == "5 models: 1 running, 1 failed, 2 complete, 1 odd"
    assert totals("model", [], order) == "0 models"


def test_a_device_is_one_line_of_80_columns_whatever_it_is_doing():
    board = "adb:emulator-5554-with-a-very-long-serial-number"
    lines = [
        MachineLine("lab-1", board, "busy", ("benchmark a-model-with-a-long-name",) * 3, seconds=9),
        MachineLine("lab-1", "adb:2", "dead", detail="its runner has fallen silent"),
        MachineLine("lab-1", "", "idle"),
    ]
    text = machine_table(lines, Screen(80, 24, has_colour=True))
    plain = re.sub(r"\x1b\[\d+m", "", text).splitlines()
    assert max(map(len, plain)) <= 80 and len(plain) == 6
    assert plain[-1] == "2 devices: 1 busy, 1 dead" and "\x1b[31mdead" in text
    assert board in machine_table(lines, Screen())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with models of every state, in the order in which they were uploaded."""
    folder = tmp_path_factory.mktemp("terminal")
    states = {10: "complete", 2: "complete", 1: "running f1_1k", 3: "error", 11: "running f1_1k"}
    with Workspace.open(f"sqlite:{folder / '.edgeloop'}") as workspace:
        for number, status in states.items():
            name = f"net-{number}"
            workspace.store.models("default").insert(
                name,
                {
                    **{"name": name, "status": status, "node": "bench-1/htp:qcs8550"},
                    **{"macs": number * 10**8, "mean": number / 1e3, "size": number * 10**6},
                    **{"f1_1k": 0.8, "f1_onnx": 0.81, "f1_10k": 0.79, "f1_1k_f": 0.8},
                    **({"error": ERROR} if status == "error" else {}),
                    **{"device": "htp:qcs8550" if number < 10 else "htp:x-elite"},
                },
            )
    return folder


NAMES = ["net-1", "net-11", "net-3", "net-2", "net-10"]


def test_status_fits_80_columns_and_uses_140(folder: Path):
    narrow = Terminal.output(["status"], folder, 80)
    wide = Terminal.output(["status"], folder, 140, NO_COLOR="1")
    assert "\x1b[31merror" in narrow and "\x1b[36mrunning" in narrow and "\x1b" not in wide
    lines = re.sub(r"\x1b\[\d+m", "", narrow).splitlines()
    assert max(map(len, lines)) <= 80 < max(map(len, wide.splitlines())) <= 140
    assert [line.split()[0] for line in lines[1:6]] == NAMES
    assert lines[6] == "5 models: 2 running, 1 failed, 2 complete"
    assert lines[7].startswith("Not shown for lack of room: ") and "f1_10k" in lines[7]
    assert "f1_10k" in wide.splitlines()[0] and "Not shown" not in wide
    assert "error: the graph" in lines[3] and "…" in lines[3]


def test_a_pipe_gets_every_column_in_full_and_no_totals(
    folder: Path, edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "40")
    heading, *lines = edgeloop("status").out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert heading.split()[-2:] == ["status", "node"] and f"error: {ERROR}" in lines[2]
    rows = edgeloop("status", "--json").json
    assert [row["name"] for row in rows] == ["net-1", "net-10", "net-11", "net-2", "net-3"]


@pytest.mark.parametrize(
    ("options", "heading", "first"),
    [
        (("--sort", "latency_ms:desc"), "", "net-11"),
        (("--sort", "mean"), "", "net-1"),
        (("--sort", "error"), "", "net-3"),
        (("--columns", "name,latency_ms,size_mb,error"), "name latency_ms size_mb error", "net-1"),
        (("--columns", "name, mean", "--sort", "name:desc"), "name latency_ms", "net-11"),
        (("--device", "htp:x-elite"), "", "net-11"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_status_sorts_and_chooses_columns_by_the_names_it_shows(
    folder: Path,
    edgeloop: Edgeloop,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    heading: str,
    first: str,
):
    monkeypatch.chdir(folder)
    lines = edgeloop("status", *options).out.splitlines()
    assert lines[1].split()[0] == first
    assert not heading or lines[0].split() == heading.split()


def test_programs_choose_columns_and_an_order_too(
    folder: Path, edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    options = ("--columns", "name,latency_ms", "--sort", "latency_ms")
    assert edgeloop("status", *options, "--json").json[1] == {"name": "net-2", "mean": 0.002}
    said = edgeloop("status", *options, "--csv", "-").out.splitlines()
    assert said[:2] == ["name,mean", "net-1,0.001"]
    assert "did you mean 'latency_ms'?" in edgeloop("status", "--columns", "latency").sentence
    assert "no column 'x'" in edgeloop("status", "--sort", "x").sentence
    assert edgeloop("status", "--sort", "mean:up").code == 2


def test_csv_has_no_control_characters_on_a_terminal_and_no_formulas_anywhere(
    tmp_path: Path, edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch
):
    row = {"name": "net", "status": "new", "error": "\x1b[31mred", "notes": "＝HYPERLINK(1)"}
    with Workspace.open(f"sqlite:{tmp_path / '.edgeloop'}") as workspace:
        workspace.store.models("default").insert("net", row)
    monkeypatch.chdir(tmp_path)
    options = ["status", "--columns", "name,error,notes", "--csv", "-"]
    assert Terminal.output(options, tmp_path, 80).endswith("net,�[31mred,'＝HYPERLINK(1)\n")
    assert edgeloop(*options).out.endswith("net,\x1b[31mred,'＝HYPERLINK(1)\n")


def test_a_job_shows_what_it_waits_for_until_it_speaks(folder: Path):
    (folder / "speak.py").write_text("print('begun')\n")
    seen = Terminal.output(["run", "speak.py", "--name", "spoken"], folder, 80)
    states = re.findall(r"spoken: (\w+) on local", seen.partition("begun")[0])
    assert states and set(states) <= {"queued", "preparing", "running"}, seen
    after = seen.partition("begun")[2]
    assert "completed in" in after and "on local" not in after


def test_a_bar_is_there_while_something_moves(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with step_bar("comparing") as bar:
        bar.update(0, 0)
        assert "comparing" not in capfd.readouterr().err
        bar.say("epoch 1 [of] 3")
        bar.update(3, 7, "loss 0.1")
    said = capfd.readouterr().err
    assert "epoch 1 [of] 3" in said and "3/7" in said and "0/100" not in said
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    with step_bar("comparing") as bar:
        bar.update(3, 7)
        bar.say("a line for the log")
    assert capfd.readouterr().err == "a line for the log\n"
