"""A virtual board as a device: short waits, one converted net, and a way to see what happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.platforms.snpe import BoardOptions
from edgeloop.platforms.snpe.device import AdbDevice
from edgeloop.platforms.snpe.sdk import find_sdk
from edgeloop.platforms.snpe.toolchain import SnpeToolchain
from tests.converted import SIZE, SmallModel, kept_models, samples, smooth_images
from tests.nets_torch import SmallUNet, export
from tests.peers.board import AdbServer, VirtualBoard

ROOT = "/data/local/tmp/edgeloop"
QUICK = BoardOptions(
    tool_s=20.0,
    grace_s=2.0,
    call_s=5.0,
    probe_s=1.5,
    transfer_s=10.0,
    lease_s=30.0,
    cool_poll_s=0.05,
    cool_limit_s=0.2,
    benchmark_inputs=4,
)


@pytest.fixture(scope="module")
def board(
    adb_server: AdbServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VirtualBoard]:
    with (
        pytest.MonkeyPatch.context() as patch,
        VirtualBoard(tmp_path_factory.mktemp("boards"), adb_server) as running,
    ):
        for name, value in running.environ.items():
            patch.setenv(name, value)
        running.warm_up()
        yield running


@pytest.fixture(scope="module")
def small_net(sdk: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    """`model` is the float DLC, `quantized` the one for the DSP."""

    def convert(folder: Path) -> SmallModel:
        model = export(SmallUNet(), folder / "unet.onnx", SIZE)
        with SnpeToolchain(find_sdk(sdk)) as toolchain:
            converted = toolchain.convert(model, samples(smooth_images(16), folder), folder / "out")
        return SmallModel(converted.files["unet.dlc"], converted)

    return kept_models("board-net", tmp_path_factory, lambda folder: {"": convert(folder)})[""]


@contextmanager
def opened_board(board: VirtualBoard, sdk_root: Path, **options: object) -> Iterator[AdbDevice]:
    chosen = replace(QUICK, **options)  # type: ignore[arg-type]
    device = AdbDevice(board.serial, find_sdk(sdk_root), options=chosen)
    try:
        yield device
    finally:
        device.close()


def listed(board: VirtualBoard, folder: str) -> list[str]:
    return board.shell(f"ls {ROOT}/{folder}").stdout.split()
