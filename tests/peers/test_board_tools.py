"""The stand-ins for the SDK's programs compute what ONNX Runtime does, and fail when told to."""

from __future__ import annotations

import csv
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from tests.jobs.waiting import eventually
from tests.peers.board import SDK_1, SDK_2, AdbServer, VirtualBoard, make_sdk
from tests.peers.board.nets import CLASSES, HEIGHT, WIDTH, images, save_net

HOME = "/data/local/tmp"
COUNT = 4
RUN = "snpe-net-run --container {} --input_list list.txt --output_dir out"


@dataclass(frozen=True)
class Prepared:
    """A net that has gone through the host's tools; its board has the SDK and the inputs."""

    sdk: Path
    folder: Path
    board: VirtualBoard

    @property
    def is_newer(self) -> bool:
        return SDK_2 in str(self.sdk)

    def host(self, tool: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return run_tool(self.sdk, tool, *arguments)

    def run(self, command: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
        """On the board, with the surroundings that the tool needs, and no outputs from before."""
        setting = f"export PATH={HOME}/bin:$PATH LD_LIBRARY_PATH={HOME}/lib"
        dsp = f"export ADSP_LIBRARY_PATH='{HOME}/dsp;/dsp'"
        line = f"cd {HOME} && rm -rf out && {setting} && {dsp} && {command}"
        return self.board.shell(line, limit_s=limit_s)

    def result(self, number: int, name: str, kind: type = np.float32) -> NDArray[np.generic]:
        return np.fromfile(self.board.data / f"local/tmp/out/Result_{number}/{name}.raw", kind)


def run_tool(sdk: Path, tool: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    program = sdk / "bin/x86_64-linux-clang" / tool
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module", params=[SDK_2, SDK_1], ids=["2.x", "1.x"])
def prepared(
    request: pytest.FixtureRequest,
    adb_server: AdbServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("tools")
    sdk = make_sdk(folder, request.param)
    for name, ends_in_classes in (("net", False), ("classes", True)):
        save_net(folder / f"{name}.onnx", ends_in_classes)
        source, target = folder / f"{name}.onnx", folder / f"{name}.dlc"
        run_tool(sdk, "snpe-onnx-to-dlc", "-i", source, "-o", target).check_returncode()
    for number, image in enumerate(images(COUNT)):
        image.tofile(folder / f"{number}.raw")
    listed = "".join(f"{folder / str(number)}.raw\n" for number in range(COUNT))
    (folder / "host.txt").write_text(listed)
    for name in ("net", "classes"):
        files = ("--input_dlc", folder / f"{name}.dlc", "--input_list", folder / "host.txt")
        target = folder / f"{name}.quant.dlc"
        run_tool(sdk, "snpe-dlc-quantize", *files, "--output_dlc", target).check_returncode()
    with VirtualBoard(folder, adb_server, "tools") as board:
        _push(board, sdk, folder)
        board.warm_up()
        yield Prepared(sdk, folder, board)


@pytest.fixture(autouse=True)
def faultless(prepared: Prepared) -> None:
    prepared.board.set_tool()


def _push(board: VirtualBoard, sdk: Path, folder: Path) -> None:
    lines = "".join(f"input:={number}.raw\n" for number in range(COUNT))
    (folder / "list.txt").write_text(lines)
    target = next((sdk / "bin").glob("aarch64-android*")).name
    dsp = next(sdk.glob("lib/hexagon-v68/unsigned"), sdk / "lib/dsp")
    places = {"bin": sdk / "bin" / target, "lib": sdk / "lib" / target, "dsp": dsp}
    for name, place in places.items():
        assert board.adb("push", str(place), f"{HOME}/{name}").returncode == 0
    files = [str(path) for path in folder.iterdir() if path.suffix in (".dlc", ".raw")]
    assert board.adb("push", *files, str(folder / "list.txt"), HOME).returncode == 0


def expected(folder: Path, name: str, image: NDArray[np.float32]) -> NDArray[np.generic]:
    session = onnxruntime.InferenceSession(folder / f"{name}.onnx")
    found: NDArray[np.generic] = session.run(None, {"input": image.transpose(2, 0, 1)[None]})[0]
    return found


def scale_and_offset(prepared: Prepared, name: str) -> tuple[float, float]:
    text = prepared.host("snpe-dlc-info", "-i", prepared.folder / "net.quant.dlc").stdout
    line = next(line for line in text.splitlines() if f"{name} encoding : bitwidth 8" in line)
    words = line.replace(",", " ").split()
    return float(words[words.index("scale") + 1]), float(words[words.index("offset") + 1])


def test_the_board_computes_what_onnx_runtime_computes_with_channels_last(prepared):
    done = prepared.run(RUN.format("net.dlc"))

    assert (done.returncode, done.stderr) == (0, "")
    assert "Successfully executed!" in done.stdout
    for number, image in enumerate(images(COUNT)):
        wanted = expected(prepared.folder, "net", image)[0].transpose(1, 2, 0)
        found = prepared.result(number, "output").reshape(HEIGHT, WIDTH, CLASSES)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_quantized_outputs_in_their_own_type_mean_the_same_as_floats(prepared):
    prepared.run(RUN.format("net.quant.dlc") + " --use_dsp")
    floats = [prepared.result(number, "output") for number in range(COUNT)]
    native = RUN.format("net.quant.dlc") + " --use_dsp --use_native_output_files"
    refused = prepared.run(native)
    assert refused.returncode == 1
    assert ("userbuffer" if prepared.is_newer else "unrecognized") in refused.stderr
    if not prepared.is_newer:
        return
    assert prepared.run(f"{native} --userbuffer_auto").returncode == 0
    scale, offset = scale_and_offset(prepared, "output")

    for number, image in enumerate(images(COUNT)):
        codes = prepared.result(number, "output", np.uint8)
        assert len(set(codes.tolist())) > 20
        values = (codes.astype(np.float32) + offset) * scale
        np.testing.assert_allclose(values, floats[number], atol=1e-5)
        wanted = expected(prepared.folder, "net", image)[0].transpose(1, 2, 0)
        assert np.abs(values - wanted.ravel()).mean() < 4 * scale


def test_a_graph_that_ends_in_argmax_gives_whole_numbers(prepared):
    native = " --userbuffer_auto --use_native_output_files" if prepared.is_newer else ""
    prepared.run(RUN.format("classes.dlc") + native)

    kind = np.int32 if prepared.is_newer else np.float32
    for number, image in enumerate(images(COUNT)):
        wanted = expected(prepared.folder, "classes", image).ravel()
        assert prepared.result(number, "classes", kind).tolist() == wanted.tolist()


def test_the_counts_of_a_model_are_in_the_text_of_dlc_info(prepared):
    text = prepared.host("snpe-dlc-info", "-i", prepared.folder / "net.dlc").stdout

    parameters = 4 * 3 * 9 + CLASSES * 4
    macs = parameters * HEIGHT * WIDTH
    assert f"Total parameters: {parameters} (0 MB" in text
    assert f"Total MACs per inference: {macs / 1000:.4g}k" in text
    assert f"1x{HEIGHT}x{WIDTH}x{CLASSES}" in text


def test_the_profile_has_the_time_of_an_inference_and_layers_when_detailed(prepared, tmp_path):
    prepared.board.set_tool(delay_s=0.05)
    for level, layers in (("basic", 0), ("detailed", 3)):
        prepared.run(RUN.format("net.quant.dlc") + f" --use_dsp --profiling_level {level}")
        log, table = tmp_path / "log", tmp_path / "table.csv"
        log.write_bytes((prepared.board.data / "local/tmp/out/SNPEDiag_0.log").read_bytes())
        assert prepared.host("snpe-diagview", "--input_log", log, "--output", table).returncode == 0
        with table.open(newline="") as file:
            rows = {row[1]: row for row in csv.reader(file)}
        assert float(rows["avg_total_inference_time"][3]) >= 50_000  # the delay is within it
        data = 0 if prepared.is_newer or not layers else 1  # 1.x count inputs as layers
        assert sum(name.startswith("layer_") for name in rows) == layers + data


def test_a_model_that_is_none_is_refused_with_a_reason(prepared, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")

    done = prepared.host("snpe-onnx-to-dlc", "-i", tmp_path / "bad.onnx", "-o", tmp_path / "x.dlc")

    assert done.returncode != 0
    assert "ERROR" in done.stderr
    assert not (tmp_path / "x.dlc").exists()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("LD_LIBRARY_PATH=/nowhere " + RUN.format("net.dlc"), "libSNPE.so"),
        ("ADSP_LIBRARY_PATH=/dsp " + RUN.format("net.quant.dlc") + " --use_dsp", "not available"),
        (RUN.format("net.dlc") + " --use_dsp", "not quantized"),
        (RUN.format("list.txt"), "Failed to open dlc"),
        (RUN.format("net.dlc") + " --use_dsq", "--use_dsq"),
        ("sed -i s/3.raw/9.raw/ list.txt; " + RUN.format("net.dlc"), "9.raw"),
    ],
)
def test_what_the_tool_needs_and_does_not_have_it_says(prepared, command, reason):
    done = prepared.run(
        f"cp list.txt kept.txt; {command}; code=$?; mv kept.txt list.txt; exit $code"
    )

    assert done.returncode == 1
    assert reason in done.stderr


def test_a_tool_that_is_to_fail_fails_as_often_as_was_said(prepared):
    prepared.board.set_tool(fail=True, times=2)

    codes = [prepared.run(RUN.format("net.dlc")).returncode for _ in range(3)]

    assert codes == [1, 1, 0]
    assert [run.exit_code for run in prepared.board.tool_runs()[-3:]] == codes


def test_a_tool_that_hangs_is_ended_by_the_board_s_own_time_limit(prepared):
    prepared.board.set_tool(hang=True)
    before = len(prepared.board.tool_runs())

    done = prepared.run("timeout -k 5 1 " + RUN.format("net.dlc"))

    assert done.returncode == 124
    eventually(lambda: len(prepared.board.tool_runs()) == before + 1)  # nothing goes on unseen


def test_fewer_results_and_outputs_that_are_no_numbers_come_with_a_good_exit_code(prepared):
    prepared.board.set_tool(fewer=1, nan=True)

    done = prepared.run(RUN.format("net.dlc"))

    assert done.returncode == 0
    results = {path.name for path in (prepared.board.data / "local/tmp/out").glob("Result_*")}
    assert results == {f"Result_{number}" for number in range(COUNT - 1)}
    assert np.isnan(prepared.result(0, "output")).all()


def test_a_full_disk_fails_the_tool_with_a_reason(prepared):
    prepared.run("true")
    prepared.board.fill_disk()
    try:
        done = prepared.run(RUN.format("net.dlc"))
    finally:
        prepared.board.free_disk()

    assert done.returncode == 1
    assert "No space left on device" in done.stderr


def test_a_daemon_killed_in_the_middle_of_a_run_ends_the_call_with_half_of_what_was_said(prepared):
    """The client's exit code is 0 then: whoever runs something on a board must ask for more."""
    prepared.board.set_tool(delay_s=60)
    outcome: list[subprocess.CompletedProcess[str]] = []
    running = threading.Thread(target=lambda: outcome.append(prepared.run(RUN.format("net.dlc"))))

    running.start()
    tool = b"snpe-net-run"
    eventually(lambda: any(tool in command for command in prepared.board.commands()))
    prepared.board.kill()
    running.join()
    prepared.board.restart()
    eventually(lambda: prepared.board.shell("true").returncode == 0)

    assert "Successfully executed!" not in outcome[0].stdout
    assert not (prepared.board.data / "local/tmp/out/Result_0").exists()
