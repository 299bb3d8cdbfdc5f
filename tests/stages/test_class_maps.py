"""F1 from class maps, curves from a few full outputs: where a device and a model have both."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeloop.errors import BadInput, ModelFailed, NotConverted
from edgeloop.graph.info import image_info
from edgeloop.platforms import GraphInfo
from edgeloop.platforms.batching import run_test
from edgeloop.runner.stages.base import Assignment, Equipment, Sizes, perform
from edgeloop.tasks import Task, open_task, read_examples
from edgeloop.testing.faces import make_faces
from tests.nets import tiny_model

SIZE, IMAGES, FEW = 32, 20, 6
INFO = image_info("x", "y", (1, 3, SIZE, SIZE), (1, 19, SIZE, SIZE))


class Inspector:
    name = "snpe"

    def inspect(self, model: Path) -> GraphInfo:
        return INFO


@dataclass
class Board:
    """Answers from the pixels alone, and remembers what it was asked for."""

    name: str = "adb:test"
    chip: str = ""
    float_kind: str = "float"
    artefacts: dict[str, str] = field(
        default_factory=lambda: {"quantized": ".quant.dlc", "float": ".dlc"}
    )
    class_artefacts: dict[str, str] = field(
        default_factory=lambda: {"quantized": ".classes.quant.dlc", "float": ".classes.dlc"}
    )
    asked: list[tuple[str, int]] = field(default_factory=list)
    spoil: str = ""

    def infer(self, model, info, kind, batches) -> Iterator[dict[str, np.ndarray]]:
        for batch in (given[info.input_name] for given in batches):
            self.asked.append((model.name, len(batch)))
            outputs = _logits(batch)
            if self.spoil == "nan":
                outputs[-1, 3, 5, 7] = np.nan
            yield {info.output_name: outputs}

    def infer_classes(self, model, info, kind, batches) -> Iterator[np.ndarray]:
        for number, batch in enumerate(given[info.input_name] for given in batches):
            self.asked.append((model.name, len(batch)))
            maps = _logits(batch).argmax(axis=1).astype(np.uint8)
            if self.spoil == "fewer" and number == 1:
                maps = maps[:-1]
            yield np.concatenate([maps, maps]) if self.spoil == "more" and number == 1 else maps

    def images_of(self, model: str) -> int:
        return sum(count for name, count in self.asked if name == model)


def _logits(batch: np.ndarray) -> np.ndarray:
    dice = np.random.default_rng(3)
    weights = dice.standard_normal((19, 3)).astype(np.float32)
    return np.einsum("cd,nhwd->nchw", weights, batch.astype(np.float32) / 255)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("faces")
    make_faces(folder / "data", 40, SIZE, 7)
    return open_task("segmentation", folder / "data", folder / "cache")


def assignment(folder: Path, *more: str, stage: str = "f1_1k", **row: str) -> Assignment:
    model = tiny_model()
    model.ir_version = 8  # which every runtime takes, so stages use the file as it is
    onnx.save_model(model, str(folder / "net.onnx"))
    names = ("net.onnx", "net.dlc", "net.quant.dlc", *more)
    return Assignment("m", stage, {"toolchain": "snpe", **row}, _files(folder, *names), folder)


def _files(folder: Path, *names: str) -> dict[str, Path]:
    return {name: folder / name for name in names}


def equipment(task: Task, board: Board, curve: int = FEW) -> Equipment:
    return Equipment(Inspector(), board, task, board, sizes=Sizes(4, IMAGES, IMAGES, curve))


MAPS = ("net.classes.dlc", "net.classes.quant.dlc")


@pytest.mark.parametrize(
    ("stage", "model"), [("f1_1k", "net{}.quant.dlc"), ("f1_1k_f", "net{}.dlc")]
)
def test_all_images_give_class_maps_and_a_few_give_curves(tmp_path, task, stage, model):
    board = Board()
    result = perform(assignment(tmp_path, *MAPS, stage=stage), equipment(task, board))
    assert board.images_of(model.format(".classes")) == IMAGES
    assert board.images_of(model.format("")) == FEW
    samples = task.test(SIZE, SIZE, IMAGES)
    whole = run_test(task, Board(), tmp_path / "net.dlc", INFO, "float", samples)
    scored = {stage: whole.headline, "task": "segmentation", "metric": "f1"}
    assert result.columns.items() >= scored.items()
    assert result.columns[f"{stage}_images"] == IMAGES
    assert f"PR curves of {FEW}" in result.summary
    with result.files[f"test_results_{stage}.csv"].open() as file:
        rows = {row["metric"]: row for row in csv.DictReader(file)}
    for metric in ("iou", "f1"):
        assert {k: float(v) for k, v in rows[metric].items() if k != "metric"} == pytest.approx(
            dict(whole.table[metric])
        )
    few = task.test(SIZE, SIZE, IMAGES)
    scorer = task.scorer()
    scorer.add(_logits(few.images[:FEW]), few.labels[:FEW])
    sample = scorer.score()
    assert float(rows["AP"]["overall"]) == pytest.approx(sample.table["AP"]["overall"])
    assert sample.table["AP"]["overall"] != pytest.approx(whole.table["AP"]["overall"])
    assert rows["AP_images"]["overall"] == str(FEW)
    shown = read_examples(result.files[f"examples_{stage}.png"].read_bytes())  # from class maps
    np.testing.assert_array_equal(shown.answers, _logits(samples.images[-4:]).argmax(axis=1))
    assert shown.device == "adb:test"


@pytest.mark.parametrize(("more", "curve"), [((), FEW), (MAPS, IMAGES)])
def test_without_class_maps_or_with_few_images_everything_comes_from_full_outputs(
    tmp_path, task, more, curve
):
    board = Board()
    result = perform(assignment(tmp_path, *more), equipment(task, board, curve))
    assert board.asked
    assert {name for name, _ in board.asked} == {"net.quant.dlc"}
    assert board.images_of("net.quant.dlc") == IMAGES
    assert "AP_images" not in result.files["test_results_f1_1k.csv"].read_text()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [("nan", "NaN"), ("fewer", f"19 results for {IMAGES}"), ("more", f"28 results for {IMAGES}")],
)
def test_no_number_comes_from_spoilt_outputs(tmp_path, task, spoil, said):
    work = equipment(task, Board(spoil=spoil))
    with pytest.raises(ModelFailed, match=said):
        perform(assignment(tmp_path, *MAPS), work)


def test_a_model_that_only_another_toolchain_converted_is_no_failure_of_its_own(tmp_path, task):
    for row in ({"toolchain": "qnn"}, {"toolchain": ""}):
        work = assignment(tmp_path, "net.quant.onnx", **row)  # qnn makes DLC files, too
        with pytest.raises(NotConverted, match="not converted for the toolchain snpe yet"):
            perform(work, equipment(task, Board()))
    with pytest.raises(NotConverted, match="not converted for the toolchain qnn yet"):
        assert assignment(tmp_path).artefact(".quant.onnx", "qnn")


def test_the_right_file_is_found_by_its_ending(tmp_path):
    work = assignment(tmp_path, *MAPS)
    for suffix in (".dlc", ".quant.dlc", ".classes.dlc", ".classes.quant.dlc"):
        assert work.artefact(suffix, "snpe") == tmp_path / f"net{suffix}"
    assert work.artefact("", "snpe") == tmp_path / "net.onnx"
    names = ("old.onnx", "other.dlc", "other.quant.dlc")  # as older tools left them
    old = Assignment("m", "f1_1k", {}, _files(tmp_path, *names), tmp_path)
    assert old.artefact(".dlc", "snpe") == tmp_path / "other.dlc"
    assert old.artefact(".quant.dlc", "snpe") == tmp_path / "other.quant.dlc"
    with pytest.raises(BadInput, match="no quantized model"):
        old.artefact(".classes.quant.dlc", "snpe")
