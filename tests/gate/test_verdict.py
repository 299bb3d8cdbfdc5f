"""The rule of the gate, on figures made by hand; and baselines as files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeloop.errors import BadInput, BadSetting, LocalFileError
from edgeloop.gate import (
    Baseline,
    GateFigures,
    GateLimits,
    GateReport,
    GateScore,
    compare_figures,
    refused_report,
)
from edgeloop.gate.baseline import packed, unpacked
from edgeloop.tasks.dense.depth import Depth
from edgeloop.tasks.detection.metric import matches_type

IMAGES = 120


def scored(drop: float = 0.0, spread: float = 0.01, images: int = IMAGES) -> GateScore:
    """Per-image scores that are `drop` lower than those of a good model, on average."""
    dice = np.random.default_rng(1)
    good = dice.uniform(0.5, 1.0, (images, 1))
    noise = dice.normal(0, spread, good.shape)
    counts = good - drop + (noise - noise.mean() if drop else 0)
    return GateScore(Depth(Path(), Path()), "delta1", float(counts.mean()), "set", counts)


def figures(**changes: object) -> GateFigures:
    plain = GateFigures(
        *("net.onnx", "0" * 64, 1_000, "htp:qcs8550", "compiler 1", "a8w8-per-channel", "100"),
        latency_kind="estimate",
        runs_ms=(1.0,),
        latency_profile="qcs8550",
        machine="",
        weight_bytes=600,
        peak_memory_bytes=400,
        ddr_bytes=5_000,
        operators={"Conv": 4},
        cpu_operators=(),
        score=scored(),
    )
    return replace(plain, **changes)


BASELINE = Baseline.of(figures())


def verdicts(report: GateReport) -> dict[str, str]:
    return {check.name: check.verdict for check in report.checks}


def judged(limits: GateLimits | None = None, **changes: object) -> dict[str, str]:
    return verdicts(compare_figures(BASELINE, figures(**changes), limits or GateLimits()))


def test_the_same_model_passes_in_everything():
    report = compare_figures(BASELINE, figures(), GateLimits(0, 0, 0, 0, strict=True))
    assert report.is_passed and set(verdicts(report).values()) == {"pass"}
    assert report.headline == "passed"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"runs_ms": (1.03,)}, "latency"),
        ({"score": scored(0.003)}, "delta1"),
        ({"peak_memory_bytes": 460}, "memory"),
        ({"weight_bytes": 660}, "memory"),
        ({"size_bytes": 1_060}, "size"),
        ({"cpu_operators": ("TopK",)}, "operators"),
    ],
)
def test_what_is_worse_than_allowed_is_a_regression_and_nothing_else_is(changes, name):
    found = judged(**changes)
    assert found.pop(name) == "regression"
    assert set(found.values()) == {"pass"}


@pytest.mark.parametrize(
    "changes",
    [
        {"runs_ms": (1.015,)},
        {"score": scored(0.002)},
        {"peak_memory_bytes": 440},
        {"size_bytes": 1_040},
        {"operators": {"Conv": 4, "Softmax": 1}},
        {"runs_ms": (0.5,), "score": scored(-0.05)},
    ],
)
def test_what_is_allowed_and_what_is_better_pass(changes):
    assert set(judged(**changes).values()) == {"pass"}


def test_a_drop_that_the_images_cannot_show_is_unclear_and_says_how_many_would():
    few = Baseline.of(figures(score=scored(images=6)))
    new = figures(score=scored(0.004, spread=0.02, images=6))
    report = compare_figures(few, new, GateLimits())
    check = next(check for check in report.checks if check.name == "delta1")
    assert check.verdict == "unclear" and "may miss a drop of" in check.detail
    assert report.is_passed
    assert not compare_figures(few, new, GateLimits(strict=True)).is_passed


def test_measured_latency_must_be_slower_than_its_runs_differ():
    base = {"latency_kind": "measured", "machine": "cpu a", "latency_profile": ""}
    noisy = Baseline.of(figures(**base, runs_ms=(1.0, 1.3, 0.9, 1.1, 1.0)))
    slower = figures(**base, runs_ms=(1.0, 1.2, 1.1, 1.05, 1.15))
    assert verdicts(compare_figures(noisy, slower, GateLimits()))["latency"] == "unclear"
    steady = Baseline.of(figures(**base, runs_ms=(1.0, 1.001, 0.999, 1.0, 1.002)))
    slower = figures(**base, runs_ms=(1.031, 1.03, 1.032, 1.029, 1.03))
    assert verdicts(compare_figures(steady, slower, GateLimits()))["latency"] == "regression"
    once = figures(**base, runs_ms=(1.5,))
    assert verdicts(compare_figures(steady, once, GateLimits()))["latency"] == "unclear"
    other = replace(slower, machine="cpu b")
    assert verdicts(compare_figures(steady, other, GateLimits()))["latency"] == "not compared"


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"compiler": "compiler 2"}, "latency", "another compiler: compiler 1 in the baseline"),
        ({"precision": "a16w8"}, "memory", "another precision"),
        ({"score": replace(scored(), image_set="b")}, "delta1", "other test images"),
        ({"score": None}, "score", "give --dataset"),
    ],
)
def test_what_is_not_alike_is_not_compared_and_says_why(changes, name, said):
    report = compare_figures(BASELINE, figures(**changes), GateLimits())
    check = next(check for check in report.checks if check.name == name)
    assert check.verdict == "not compared" and said in check.detail
    assert report.is_passed
    assert (
        "--strict"
        in compare_figures(BASELINE, figures(**changes), GateLimits(strict=True)).headline
    )


def test_markdown_is_a_table_whatever_a_model_is_called():
    report = compare_figures(BASELINE, figures(model="a|b`<img>\n.onnx"), GateLimits())
    text = report.markdown()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(report.checks)
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)
    assert "<img>" not in text
    refused = refused_report("net.onnx", "htp:qcs8550", "the chip does not take TopK")
    assert not refused.is_passed and "does not take TopK" in refused.markdown()


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path):
    BASELINE.write(tmp_path / "b.json")
    assert Baseline.read(tmp_path / "b.json") == BASELINE


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"edgeloop_gate": 1', '"edgeloop_gate": 7'),
        lambda text: text.replace('"runs_ms"', '"runs"'),
        lambda text: text.replace('"latency_kind": "estimate"', '"latency_kind": 3'),
    ],
)
def test_what_is_no_baseline_is_refused_with_its_name(tmp_path: Path, change):
    path = tmp_path / "b.json"
    BASELINE.write(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(BadSetting, match=r"b\.json"):
        Baseline.read(path)
    with pytest.raises(LocalFileError, match="gate --write"):
        Baseline.read(tmp_path / "none.json")


def test_counts_of_every_task_survive_and_damaged_ones_are_refused():
    dice = np.random.default_rng(2)
    confusion = dice.integers(0, 4_000, (20, 19, 19))
    matches = np.zeros(5, matches_type(3, 10))
    matches["score"] = dice.random((5, 10))
    for counts in (confusion, dice.integers(0, 9, (7, 2)), dice.random((9, 3)), matches):
        text = packed(counts)
        back = unpacked(text, counts)
        assert back.dtype == counts.dtype
        np.testing.assert_array_equal(back, counts)
        with pytest.raises(BadInput, match="cannot be read"):
            unpacked(text[: len(text) // 2], counts)
    with pytest.raises(BadInput, match="other classes"):
        unpacked(packed(confusion), confusion[:, :5, :5])
    assert len(packed(confusion)) < confusion.nbytes / 3


def test_a_report_is_plain_data():
    report = compare_figures(BASELINE, figures(runs_ms=(1.1,)), GateLimits())
    found = json.loads(json.dumps(report.to_fields()))
    assert found["passed"] is False
    assert found["checks"][0]["change"] == pytest.approx(10)
