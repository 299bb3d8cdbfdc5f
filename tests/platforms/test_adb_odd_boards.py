"""Boards whose shell and programs are not quite those of the others: older ones, ones without root,
talkative ones. A program of ours in front of the board's own plays each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeloop.errors import DeviceUnavailable, ModelFailed
from edgeloop.platforms.snpe import files as board_files
from edgeloop.platforms.snpe.adb import attached_boards
from edgeloop.platforms.snpe.device import AdbDevice, class_maps
from edgeloop.testing.contracts.platform import infer_images
from tests.converted import SmallModel, smooth_images
from tests.peers.board import VirtualBoard
from tests.platforms.boards import ROOT, board, opened_board, small_net

__all__ = ["board", "small_net"]


@pytest.fixture
def program(board: VirtualBoard) -> Iterator[Callable[[str, str], None]]:
    """Puts a script in front of one of the board's programs."""
    made: list[Path] = []

    def make(name: str, script: str) -> None:
        path = board.root / "system/bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        made.append(path)

    yield make
    for path in made:
        path.unlink()


def outputs(device: AdbDevice, net: SmallModel, seed: int = 1) -> np.ndarray:
    images = smooth_images(3, seed=seed)
    found = infer_images(device, net.quantized, net.converted.info, "quantized", images)
    return np.concatenate(list(found))


def test_without_root_clocks_are_left_alone_and_measured_all_the_same(
    board, sdk, small_net, program
):
    program("id", "echo 2000")
    with opened_board(board, sdk) as device:
        found = device.measure(small_net.quantized, small_net.converted.info)
    assert found.seconds > 0
    assert found.conditions["cpu0 governor after"] == "schedutil"


def test_an_xargs_that_always_succeeds_hides_no_missing_files(board, sdk, small_net, program):
    """As that of older Androids."""
    program("xargs", '/usr/bin/xargs "$@"; exit 0')
    with opened_board(board, sdk) as device:
        expected = outputs(device, small_net)
        board.shell(f"rm -rf {ROOT}/data/*")
        with pytest.raises(DeviceUnavailable, match="gone"):
            outputs(device, small_net)
        np.testing.assert_array_equal(outputs(device, small_net), expected)


def test_a_timeout_with_codes_of_its_own_is_understood(board, sdk, small_net, program):
    """Older ones add 127 to a signal's number."""
    program("timeout", '/usr/bin/timeout "$@"; code=$?; [ $code = 124 ] && exit 142; exit $code')
    board.set_tool(hang=True, times=1)
    with (
        opened_board(board, sdk, tool_s=1.0) as device,
        pytest.raises(ModelFailed, match="did not end within 1 s"),
    ):
        outputs(device, small_net)
    board.set_tool()


def test_a_shell_that_says_something_first_is_understood(board, sdk, small_net, program):
    for name in ("mkdir", "find"):
        program(
            name, f'echo "WARNING: linker: 1 2 3 libfoo.so has text relocations"; /bin/{name} "$@"'
        )
    with opened_board(board, sdk) as device:
        assert len(outputs(device, small_net)) == 3
        device.measure(small_net.quantized, small_net.converted.info)


def test_programs_that_a_board_lacks_are_named(board, sdk, monkeypatch):
    monkeypatch.setattr(board_files, "_PROGRAMS", f"{board_files._PROGRAMS} sha999sum")
    with (
        opened_board(board, sdk) as device,
        pytest.raises(DeviceUnavailable, match="lacks sha999sum: Android 8"),
    ):
        device.acquire()


@pytest.mark.parametrize("lost", ["bin", "lib/aarch64-android/libSNPE.so"])
def test_a_tool_that_cannot_start_is_no_models_fault_and_is_pushed_again(
    board, sdk, small_net, lost
):
    with opened_board(board, sdk) as device:
        expected = outputs(device, small_net)
        board.shell(f"rm -rf {ROOT}/sdk/*/{lost}")
        with pytest.raises(DeviceUnavailable, match="snpe-net-run cannot start"):
            outputs(device, small_net)
        np.testing.assert_array_equal(outputs(device, small_net), expected)


def test_a_server_that_announces_itself_is_no_board(tmp_path):
    adb = tmp_path / "adb"
    adb.write_text(
        "#!/bin/sh\n"
        "echo '* daemon not running; starting now at tcp:5037'\n"
        "echo '* daemon started successfully'\n"
        "echo 'List of devices attached'\n"
        "printf 'ABC123\\tdevice product:x\\n\\n'\n"
    )
    adb.chmod(0o755)
    (found,) = attached_boards(str(adb))
    assert (found.serial, found.state, found.details) == ("ABC123", "device", "product:x")


def test_class_maps_may_have_a_byte_or_two_or_four_a_pixel(small_net):
    info = small_net.converted.info
    classes = np.arange(info.height * info.width) % info.output_shape[1]
    for kind in (np.uint8, np.uint16, np.int32, np.float32):
        (found,) = class_maps({"Result_0/classes.raw": classes.astype(kind).tobytes()}, 1, info)
        np.testing.assert_array_equal(found.ravel(), classes)
