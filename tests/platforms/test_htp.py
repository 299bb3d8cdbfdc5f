"""The simulator and the compiler's estimate, without a board."""

from __future__ import annotations

import numpy as np
import pytest

from edgeloop.errors import BadInput, NoSuchPrecision
from edgeloop.platforms import find_platform, open_device
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.latency import built_in_profiles, calibrated
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.search.nets.export import export_onnx
from edgeloop.search.nets.spaces import build, find_space
from edgeloop.testing.contracts.platform import PlatformContract, infer_images
from tests.converted import open_htp, samples, smooth_images
from tests.nets_torch import Normalised, export, mobilenet_v2, resnet18, resnet50

pytestmark = pytest.mark.slow


class TestQnn(PlatformContract):
    """With the simulator of a chip, in two processes."""

    @pytest.fixture(scope="class")
    @classmethod
    def platform(cls):
        return find_platform("qnn")

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        device = open_htp("htp:qcs8550", workers=2)
        yield device
        device.close()


def test_the_simulator_agrees_with_the_cpu_where_it_should(small_net):
    images = smooth_images(2, seed=21)
    info = small_net.converted.info
    host, chip = open_device("host"), open_htp("htp:qcs8550")
    (exact,) = infer_images(host, small_net.model, info, "float", images)
    (on_host,) = infer_images(host, small_net.quantized, info, "quantized", images)
    (on_chip,) = infer_images(chip, small_net.quantized, info, "quantized", images)
    (half,) = infer_images(chip, small_net.model, info, "fp16", images)
    chip.close()
    assert np.mean(on_chip.argmax(1) == on_host.argmax(1)) > 0.9
    assert np.mean(half.argmax(1) == exact.argmax(1)) > 0.98
    assert not np.array_equal(on_chip, on_host), "the simulator, not the CPU in its place"


def test_a_chip_without_a_number_simulates_fp16_by_its_architecture(small_net):
    device = open_htp("htp:rb3-gen-2")
    info = small_net.converted.info
    (output,) = infer_images(device, small_net.model, info, "fp16", smooth_images(1))
    device.close()
    assert np.isfinite(output).all()


def test_float_is_refused_with_the_way_out(small_net):
    device = open_htp()
    with pytest.raises(BadInput, match="use fp16"):
        device.infer(small_net.model, small_net.converted.info, "float", iter(()))
    device.close()


def test_an_estimate_says_that_it_is_one(small_net, toolchain):
    info = small_net.converted.info
    plain, corrected = open_htp("htp:snapdragon-888"), open_htp("htp:qcs8550")
    first = plain.measure(small_net.quantized, info)
    assert first == plain.measure(small_net.quantized, info)
    assert first.is_estimate
    assert not first.is_calibrated
    assert first.seconds == pytest.approx(first.raw_us / 1e6)
    assert first.coverage is None and "× the time on qcs8550" in first.basis
    assert first.high_s > 5 * first.low_s, "nobody knows how far an uncalibrated chip is off"
    second = corrected.measure(small_net.quantized, info)
    assert (second.is_calibrated, second.profile) == (True, "qcs8550")
    estimate = toolchain.estimate(small_net.quantized, find_chip("qcs8550"))
    expected = calibrated(estimate.raw_us, built_in_profiles()["qcs8550"], estimate.features)
    assert second.seconds == pytest.approx(expected / 1e6)
    assert second.low_s < second.seconds < second.high_s
    assert "not calibrated" in plain.probe()
    plain.close()
    corrected.close()


def test_a_chip_without_an_estimate_names_the_nearest(small_net):
    device = open_htp("htp:snapdragon-8-plus-gen-1")
    assert "nearest chip with one is snapdragon-8-gen-1" in device.probe()
    with pytest.raises(BadInput, match="nearest chip that has one is snapdragon-8-gen-1"):
        device.measure(small_net.quantized, small_net.converted.info)
    device.close()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("make", "published_us"), [(mobilenet_v2, 441), (resnet18, 543), (resnet50, 901)]
)
def test_public_networks_come_within_ten_percent_of_their_published_latency(
    make, published_us, tmp_path
):
    model = export(Normalised(make()), tmp_path / "net.onnx", 224)
    with QnnToolchain() as toolchain:
        made = toolchain.convert(model, samples(smooth_images(1, 224)), tmp_path)
    device = open_htp("htp:qcs8550")
    found = device.measure(made.files[made.quantized], made.info)
    device.close()
    assert found.seconds * 1e6 == pytest.approx(published_us, rel=0.10)


def test_a_graph_that_the_chip_cannot_run_in_fp16_is_no_fault_of_the_model(tmp_path):
    """This one runs quantized, and in fp16 on newer chips; the compiler speaks of memory."""
    few = {"base_channels": [8, 12], "most_layers": 2, "kernels": ["conv3x3"], "stems": [2, 4]}
    arch = find_space("hourglass", few).sample(1, (1, 3, 64, 64), 19)
    model = tmp_path / "net.onnx"
    export_onnx(build(arch), arch, model)
    device = open_htp("htp:snapdragon-888")
    with QnnToolchain() as toolchain:
        info = toolchain.inspect(model)
    with pytest.raises(NoSuchPrecision, match="fp16"):
        list(infer_images(device, model, info, "fp16", np.zeros((1, 64, 64, 3), np.uint8)))
    device.close()
