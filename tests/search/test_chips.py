"""One search for several chips: a latency, limits and a front for each; one training for all."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from edgeloop.search.base import barred_devices, broken_constraint, columns_of
from edgeloop.search.config import SearchConfig, config_of
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.results import front_of, fronts_of, write_tables
from edgeloop.search.study import Candidate

A, B = "htp:qcs8550", "htp:sa8295p"  # estimated by different models of the compiler
ON_A, ON_B = f"chip_latency_ms@{A}", f"chip_latency_ms@{B}"


def config(**search: object) -> SearchConfig:
    objectives = {"chip_latency_ms": {"devices": [A, B]}, "val_iou": {}}
    return config_of({"search": search, "objectives": objectives, "data": "raw/x"}, "x.yaml")


def candidate(number: int, on_a: float, on_b: float, iou: float) -> Candidate:
    arch = Architecture("toy.py:build", {"number": number}, (1, 3, 8, 8), 19)
    values: Mapping[str, float] = {ON_A: on_a, ON_B: on_b, "val_iou": iou}
    return Candidate(number, arch, {"number": number}, "complete", values)


# The second is slow on A alone, the third on B alone; the fourth is beaten on both.
FOUND = [
    candidate(0, 2.0, 2.0, 0.5),
    candidate(1, 9.0, 1.0, 0.6),
    candidate(2, 1.0, 9.0, 0.6),
    candidate(3, 3.0, 3.0, 0.4),
]


def test_every_chip_has_the_front_that_a_search_for_it_alone_would_have(tmp_path: Path):
    fronts = fronts_of(config(), FOUND)
    assert {name: [i.number for i in front] for name, front in fronts.items()} == {A: [2], B: [1]}
    assert [item.number for item in front_of(config(), FOUND)] == [2, 1]
    write_tables(tmp_path, config(), FOUND)
    with (tmp_path / "search_state_0.csv").open(newline="") as text:
        rows = {row["number"]: (row["is_pareto"], row["fronts"]) for row in csv.DictReader(text)}
    assert rows == {"0": ("0", ""), "1": ("1", B), "2": ("1", A), "3": ("0", "")}


def test_a_limit_bars_a_candidate_from_the_front_of_a_chip_and_only_all_of_them_screen_it_out():
    limited = config(constraints={"chip_latency_ms": [0, 5], "val_iou": [0.1, 1]})
    limits = limited.constraints
    fronts = fronts_of(limited, [*FOUND, candidate(4, 6.0, 0.5, 0.9)])
    assert {name: [i.number for i in front] for name, front in fronts.items()} == {A: [2], B: [4]}
    assert barred_devices(FOUND[1].values, limits) == {A}
    assert broken_constraint(FOUND[1].values, limits) == ""
    both = broken_constraint({ON_A: 6.0, ON_B: 7.0}, limits)
    assert f"{ON_A} is 6" in both and f"{ON_B} is 7, not within 0 to 5" in both
    assert broken_constraint({ON_A: 6.0}, limits) == "", "the other may still be within its limits"
    assert broken_constraint({ON_A: 1.0, "val_iou": 0.0}, limits).startswith("val_iou is 0")
    unlimited = config(constraints={"chip_latency_ms": {A: [0, 5]}}).constraints
    assert broken_constraint({ON_A: 6.0, ON_B: 700.0}, unlimited) == ""


def test_the_status_table_has_the_latency_of_the_first_chip():
    values = {ON_A: 2.0, ON_B: 9.0, f"chip_latency_low_ms@{A}": 1.5, f"chip_latency_low_ms@{B}": 8}
    assert columns_of(values, 0) == {
        **{"iteration": 0, "mean": 0.002, "latency_kind": "estimate", "latency_low_ms": 1.5},
    }
