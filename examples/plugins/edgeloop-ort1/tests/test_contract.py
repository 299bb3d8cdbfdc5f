"""The platform passes the suites that Edgeloop's own platforms pass."""

import numpy as np
import pytest

from edgeloop.errors import BadInput
from edgeloop.platforms import Platform, find_platform
from edgeloop.settings import Settings
from edgeloop.testing.contracts.platform import (
    PlatformContract,
    SmallModel,
    calibration_samples,
    infer_images,
    smooth_images,
)


class TestOrt1(PlatformContract):
    @pytest.fixture(scope="class")
    @classmethod
    def platform(cls) -> Platform:
        return find_platform("ort1")

    def test_quantized_and_float_models_mostly_agree(
        self, platform: Platform, small_model: SmallModel
    ) -> None:
        device = platform.open_device("ort1", Settings.load())
        info, images = small_model.converted.info, smooth_images(4)
        (exact,) = infer_images(device, small_model.model, info, "float", images)
        (quantized,) = infer_images(device, small_model.quantized, info, "quantized", images)
        assert np.mean(exact.argmax(1) == quantized.argmax(1)) > 0.9
        assert not np.array_equal(exact, quantized)

    def test_sixteen_bits_are_refused(self, platform: Platform, small_model: SmallModel) -> None:
        toolchain = platform.open_toolchain(Settings.load())
        folder = small_model.model.parent / "wide"
        with pytest.raises(BadInput, match="not a16w8"):
            toolchain.convert(small_model.model, calibration_samples(2), folder, "a16w8")
