"""Plans of precision: files that people may edit, and mistakes in them said in one sentence."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeloop._util.files import sha256_of
from edgeloop.errors import BadInput, PlanMisfit
from edgeloop.platforms import PLAN_FILE, PrecisionPlan, parse_precision
from edgeloop.runner.stages.base import Assignment
from edgeloop.runner.stages.convert import _converted
from tests.nets import save_tiny

DIGEST = "0" * 64


def test_a_plan_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    names = {"a/b:0": 16, "héad": 16, "w 1": 4, "12": 8, "null": 16, "yes": 4}
    plan = PrecisionPlan.of_bits(names, DIGEST, activations=8, weights=4)
    plan.write(tmp_path / "plan.yaml")

    again = parse_precision(f"mixed:{tmp_path / 'plan.yaml'}")

    assert again == plan
    assert isinstance(again, PrecisionPlan) and again.bits == names
    assert again.name == plan.name and len(plan.name) == len("mixed:") + 12
    assert PrecisionPlan.from_fields(plan.to_fields()) == plan


def test_tensors_named_by_numbers_need_no_quotes(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("tensors: {65: {bits: 16}}")
    assert PrecisionPlan.read(tmp_path / "plan.yaml").bits == {"65": 16}


def test_the_digest_is_of_what_is_quantized_and_not_of_the_order() -> None:
    first = PrecisionPlan.of_bits({"a": 16, "b": 4})
    assert first.digest == PrecisionPlan.of_bits({"b": 4, "a": 16}, DIGEST).digest
    assert first.digest != PrecisionPlan.of_bits({"a": 16, "b": 8}).digest
    assert first.digest != PrecisionPlan.of_bits({"a": 16, "b": 4}, activations=16).digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensors: {a: {bits: 12}}", "plan.yaml, line 1: tensors.a.bits must be 4, 8 or 16"),
        ("defaults: {}", "unknown key 'defaults': did you mean 'default'?"),
        ("default: {activations: 4}", "default.activations must be 8 or 16, not 4"),
        ("model: abc", "must be the sha256 of an ONNX file"),
        ("tensors: [a, b]", "tensors"),
        ("- 1", "plan.yaml"),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_a_file_that_is_no_plan_is_told_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(BadInput) as caught:
        PrecisionPlan.read(tmp_path / "plan.yaml")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_precision_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        parse_precision(f"mixed:{tmp_path / 'none.yaml'}")
    with pytest.raises(BadInput, match=r"no precision 'a4w4': known are a8w8, .*, mixed:FILE"):
        parse_precision("a4w4")


def test_a_plan_knows_the_model_and_the_tensors_it_is_for(tmp_path: Path) -> None:
    net = tmp_path / "net.onnx"
    net.write_bytes(b"other")
    with pytest.raises(BadInput, match=r"belongs to another model, not to net\.onnx"):
        PrecisionPlan.of_bits({}, DIGEST).check_model(net)
    PrecisionPlan().check_model(net)
    plan = PrecisionPlan.of_bits({"conv_1": 16})
    plan.check_tensors(["conv_1"], [])
    with pytest.raises(PlanMisfit, match="which the model has not: did you mean 'conv_2'"):
        plan.check_tensors(["conv_2"], ["w"])
    with pytest.raises(PlanMisfit, match="gives 'conv_1' 16 bits, but it is weights: 4 or 8"):
        plan.check_tensors([], ["conv_1"])


class Mixing:
    """A toolchain for models whose only tensor is `a`: what it makes is the precision's name."""

    name = "mixing"

    def convert(self, model: Path, samples: Any, folder: Path, precision: str, chips: Any) -> str:
        return precision

    def convert_plan(
        self, model: Path, samples: Any, folder: Path, plan: PrecisionPlan, chips: Any
    ) -> str:
        plan.check_tensors(["a"], [])
        return plan.name

    calibrate_tensors = quantize_plan = convert_plan


def test_a_plan_of_the_runner_is_left_out_where_it_does_not_fit(tmp_path: Path) -> None:
    """It may be for any model; what came with a model must fit it."""
    net, own = tmp_path / "net.onnx", tmp_path / PLAN_FILE
    save_tiny(net)

    def made(plan: PrecisionPlan | str, **files: Path) -> tuple[Any, str]:
        equipment: Any = SimpleNamespace(toolchain=Mixing(), chips=(), precision=plan)
        named = {name.replace("_", "."): path for name, path in files.items()}
        work = Assignment("m", "convert", {}, {"net.onnx": net, **named}, tmp_path)
        found, _, unused = _converted(work, equipment, None)  # type: ignore[arg-type]
        return found, unused

    fitting, other = (PrecisionPlan.of_bits({name: 16}) for name in "ab")
    assert made(fitting) == (fitting.name, "")
    found, unused = made(other)
    assert found == "a8w8-per-channel" and "names the tensor 'b'" in unused
    other.write(own)
    with pytest.raises(PlanMisfit, match="names the tensor 'b'"):
        made("a8w8", precision_yaml=own)
    PrecisionPlan.of_bits({"a": 16}, DIGEST).write(own)
    found, unused = made("a8w8", precision_yaml=own)
    assert found == "a8w8" and "belongs to another model" in unused
    PrecisionPlan.of_bits({"a": 16}, sha256_of(net)).write(own)
    assert made("a8w8", precision_yaml=own) == (fitting.name, "")
