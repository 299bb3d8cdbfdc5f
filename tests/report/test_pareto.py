"""The front of a table: directions, ties, and what has no number."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from edgeloop.errors import BadInput
from edgeloop.models.columns import COLUMNS
from edgeloop.view.charts import ASCII, plot
from edgeloop.view.drawing import chart_axes, placed_names, short_name
from edgeloop.view.front import device_note, one_device, pareto_of
from edgeloop.view.measures import check_columns, measure_of, objective

TWO = (objective("mean"), objective("f1_1k"))


def names(rows: list) -> list[str]:
    return [row["name"] for row in rows]


def row(name: str, mean: object, f1: object, **more: object) -> dict:
    return {"name": name, "mean": mean, "f1_1k": f1, **more}


def test_less_latency_and_more_f1_is_better_without_being_told():
    rows = [row("slow", 0.02, 0.9), row("quick", 0.01, 0.8), row("beaten", 0.02, 0.8)]
    assert names(pareto_of(rows, TWO).front) == ["quick", "slow"]


def test_a_goal_that_is_given_wins():
    rows = [row("slow", 0.02, 0.9), row("quick", 0.01, 0.8)]
    turned = (objective("mean", "max"), objective("f1_1k:max"))
    assert names(pareto_of(rows, turned).front) == ["slow"]


def test_equal_models_stay_together_in_the_order_of_their_names():
    rows = [row("b", 0.01, 0.8), row("a", 0.01, 0.8), row("c", 0.01, 0.7)]
    assert names(pareto_of(rows, TWO).front) == ["a", "b"]


def test_of_models_that_are_not_told_apart_the_best_joins_the_front():
    rows = [row("a", 1.0, 0.5), row("b", 1.05, 0.6), row("c", 1.1, 0.7), row("d", 1.18, 0.71)]
    first, second = TWO
    apart = (replace(first, apart=0.08), second)
    assert names(pareto_of(rows, TWO).front) == ["a", "b", "c", "d"]
    assert names(pareto_of(rows, apart).front) == ["b", "d"], "d is 12 % slower than b, 7 % than c"
    assert names(pareto_of(rows[:1], apart).front) == ["a"]
    turned = (replace(objective("sqnr_db"), apart=0.5), second)
    noises = [{"name": n, "sqnr_db": s, "f1_1k": f} for n, s, f in (("x", 30, 0.5), ("y", 25, 0.6))]
    assert names(pareto_of(noises, turned).front) == ["y"]
    with pytest.raises(BadInput, match="two objectives only"):
        pareto_of(rows, (*apart, objective("params:min"))).is_front  # noqa: B018


@pytest.mark.parametrize("nothing", [None, "", "n/a", math.nan, math.inf, True, "two"])
def test_a_model_without_a_number_is_neither_on_the_front_nor_in_the_way(nothing: object):
    rows = [row("odd", 0.001, nothing), row("whole", 0.01, 0.8)]
    found = pareto_of(rows, TWO)
    assert (names(found.front), found.missing) == (["whole"], 1)


OF_A_SEARCH = {"architecture": "id_0123456789abcdef"}


def of_a_search(**more: dict) -> list[dict]:
    """The rows of one architecture, by what each adds to the name."""
    return [
        {"name": f"calm-heron{kind.replace('_', '.')}", **OF_A_SEARCH, **row}
        for kind, row in more.items()
    ]


FULL = (objective("mean"), objective("final_val_iou"))
MEASURED = {"mean": 0.004, "total_inference_avg": "[0.004]", "latency_kind": "measured"}


def test_an_architecture_is_on_the_front_once_as_its_best_trained_model():
    candidate = {"mean": 0.005, "latency_kind": "estimate", "final_val_iou": 0.8, "iteration": 3}
    rows = [
        *({"name": "calm-heron", **OF_A_SEARCH, **candidate}, row("other", 0.001, 0.1)),
        *of_a_search(_trained={**MEASURED, "f1_1k": 0.6}, _full={"final_val_iou": 0.8}),
    ]
    found = pareto_of(rows, FULL)
    assert names(found.front) == ["calm-heron.full"] and found.missing == 1
    (best,) = found.front
    assert (best["mean"], best["latency_kind"], best["iteration"]) == (0.004, "measured", 3)
    assert "f1_1k" not in best, "a score of other weights is not this model's"
    assert names(pareto_of(rows, TWO).front) == ["other", "calm-heron.trained"]


def test_its_own_measurement_counts_before_one_of_its_other_weights():
    own = {**MEASURED, "mean": 0.007, "total_inference_avg": "[0.007]"}
    rows = of_a_search(_trained=MEASURED, _full={**own, "final_val_iou": 0.8})
    assert pareto_of(rows, FULL).values.tolist() == [[7.0, 0.8]]


def test_latency_on_a_further_device_is_that_of_any_weights_too():
    further = {"mean_on_htp_b": 0.002, "latency_kind_on_htp_b": "estimate", "f1_1k_on_htp_b": 0.9}
    rows = of_a_search(_trained={**MEASURED, **further}, _full={**MEASURED, "final_val_iou": 0.8})
    found = pareto_of(rows, (objective("latency_ms_on_htp_b"), objective("final_val_iou")))
    assert found.values.tolist() == [[2.0, 0.8]] and found.latency == "mean_on_htp_b"
    (best,) = found.front
    assert best["latency_kind_on_htp_b"] == "estimate" and "f1_1k_on_htp_b" not in best


def test_a_column_of_a_further_device_does_not_split_the_front():
    """It is of that device in every row, whatever device a row names."""
    rows = [
        {"name": name, "device": device, "mean_on_htp_b": 0.001 + n, "f1_1k_on_htp_b": 0.5 + n / 10}
        for n, (name, device) in enumerate((("x", "htp:a"), ("y", "qcs8550")))
    ]
    whole = pareto_of(rows, (objective("mean_on_htp_b"), objective("f1_1k_on_htp_b")))
    assert one_device(whole) == (whole, "") and names(whole.front) == ["x", "y"]


def test_models_that_only_look_alike_are_not_one():
    rows = [row(name, 0.01, 0.8) for name in ("id_1", "id_1.fuller", "id_2", "id_1.x", "", "")]
    assert len(pareto_of(rows, TWO).rows) == 6


def test_a_number_that_was_written_as_text_is_a_number():
    assert names(pareto_of([row("a", "0.01", "0.8"), row("b", 0.02, 0.7)], TWO).front) == ["a"]


def test_latency_comes_from_the_runs_where_there_is_no_mean():
    found = pareto_of([{"name": "a", "total_inference_avg": "[0.01, 0.03]", "f1_1k": 0.5}], TWO)
    assert found.values.tolist() == [[20.0, 0.5]]


def test_a_third_objective_keeps_what_only_it_favours():
    rows = [row("a", 0.01, 0.8, params=9e6), row("small", 0.02, 0.7, params=1e6)]
    assert names(pareto_of(rows, TWO).front) == ["a"]
    assert names(pareto_of(rows, (*TWO, objective("params"))).front) == ["a", "small"]


def test_the_hypervolume_is_measured_from_a_stated_point():
    assert pareto_of([], TWO).share == 0.0 and pareto_of([], TWO).reference == ""
    trade = [row("a", 0.01, 0.8), row("b", 0.02, 0.9), row("c", 0.015, 0.85)]
    found = pareto_of(trade, TWO)
    assert found.reference == "latency_ms 21, f1_1k 0.7900"
    staircase = (21 - 10) * 0.01 + (21 - 15) * 0.05 + (21 - 20) * 0.05
    assert found.share == pytest.approx(staircase / (21 * 0.21))
    assert 0 < pareto_of([row("one", 0.01, 0.8)], TWO).share < 1
    assert pareto_of([row("decibels", 0.01, 30.0), row("more", 0.02, 33.0)], TWO).share > 0


def test_models_that_come_later_neither_move_the_reference_nor_lower_the_hypervolume():
    early = [
        row(f"m{n}", 0.01 + 0.001 * n, 0.5 + 0.01 * n, model_date="2026-01") for n in range(10)
    ]
    late = [row(f"a{n}", 0.002 * n, 0.9 - 0.1 * n, model_date="2026-02") for n in range(1, 20)]
    shares = [pareto_of([*late[:count], *early], TWO) for count in range(len(late))]
    assert len({found.reference for found in shares}) == 1
    assert [found.share for found in shares] == sorted(found.share for found in shares)


def test_two_different_objectives_are_needed():
    with pytest.raises(BadInput, match="at least two"):
        pareto_of([], TWO[:1])
    with pytest.raises(BadInput, match="twice"):
        pareto_of([], (TWO[0], objective("mean:max")))


def test_a_column_whose_goal_nobody_knows_must_be_told():
    with pytest.raises(BadInput, match="warmth:min or warmth:max"):
        objective("warmth")
    with pytest.raises(BadInput, match="did you mean 'mean'"):
        objective("meen")
    assert objective("warmth:max").goal == "max"


@pytest.mark.parametrize(
    ("column", "shown"),
    [(column.name, column.shown) for column in COLUMNS.values() if column.shown],
)
def test_a_column_has_one_name_and_the_one_of_the_store_works_too(column: str, shown: str):
    assert objective(shown) == objective(column) and measure_of(column).heading == shown
    assert objective(f"{shown}:max").goal == "max"


def test_a_column_that_no_row_has_is_named_with_the_nearest():
    with pytest.raises(BadInput, match="'f1_1kk'; did you mean 'f1_1k'"):
        check_columns([row("a", 1, 1)], [objective("f1_1kk:max")])
    check_columns([row("a", 1, 1, theirs=3)], [objective("theirs:max"), objective("f1_10k")])


def test_the_plot_is_as_wide_as_the_terminal_and_tells_estimates_apart():
    rows = [
        row("a", 0.01, 0.8, latency_kind="estimate"),
        row("b", 0.02, 0.9),
        row("c", 0.02, 0.8),
    ]
    drawn = plot(pareto_of(rows, TWO), 60, 8)
    lines = drawn.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith("0.9000 │") and lines[1].endswith("●")
    assert lines[8].endswith("·") and "○" in lines[8]
    assert lines[-1] == "● front   ○ front, latency estimated   · others"
    assert plot(pareto_of(rows, TWO), 60, 8, ASCII).isascii()


def test_the_plot_of_nothing_is_nothing_and_of_one_point_one_mark():
    assert plot(pareto_of([], TWO), 80) == ""
    assert plot(pareto_of([row("a", 0.01, 0.8)], TWO), 80).count("●") == 2  # and in the legend


def many(*more: dict) -> list[dict]:
    return [*(row(f"m{n}", 0.01 + 0.001 * n, 0.5 + 0.01 * (n % 7)) for n in range(20)), *more]


def test_outliers_do_not_squash_an_axis_and_are_counted():
    found = pareto_of(many(row("far", 0.2, 0.4)), TWO)
    axes = chart_axes(found)
    assert axes.ranges[0].high < 35 and axes.outside == 1 and not axes.ranges[0].is_log
    assert plot(found, 80).endswith("1 outside the axes")
    assert chart_axes(found, whole=True).ranges[0].high > 200
    best = chart_axes(pareto_of(many(row("far but best", 0.2, 0.9)), TWO))
    assert best.outside == 0 and best.ranges[0].high > 200, "the front is always shown"


def test_latencies_of_very_different_sizes_have_a_logarithmic_axis():
    rows = many(*(row(f"slow{n}", 0.3 * 2**n, 0.4) for n in range(4)))
    axes = chart_axes(pareto_of(rows, TWO))
    assert axes.ranges[0].is_log and axes.outside == 0
    assert "latency_ms, logarithmic" in plot(pareto_of(rows, TWO), 80)


def test_latencies_well_below_a_millisecond_are_shown_in_microseconds():
    found = pareto_of([row("a", 7e-5, 0.5), row("b", 9e-5, 0.6)], TWO)
    axes = chart_axes(found)
    assert axes.measures[0].title == "latency (µs)" and axes.factors == (1e3, 1.0)
    assert "latency_us" in plot(found, 80) and found.values[0, 0] == pytest.approx(0.07)
    assert chart_axes(pareto_of(many(), TWO)).factors == (1.0, 1.0)


def test_the_front_of_several_devices_is_that_of_the_one_with_most_models():
    rows = [row(f"a{n}", 0.01 + n, 0.5 + n / 10, device="htp:a") for n in range(3)]
    rows += [row("b", 0.001, 0.9, device="htp:b"), row("unnamed", 0.0001, 0.9)]
    whole = pareto_of(rows, TWO)
    found, device = one_device(whole)
    assert (device, names(found.front)) == ("htp:a", ["a0", "a1", "a2"])
    note = "Front of htp:a; not shown: no device named (1), htp:b (1)"
    assert device_note(whole, device) == note
    mixed, device = one_device(whole, "*")
    assert names(mixed.front) == ["unnamed"] and "do not compare" in device_note(whole, device)
    without_device = pareto_of(rows, (objective("macs"), objective("val_iou")))
    assert one_device(without_device) == (without_device, "")


def test_names_cover_neither_points_nor_each_other():
    spread = [(100.0, 100.0), (300.0, 200.0), (40.0, 300.0)]
    placed = placed_names(spread, ["quick", "calm-heron", "brisk-otter"], (600, 400))
    assert placed == {0: "left", 1: "left", 2: "right"}
    crowded = [(50.0 + n, 50.0 + n) for n in range(12)]
    assert len(placed_names(crowded, ["calm-heron"] * 12, (600, 400))) < 6
    assert short_name("id_f26b87e676e199b1.full") == "id_f26b87e.full"
