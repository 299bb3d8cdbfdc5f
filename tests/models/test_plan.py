"""Stages, what they need, and which comes first."""

from __future__ import annotations

import pytest

from edgeloop.errors import BadInput
from edgeloop.models.plan import Plan, Stage, default_plan

PLAN = default_plan()
CONVERTED = {
    "quantized": True,
    "macs": 1,
    "params": 1,
    "shape": "[1]",
    "output_shape": "[1]",
}
MEASURED = {**CONVERTED, "total_inference_avg": "[0.01, 0.01, 0.01, 0.01, 0.01]", "mean": 0.01}
SCORED = {**MEASURED, "f1_onnx": 0.8, "f1_1k": 0.7, "f1_1k_f": "n/a", "f1_10k": 0.7}


def ready(row: dict[str, object]) -> list[str]:
    return [stage.name for stage in PLAN.stages if PLAN.is_ready(row, stage)]


def test_a_new_model_is_ready_for_conversion_and_for_the_float_score():
    assert ready({}) == ["convert", "f1_onnx"]


def test_a_converted_model_is_ready_for_the_benchmark():
    assert ready(CONVERTED) == ["benchmark", "f1_onnx"]


def test_the_scores_on_the_device_wait_for_the_last_benchmark_run():
    row = {**MEASURED, "total_inference_avg": "[0.01, 0.01, 0.01, 0.01]"}
    assert ready(row) == ["benchmark", "f1_onnx"]
    assert ready(MEASURED) == ["f1_onnx", "f1_1k", "f1_1k_f", "f1_10k"]


ESTIMATED = {**CONVERTED, "total_inference_avg": "[0.01]", "latency_kind": "estimate"}


@pytest.mark.parametrize(
    "row",
    [
        {**ESTIMATED, "runs": "1, deterministic"},
        ESTIMATED,  # of an older version, which made five of them
        {**ESTIMATED, "total_inference_avg": "[0.01, 0.01, 0.01]"},
    ],
)
def test_one_run_of_an_estimate_that_never_changes_is_enough(row: dict[str, object]):
    assert PLAN["benchmark"].is_done(row) and "benchmark" not in ready(row)


@pytest.mark.parametrize(
    "row",
    [
        {**ESTIMATED, "latency_kind": "measured"},
        {**ESTIMATED, "runs": "1"},  # of a device whose estimates vary
        {**CONVERTED, "mean": 0.01, "latency_kind": "estimate"},  # by a search, before the upload
        {**ESTIMATED, "total_inference_avg": "[]"},
    ],
)
def test_other_benchmarks_take_all_their_runs(row: dict[str, object]):
    assert not PLAN["benchmark"].is_done(row) and "benchmark" in ready(row)


def test_a_model_with_all_results_is_complete():
    assert PLAN.is_complete(SCORED) and ready(SCORED) == []


def test_not_applicable_counts_as_an_answer():
    assert PLAN["f1_1k_f"].is_done({"f1_1k_f": "n/a"})


@pytest.mark.parametrize("column", ["f1_onnx", "f1_1k", "f1_1k_f", "f1_10k", "macs", "quantized"])
def test_an_empty_column_is_not_done(column: str):
    assert not PLAN.is_complete({**SCORED, column: ""})
    assert not PLAN.is_complete({k: v for k, v in SCORED.items() if k != column})


def test_a_conversion_that_says_no_is_not_done():
    assert "convert" in ready({**CONVERTED, "quantized": False})


def test_a_score_of_zero_is_a_score():
    assert PLAN["f1_1k"].is_done({"f1_1k": 0.0}) and PLAN["f1_1k"].is_done({"f1_1k": 0})


@pytest.mark.parametrize("yes", [1, True, "1", "True", "true", 1.0])
def test_benchmark_only_models_end_after_the_benchmark(yes: object):
    row = {**MEASURED, "benchmark_only": yes}
    if yes == 1.0 and isinstance(yes, float):
        row["benchmark_only"] = int(yes)
    assert PLAN.is_complete(row) and ready(row) == []


@pytest.mark.parametrize("no", [0, False, "0", "False", ""])
def test_other_models_do_not(no: object):
    assert not PLAN.is_complete({**MEASURED, "benchmark_only": no})


def test_priorities_are_those_of_the_specification():
    row = {**MEASURED, "total_inference_avg": "[0.01, 0.03]", "mean": 0.02}
    found = {stage.name: PLAN.priority(row, stage) for stage in PLAN.stages}
    assert found == {
        "convert": 20,
        "benchmark": 32,
        "f1_onnx": 60,
        "f1_1k": 100 + 20,
        "f1_1k_f": 100 + 10 * 20,
        "f1_10k": 100 + 100 * 20,
    }


def test_a_rows_own_priority_overrides_all():
    assert {PLAN.priority({"priority": 0}, stage) for stage in PLAN.stages} == {0}
    assert {PLAN.priority({"priority": 7}, stage) for stage in PLAN.stages} == {7}
    assert PLAN.priority({"priority": ""}, PLAN["convert"]) == 20


def test_the_mean_is_taken_from_the_runs_where_it_is_missing():
    row = {"total_inference_avg": "[0.01, 0.03]"}
    assert PLAN.priority(row, PLAN["f1_1k"]) == pytest.approx(120)


@pytest.mark.parametrize("runs", ["", "garbage", "{}", "null", "[null]", '["x"]', "7"])
def test_runs_that_cannot_be_read_count_as_none(runs: str):
    assert PLAN["benchmark"].progress({"total_inference_avg": runs}) == 0


def test_doing_a_stage_again_means_doing_those_after_it_again():
    assert PLAN.and_those_after({"benchmark"}) == {"benchmark", "f1_1k", "f1_1k_f", "f1_10k"}
    assert PLAN.and_those_after({"f1_onnx"}) == {"f1_onnx"}
    assert PLAN.and_those_after({"convert"}) == {s.name for s in PLAN.stages} - {"f1_onnx"}


def test_stages_that_depend_on_a_stage_indirectly_are_done_again_too():
    def stage(name: str, *needs: str) -> Stage:
        return Stage(name, "cpu", lambda row: 0, needs=needs, fills=(name,))

    plan = Plan((stage("first"), stage("second", "first"), stage("third", "second")))
    assert plan.and_those_after({"first"}) == {"first", "second", "third"}


def test_capabilities_are_those_of_the_specification():
    assert {stage.name: PLAN.capability({}, stage) for stage in PLAN.stages} == {
        "convert": "quantize",
        "benchmark": "device",
        "f1_onnx": "onnx",
        "f1_1k": "device-accuracy",
        "f1_1k_f": "device-float",
        "f1_10k": "device-accuracy",
    }


def test_all_device_stages_run_on_the_type_of_device_that_benchmarked_the_model():
    row = {"device": "host"}
    assert {stage.name: PLAN.capability(row, stage) for stage in PLAN.stages} == {
        "convert": "quantize",
        "benchmark": "device@host",
        "f1_onnx": "onnx",
        "f1_1k": "device-accuracy@host",
        "f1_1k_f": "device-float@host",
        "f1_10k": "device-accuracy@host",
    }


def test_an_unknown_stage_is_answered_with_the_known_ones():
    with pytest.raises(BadInput, match="convert, benchmark, f1_onnx"):
        PLAN["f1_1000"]
