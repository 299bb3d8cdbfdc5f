"""The stand-ins for the SDK's programs refuse what the real ones refuse.

The tests of devices show what they compute, and how they fail when told to.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.nets import tiny_model
from tests.peers.board import SDK_1, SDK_2, AdbServer, VirtualBoard, make_sdk

HOME = "/data/local/tmp"
RUN = "snpe-net-run --container {} --input_list list.txt --output_dir out"


@pytest.fixture(scope="module", params=[SDK_2, SDK_1], ids=["2.x", "1.x"])
def board(
    request: pytest.FixtureRequest,
    adb_server: AdbServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[VirtualBoard]:
    """It has the SDK, a network in floats and quantized, and a list with one input."""
    folder = tmp_path_factory.mktemp("tools")
    sdk = make_sdk(folder, request.param)
    source, net, quantized = (folder / f"net{end}" for end in (".onnx", ".dlc", ".quant.dlc"))
    model = tiny_model()
    model.ir_version = 9  # ONNX Runtime is older than the package onnx
    onnx.save(model, source)
    np.ones(4, np.float32).tofile(folder / "0.raw")
    (folder / "host.txt").write_text(f"{folder / '0.raw'}\n")
    (folder / "list.txt").write_text("x:=0.raw\n")
    inputs = ("--input_dlc", net, "--input_list", folder / "host.txt")
    run_tool(sdk, "snpe-onnx-to-dlc", "-i", source, "-o", net)
    run_tool(sdk, "snpe-dlc-quantize", *inputs, "--output_dlc", quantized)
    target = next((sdk / "bin").glob("aarch64-android*")).name
    dsp = next(sdk.glob("lib/hexagon-v68/unsigned"), sdk / "lib/dsp")
    with VirtualBoard(folder, adb_server, "tools") as board:
        for name, place in (("bin", f"bin/{target}"), ("lib", f"lib/{target}"), ("dsp", dsp)):
            assert board.adb("push", str(sdk / place), f"{HOME}/{name}").returncode == 0
        files = [str(path) for path in (net, quantized, folder / "0.raw", folder / "list.txt")]
        assert board.adb("push", *files, HOME).returncode == 0
        board.warm_up()
        yield board


def run_tool(sdk: Path, tool: str, *arguments: object) -> None:
    command = [str(sdk / "bin/x86_64-linux-clang" / tool), *map(str, arguments)]
    subprocess.run(command, capture_output=True, timeout=60, check=True)


def run_on(board: VirtualBoard, command: str) -> subprocess.CompletedProcess[str]:
    """With the surroundings that the tool needs, unless the command sets others."""
    setting = f"export PATH={HOME}/bin:$PATH LD_LIBRARY_PATH={HOME}/lib"
    dsp = f"export ADSP_LIBRARY_PATH='{HOME}/dsp;/dsp'"
    return board.shell(f"cd {HOME} && rm -rf out && {setting} && {dsp} && {command}", limit_s=60)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("LD_LIBRARY_PATH=/nowhere " + RUN.format("net.dlc"), "libSNPE.so"),
        ("ADSP_LIBRARY_PATH=/dsp " + RUN.format("net.quant.dlc") + " --use_dsp", "not available"),
        (RUN.format("net.dlc") + " --use_dsp", "not quantized"),
        (RUN.format("list.txt"), "Failed to open dlc"),
        (RUN.format("net.dlc") + " --use_dsq", "--use_dsq"),
        (RUN.format("net.dlc").replace("list.txt", "missing.txt"), "9.raw"),
    ],
)
def test_what_the_tool_needs_and_does_not_have_it_says(
    board: VirtualBoard, command: str, reason: str
) -> None:
    done = run_on(board, f"echo x:=9.raw > missing.txt; {command}")
    assert done.returncode == 1
    assert reason in done.stderr


def test_only_a_newer_sdk_writes_native_outputs_and_only_with_user_buffers(
    board: VirtualBoard, request: pytest.FixtureRequest
) -> None:
    native = RUN.format("net.quant.dlc") + " --use_dsp --use_native_output_files"
    refused, buffered = run_on(board, native), run_on(board, f"{native} --userbuffer_auto")
    assert refused.returncode == 1
    if "2.x" in request.node.name:
        assert "userbuffer" in refused.stderr
        assert buffered.returncode == 0
        assert "Successfully executed!" in buffered.stdout
    else:
        assert "unrecognized" in refused.stderr
        assert buffered.returncode == 1
