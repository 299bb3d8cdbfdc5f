from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from edgeloop.errors import BadInput, ModelFailed
from edgeloop.graph import image_info
from edgeloop.platforms import as_input, open_device
from edgeloop.platforms.host import device as host_device
from edgeloop.platforms.host.device import HostDevice
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


def test_a_run_without_end_is_stopped(tmp_path):
    weight = odd_models.weights(64, 3)
    model = odd_models.one_conv(tmp_path / "m.onnx", (1, 3, 1024, 1024), weight)
    info = image_info("x", "y", (1, 3, 1024, 1024), (1, 64, 1024, 1024))
    with pytest.raises(ModelFailed, match=r"did not end within 0\.2 s"):
        HostDevice(limit_s=0.2).measure(model, info)


def test_a_cpu_whose_products_saturate_gives_the_same_outputs(small_net, monkeypatch):
    images, info = smooth_images(2), small_net.converted.info
    device = open_device("host")
    (usual,) = infer_images(device, small_net.quantized, info, "quantized", images)
    chosen = not host_device.saturates()
    monkeypatch.setattr(host_device, "saturates", lambda: chosen)
    (other,) = infer_images(device, small_net.quantized, info, "quantized", images)
    assert np.mean(usual.argmax(1) == other.argmax(1)) > 0.95
