"""The files of a score."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.tasks import (
    Interval,
    Score,
    write_pr_curve,
    write_pr_points,
    write_results_csv,
    write_score_files,
)
from edgeloop.tasks.classification import ClassificationScorer
from edgeloop.tasks.metrics import average_precision
from edgeloop.tasks.results import thinned
from edgeloop.tasks.segmentation import FACE_CLASSES, SegmentationScorer
from tests.tasks.outputs import made_up


@pytest.fixture
def score() -> Score:
    scorer = SegmentationScorer()
    scorer.add(*made_up(1))
    return scorer.score()


def test_the_csv_has_a_row_a_metric_and_a_column_a_class_then_overall(tmp_path: Path, score: Score):
    write_results_csv(score, tmp_path / "test_results_f1_1k.csv")
    with (tmp_path / "test_results_f1_1k.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["metric", *FACE_CLASSES, "overall"]
    assert [row[0] for row in rows[1:]] == ["iou", "f1", "AP"]
    for row in rows[1:]:
        assert [float(cell) for cell in row[1:]] == list(score.table[row[0]].values())
    assert float(rows[2][-1]) == score.headline
    assert [path.name for path in tmp_path.iterdir()] == ["test_results_f1_1k.csv"]


def test_an_interval_adds_two_rows_with_a_value_overall(tmp_path: Path, score: Score):
    interval = Interval(score.headline, 0.25, 0.75)
    write_results_csv(score, tmp_path / "a.csv", interval)
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[-2] == ["f1_low", *("" for _ in FACE_CLASSES), "0.25"]
    assert rows[-1] == ["f1_high", *("" for _ in FACE_CLASSES), "0.75"]


def points_in(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = dict.fromkeys(row["class"] for row in rows)
    both = [(row["class"], float(row["recall"]), float(row["precision"])) for row in rows]
    return {name: np.array([(r, p) for c, r, p in both if c == name]).T for name in names}


def test_the_points_of_the_curves_are_few_and_tell_the_same(tmp_path: Path, score: Score):
    write_pr_points(score, tmp_path / "pr_curve_f1_1k.csv")
    found = points_in(tmp_path / "pr_curve_f1_1k.csv")
    shown = {name: curve for name, curve in score.curves.items() if curve[0].size and curve[0][-1]}
    assert list(found) == list(shown)
    for name, (recall, precision) in found.items():
        assert 2 <= len(recall) <= 200
        assert (np.diff(recall) >= 0).all()
        assert (recall[-1], precision[-1]) == pytest.approx(
            [float(side[-1]) for side in shown[name]], abs=1e-4
        )
        same = average_precision((recall, precision)), average_precision(shown[name])
        assert same[0] == pytest.approx(same[1], abs=0.05)
    assert (tmp_path / "pr_curve_f1_1k.csv").stat().st_size < 60_000


def test_a_thinned_line_is_nowhere_a_hair_from_the_whole_one():
    recall = np.linspace(0, 1, 3000)
    precision = 1 - 0.7 * recall**6 - 0.1 * np.exp(-50 * recall)
    few, heights = thinned((recall, precision))
    assert len(few) < 60
    assert np.abs(np.interp(recall, few, heights) - precision).max() < 0.01


def test_a_line_that_is_all_corners_is_cut_to_what_a_chart_needs():
    recall = np.linspace(0, 1, 3000)
    few, _ = thinned((recall, np.random.default_rng(1).random(3000)))
    assert 20 < len(few) <= 200 and (few[0], few[-1]) == (0, 1)


@pytest.mark.parametrize("count", [1, 2])
def test_the_shortest_lines_stay_as_they_are(count: int):
    line = np.full(count, 0.5), np.full(count, 0.25)
    assert [side.tolist() for side in thinned(line)] == [side.tolist() for side in line]


def test_the_picture_shows_a_line_a_class(tmp_path: Path, score: Score):
    write_pr_curve(score, tmp_path / "pr_curve_f1_1k.png")
    with Image.open(tmp_path / "pr_curve_f1_1k.png") as picture:
        picture.load()
        assert picture.format == "PNG" and min(picture.size) > 400
        colours = {colour for _, colour in picture.getcolors(1 << 20)}
    for wanted in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73), (0xE6, 0x9F, 0x00)):
        assert wanted in colours
    assert [path.name for path in tmp_path.iterdir()] == ["pr_curve_f1_1k.png"]


def test_a_better_model_has_another_picture(tmp_path: Path, score: Score):
    scorer = SegmentationScorer()
    scorer.add(*made_up(1, certainty=6.0))
    write_pr_curve(score, tmp_path / "a.png")
    write_pr_curve(scorer.score(), tmp_path / "b.png")
    with Image.open(tmp_path / "a.png") as a, Image.open(tmp_path / "b.png") as b:
        assert a.size == b.size
        assert (np.asarray(a) != np.asarray(b)).any(axis=2).mean() > 0.005


def test_very_many_classes_still_fit_on_the_picture(tmp_path: Path):
    names = [f"class {n}" for n in range(300)]
    scorer = ClassificationScorer(names)
    scorer.add(np.eye(300, dtype=np.float32), np.arange(300, dtype=np.uint16))
    write_pr_curve(scorer.score(), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert max(picture.size) < 1500


def test_class_maps_have_a_csv_without_ap_and_a_picture_without_curves(tmp_path: Path):
    logits, labels = made_up(1)
    scorer = SegmentationScorer()
    scorer.add(logits.argmax(axis=1), labels)
    write_results_csv(scorer.score(), tmp_path / "a.csv")
    assert [line.split(",")[0] for line in (tmp_path / "a.csv").read_text().splitlines()] == [
        "metric",
        "iou",
        "f1",
    ]
    write_pr_points(scorer.score(), tmp_path / "points.csv")
    assert (tmp_path / "points.csv").read_text() == "class,recall,precision\n"
    write_pr_curve(scorer.score(), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        colours = {colour for _, colour in picture.getcolors(1 << 20)}
    assert (0x00, 0x72, 0xB2) not in colours


def test_other_metrics_have_their_own_rows_and_no_plot_without_curves(tmp_path: Path):
    table = {"PCK": {"nose": 0.5, "overall": 0.75}, "mAP": {"overall": 0.25}}
    score = Score(0.75, table, np.zeros((4, 2)), {})
    files = write_score_files(score, tmp_path, "f1_1k", Interval(0.75, 0.5, 1.0), "PCK")
    assert list(files) == ["test_results_f1_1k.csv"] == [path.name for path in tmp_path.iterdir()]
    with files["test_results_f1_1k.csv"].open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["metric", "nose", "overall"],
            ["PCK", "0.5", "0.75"],
            ["mAP", "", "0.25"],
            ["PCK_low", "", "0.5"],
            ["PCK_high", "", "1.0"],
        ]
    curve = (np.array([0.5, 1.0]), np.array([1.0, 0.5]))
    table = {"mAP": {"cat": 0.5, "overall": 0.5}, "AP50": {"cat": 0.75, "overall": 0.75}}
    score = Score(0.5, table, np.zeros(4), {"cat": curve}, curve_row="AP50")
    files = write_score_files(score, tmp_path, "f1_10k", Interval(0.5, 0.5, 0.5), "mAP")
    assert [path.suffix for path in files.values()] == [".csv", ".png", ".csv"]
