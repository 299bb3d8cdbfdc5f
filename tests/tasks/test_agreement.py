"""Agreement with the float model, and inputs for any model."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgeloop.errors import BadInput
from edgeloop.graph.info import GraphInfo, TensorInfo
from edgeloop.graph.read import index_limits
from edgeloop.tasks import AgreementScorer, TensorsTask, paired_interval

MAPS = GraphInfo(
    (TensorInfo("image", (1, 3, 8, 6), layout="NCHW"),),
    (
        TensorInfo("maps", (1, 5, 8, 6)),
        TensorInfo("score", (1, 1)),
        TensorInfo("ids", (1, 7), "int64"),
    ),
    0,
    0,
)
TOKENS = GraphInfo(
    (
        TensorInfo("ids", (1, 6), "int64"),
        TensorInfo("attention_mask", (1, 6), "int64"),
        TensorInfo("state/in:0", (1, 4)),
    ),
    (TensorInfo("out", (1, 6, 4)),),
    0,
    0,
)


def outputs(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(seed)
    return {
        "maps": dice.standard_normal((count, 5, 8, 6)).astype(np.float32),
        "score": dice.random((count, 1)).astype(np.float32),
        "ids": dice.integers(0, 9, (count, 7)),
    }


def test_agreement_in_batches_is_that_of_all_samples_at_once(tmp_path: Path):
    reference = outputs(9)
    noise = 0.05 * np.random.default_rng(1).standard_normal((9, 5, 8, 6))
    given = {**reference, "maps": (reference["maps"] + noise).astype(np.float32)}
    given["ids"] = np.where(np.arange(7) == 3, -1, reference["ids"])
    scorer = AgreementScorer(MAPS)
    for start in range(0, 9, 4):
        part = slice(start, start + 4)
        scorer.add(
            {n: a[part] for n, a in given.items()}, {n: a[part] for n, a in reference.items()}
        )
    one, other = (tensors["maps"].astype(np.float64) for tensors in (reference, given))
    found = scorer.outputs()
    expected_db = 10 * np.log10((one**2).sum() / ((one - other) ** 2).sum())
    assert found["maps"].sqnr_db == pytest.approx(expected_db, abs=1e-9)
    cosine = (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other)
    assert found["maps"].cosine == pytest.approx(cosine, abs=1e-12)
    assert found["maps"].max_error == pytest.approx(np.abs(one - other).max())
    same = reference["maps"].argmax(1) == given["maps"].argmax(1)
    assert found["maps"].top1_agreement == same.mean()
    assert found["score"].values() == {"sqnr_db": 200.0, "cosine": 1.0, "max_error": 0.0}
    assert found["ids"].values()["top1_agreement"] == pytest.approx(6 / 7)
    assert "sqnr_db" not in found["ids"].values()
    worst = scorer.worst()
    assert (worst.sqnr_db, worst.top1_agreement) == (
        found["maps"].sqnr_db,
        min(same.mean(), 6 / 7),
    )
    assert worst.max_error == found["ids"].max_error > found["maps"].max_error
    scorer.write_csv(tmp_path / "results.csv")
    with (tmp_path / "results.csv").open() as file:
        table = {row["metric"]: row for row in csv.DictReader(file)}
    assert float(table["sqnr_db"]["overall"]) == worst.sqnr_db
    assert table["sqnr_db"]["ids"] == ""


def test_outputs_of_nothing_but_zeros_have_finite_agreement():
    zeros = {"maps": np.zeros((1, 5, 8, 6), np.float32)}
    for given, decibels, cosine in ((0.0, 200.0, 1.0), (1.0, -200.0, 0.0)):
        scorer = AgreementScorer(MAPS)
        scorer.add({"maps": zeros["maps"] + np.float32(given)}, zeros)
        assert (scorer.worst().sqnr_db, scorer.worst().cosine) == (decibels, cosine)


def token_model(path: Path) -> Path:
    """Tokens reach their table of 11 rows by way of a Cast; the mask reaches none."""
    table = helper.make_tensor("table", TensorProto.FLOAT, (11, 4), np.zeros(44, np.float32))
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, (1, 6)),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, (1, 6)),
        helper.make_tensor_value_info("state/in:0", TensorProto.FLOAT, (1, 4)),
    ]
    nodes = [
        helper.make_node("Cast", ["ids"], ["small"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "small"], ["rows"]),
        helper.make_node("Add", ["rows", "state/in:0"], ["out"]),
    ]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, (1, 6, 4))
    graph = helper.make_graph(nodes, "tokens", inputs, [output], [table])
    onnx.save_model(helper.make_model(graph), str(path))
    return path


def test_random_tokens_are_within_the_vocabulary_and_the_same_everywhere(tmp_path: Path):
    model = token_model(tmp_path / "tokens.onnx")
    assert index_limits(model) == {"ids": 11}
    first, again, test = (
        TensorsTask().inputs(TOKENS, 100, purpose, model)
        for purpose in ("calibration", "calibration", "test")
    )
    assert first.tensors is not None and first.key == again.key != test.key
    assert (len(first), first.origin) == (8, "random") and "random inputs" in first.note
    assert first.tensors["ids"].dtype == np.int64
    assert 2 <= first.tensors["ids"].max() < 11
    assert first.tensors["attention_mask"].all()
    assert first.tensors["state/in:0"].shape == (8, 4)


@pytest.mark.parametrize("form", ["an archive", "archives", "files and folders"])
def test_inputs_are_given_by_name(tmp_path: Path, form: str):
    dice = np.random.default_rng(0)
    ids, mask = dice.integers(0, 11, (3, 6)), np.ones((3, 6), np.int32)
    state = dice.standard_normal((3, 4)).astype(np.float32)
    arrays = {"ids": ids, "attention_mask": mask, "state/in:0": state}
    source = tmp_path / "given"
    source.mkdir()
    if form == "an archive":
        source = source / "all.npz"
        np.savez(source, **arrays, more=np.zeros(9))
    elif form == "archives":
        for number in range(3):
            one = {name: array[number] for name, array in arrays.items()}
            np.savez(source / f"{number}.npz", **one)
    else:
        np.save(source / "ids.npy", ids)
        mask.astype(np.int64).tofile(source / "attention_mask.raw")
        (source / "state_in_0").mkdir()
        for number in range(3):
            np.save(source / f"state_in_0/{number}.npy", state[number])
    for purpose, part in (("calibration", slice(0, 2)), ("test", slice(1, 3))):
        samples = TensorsTask(source).inputs(TOKENS, 2, purpose)  # type: ignore[arg-type]
        assert samples.tensors is not None and samples.origin == "given"
        for name, array in arrays.items():
            np.testing.assert_array_equal(samples.tensors[name], array[part], name)
        assert samples.tensors["attention_mask"].dtype == np.int64


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"ids": np.zeros((2, 6), int)}, "does not hold all inputs: the model takes ids"),
        ({"ids": np.zeros((2, 6))}, "holds float64; the input 'ids' takes int64"),
        ({"ids": np.zeros((2, 5), int)}, r"array \[2, 5\]; a sample of the input 'ids' is \[6\]"),
        ({"ids": np.zeros((3, 6), int)}, "3 of 'ids', 2 of 'attention_mask'"),
        ({"state/in:0": np.full((2, 4), np.nan)}, "values that the input 'state/in:0' cannot take"),
        ({"ids": np.full((2, 6), 2**63, np.uint64)}, "values that the input 'ids' cannot take"),
    ],
)
def test_inputs_that_the_model_does_not_take_are_named(tmp_path: Path, arrays, said: str):
    good = {
        "ids": np.zeros((2, 6), int),
        "attention_mask": np.ones((2, 6), int),
        "state/in:0": np.zeros((2, 4), np.float32),
    }
    whole = arrays if "does not hold" in said else {**good, **arrays}
    np.savez(tmp_path / "given.npz", **whole)
    with pytest.raises(BadInput, match=said):
        TensorsTask(tmp_path).inputs(TOKENS, 4, "calibration")


def test_two_models_are_compared_by_the_samples_they_share():
    """In dB, with an interval; by equal values where there are whole numbers only."""
    expected = outputs(12)
    near, far = AgreementScorer(MAPS), AgreementScorer(MAPS)
    dice = np.random.default_rng(3)
    for scorer, noise in ((near, 0.01), (far, 0.2)):
        given = {
            k: v if v.dtype.kind != "f" else v + dice.normal(0, noise, v.shape)
            for k, v in expected.items()
        }
        scorer.add(given, expected)
    found = paired_interval(TensorsTask(), near.counts, far.counts)
    assert found.value == pytest.approx(near.worst().sqnr_db - far.worst().sqnr_db)
    assert 0 < found.low < found.value < found.high
    numbers = [scorer.counts[:, 2:] for scorer in (near, far)]
    assert TensorsTask().interval(numbers[0]).value == 1.0
    assert paired_interval(TensorsTask(), *numbers).high == 0.0
