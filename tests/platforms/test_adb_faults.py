"""Everything boards do, with the real client and the real daemon: no call outlives its limit, no
number comes from half a run, and the same device works again once the board does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from edgeloop.errors import DeviceUnavailable
from edgeloop.platforms.snpe import files as board_files
from edgeloop.platforms.snpe import run as board_run
from edgeloop.platforms.snpe.adb import attached_boards
from edgeloop.platforms.snpe.device import AdbDevice
from edgeloop.testing.contracts.platform import infer_images
from tests.converted import SmallModel, smooth_images
from tests.jobs.waiting import eventually
from tests.peers.board import AdbServer, VirtualBoard
from tests.platforms.boards import ROOT, listed, opened_board, small_net

__all__ = ["small_net"]

MANY = 160  # their outputs do not fit into the buffers between the board and us


@pytest.fixture
def board(boards, monkeypatch: pytest.MonkeyPatch) -> VirtualBoard:
    running = boards()
    for name, value in running.environ.items():
        monkeypatch.setenv(name, value)
    running.warm_up()
    return running


def outputs(device: AdbDevice, net: SmallModel, seed: int = 1, count: int = 4) -> np.ndarray:
    images = smooth_images(count, seed=seed)
    found = infer_images(device, net.quantized, net.converted.info, "quantized", images)
    return np.concatenate(list(found))


def when_sending(patch: pytest.MonkeyPatch, mishap: Callable[[], None]) -> None:
    """The first stream of images is cut in its middle."""
    whole = board_files.packed

    def cut(entries) -> Iterator[bytes]:
        pieces = list(whole(entries))
        yield from pieces[: len(pieces) // 2]
        patch.setattr(board_files, "packed", whole)
        mishap()
        yield from pieces[len(pieces) // 2 :]

    patch.setattr(board_files, "packed", cut)


def when_receiving(patch: pytest.MonkeyPatch, mishap: Callable[[], None]) -> None:
    """After the first bytes of a run's outputs."""
    whole = board_run.unpacked

    def cut(stream, *more):
        patch.setattr(board_run, "unpacked", whole)
        head = stream.read(4096)
        mishap()
        return {"out/Result_0/x.raw": head + stream.read()}

    patch.setattr(board_run, "unpacked", cut)


def when_running(board: VirtualBoard, mishap: Callable[[], None]) -> threading.Thread:
    """Once the tool has started; it would never end by itself."""
    board.set_tool(hang=True, times=1)

    def wait() -> None:
        runs = board.data / "local/tmp/edgeloop/run"
        eventually(lambda: list(runs.glob("*/tool.log")))
        mishap()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


MISHAPS = {
    "killed": (VirtualBoard.kill, VirtualBoard.restart),
    "hung": (VirtualBoard.freeze, VirtualBoard.thaw),
    "restarted": (VirtualBoard.reboot, lambda board: None),
}


MOMENTS = ("push", "run", "pull")
# Each mishap and each moment once in `make test`, every pair in `make soak`.
SHORT = set(zip(MISHAPS, MOMENTS, strict=True))


@pytest.mark.parametrize(
    ("what", "when"),
    [
        pytest.param(*pair, marks=() if pair in SHORT else pytest.mark.soak)
        for pair in product(MISHAPS, MOMENTS)
    ],
)
def test_in_the_middle_of_it(board, sdk, small_net, monkeypatch, what, when):
    happen, mend = MISHAPS[what]
    limits = {"tool_s": 3.0, "grace_s": 1.0, "transfer_s": 2.0, "call_s": 2.0, "squeeze": False}
    with opened_board(board, sdk, **limits) as device:
        expected = outputs(device, small_net)
        if when == "push":
            when_sending(monkeypatch, lambda: happen(board))
        elif when == "pull":
            when_receiving(monkeypatch, lambda: happen(board))
        else:
            when_running(board, lambda: happen(board))
        with pytest.raises(DeviceUnavailable):
            outputs(device, small_net, seed=2, count=MANY)
        board.set_tool()
        mend(board)
        eventually(lambda: _is_back(device))
        np.testing.assert_array_equal(outputs(device, small_net), expected)
        again = outputs(device, small_net, seed=2, count=8)
        assert np.isfinite(again).all()

        def is_clear() -> bool:  # a call that clears away has two seconds, too
            return listed(board, "run") == [] or outputs(device, small_net) is None

        eventually(is_clear)
        assert not [name for name in listed(board, "data") if not name.endswith(".raw")]


def test_a_tool_that_outlived_its_client_is_ended_before_the_next_one(board, sdk, small_net):
    with opened_board(board, sdk) as device:
        thread = when_running(board, board.kill)
        with pytest.raises(DeviceUnavailable):
            outputs(device, small_net)
        thread.join()
        board.set_tool()
        board.restart()
        eventually(lambda: _is_back(device))
        outputs(device, small_net)
        assert "snpe-net-run" not in board.shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout


def test_a_full_disk_is_the_boards_trouble_and_space_helps(board, sdk, small_net):
    with opened_board(board, sdk) as device:
        device.acquire()
        board.fill_disk()
        with pytest.raises(DeviceUnavailable, match="full"):
            outputs(device, small_net)
        board.free_disk()
        assert len(outputs(device, small_net)) == 4


def test_a_disk_that_fills_while_a_tool_runs_gives_no_number(board, sdk, small_net):
    with opened_board(board, sdk) as device:
        outputs(device, small_net)
        board.set_tool(until_full=True)
        runs = board.data / "local/tmp/edgeloop/run"

        def fill() -> None:
            eventually(lambda: list(runs.glob("*/tool.log")))
            board.fill_disk()

        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        with pytest.raises(DeviceUnavailable, match="full"):
            outputs(device, small_net)
        thread.join()
        board.set_tool()
        board.free_disk()
        assert len(outputs(device, small_net)) == 4


def test_a_board_that_was_unplugged_gives_the_same_outputs_once_it_is_back(board, sdk, small_net):
    with opened_board(board, sdk) as device:
        expected = outputs(device, small_net)
        board.unplug()
        with pytest.raises(DeviceUnavailable):
            outputs(device, small_net)
        with pytest.raises(DeviceUnavailable, match="not connected"):
            device.probe()
        board.restart()  # nobody types `adb connect`
        eventually(lambda: _is_back(device))
        np.testing.assert_array_equal(outputs(device, small_net), expected)


def test_an_unauthorised_board_says_what_to_do(board, sdk, small_net):
    board.unauthorise()
    with opened_board(board, sdk) as device:
        with pytest.raises(DeviceUnavailable, match="accept the dialog"):
            device.probe()
        (found,) = [each for each in attached_boards() if each.serial == board.serial]
        assert "accept the dialog" in found.advice
        board.authorise()
        eventually(lambda: _is_back(device))
        outputs(device, small_net)


def test_an_adb_server_that_somebody_restarts(board, sdk, small_net, adb_server: AdbServer):
    with opened_board(board, sdk) as device:
        expected = outputs(device, small_net)
        when_running(board, adb_server.kill)
        with pytest.raises(DeviceUnavailable):
            outputs(device, small_net, seed=3)
        board.set_tool()
        adb_server.start()
        eventually(lambda: _is_back(device))
        np.testing.assert_array_equal(outputs(device, small_net), expected)


def test_files_that_somebody_removed_from_the_board_are_pushed_again(board, sdk, small_net):
    with opened_board(board, sdk) as device:
        expected = outputs(device, small_net)
        board.shell(f"rm -rf {ROOT}/data/* {ROOT}/models/*")
        with pytest.raises(DeviceUnavailable, match="gone"):
            outputs(device, small_net)
        np.testing.assert_array_equal(outputs(device, small_net), expected)


def test_a_file_damaged_on_its_way_never_gets_its_name(board, sdk, small_net, monkeypatch):
    whole = board_files.pieces_of

    def damaged(path: Path) -> Iterator[bytes]:
        for piece in whole(path):
            yield piece[:-1] + bytes([piece[-1] ^ 1])

    with opened_board(board, sdk) as device:
        with monkeypatch.context() as patch:
            patch.setattr(board_files, "pieces_of", damaged)
            with pytest.raises(DeviceUnavailable, match="damaged"):
                outputs(device, small_net)
        assert listed(board, "models") == []
        assert len(outputs(device, small_net)) == 4


def _is_back(device: AdbDevice) -> bool:
    try:
        device.acquire()
    except DeviceUnavailable:
        return False
    return True
