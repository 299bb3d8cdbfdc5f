from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from edgeloop._util import system
from edgeloop.errors import BadInput, ModelFailed
from edgeloop.graph.info import image_info
from edgeloop.platforms import host as host_device
from edgeloop.platforms import open_device
from edgeloop.platforms.batching import as_input
from edgeloop.platforms.host import HostDevice
from edgeloop.testing.contracts.platform import DeviceContract, infer_images
from tests.converted import smooth_images
from tests.graph import odd_models

pytestmark = pytest.mark.slow


class TestHost(DeviceContract):
    @pytest.fixture
    def device(self):
        return open_device("host")


def test_outputs_are_those_of_onnx_runtime_itself(small_net):
    images = smooth_images(3)
    device = open_device("host")
    (outputs,) = infer_images(device, small_net.model, small_net.converted.info, "float", images)
    session = onnxruntime.InferenceSession(str(small_net.model), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for image, output in zip(images, outputs, strict=True):
        expected = session.run(None, {name: as_input(image[None], "NCHW")})[0][0]
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_layers_have_times_and_the_spread_is_told(small_net):
    found = open_device("host").measure(small_net.quantized, small_net.converted.info)
    assert len(found.samples_s) >= 5
    assert found.conditions["spread_percent"] >= 0
    assert found.conditions["threads"] == 1
    assert any("Conv" in layer.operator and layer.time_us > 0 for layer in found.layers)


def test_fp16_is_refused_with_the_way_out(small_net):
    with pytest.raises(BadInput, match="fp16 is for the device htp"):
        open_device("host").infer(small_net.model, small_net.converted.info, "fp16", iter(()))


def test_a_run_without_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "waited_for_cpu_s", lambda _: 0.0)  # a machine with time to spare
    weight = odd_models.weights(64, 3)
    model = odd_models.one_conv(tmp_path / "m.onnx", (1, 3, 1024, 1024), weight)
    info = image_info("x", "y", (1, 3, 1024, 1024), (1, 64, 1024, 1024))
    with pytest.raises(ModelFailed, match=r"did not end within 0\.2 s"):
        HostDevice(limit_s=0.2).measure(model, info)


def saturating_model(path: Path) -> Path:
    """A quantized convolution with the largest weights and inputs there are: pairs of products
    overflow 16 bits, which is where CPUs without VNNI keep them."""
    weight = np.full((4, 8, 1, 1), 127, np.int8)
    weight[1::2] = -127
    constants = {
        "w": weight,
        "scale": np.array(1.0, np.float32),
        "out_scale": np.array(2.0 * 8 * 127, np.float32),
        "zero": np.array(0, np.uint8),
        "zero_w": np.array(0, np.int8),
        "out_zero": np.array(128, np.uint8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "scale", "zero"], ["x_d"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero_w"], ["w_d"]),
        helper.make_node("Conv", ["x_d", "w_d"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("QuantizeLinear", ["c", "out_scale", "out_zero"], ["c_q"]),
        helper.make_node("DequantizeLinear", ["c_q", "out_scale", "out_zero"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 8, 6, 6]), ("y", [1, 4, 6, 6]))
    ]
    made = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "saturating", ends[:1], ends[1:], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    save_model(model, path)
    return path


def test_quantized_outputs_are_the_same_on_every_cpu(tmp_path):
    """With the device's session the sums are exact. Without its entry they are cut off on a CPU
    without VNNI, and the same on one that has it."""
    path = saturating_model(tmp_path / "m.onnx")
    x = np.full((1, 8, 6, 6), 255, np.float32)
    exact = np.tile(np.array([1, -1] * 2, np.float32)[None, :, None, None], (1, 1, 6, 6))
    exact = np.clip(np.rint(exact * 255 / 2), -128, 127) * (2.0 * 8 * 127)
    plain = onnxruntime.SessionOptions()
    cut_off = onnxruntime.InferenceSession(str(path), plain, providers=["CPUExecutionProvider"])
    session = HostDevice()._session(path, 1)
    (ours,), (theirs,) = session.run(None, {"x": x}), cut_off.run(None, {"x": x})
    np.testing.assert_allclose(ours, exact)
    flags = Path("/proc/cpuinfo").read_text()
    is_wide = "vnni" in flags or platform.machine() not in ("x86_64", "amd64")
    assert np.array_equal(theirs, exact) == is_wide


def test_what_is_timed_is_what_is_scored(small_net, monkeypatch):
    """The entry is in every session: those that score, those that are timed and profiled."""
    entries = []
    options = onnxruntime.SessionOptions

    class Recorded(options):
        def add_session_config_entry(self, name, value):
            entries.append((name, value))
            super().add_session_config_entry(name, value)

    monkeypatch.setattr(onnxruntime, "SessionOptions", Recorded)
    device, info = open_device("host"), small_net.converted.info
    device.measure(small_net.quantized, info)
    list(infer_images(device, small_net.quantized, info, "quantized", smooth_images(1)))
    assert entries == [(host_device.EXACT_PRODUCTS, "1")] * 3
