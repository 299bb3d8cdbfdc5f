"""The SDK that is found, one run of a tool, and what the tools' texts are read as."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeloop.errors import BadInput, MissingSdk, ModelFailed, WorkerFailed
from edgeloop.platforms import open_toolchain
from edgeloop.platforms.snpe import SnpeSettings
from edgeloop.platforms.snpe.device import profile_of, read_profile, with_names
from edgeloop.platforms.snpe.dlc import DlcTensors, Encoding, read_info, read_tensors
from edgeloop.platforms.snpe.sdk import find_sdk, run_tool
from edgeloop.settings import Settings, tool_environment
from tests.jobs.waiting import eventually
from tests.platforms.sdks import make_sdk, write_tool

INFO = """
| Id | Name   | Type   | Inputs | Outputs                 | Out Dims   | Parameters              |
--------------------------------------------------------------------------------------------------
| 0  | conv_0 | Conv2d | input  | relu (data type: …)     | 1x64x64x8  | stride: [1, 1]          |
|    |        |        |        |                         |            | param count: 224 (4.1%) |
|    |        |        |        |                         |            | MACs per inference: 884k |
| 1  | head   | Conv2d | relu   | output (data type: …)   | 1x64x64x19 | param count: 171 (3%)   |
|    |        |        | output encoding : bitwidth 8, min -3, max 4.9, scale 0.03125, offset -99 |
Total parameters: 5467 (0 MB assuming single precision float)
Total MACs per inference: 4M
"""

# Of two models with several inputs and outputs, as versions 2.x and 1.x print them.
INFO_2 = """
| Id | Name | Type | Inputs | Outputs | Out Dims | Runtimes | Parameters |
| 0 | a | Conv | input_0 (data type: uFxp_8; tensor dimension: [1,8,8,3]; tensor type: APP_WRITE) |\
 output_0 (data type: uFxp_8; tensor dimension: [1,8,8,4]; tensor type: APP_READ) | 1x8x8x4 | D |\
 output_0 encoding : bitwidth 8, min 0, max 1, scale 0.25, offset -1 |
| 1 | b | FullyConnected | output_0 (data type: uFxp_8; tensor dimension: [1,8,8,4]; tensor type:\
 APP_READ) | output_1 (data type: uFxp_16; tensor dimension: [1,5]; tensor type: APP_READ) | 1x5 |\
 D | output_1 encoding : bitwidth 16, min 0, max 1, scale 0.5, offset -2 |
-----
| Input Name | Dimensions | Type   | Encoding Info                    |
| input_0    | 1,8,8,3    | uFxp_8 | No encoding info for this tensor |
| input_1    | 1,7        | Int_32 | No encoding info for this tensor |
-----
| Output Name | Dimensions | Type    | Encoding Info                                    |
| output_0    | 1,8,8,4    | uFxp_8  | bitwidth 8, min 0, max 1, scale 0.25, offset -1  |
| output_1    | 1,5        | uFxp_16 | bitwidth 16, min 0, max 1, scale 0.5, offset -2  |
| output_10   | 1,6        | uFxp_8  | bitwidth 8, min 0, max 1, scale 0.125, offset -3 |
"""
INFO_1 = """
| Id | Name     | Type          | Inputs   | Outputs  | Out Dims | Runtimes | Parameters |
| 0  | input_0  | data          | input_0  | input_0  | 1x8x8x3  | A D G C  |            |
| 1  | conv     | convolutional | input_0  | output_0 | 1x8x8x4  | A D G C  |            |
| 2  | fc       | fc            | output_0 | output_1 | 1x5      | A D G C  |            |
|    |          |               |          |          |          |          | output_1 encoding : \
bitwidth 8, min 0.0, max 1.0, delta 0.5, offset -2.0 |
"""

CSV_1 = """time,message_name,message_id,message_value,unit
12,Init,3,48856,us
13,avg_total_inference_time,9,3318,us
14,avg_layer_0,10,100,us
15,avg_layer_Conv 1/Relu,11,50.5,us
"""
CSV_2 = """Message Name,Runtime,Message Value,Unit
Total Inference Time,DSP,3.25,ms
Layer_0,DSP,300,cycles
Layer_1,DSP,100,cycles
"""
PRINTED = """Init: 283050 us
Total Inference Time: 3318 us
Forward Propagate Time: 3244 us

Layer Times:
---------------
0: 0 us : DSP
1: 1200 us : DSP
"""


def test_an_sdk_is_found_where_the_environment_says_and_knows_what_boards_need(tmp_path):
    root = make_sdk(tmp_path / "sdk with 'quotes'")
    settings = Settings.load(tmp_path, {})
    sdk = find_sdk(settings.section(SnpeSettings, {"QAIRT_SDK_ROOT": str(root)}).snpe_root)
    assert (sdk.version, sdk.major) == ("2.28.0.241029", 2)
    assert [name for name, _ in sdk.board_files()] == [
        "bin/aarch64-android/snpe-net-run",
        "lib/aarch64-android/libSNPE.so",
        "lib/hexagon-v68/unsigned/libSnpeHtpV68Skel.so",
        "lib/hexagon-v73/unsigned/libSnpeHtpV73Skel.so",
    ]
    there = sdk.board_environment("/data/x")
    assert there["ADSP_LIBRARY_PATH"].split(";")[:2] == [
        "/data/x/lib/hexagon-v73/unsigned",
        "/data/x/lib/hexagon-v68/unsigned",
    ]
    both = settings.section(SnpeSettings, {"SNPE_ROOT": "/a", "QAIRT_SDK_ROOT": "/b"})
    assert both.snpe_root == "/a"


def test_another_content_is_another_sdk_for_a_board(tmp_path):
    root = make_sdk(tmp_path / "sdk")
    before = find_sdk(root).digest
    assert find_sdk(root).digest == before
    (root / "lib/aarch64-android/libSNPE.so").write_bytes(b"newer")
    assert find_sdk(root).digest != before


def test_an_old_sdk_looks_the_same_on_a_board(tmp_path):
    root = make_sdk(tmp_path / "snpe-1.68.0.3932")
    (root / "sdk.yaml").unlink()
    for kind in ("bin", "lib"):
        (root / kind / "aarch64-android").rename(root / kind / "aarch64-android-clang8.0")
    (root / "lib/hexagon-v68/unsigned").rename(root / "lib/dsp")
    sdk = find_sdk(root)
    assert (sdk.version, sdk.major) == ("1.68.0.3932", 1)
    names = [name for name, _ in sdk.board_files()]
    assert names[:2] == ["bin/aarch64-android/snpe-net-run", "lib/aarch64-android/libSNPE.so"]
    assert "lib/dsp/libSnpeHtpV68Skel.so" in names
    assert "/d/lib/dsp" in sdk.board_environment("/d")["ADSP_LIBRARY_PATH"].split(";")


@pytest.mark.parametrize(
    ("given", "said"),
    [("", "neither SNPE_ROOT"), ("nowhere", "no folder"), ("empty", "no folder bin/x86_64")],
)
def test_a_wrong_root_says_what_is_wrong_and_where_to_get_one(tmp_path, monkeypatch, given, said):
    (tmp_path / "empty").mkdir()
    for name in ("SNPE_ROOT", "QAIRT_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(MissingSdk, match=f"{said}.*Get it from Qualcomm"):
        keys = {"snpe_root": str(tmp_path / given) if given else ""}
        open_toolchain("snpe", replace(Settings.load(tmp_path), platform_keys=keys))
    with pytest.raises(BadInput, match="did you mean 'snpe'"):
        open_toolchain("snep")


def test_what_is_missing_is_named_part_by_part(tmp_path):
    root = make_sdk(tmp_path / "sdk")
    assert find_sdk(root).missing() == []
    (root / "bin/x86_64-linux-clang/snpe-diagview").unlink()
    (root / "lib/aarch64-android/libSNPE.so").unlink()
    for path in (root / "lib").glob("hexagon-*/unsigned/*"):
        path.unlink()
    sdk = find_sdk(root)
    assert [what for what, _ in sdk.missing()] == [
        "snpe-diagview",
        "aarch64-android libraries",
        "hexagon libraries",
    ]
    with pytest.raises(MissingSdk, match=r"no lib/aarch64-android/\*.so"):
        sdk.board_files()


def test_tools_get_the_sdks_folders_first_and_no_secrets(tmp_path):
    root = make_sdk(tmp_path / "sdk", {"snpe-dlc-info": "env; pwd"})
    shell = {"PATH": os.environ["PATH"], "HOME": "/h", "AZURE_CLIENT_SECRET": "hidden"}
    said = run_tool(find_sdk(root, tool_environment(shell)), "snpe-dlc-info", (), 10)
    assert f"PATH={root}/bin/x86_64-linux-clang:" in said
    assert f"PYTHONPATH={root}/lib/python" in said
    assert f"LD_LIBRARY_PATH={root}/lib/x86_64-linux-clang" in said
    assert "hidden" not in said
    assert str(Path.cwd()) not in said.splitlines()  # files that tools drop go with their folder


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("echo 'ERROR: Node Foo: op not supported' >&2; echo bye; exit 1", ModelFailed, "Node Foo"),
        ("echo 'INFO: done'; exit 0", ModelFailed, "did not say 'All well'"),
        ("exit 3", ModelFailed, "ended with code 3 and no reason"),
        ("echo 'OSError: No space left on device'; exit 1", WorkerFailed, "the disk full"),
        ("kill -SEGV $$", ModelFailed, "crashed with SIGSEGV"),
        ("echo \"ModuleNotFoundError: No module named 'onnx'\"; exit 1", MissingSdk, "'onnx'"),
    ],
)
def test_a_tool_that_fails_gives_its_reason(tmp_path, script, error, said):
    sdk = find_sdk(make_sdk(tmp_path / "sdk", {"snpe-onnx-to-dlc": script}))
    with pytest.raises(error, match=said):
        run_tool(sdk, "snpe-onnx-to-dlc", (), 10, ("All well",))


def test_a_tool_that_hangs_is_ended_with_all_it_started(tmp_path):
    mark = tmp_path / "pid"
    script = f"sleep 600 & echo $! > '{mark}'; wait"
    sdk = find_sdk(make_sdk(tmp_path / "sdk", {"snpe-dlc-info": script}))
    with pytest.raises(ModelFailed, match="did not end within 1 s"):
        run_tool(sdk, "snpe-dlc-info", (), 1)
    started = Path(f"/proc/{mark.read_text().strip()}/status")
    eventually(lambda: not started.exists() or "State:\tZ" in started.read_text())


def test_a_tool_ends_with_the_runner_that_started_it(tmp_path):
    """In a thread that the end of the program cuts off, as a runner's after its grace period."""
    mark = tmp_path / "pid"
    root = make_sdk(tmp_path / "sdk", {"snpe-dlc-info": f"echo $$ > '{mark}'; exec sleep 600"})
    script = f"""
import threading, time
from pathlib import Path
from edgeloop.platforms.snpe.sdk import find_sdk
from edgeloop.platforms.snpe.sdk import run_tool
call = lambda: run_tool(find_sdk(Path({str(root)!r})), "snpe-dlc-info", (), 600)
threading.Thread(target=call, daemon=True).start()
while not Path({str(mark)!r}).exists() or not Path({str(mark)!r}).read_text():
    time.sleep(0.01)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    started = Path(f"/proc/{mark.read_text().strip()}/status")
    eventually(lambda: not started.exists() or "State:\tZ" in started.read_text())


def test_a_tool_that_is_not_there_or_no_program_is_no_models_fault(tmp_path):
    root = make_sdk(tmp_path / "sdk")
    tool = root / "bin/x86_64-linux-clang/snpe-dlc-info"
    tool.write_bytes(b"\x7fELF nonsense")
    with pytest.raises(MissingSdk, match="cannot be started"):
        run_tool(find_sdk(root), "snpe-dlc-info", (), 5)
    tool.chmod(0o644)
    with pytest.raises(MissingSdk, match="is not executable"):
        run_tool(find_sdk(root), "snpe-dlc-info", (), 5)
    tool.unlink()
    with pytest.raises(MissingSdk, match="has no bin/x86_64-linux-clang/snpe-dlc-info"):
        run_tool(find_sdk(root), "snpe-dlc-info", (), 5)


def test_newer_sdks_may_have_the_quantizers_program_without_its_script(tmp_path):
    root = make_sdk(tmp_path / "sdk")
    tools = root / "bin/x86_64-linux-clang"
    (tools / "snpe-dlc-quantize").unlink()
    write_tool(tools / "snpe-dlc-quant", "echo from quant")
    assert run_tool(find_sdk(root), "snpe-dlc-quantize", (), 5) == "from quant\n"


def test_the_text_about_a_dlc_is_read():
    found = read_info(INFO)
    assert (found.params, found.macs) == (5467, 4e6)
    assert [(layer.name, layer.operator) for layer in found.layers] == [
        ("conv_0", "Conv2d"),
        ("head", "Conv2d"),
    ]
    assert (found.layers[0].parameters, found.layers[0].macs) == (224, 884_000)
    assert found.layers[1].outputs == ((1, 64, 64, 19),)
    assert found.encodings == {"output": Encoding(0.03125, -99.0, 8)}
    assert found.shapes == {"output": (1, 64, 64, 19)}
    nothing = read_info("a text of another kind | with a bar")
    assert nothing == read_info("")
    assert nothing.macs is None


def test_every_input_and_output_has_its_own_shape_and_encoding():
    names = ("input_0", "input_1", "output_0", "output_1", "output_10")
    found = read_info(INFO_2, names)
    shapes = [(1, 8, 8, 3), (1, 7), (1, 8, 8, 4), (1, 5), (1, 6)]
    assert found.shapes == dict(zip(names, shapes, strict=True))
    assert found.encodings == {
        "output_0": Encoding(0.25, -1.0, 8),
        "output_1": Encoding(0.5, -2.0, 16),
        "output_10": Encoding(0.125, -3.0, 8),
    }
    older = read_info(INFO_1, names)
    assert older.shapes == {"input_0": (1, 8, 8, 3), "output_0": (1, 8, 8, 4), "output_1": (1, 5)}
    assert older.encodings == {"output_1": Encoding(0.5, -2.0, 8)}, "not that of the layer's input"


def test_bytes_become_values_by_the_encoding_beside_the_model(tmp_path):
    encoding = Encoding(0.5, -2.0, 8)
    tensors = DlcTensors({"output_1": (1, 4, 4, 2)}, {"output_1": encoding}, 1)
    tensors.write(tmp_path / "net.encodings.json")
    assert read_tensors(tmp_path / "net.quant.dlc") == tensors
    assert read_tensors(tmp_path / "net.dlc") == tensors
    values = encoding.dequantize(np.array([0, 2, 255], np.uint8))
    np.testing.assert_array_equal(values, np.array([-1, 0, 126.5], np.float32))
    old = '{"scale": 0.5, "offset": -2.0, "bits": 8}'  # as versions before wrote it
    (tmp_path / "net.encodings.json").write_text(old)
    assert read_tensors(tmp_path / "net.quant.dlc").encodings == {"output": encoding}
    for broken in ("[]", "{}", '{"encodings": {"a": 3}, "shapes": {}, "batch": null}', "nonsense"):
        (tmp_path / "net.encodings.json").write_text(broken)
        assert read_tensors(tmp_path / "net.quant.dlc") == DlcTensors()
    assert read_tensors(tmp_path / "other.quant.dlc") == DlcTensors()


def test_profiles_of_all_layouts_are_read():
    first = read_profile(CSV_1)
    assert first.total_us == 3318
    assert first.layers == (("layer 0", "", 100.0), ("Conv 1/Relu", "", 50.5))
    second = read_profile(CSV_2)
    assert second.total_us == 3250
    assert second.from_cycles
    assert second.layers == (("layer 0", "", 2437.5), ("layer 1", "", 812.5))
    printed = read_profile(PRINTED)
    assert printed.total_us == 3318
    assert printed.layers == (("layer 0", "", 0.0), ("layer 1", "", 1200.0))
    assert not printed.from_cycles


@pytest.mark.parametrize("text", ["", "a,b\n", "x,avg_total_inference_time,1,nan\n", "\0\xff"])
def test_a_profile_without_a_time_is_no_measurement(text):
    with pytest.raises(ModelFailed, match="no total inference time"):
        read_profile(text)


def test_numbered_layers_get_their_names_from_the_table_beside_the_model(tmp_path):
    (tmp_path / "net.layers.csv").write_text("name,operator\nfirst,Conv\n")
    named = with_names(read_profile(PRINTED), tmp_path / "net.quant.dlc")
    assert named.layers == (("first", "Conv", 0.0), ("layer 1", "", 1200.0))
    assert with_names(named, tmp_path / "other.quant.dlc") == named


def test_a_log_is_turned_into_a_profile_by_the_sdks_own_tool(tmp_path):
    script = f"cat > \"$4\" <<'END'\n{CSV_1}END"
    sdk = find_sdk(make_sdk(tmp_path / "sdk", {"snpe-diagview": script}))
    log = tmp_path / "SNPEDiag_0.log"
    log.write_bytes(b"log")
    assert profile_of(log, sdk, 10).total_us == 3318
    log.write_bytes(b"")
    with pytest.raises(ModelFailed, match="left no profile"):
        profile_of(log, sdk, 10)
