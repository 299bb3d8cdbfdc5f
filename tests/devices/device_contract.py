"""What every device promises. A device's test file makes a `device` fixture and inherits this."""

from __future__ import annotations

import numpy as np
import pytest

from edgeloop.errors import BadInput, EdgeloopError
from tests.converted import SIZE, SmallNet, smooth_images


class DeviceContract:
    def test_it_describes_itself_in_a_line(self, device):
        line = device.probe()
        assert line
        assert "\n" not in line

    def test_a_measurement_is_positive_and_keeps_its_samples(self, device, small_net: SmallNet):
        found = device.measure(small_net.quantized, small_net.converted.info)
        assert found.seconds > 0
        assert len(found.samples_s) >= 1
        assert all(sample > 0 for sample in found.samples_s)
        if found.is_estimate:
            assert found.low_us <= found.raw_us <= found.high_us
            assert found.margin_percent > 0
        else:
            assert found.seconds == pytest.approx(np.median(found.samples_s))
            assert found.raw_us is None

    @pytest.mark.parametrize("kind", ["quantized", "float_kind"])
    def test_outputs_come_a_batch_each_and_in_order(self, device, small_net: SmallNet, kind):
        kind = device.float_kind if kind == "float_kind" else kind
        model = small_net.quantized if kind == "quantized" else small_net.model
        images = smooth_images(5, seed=3)
        info = small_net.converted.info
        whole = list(device.infer(model, info, kind, iter([images])))
        apart = list(device.infer(model, info, kind, iter([images[:3], images[3:4], images[4:]])))
        assert [len(output) for output in apart] == [3, 1, 1]
        assert whole[0].shape == (5, 19, SIZE, SIZE)
        np.testing.assert_array_equal(np.concatenate(apart), whole[0])
        singles = [next(device.infer(model, info, kind, iter([images[i : i + 1]]))) for i in (4, 0)]
        np.testing.assert_array_equal(singles[0], whole[0][4:])
        np.testing.assert_array_equal(singles[1], whole[0][:1])

    def test_an_iterator_may_be_left_early(self, device, small_net: SmallNet):
        taken = []

        def endless():
            while True:
                taken.append(1)
                yield smooth_images(1)

        outputs = device.infer(
            small_net.quantized, small_net.converted.info, "quantized", endless()
        )
        next(outputs)
        outputs.close()
        assert len(taken) < 10

    def test_no_images_give_no_outputs(self, device, small_net: SmallNet):
        arguments = (small_net.quantized, small_net.converted.info, "quantized")
        assert list(device.infer(*arguments, iter(()))) == []

    def test_images_of_another_size_are_refused(self, device, small_net: SmallNet):
        batches = iter([smooth_images(2, 32)])
        with pytest.raises(BadInput, match="64×64×3"):
            list(device.infer(small_net.quantized, small_net.converted.info, "quantized", batches))

    def test_a_file_that_is_no_model_is_an_error_of_ours(self, device, small_net, tmp_path):
        path = tmp_path / "m.onnx"
        path.write_bytes(b"nonsense")
        info = small_net.converted.info
        with pytest.raises(EdgeloopError):
            device.measure(path, info)
        with pytest.raises(EdgeloopError):
            list(device.infer(path, info, "quantized", iter([smooth_images(1)])))
        device.measure(small_net.quantized, info)
