"""The rule of the gate, on figures made by hand; and baselines as files."""

from __future__ import annotations

import base64
import io
import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeloop.errors import BadInput, BadSetting, LocalFileError
from edgeloop.tasks.coco import matches_type
from edgeloop.tasks.depth import Depth
from edgeloop.tuning.gate import (
    Baseline,
    GateFigures,
    GateLimits,
    GateReport,
    GateScore,
    compare_figures,
    packed,
    refused_report,
    unpacked,
)

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
    assert "`a|b'<img> .onnx` on htp:qcs8550" in text
    refused = refused_report("net.onnx", "htp:qcs8550", "the chip does not take TopK")
    assert not refused.is_passed and "does not take TopK" in refused.markdown()


@pytest.mark.parametrize(
    "named",
    [
        "![x](https://a.example/x.png)",
        "@org/team",
        "org/repo#12",
        "https://a.example",
        "WWW.a.example",
        "**TopK**",
        "`` @org ``",
        "<!-- x",
    ],
)
def test_what_a_model_file_says_is_no_markup_of_the_comment(named):
    report = refused_report(named, "htp:qcs8550", f"the chip does not take {named}")
    lines = report.markdown().splitlines()
    safe = named.replace("`", "'")
    assert lines[2] == f"`{safe}` on htp:qcs8550"
    assert lines[-1] == f"- `operators: the chip does not take {safe}`"


def test_steps_without_a_cost_are_no_gain():
    """A model gets "faster" by what its estimate leaves out."""
    faster = figures(runs_ms=(0.5,), missing_ops=1)
    report = compare_figures(BASELINE, faster, GateLimits())
    check = report.checks[0]
    assert (check.verdict, check.now) == ("regression", "≥ 500 µs") and not report.is_passed
    assert "leaves out 1 step, that of the baseline none" in check.detail
    known = Baseline.of(figures(missing_ops=2))
    same = {"runs_ms": (1.0,), "missing_ops": 2}
    assert verdicts(compare_figures(known, figures(**same), GateLimits()))["latency"] == "pass"
    fewer = figures(runs_ms=(1.2,))
    assert verdicts(compare_figures(known, fewer, GateLimits()))["latency"] == "not compared"


def test_a_profile_that_was_fitted_again_changes_no_verdict():
    """The constants moved by 10 %; what the compiler says decides."""
    known = Baseline.of(figures(raw_us=900.0, latency_profile="qcs8550 (1 + 1 x)"))
    refitted = figures(raw_us=900.0, latency_profile="qcs8550 (2 + 1.1 x)", runs_ms=(1.1,))
    check = compare_figures(known, refitted, GateLimits(0)).checks[0]
    assert (check.verdict, check.change) == ("pass", 0) and "other constants" in check.detail
    slower = replace(refitted, raw_us=930.0, runs_ms=(1.0,))
    assert verdicts(compare_figures(known, slower, GateLimits()))["latency"] == "regression"
    without = Baseline.of(figures(latency_profile="qcs8550 (1 + 1 x)"))
    check = compare_figures(without, refitted, GateLimits()).checks[0]
    assert check.verdict == "not compared" and "another profile" in check.detail


def test_a_score_that_nobody_compared_does_not_pass():
    def report(before: bool, now: bool, strict: bool = False) -> GateReport:
        scores = [figures() if each else figures(score=None) for each in (before, now)]
        return compare_figures(Baseline.of(scores[0]), scores[1], GateLimits(strict=strict))

    for before, now in ((False, False), (True, False), (False, True)):
        found = report(before, now)
        assert verdicts(found)["score"] == "not compared"
        assert found.is_passed and found.headline == "passed, 1 of 5 not compared: score"
        [line] = [line for line in found.markdown().splitlines() if line.startswith("| score")]
        assert line.endswith("| not compared |")
    assert report(False, False, strict=True).is_passed, "no score was asked for"
    assert not report(True, False, strict=True).is_passed
    assert not report(False, True, strict=True).is_passed


def test_a_baseline_of_another_version_is_noted():
    assert not compare_figures(BASELINE, figures(), GateLimits()).notes
    old = BASELINE.model_copy(update={"edgeloop": "0.0.1"})
    (note,) = compare_figures(old, figures(), GateLimits()).notes
    assert note.startswith("the baseline is of Edgeloop 0.0.1, this is ")


def test_a_score_that_is_no_number_never_passes():
    nothing = replace(scored(), value=float("nan"), counts=scored().counts * float("nan"))
    assert judged(score=nothing)["delta1"] == "regression"
    with pytest.raises(BadInput, match="value is no number"):
        Baseline.of(figures(score=nothing))


@pytest.mark.parametrize("runs", ["NaN", '"nan"', '"1"', "-1", "0", "1e999", "true"])
def test_a_baseline_has_latencies_above_zero(tmp_path: Path, runs):
    path = tmp_path / "b.json"
    BASELINE.model_copy(update={"runs_ms": (1.125,)}).write(path)
    path.write_text(path.read_text().replace("1.125", runs))
    with pytest.raises(BadSetting, match=r"b\.json.*runs_ms"):
        Baseline.read(path)


def test_a_header_that_claims_more_than_there_is_costs_no_memory():
    content = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**14, 3)}
    np.lib.format.write_array_header_1_0(content, header)
    text = base64.b64encode(zlib.compress(content.getvalue() + bytes(48))).decode()
    with pytest.raises(BadInput, match="its size is not what its header says"):
        unpacked(text, np.zeros((2, 3)))
    with pytest.raises(BadInput, match="another number of images"):
        unpacked(packed(np.zeros((3, 3))), np.zeros((2, 3)))


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
