"""What every platform promises: a toolchain that converts models, and devices that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from edgeloop.errors import BadInput, BadModel, EdgeloopError, NoSuchPrecision
from edgeloop.graph.check import read_graph
from edgeloop.graph.count import graph_info
from edgeloop.platforms import (
    Converted,
    Device,
    GraphInfo,
    Kind,
    Platform,
    TensorInfo,
    Toolchain,
    find_platform,
    platform_of,
)
from edgeloop.platforms.batching import image_batches, run_samples
from edgeloop.settings import Settings
from edgeloop.tasks import Images, Output, Samples, Tensors
from edgeloop.testing.models import save_pair_model, save_segmentation_model, save_token_model

SIZE = 64
CLASSES = 19


@dataclass(frozen=True)
class SmallModel:
    """A model, and what a toolchain made of it."""

    model: Path
    converted: Converted

    @property
    def quantized(self) -> Path:
        return self.converted.files[self.converted.quantized]

    def file_for(self, device: Device, kind: Kind) -> Path:
        """What the device runs of this kind: a converted file, or the model itself."""
        suffix = device.artefacts.get(kind, "")
        return self.converted.files[f"{self.model.stem}{suffix}"] if suffix else self.model


def smooth_images(count: int, size: int = SIZE, seed: int = 0) -> Images:
    """Blurred noise: neighbouring pixels are alike, as in photographs."""
    dice = np.random.default_rng(seed)
    coarse = dice.integers(0, 256, (count, size // 8 + 2, size // 8 + 2, 3)).astype(np.float32)
    where = np.linspace(0, size // 8, size)
    low, part = where.astype(int), (where % 1).astype(np.float32)
    across = part[None, None, :, None]
    down = part[None, :, None, None]
    rows = coarse[:, :, low] * (1 - across) + coarse[:, :, low + 1] * across
    smooth: Images = (rows[:, low] * (1 - down) + rows[:, low + 1] * down).astype(np.uint8)
    return smooth


def calibration_samples(count: int = 16) -> Samples:
    images = smooth_images(count)
    return Samples(images, np.zeros(images.shape[:3], np.uint8), "calibration")


def infer_images(
    device: Device, model: Path, info: GraphInfo, kind: Kind, *batches: Images
) -> Iterator[Output]:
    """The outputs of a model that takes one image and has one output."""
    for found in device.infer(model, info, kind, image_batches(info, *batches)):
        yield found[info.output_name]


TENSOR_MODELS: Mapping[str, Callable[[Path], Path]] = {
    "pair": save_pair_model,
    "tokens": save_token_model,
    "batch": partial(save_segmentation_model, size=32, classes=4, batch=4),
}
"""Models that take or give something else than one image and one output."""


def random_tensors(info: GraphInfo, count: int, seed: int = 0) -> Tensors:
    """Samples for any model: smooth images, floats around zero, small whole numbers."""
    dice = np.random.default_rng(seed)
    samples: dict[str, Any] = {}
    for tensor in info.inputs:
        shape = (count, *info.sample_shape(tensor))
        if tensor.layout:
            samples[tensor.name] = smooth_images(count, tensor.height, seed)
        elif tensor.dtype.startswith("float"):
            samples[tensor.name] = dice.standard_normal(shape).astype(tensor.dtype)
        else:
            samples[tensor.name] = dice.integers(0, 20, shape).astype(tensor.dtype)
    return samples


def tensor_samples(info: GraphInfo, count: int = 16) -> Samples:
    """Calibration for any model: images where it takes one, else tensors by name."""
    given = random_tensors(info, count)
    if info.image is not None:
        return Samples(given[info.input_name], np.zeros(count, np.uint8), "calibration")
    nothing = np.zeros((0, 0, 0, 3), np.uint8)
    return Samples(nothing, np.zeros(count, np.uint8), "calibration", tensors=given)


def convert_tensor_models(toolchain: Toolchain, folder: Path) -> dict[str, SmallModel]:
    """All of `TENSOR_MODELS`, converted."""
    converted = {}
    for name, save in TENSOR_MODELS.items():
        model = save(folder / f"{name}.onnx")
        samples = tensor_samples(toolchain.inspect(model))
        converted[name] = SmallModel(model, toolchain.convert(model, samples, folder / name))
    return converted


def convert_small_model(toolchain: Toolchain, folder: Path) -> SmallModel:
    model = save_segmentation_model(folder / "small.onnx", SIZE, CLASSES)
    return SmallModel(model, toolchain.convert(model, calibration_samples(), folder / "converted"))


class ToolchainContract:
    """Fixture: `toolchain`. Set `takes_tensors` to False if it takes only models with one image and
    one output, and refuses others in a sentence."""

    takes_tensors: ClassVar[bool] = True

    def test_a_graph_is_described_as_it_is(self, toolchain: Toolchain, tmp_path: Path) -> None:
        model = save_segmentation_model(tmp_path / "small.onnx", SIZE, CLASSES)
        found = toolchain.inspect(model)
        assert found.memory is None or found.memory.weights > 0 < found.memory.activations
        assert replace(found, memory=None) == GraphInfo(
            inputs=(TensorInfo("image", (1, 3, SIZE, SIZE), layout="NCHW"),),
            outputs=(TensorInfo("logits", (1, CLASSES, SIZE, SIZE)),),
            macs=1_433_600,
            params=979,
        )

    def test_conversion_makes_the_files_that_it_names(
        self, toolchain: Toolchain, tmp_path: Path
    ) -> None:
        small = convert_small_model(toolchain, tmp_path)
        assert small.converted.info == toolchain.inspect(small.model)
        assert small.converted.quantized in small.converted.files
        for name, path in small.converted.files.items():
            assert name.startswith("small.")
            assert path.parent == tmp_path / "converted"
            assert path.stat().st_size > 0
        made = {path.name for path in (tmp_path / "converted").iterdir()}
        assert made == {path.name for path in small.converted.files.values()}

    @pytest.mark.parametrize("name", TENSOR_MODELS)
    def test_models_with_any_inputs_and_outputs_are_converted(
        self, toolchain: Toolchain, tmp_path: Path, name: str
    ) -> None:
        model = TENSOR_MODELS[name](tmp_path / "small.onnx")
        info = graph_info(model.name, read_graph(model))
        assert toolchain.inspect(model) == info
        samples, folder = tensor_samples(info, 5), tmp_path / "converted"
        if not self.takes_tensors:
            with pytest.raises(EdgeloopError) as refusal:
                toolchain.convert(model, samples, folder)
            assert "\n" not in str(refusal.value)
            return
        converted = toolchain.convert(model, samples, folder)
        assert converted.info == info
        assert all(path.stat().st_size > 0 for path in converted.files.values())

    def test_calibration_that_is_not_what_the_model_takes_is_refused(
        self, toolchain: Toolchain, tmp_path: Path
    ) -> None:
        model = save_pair_model(tmp_path / "small.onnx")
        with pytest.raises(EdgeloopError) as refusal:
            toolchain.convert(model, calibration_samples(1), tmp_path / "converted")
        assert "\n" not in str(refusal.value)

    def test_a_file_that_is_not_a_model_is_refused_in_a_sentence(
        self, toolchain: Toolchain, tmp_path: Path
    ) -> None:
        path = tmp_path / "broken.onnx"
        path.write_bytes(b"nonsense")
        with pytest.raises(BadModel) as refusal:
            toolchain.inspect(path)
        assert "\n" not in str(refusal.value)
        with pytest.raises(BadModel):
            toolchain.convert(path, calibration_samples(), tmp_path / "converted")
        toolchain.inspect(save_segmentation_model(tmp_path / "small.onnx"))


class DeviceContract:
    """Fixtures: `device`; `small_model`, a `SmallModel` that a toolchain of the same platform has
    converted (see `convert_small_model`); and `tensor_models`, several of them by name (see
    `convert_tensor_models`). Set `takes_tensors` to False if it runs only models with one image and
    one output, and refuses others in a sentence; `tensor_models` is then not needed."""

    takes_tensors: ClassVar[bool] = True

    def test_it_describes_itself_in_a_line(self, device: Device) -> None:
        line = device.probe()
        assert line
        assert "\n" not in line

    def test_a_measurement_is_positive_and_keeps_its_samples(
        self, device: Device, small_model: SmallModel
    ) -> None:
        measured = device.measure(small_model.quantized, small_model.converted.info)
        assert measured.seconds > 0
        assert len(measured.samples_s) >= 1
        assert all(sample > 0 for sample in measured.samples_s)
        if measured.is_estimate:
            low, raw, high = measured.low_us, measured.raw_us, measured.high_us
            assert low is not None and raw is not None and high is not None
            assert low <= raw <= high
            assert measured.basis, "says where its interval comes from, or why there is none"
            if measured.low_s is None or measured.high_s is None:
                assert measured.coverage is None
            else:
                assert 0 < measured.low_s <= measured.seconds <= measured.high_s
                assert measured.coverage is None or 0 < measured.coverage < 1
            if measured.is_deterministic:
                again = device.measure(small_model.quantized, small_model.converted.info)
                assert again.seconds == measured.seconds
        else:
            assert measured.seconds == pytest.approx(np.median(measured.samples_s))
            assert measured.raw_us is None

    @pytest.mark.parametrize("precision", ["quantized", "not quantized"])
    def test_outputs_come_batch_by_batch_and_in_order(
        self, device: Device, small_model: SmallModel, precision: str
    ) -> None:
        kind = "quantized" if precision == "quantized" else device.float_kind
        model = small_model.file_for(device, kind)
        info = small_model.converted.info
        images = smooth_images(5, seed=3)

        def outputs(*batches: Images) -> list[Output]:
            return list(infer_images(device, model, info, kind, *batches))

        (whole,) = outputs(images)
        apart = outputs(images[:3], images[3:4], images[4:])
        assert [len(output) for output in apart] == [3, 1, 1]
        assert whole.shape == (5, *info.output_shape[1:])
        np.testing.assert_array_equal(np.concatenate(apart), whole)
        np.testing.assert_array_equal(outputs(images[4:])[0], whole[4:])
        np.testing.assert_array_equal(outputs(images[:1])[0], whole[:1])

    @pytest.mark.parametrize("name", TENSOR_MODELS)
    def test_any_inputs_and_outputs_go_by_name(
        self, device: Device, request: pytest.FixtureRequest, tmp_path: Path, name: str
    ) -> None:
        if not self.takes_tensors:
            self._check_refusal(device, tmp_path, name)
            return
        small: SmallModel = request.getfixturevalue("tensor_models")[name]
        info, quantized = small.converted.info, small.quantized
        assert device.measure(quantized, info).seconds > 0
        samples = random_tensors(info, 5, seed=3)
        expected = _reference(small.model, info, samples)
        for kind in dict.fromkeys(("quantized", device.float_kind)):
            model = small.file_for(device, kind)
            try:
                (whole,) = device.infer(model, info, kind, iter([samples]))
            except NoSuchPrecision:  # some chips do not run every graph in floats, and say so
                continue
            parts = ({key: array[a:b] for key, array in samples.items()} for a, b in _CUTS)
            apart = list(device.infer(model, info, kind, parts))
            assert set(whole) == set(expected)
            for tensor in info.outputs:
                found = whole[tensor.name]
                assert found.shape == (5, *info.sample_shape(tensor))
                pieces = [part[tensor.name] for part in apart]
                np.testing.assert_array_equal(np.concatenate(pieces), found)
                assert _agreement(found, expected[tensor.name]) > (0.9, 0.99)[kind != "quantized"]

    def _check_refusal(self, device: Device, folder: Path, name: str) -> None:
        model = TENSOR_MODELS[name](folder / "small.onnx")
        info = graph_info(model.name, read_graph(model))
        with pytest.raises(EdgeloopError) as refusal:
            list(device.infer(model, info, "quantized", iter([random_tensors(info, 4)])))
        assert "\n" not in str(refusal.value)

    def test_batches_that_are_not_what_a_model_takes_are_refused(
        self, device: Device, small_model: SmallModel
    ) -> None:
        info = small_model.converted.info
        other = {"other": smooth_images(1)}
        with pytest.raises(BadInput, match=info.input_name):
            list(device.infer(small_model.quantized, info, "quantized", iter([other])))

    def test_an_iterator_may_be_left_early(self, device: Device, small_model: SmallModel) -> None:
        taken = []

        info = small_model.converted.info

        def endless() -> Iterator[Tensors]:
            while True:
                taken.append(1)
                yield from image_batches(info, smooth_images(1))

        outputs = device.infer(small_model.quantized, info, "quantized", endless())
        next(outputs)
        outputs.close()  # type: ignore[attr-defined]
        assert len(taken) < 10

    def test_no_images_give_no_outputs(self, device: Device, small_model: SmallModel) -> None:
        model, info = small_model.quantized, small_model.converted.info
        assert list(device.infer(model, info, "quantized", iter(()))) == []

    def test_images_of_another_size_are_refused(
        self, device: Device, small_model: SmallModel
    ) -> None:
        model, info = small_model.quantized, small_model.converted.info
        with pytest.raises(BadInput, match=f"{SIZE}×{SIZE}×3"):
            list(device.infer(model, info, "quantized", image_batches(info, smooth_images(2, 32))))

    def test_a_file_that_is_not_a_model_is_an_error_of_ours(
        self, device: Device, small_model: SmallModel, tmp_path: Path
    ) -> None:
        path = tmp_path / "m.onnx"
        path.write_bytes(b"nonsense")
        info = small_model.converted.info
        with pytest.raises(EdgeloopError):
            device.measure(path, info)
        with pytest.raises(EdgeloopError):
            list(device.infer(path, info, "quantized", image_batches(info, smooth_images(1))))
        device.measure(small_model.quantized, info)


_CUTS = ((0, 3), (3, 4), (4, 5))


def _reference(model: Path, info: GraphInfo, samples: Tensors) -> Tensors:
    """The outputs as ONNX itself defines them."""
    from onnx.reference import ReferenceEvaluator

    evaluator: Any = ReferenceEvaluator(str(model))
    names = [tensor.name for tensor in info.outputs]
    return run_samples(samples, info, lambda feeds: evaluator.run(names, feeds))


def _agreement(found: Output, expected: Output) -> float:
    """1 where they are the same: the cosine of floats, the share of equal whole numbers."""
    if expected.dtype.kind != "f":
        return float(np.mean(found == expected))
    length = np.linalg.norm(found) * np.linalg.norm(expected)
    return float(np.vdot(found, expected) / length) if length else 0.0


class PlatformContract(ToolchainContract, DeviceContract):
    """Fixture: `platform`, class-scoped. Its first device is tested; override `device_name` where
    that needs something after the colon."""

    @pytest.fixture(scope="class")
    @classmethod
    def device_name(cls, platform: Platform) -> str:
        return platform.device_names[0]

    @pytest.fixture(scope="class")
    @classmethod
    def toolchain(cls, platform: Platform) -> Iterator[Toolchain]:
        toolchain = platform.open_toolchain(Settings.load())
        yield toolchain
        toolchain.close()

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, platform: Platform, device_name: str) -> Iterator[Device]:
        device = platform.open_device(device_name, Settings.load())
        yield device
        device.close()

    @pytest.fixture(scope="class")
    @classmethod
    def small_model(
        cls, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
    ) -> SmallModel:
        return convert_small_model(toolchain, tmp_path_factory.mktemp("small"))

    @pytest.fixture(scope="class")
    @classmethod
    def tensor_models(
        cls, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
    ) -> Mapping[str, SmallModel]:
        return convert_tensor_models(toolchain, tmp_path_factory.mktemp("tensors"))

    def test_it_is_found_by_its_name_and_by_its_devices(
        self, platform: Platform, device_name: str
    ) -> None:
        assert type(find_platform(platform.name)) is type(platform)
        assert type(platform_of(device_name)) is type(platform)

    def test_its_parts_have_the_names_that_people_write(
        self, device: Device, toolchain: Toolchain, platform: Platform
    ) -> None:
        assert toolchain.name == platform.name
        kinds = {name.partition(":")[0] for name in platform.device_names}
        assert device.name.partition(":")[0] in kinds

    def test_converted_files_have_the_endings_that_it_declares(
        self, platform: Platform, device: Device, small_model: SmallModel
    ) -> None:
        assert small_model.converted.quantized == f"small{device.artefacts['quantized']}"
        for name in small_model.converted.files:
            assert name.endswith(tuple(platform.file_suffixes))

    def test_listing_its_devices_and_its_health_raises_nothing(self, platform: Platform) -> None:
        settings = Settings.load()
        for line in platform.list_devices(settings):
            assert line.device.partition(":")[0] in str(platform.device_names)
            assert platform.describe(line, settings).device == line.device
        for check in platform.health(settings):
            assert check.what and "\n" not in check.text
