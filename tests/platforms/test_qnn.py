"""Real conversions with Qualcomm's compiler: every file is made and can be used."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from edgeloop.errors import BadInput, ModelFailed
from edgeloop.platforms.batching import as_input
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.quantize import deployed
from tests.converted import SIZE, samples, smooth_images
from tests.graph import odd_models
from tests.nets_torch import SmallUNet, export

pytestmark = pytest.mark.slow


def run_cpu(model, feed):
    data = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: feed})[0]


def test_every_file_of_a_conversion_is_there(small_net):
    files = small_net.converted.files
    assert set(files) == {
        "unet.quant.onnx",
        "unet.dlc",
        "unet.quant.dlc",
        "unet.layers.csv",
        "unet.snapdragon-888.bin",
        "unet.snapdragon-888.ctx.onnx",
        "unet.rb3-gen-2.bin",
        "unet.rb3-gen-2.ctx.onnx",
    }
    assert {path.name for path in small_net.quantized.parent.iterdir()} == set(files)
    for name in ("unet.dlc", "unet.quant.dlc"):
        assert files[name].read_bytes()[:4] == b"PK\x03\x04"
    assert files["unet.quant.dlc"].stat().st_size < files["unet.dlc"].stat().st_size
    onnx.checker.check_model(str(small_net.quantized))


def test_the_info_says_what_the_graph_says(small_net):
    info = small_net.converted.info
    assert (info.input_shape, info.output_shape) == ((1, 3, SIZE, SIZE), (1, 19, SIZE, SIZE))
    with small_net.converted.files["unet.layers.csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["macs"]) for row in rows) == info.macs > 0
    assert sum(int(row["parameters"]) for row in rows) == info.params > 0


def test_the_context_binary_loads_and_gives_what_the_quantized_model_gives(small_net, toolchain):
    images = smooth_images(1, seed=5)
    wrapper = small_net.converted.files["unet.snapdragon-888.ctx.onnx"]
    script = (
        "import sys, numpy as np\n"
        "from edgeloop.platforms.qnn.native import NativeWork\n"
        "session = NativeWork()._session(sys.argv[1], {'soc_model': '30'})\n"
        "session.disable_fallback()\n"
        "source = session.get_inputs()[0]\n"
        "assert source.type == 'tensor(uint8)' and source.shape[3] == 3, source\n"
        "output = session.run(None, {source.name: np.load(sys.argv[2])})[0]\n"
        "np.save(sys.argv[3], output)\n"
    )
    folder = small_net.model.parent
    np.save(folder / "in.npy", images)
    command = [sys.executable, "-c", script, wrapper, folder / "in.npy", folder / "out.npy"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    chip = np.load(folder / "out.npy")
    assert chip.dtype == np.uint8
    host = run_cpu(str(small_net.quantized), as_input(images, "NCHW"))
    assert (chip.argmax(3) == host.argmax(1)).mean() > 0.9


@pytest.mark.parametrize("precision", ["a8w8", "a8w8-per-channel", "a16w8"])
def test_quantized_models_agree_with_the_float_one(small_net, toolchain, tmp_path, precision):
    made = toolchain.convert(small_net.model, samples(smooth_images(8)), tmp_path, precision)
    feeds = [as_input(smooth_images(1, seed=seed), "NCHW") for seed in range(50, 54)]
    agree = [
        run_cpu(str(small_net.model), feed).argmax(1)
        == run_cpu(str(made.files[made.quantized]), feed).argmax(1)
        for feed in feeds
    ]
    assert np.mean(agree) > (0.97 if precision == "a16w8" else 0.9)
    estimate = toolchain.estimate(made.files[made.quantized], find_chip("qcs8550"))
    assert estimate.low_us <= estimate.raw_us <= estimate.high_us
    assert estimate.ddr_bytes >= 3 * made.info.height * made.info.width
    assert made.memory is not None and made.info.memory is not None
    is_wide = precision == "a16w8"
    known = made.info.memory
    assert made.memory.peak_bytes == (
        known.activations_16bit if is_wide else known.activations_8bit
    )
    assert made.memory.weight_bytes == pytest.approx(known.weights_8bit, rel=0.02)


@pytest.mark.parametrize("form", ["logits", "classes"])
def test_the_deployed_graph_takes_bytes_and_gives_the_same(small_net, form):
    quantized = onnx.load_model(str(small_net.quantized))
    graph = deployed(quantized, {quantized.graph.input[0].name: "NCHW"}, form)
    onnx.checker.check_model(graph)
    images = smooth_images(1, seed=9)
    output = run_cpu(graph, images)
    expected = run_cpu(quantized, as_input(images, "NCHW")).argmax(1)
    if form == "logits":
        assert output.dtype == np.uint8
        assert output.shape == (1, SIZE, SIZE, 19)
        output = output.argmax(3)
    else:
        assert output.dtype == np.int32
    np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("make", [odd_models.untidy, odd_models.channel_last])
def test_odd_but_honest_models_convert(make, toolchain, tmp_path):
    model = make(tmp_path / "odd.onnx")
    made = toolchain.convert(
        model, samples(smooth_images(2, 16)), tmp_path / "out", chips=("snapdragon-888",)
    )
    assert toolchain.estimate(made.files[made.quantized], find_chip("snapdragon-888")).raw_us > 0


def test_the_estimate_is_deterministic_and_does_not_depend_on_the_images(
    small_net, toolchain, tmp_path
):
    chip = find_chip("snapdragon-888")
    first = toolchain.estimate(small_net.quantized, chip)
    assert first == toolchain.estimate(small_net.quantized, chip)
    assert first.input_fill_bytes > 0
    other = toolchain.convert(small_net.model, samples(smooth_images(2, seed=77)), tmp_path)
    again = toolchain.estimate(other.files[other.quantized], chip)
    assert again.raw_us == pytest.approx(first.raw_us, rel=0.03)


@pytest.mark.parametrize("chip", ["snapdragon-888", "qcs8550"])
def test_screening_before_training_comes_near_the_estimate_of_the_converted_model(
    small_net, toolchain, chip
):
    converted = toolchain.estimate(small_net.quantized, find_chip(chip))
    screened = toolchain.screen(small_net.model, find_chip(chip))
    assert screened.raw_us == pytest.approx(converted.raw_us, rel=0.05)


def test_layers_that_the_compiler_leaves_over_are_named(toolchain, tmp_path):
    """MaxPool is on the list of operators; with dilations the compiler refuses it."""
    model = odd_models.dilated_pool(tmp_path / "m.onnx")
    said = r"does not take MaxPool \(layer 'odd'\): use its plain form"
    with pytest.raises(ModelFailed, match=said):
        toolchain.convert(model, samples(smooth_images(1, 32)), tmp_path / "out")


def test_a_gelu_in_pieces_is_put_together(toolchain, tmp_path):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 1, 1), torch.nn.GELU())
    model = export(net, tmp_path / "gelu.onnx", 32)
    assert "Erf" in {node.op_type for node in onnx.load_model(str(model)).graph.node}
    made = toolchain.convert(model, samples(smooth_images(1, 32)), tmp_path / "out")
    kinds = {node.op_type for node in onnx.load_model(str(made.files[made.quantized])).graph.node}
    assert "Gelu" in kinds
    assert toolchain.screen(model, find_chip("qcs8550")).raw_us > 0


def test_the_compilers_process_does_not_load_pytorch(small_net, toolchain):
    """ONNX Runtime's quantizer would, for seconds and for nothing."""
    toolchain.warm()
    toolchain.screen(small_net.model, find_chip("qcs8550"))
    libraries = Path(f"/proc/{toolchain._process.pid}/maps").read_text()
    assert "onnxruntime" in libraries and "libtorch" not in libraries


@pytest.mark.server
def test_a_library_that_the_system_lacks_is_not_the_models_fault(tmp_path):
    """Hidden in a mount namespace of its own; slim images do not have it."""
    hidden = tmp_path / "empty"
    hidden.touch()
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    libraries = set(re.findall(r"/\S+/libatomic\.so\.1$", found, re.MULTILINE))
    assert libraries
    mounts = " && ".join(f"mount --bind {hidden} {Path(path).resolve()}" for path in libraries)
    code = (
        "from edgeloop.errors import MissingLibrary\n"
        "from edgeloop.platforms.qnn.toolchain import QnnToolchain\n"
        "try:\n    with QnnToolchain() as toolchain: toolchain.warm()\n"
        "except MissingLibrary as error: print(error)\n"
    )
    steps = f'{mounts} && "$0" -m edgeloop doctor; exec "$0" -c "$1"'
    command = ["unshare", "--mount", "sh", "-c", steps, sys.executable, code]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^missing +onnxruntime-qnn .*libatomic", said, re.MULTILINE), said
    assert "install the system's package that has it" in said.splitlines()[-1], said


def test_what_cannot_be_done_is_refused_before_work_begins(small_net, toolchain, tmp_path):
    few = samples(smooth_images(1))
    with pytest.raises(BadInput, match="no chip 'snapdragon-1'"):
        toolchain.convert(small_net.model, few, tmp_path, chips=("snapdragon-1",))
    with pytest.raises(BadInput, match="fp16"):
        toolchain.convert(small_net.model, few, tmp_path, "fp16")
    with pytest.raises(BadInput, match="32×32×3"):
        toolchain.convert(small_net.model, samples(smooth_images(1, 32)), tmp_path)
    with pytest.raises(BadInput, match="nearest chip that has one is snapdragon-8-elite"):
        toolchain.estimate(small_net.quantized, find_chip("snapdragon-8-elite-gen-5"))


@pytest.mark.soak
def test_a_thousand_calibration_images_stay_in_bounded_memory(tmp_path):
    """1,000 images of 256² would be 0.8 GB as floats, and their activations many times that."""
    model = export(SmallUNet(4, 1, 5), tmp_path / "m.onnx", 256)
    images = np.lib.format.open_memmap(tmp_path / "i.npy", "w+", np.uint8, (1000, 256, 256, 3))
    images[::100] = smooth_images(10, 256)
    images.flush()
    script = (
        "import resource, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from edgeloop.graph.check import read_graph\n"
        "from edgeloop.graph.count import graph_info\n"
        "from edgeloop.platforms.qnn.quantize import quantize_model\n"
        "from edgeloop.tasks import Samples\n"
        "images = np.load(sys.argv[2], mmap_mode='r')\n"
        "model = read_graph(Path(sys.argv[1]))\n"
        "info = graph_info('', model)\n"
        "samples = Samples(images, images, '')\n"
        "quantize_model(model, info, samples, Path(sys.argv[3]), 'a8w8-per-channel')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)\n"
    )
    arguments = [model, tmp_path / "i.npy", tmp_path / "q.onnx"]
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout.split()[-1]) < 2000
    assert Path(tmp_path / "q.onnx").exists()
