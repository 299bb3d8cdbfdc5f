"""Plans on the real compiler and simulator: each tensor has the bits that a plan says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeloop._util.files import sha256_of
from edgeloop.errors import BadInput
from edgeloop.graph.info import GraphInfo
from edgeloop.platforms import CalibratedModel, Device, PrecisionPlan, open_device
from edgeloop.platforms.qnn.device import HtpDevice
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.runner.stages.base import Assignment, CachingToolchain, Equipment, Sizes
from edgeloop.runner.stages.convert import convert
from edgeloop.tasks import Samples, TensorsTask
from edgeloop.testing.models import save_pair_model, save_token_model
from tests.converted import open_htp, toolchain

__all__ = ["toolchain"]
pytestmark = pytest.mark.slow
NET = Path(__file__).parents[1] / "data/nets/unet-w24.onnx"


@pytest.fixture(scope="module")
def htp() -> Iterator[HtpDevice]:
    device = open_htp("htp:qcs8550")
    yield device
    device.close()


@pytest.fixture(scope="module")
def calibrated(
    toolchain: QnnToolchain, tmp_path_factory: pytest.TempPathFactory
) -> tuple[CalibratedModel, Samples]:
    info = toolchain.inspect(NET)
    given = TensorsTask().inputs(info, 4, "calibration", NET)
    folder = tmp_path_factory.mktemp("calibrated")
    return toolchain.calibrate_tensors(NET, given, folder), given


def sqnr(model: Path, device: Device, info: GraphInfo, given: Samples) -> float:
    def outputs(runs_on: Device, path: Path, kind: str) -> np.ndarray:
        batches = iter([{info.input_name: given.images}])
        (found,) = runs_on.infer(path, info, kind, batches)  # type: ignore[arg-type]
        return found[info.output_name]

    expected = outputs(open_device("host"), NET, "float")
    error = outputs(device, model, "quantized") - expected
    return float(10 * np.log10(np.sum(expected**2) / np.sum(error**2)))


def test_the_output_of_the_head_in_16_bits_gains_most_of_what_all_tensors_would(
    calibrated, toolchain: QnnToolchain, htp: HtpDevice, tmp_path: Path
) -> None:
    """As measured on this network before: 3 of 5 dB for a quarter of the time."""
    found, given = calibrated
    head = found.tensors[[t.kind for t in found.tensors].index("weights") - 1]
    assert head.operator == "Conv" and len(head.members) == 2, "the head and its Resize"
    plans = {
        "a8": PrecisionPlan(),
        "head": PrecisionPlan.of_bits({head.name: 16}),
        "a16": PrecisionPlan.of_bits({}, activations=16),
        "w4": PrecisionPlan.of_bits({}, weights=4),
    }
    gains, times = {}, {}
    for name, plan in plans.items():
        path = tmp_path / f"{name}.onnx"
        toolchain.quantize_plan(found, plan, path)
        gains[name] = sqnr(path, htp, found.info, given)
        times[name] = htp.measure(path, found.info).raw_us
    assert gains["head"] - gains["a8"] > 0.4 * (gains["a16"] - gains["a8"]) > 0
    assert times["head"] - times["a8"] < 0.5 * (times["a16"] - times["a8"])
    assert gains["w4"] < gains["a8"] - 6 and times["w4"] <= times["a8"]


def test_a_plan_without_changes_is_a8w8_and_one_of_16_bits_is_a16w8(
    calibrated, toolchain: QnnToolchain, tmp_path: Path
) -> None:
    found, given = calibrated
    toolchain.quantize_plan(found, PrecisionPlan(), tmp_path / "plan.onnx")
    made = toolchain.convert(NET, given, tmp_path)
    assert sha256_of(tmp_path / "plan.onnx") == sha256_of(made.files[made.quantized])


def test_tensors_that_share_their_bits_and_unknown_ones_are_told(
    calibrated, toolchain: QnnToolchain, tmp_path: Path
) -> None:
    found, _ = calibrated
    first = next(tensor for tensor in found.tensors if len(tensor.members) > 1)
    both = dict(zip(first.members, (8, 16), strict=False))
    with pytest.raises(BadInput, match="different bits, but they share theirs"):
        toolchain.quantize_plan(found, PrecisionPlan.of_bits(both), tmp_path / "q.onnx")
    with pytest.raises(BadInput, match=r"names the tensor 'no', which the model has not"):
        toolchain.quantize_plan(found, PrecisionPlan.of_bits({"no": 16}), tmp_path / "q.onnx")


@pytest.mark.parametrize("save", [save_pair_model, save_token_model])
def test_every_tensor_of_other_models_can_have_other_bits(
    save, toolchain: QnnToolchain, htp: HtpDevice, tmp_path: Path
) -> None:
    """Several inputs and outputs, no image, operators with constants."""
    net = save(tmp_path / "net.onnx")
    info = toolchain.inspect(net)
    given = TensorsTask().inputs(info, 2, "calibration", net)
    found = toolchain.calibrate_tensors(net, given, tmp_path / "calibrated")
    names = [(t.name, 16 if t.kind == "activation" else 4) for t in found.tensors]
    assert {bits for _, bits in names} == {4, 16}
    for plan in ({}, *({name: bits} for name, bits in names[:2] + names[-1:]), dict(names)):
        toolchain.quantize_plan(found, PrecisionPlan.of_bits(plan), tmp_path / "q.onnx")
        assert htp.measure(tmp_path / "q.onnx", info).seconds > 0


def test_the_convert_stage_uses_the_plan_of_a_runner_or_of_the_model(
    toolchain: QnnToolchain, tmp_path: Path
) -> None:
    head = "/head/Conv_output_0"
    plan = PrecisionPlan.of_bits({head: 16}, sha256_of(NET))
    other = replace_model(plan, "0" * 64)
    task, host = TensorsTask(), open_device("host")
    common = {"sizes": Sizes(2, 2, 2), "chips": ("qcs8550",)}
    own = tmp_path / "precision.yaml"
    plan.write(own)
    kinds = {}
    for given, files in ((plan, {}), (other, {}), ("a8w8", {"precision.yaml": own})):
        equipment = Equipment(
            CachingToolchain(toolchain), host, task, host, precision=given, **common
        )
        folder = tmp_path / f"out{len(kinds)}"
        work = Assignment("m", "convert", {}, {NET.name: NET, **files}, folder)
        result = convert(work, equipment)
        kinds[len(kinds)] = (result.columns["precision"], str(result.columns.get("notes", "")))
        kept = result.files.get("unet-w24.precision.yaml")
        assert (kept is None) == (given is other)
        assert int(result.columns["weight_bytes"]) > 0
        if kept is not None:
            assert PrecisionPlan.read(kept) == plan
            quantized = onnx.load_model(result.files["unet-w24.quant.onnx"])
            types = {t.data_type for t in quantized.graph.initializer if "zero_point" in t.name}
            assert onnx.TensorProto.UINT16 in types
    assert kinds[0][0] == kinds[2][0] == plan.name
    assert kinds[1][0] == "a8w8-per-channel" and "another model" in kinds[1][1]


def replace_model(plan: PrecisionPlan, model: str) -> PrecisionPlan:
    return plan.model_copy(update={"model": model})


def test_a_toolchain_without_plans_says_so(tmp_path: Path) -> None:
    from edgeloop.platforms import convert_as

    class Plain:
        name = "plain"

    with pytest.raises(BadInput, match="the toolchain plain gives all tensors the same bits"):
        convert_as(
            *(Plain(), NET, Samples(np.zeros(0), np.zeros(0), ""), tmp_path),  # type: ignore[arg-type]
            PrecisionPlan(),
        )
