"""A board by the real client and the real daemon: a device's promises, and what lies on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeloop.errors import BadInput, DeviceBusy, ModelFailed
from edgeloop.graph.info import image_info
from edgeloop.platforms import GivesClasses, SharedDevice, open_device
from edgeloop.platforms.batching import image_batches
from edgeloop.platforms.snpe.adb import attached_boards
from edgeloop.platforms.snpe.device import AdbDevice
from edgeloop.platforms.snpe.files import InputFile
from edgeloop.platforms.snpe.sdk import find_sdk
from edgeloop.platforms.snpe.toolchain import SnpeToolchain
from edgeloop.testing.contracts.platform import (
    DeviceContract,
    convert_tensor_models,
    infer_images,
)
from tests.converted import SIZE, SmallModel, kept_models, smooth_images
from tests.peers.board import VirtualBoard
from tests.platforms.boards import ROOT, board, listed, opened_board, small_net

__all__ = ["board", "small_net"]


@pytest.fixture
def device(board: VirtualBoard, sdk: Path) -> Iterator[AdbDevice]:
    board.set_tool()
    with opened_board(board, sdk) as opened:
        yield opened


class TestAdb(DeviceContract):
    """On a board."""

    @pytest.fixture(scope="class")
    @classmethod
    def tensor_models(cls, sdk: Path, tmp_path_factory: pytest.TempPathFactory):
        def convert(folder: Path) -> dict[str, SmallModel]:
            with SnpeToolchain(find_sdk(sdk)) as toolchain:
                return convert_tensor_models(toolchain, folder)

        return kept_models("board-tensor-models", tmp_path_factory, convert)


def test_a_board_opens_by_its_serial_and_is_shared_and_gives_classes(board, sdk, monkeypatch):
    monkeypatch.setenv("SNPE_ROOT", str(sdk))
    device = open_device(f"adb:{board.serial}")
    assert isinstance(device, SharedDevice)
    assert isinstance(device, GivesClasses)
    assert "Virtual Board 888" in device.probe()
    assert "2.28" in device.probe()
    device.close()


def test_without_an_sdk_it_says_where_to_get_one(board):
    with pytest.raises(BadInput, match="SNPE_ROOT"):
        open_device(f"adb:{board.serial}").acquire()


@pytest.mark.parametrize("serial", ["a b", "x;reboot", "$(id)", "-d", "'"])
def test_what_is_no_serial_is_refused(serial):
    with pytest.raises(BadInput, match="not the serial number"):
        open_device(f"adb:{serial}")


def test_boards_are_listed_with_their_state(board):
    found = {each.serial: each for each in attached_boards()}
    assert found[board.serial].state == "device"
    assert found[board.serial].advice == ""


def test_a_measurement_has_layers_and_the_conditions_it_was_taken_in(board, device, small_net):
    board.set_temperature(2, 41_500)
    found = device.measure(small_net.quantized, small_net.converted.info)
    assert not found.is_estimate
    assert found.conditions["zone 2 nspss-0-usr before °C"] == 41.5
    assert found.conditions["hottest after °C"] == 41.5
    assert found.conditions["sdk"].startswith("2.28")
    assert found.conditions["perf_profile"] == "high_performance"
    assert found.conditions["uptime after s"] >= found.conditions["uptime before s"]
    assert found.conditions["battery capacity before"]
    assert len(found.layers) > 3
    run = board.tool_runs()[-2]
    assert "--use_dsp" in run.argv
    assert run.argv[run.argv.index("--profiling_level") + 1] == "basic"


def test_memory_and_power_are_watched_while_the_tool_runs(board, device, small_net):
    """A battery that is charged says nothing of what the board takes; one that is drained does."""
    board.set_tool(delay_s=0.25)
    state = "/sys/class/power_supply/battery/status"
    try:
        charged = device.measure(small_net.quantized, small_net.converted.info)
        board.shell(f"echo Discharging > {state}")
        drained = device.measure(small_net.quantized, small_net.converted.info)
    finally:
        board.set_tool()
        board.shell(f"echo Charging > {state}")
    assert charged.power_mw is None
    assert drained.power_mw == pytest.approx(0.254 * 4182)
    for found in (charged, drained):
        assert found.peak_rss_bytes is not None and 2e6 < found.peak_rss_bytes < 4e9


def test_clocks_are_pinned_for_the_run_and_put_back(board, device, small_net):
    found = device.measure(small_net.quantized, small_net.converted.info)
    assert found.conditions["cpu0 governor before"] == "schedutil"
    assert found.conditions["cpu0 governor after"] == "performance"
    governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    assert board.shell(f"cat {governor}").stdout.strip() == "schedutil"
    assert "clocks" not in listed(board, "")


def test_clocks_that_a_dead_runner_pinned_are_put_back_by_the_next(board, device, small_net):
    governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    board.shell(f"mkdir -p {ROOT}; echo schedutil {governor} > {ROOT}/clocks")
    board.shell(f"echo schedutil {ROOT}/x > {ROOT}/clocks.bad; echo performance > {governor}")
    device.acquire()
    assert board.shell(f"cat {governor}").stdout.strip() == "schedutil"
    assert "clocks" not in listed(board, "")


def test_a_hot_board_cools_down_first_and_a_hot_result_says_so(board, sdk, small_net):
    board.set_temperature(0, 95_000)
    try:
        with opened_board(board, sdk, hot_c=60.0, cool_limit_s=0.2) as device:
            found = device.measure(small_net.quantized, small_net.converted.info)
        assert "measured hot" in found.conditions["note"]
        assert found.conditions["cooled down s"] == pytest.approx(0.2)
    finally:
        board.set_temperature(0, 36_500)


def test_images_and_models_travel_once(board, sdk, small_net):
    images = smooth_images(6, seed=77)
    info = small_net.converted.info
    with opened_board(board, sdk) as device:
        first = list(infer_images(device, small_net.quantized, info, "quantized", images))
        sent = device.board.adb.sent
        again = list(infer_images(device, small_net.quantized, info, "quantized", images))
        assert device.board.adb.sent - sent < 10_000
    with opened_board(board, sdk) as later:
        list(infer_images(later, small_net.quantized, info, "quantized", images[2:4]))
        assert later.board.adb.sent < 20_000, "what lies on the board is found by the next runner"
    np.testing.assert_array_equal(first[0], again[0])
    assert listed(board, "run") == []


def test_class_maps_are_those_of_the_full_outputs(board, device, small_net):
    images = smooth_images(5, seed=5)
    files, info = small_net.converted.files, small_net.converted.info
    for kind, whole, maps in (
        ("quantized", "unet.quant.dlc", "unet.classes.quant.dlc"),
        ("float", "unet.dlc", "unet.classes.dlc"),
    ):
        (full,) = infer_images(device, files[whole], info, kind, images)
        (classes,) = device.infer_classes(files[maps], info, kind, image_batches(info, images))
        assert classes.shape == (5, SIZE, SIZE)
        assert classes.dtype == np.uint8
        agreement = (full.argmax(1) == classes).mean()
        assert agreement > (0.99 if kind == "quantized" else 0.9999)


def test_native_outputs_are_the_same_numbers_in_a_quarter_of_the_bytes(board, sdk, small_net):
    images = smooth_images(4, seed=6)
    info, quantized = small_net.converted.info, small_net.quantized
    encodings = quantized.with_name("unet.encodings.json")
    hidden = encodings.with_suffix(".hidden")
    with opened_board(board, sdk, squeeze=False) as device:
        (native,) = infer_images(device, quantized, info, "quantized", images)
        native_bytes = device.board.adb.received
        encodings.rename(hidden)
        try:
            (floats,) = infer_images(device, quantized, info, "quantized", images)
        finally:
            hidden.rename(encodings)
        assert device.board.adb.received - native_bytes > 3 * native_bytes
    np.testing.assert_allclose(native, floats, atol=1e-5)


def test_the_longest_unused_go_when_the_cap_is_reached_and_those_in_use_stay(board, sdk, small_net):
    info, quantized = small_net.converted.info, small_net.quantized
    board.shell(f"rm -rf {ROOT}/data {ROOT}/models")
    old, new = smooth_images(4, seed=21), smooth_images(4, seed=22)
    one_set = 4 * 4 * SIZE * SIZE * 3 + quantized.stat().st_size
    with opened_board(board, sdk, cap_bytes=one_set + 10_000) as device:
        list(infer_images(device, quantized, info, "quantized", old))
        board.shell(f"touch -d '1 hour ago' {ROOT}/data/*")
        list(infer_images(device, quantized, info, "quantized", new))
        there = {f"data/{name}" for name in listed(board, "data")}
        assert {InputFile(image).name for image in new} <= there
        assert not {InputFile(image).name for image in old} & there
        list(infer_images(device, quantized, info, "quantized", np.concatenate([old, new])))


def test_a_second_runner_is_told_who_has_the_board(board, sdk):
    with opened_board(board, sdk) as first, opened_board(board, sdk) as second:
        first.acquire()
        with pytest.raises(DeviceBusy, match=r"in use by .+: a board serves one runner"):
            second.acquire()
        first.close()
        second.acquire()


def test_the_lease_of_a_dead_runner_is_taken_over(board, sdk):
    with opened_board(board, sdk, lease_s=1.0) as dead, opened_board(board, sdk) as next_one:
        dead.acquire()
        dead.board.closing.set()  # it renews no more
        board.shell(f"echo 1 > {ROOT}/lease/expires")
        next_one.acquire()
        with pytest.raises(Exception, match="took the board over"):
            dead.board.run(0, f"{ROOT}/lease/token", [], [])


def test_a_lease_half_made_or_from_before_a_restart_holds_nobody_up(board, sdk):
    board.shell(f"mkdir -p {ROOT}/lease")
    with opened_board(board, sdk) as device:
        device.acquire()
        board.shell(f"echo other > {ROOT}/lease/token; echo earlier > {ROOT}/lease/boot")
        with opened_board(board, sdk) as after:
            after.acquire()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"fail": True}, "failed"),
        ({"fewer": 1}, "2 results for 3 images"),
        ({"nan": True}, "not all numbers"),
    ],
)
def test_a_tool_that_fails_is_the_models_error_and_the_board_goes_on(
    board, device, small_net, fault, said
):
    info = small_net.converted.info
    arguments = (small_net.model, info, "float")
    board.set_tool(**fault)
    with pytest.raises(ModelFailed, match=said):
        list(infer_images(device, *arguments, smooth_images(3)))
    board.set_tool()
    assert len(list(infer_images(device, *arguments, smooth_images(3)))) == 1
    assert listed(board, "run") == []


def test_a_tool_that_hangs_is_ended_by_the_board_itself(board, sdk, small_net):
    board.set_tool(hang=True, times=1)
    with opened_board(board, sdk, tool_s=1.0) as device:
        with pytest.raises(ModelFailed, match="did not end within 1 s"):
            device.measure(small_net.quantized, small_net.converted.info)
        device.measure(small_net.quantized, small_net.converted.info)


def test_names_with_spaces_quotes_and_semicolons_run_nothing(board, device, small_net, tmp_path):
    odd = tmp_path / "a b'; touch pwned; \"$(touch pwned)`.quant.dlc"
    odd.write_bytes(small_net.quantized.read_bytes())
    info = image_info(
        "'; touch pwned; '", "$(reboot)", (1, 3, SIZE, SIZE), small_net.converted.info.output_shape
    )
    device.measure(odd, info)
    assert len(list(infer_images(device, odd, info, "quantized", smooth_images(2)))) == 1
    assert board.shell("find / -xdev -name pwned; find /data -name pwned").stdout == ""
    there = board.shell(f"find {ROOT} -name '*[ $;]*'").stdout
    assert there == ""


def test_uses_are_the_time_inside_tools_and_each_session_counts_its_own(board, device, small_net):
    info = small_net.converted.info
    other = device.open_session()
    board.set_tool(delay_s=0.05)
    try:
        list(infer_images(device, small_net.quantized, info, "quantized", smooth_images(4)))
    finally:
        board.set_tool()
    ((start, end),) = device.take_uses()
    assert (end - start).total_seconds() >= 0.15
    assert device.take_uses() == []
    assert other.take_uses() == []
