"""The virtual board is what it claims to be: the real daemon, private, and as faulty as asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.waiting import eventually
from tests.peers.board import AdbServer, VirtualBoard
from tests.peers.board import board as board_module
from tests.peers.board.loopback import Listener, listeners
from tests.peers.process import accepts_connections

Boards = Callable[..., VirtualBoard]


def test_two_boards_share_a_server_and_nothing_else(boards: Boards):
    first, second = boards("first"), boards("second")

    first.shell("echo mine > /data/local/tmp/note")

    assert second.shell("cat /data/local/tmp/note").returncode != 0
    assert first.shell("getprop ro.serialno").stdout == "first\n"
    assert second.shell("getprop ro.serialno").stdout == "second\n"


def test_the_daemon_and_the_server_listen_on_loopback_alone(board):
    ports = {board.port, board.server.port}

    found = [listener for listener in listeners() if listener.port in ports]

    assert {listener.port for listener in found} == ports
    assert {listener.address for listener in found} == {"127.0.0.1"}


def test_a_daemon_that_listens_elsewhere_is_ended_before_anybody_uses_it(
    board, monkeypatch: pytest.MonkeyPatch
):
    everywhere = [Listener("0.0.0.0", board.port, 1)]
    monkeypatch.setattr(board_module, "listeners_of", lambda _: everywhere)

    with pytest.raises(RuntimeError, match="loopback alone"):
        board.restart()

    assert not accepts_connections(board.port)


def test_the_daemon_ends_when_nobody_says_where_to_listen():
    done = subprocess.run(
        [board_module.PROGRAM], env={}, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode != 0
    assert "ADBD_LISTEN is not set" in done.stderr


def test_a_command_gone_astray_on_a_board_does_not_reach_this_machine(board, tmp_path):
    outside = Path(__file__)

    assert board.shell(f"echo harm >> {outside}").returncode != 0
    board.shell(f"mkdir -p {tmp_path}; touch {tmp_path}/harm")

    assert "harm" not in [path.name for path in tmp_path.iterdir()]


def test_after_a_reboot_no_program_runs_and_the_data_is_there(board):
    board.shell("touch /data/local/tmp/kept; sleep 600 > /dev/null 2>&1 < /dev/null &")
    assert "sleep 600" in board.shell("ps ax").stdout

    board.reboot()
    eventually(lambda: board.shell("true").returncode == 0)

    assert "sleep 600" not in board.shell("ps ax").stdout
    assert board.shell("ls /data/local/tmp").stdout == "kept\n"


def test_when_a_board_ends_no_process_and_no_mount_is_left(adb_server: AdbServer, tmp_path):
    mounts = Path("/proc/self/mounts").read_text()
    with VirtualBoard(tmp_path, adb_server, "short") as board:
        board.shell("sleep 601 > /dev/null 2>&1 < /dev/null &")
        inside = board.processes()
        assert len(inside) >= 3
        board.freeze()

    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
    assert Path("/proc/self/mounts").read_text() == mounts
    assert not accepts_connections(board.port)


def test_a_board_ends_with_the_process_that_started_it_however_that_ended(tmp_path):
    script = """
import sys
from pathlib import Path
from tests.peers.board.space import Space
space = Space(Path(sys.argv[1]) / "space", 1 << 20)
space.open({})
print(space.first_process, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=board_module.REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        first = int(owner.stdout.readline())
        assert is_alive(first)
        owner.kill()

    eventually(lambda: not is_alive(first))


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended while it was read
        return False
