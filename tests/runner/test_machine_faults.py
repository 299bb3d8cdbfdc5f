"""What is wrong with a machine is never written down as a model's fault."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeloop.errors import DatasetUnavailable, EdgeloopError, StoreUnavailable
from edgeloop.models.plan import records_of
from edgeloop.runner import coordinator as coordinator_module
from edgeloop.runner.loop import RunnerOptions, RunTotals, run
from edgeloop.runner.presence import RunnerEvent
from edgeloop.runner.stages.base import Sizes
from edgeloop.settings import Settings
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from edgeloop.workspace import Workspace
from tests.cli.running import Finished, run_main

SIZES = Sizes(calibration=4, quick=4, thorough=12)


class Project:
    """A folder with a store of two models, and a runner that works off what is ready."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for seed, name in enumerate(("calm-heron", "wise-otter")):
            net = save_segmentation_model(folder / f"{name}.onnx", 32, 19, seed=seed)
            with self.workspace() as workspace:
                workspace.upload(net, name)
        self.events: list[RunnerEvent] = []

    def workspace(self) -> Workspace:
        return Workspace(Settings.load(self.folder, {"HOME": str(self.folder)}))

    def drain(self, dataset: Path | None = None, **options: object) -> RunTotals:
        return self.run(dataset=dataset, drain=True, **options)

    def run(self, **options: object) -> RunTotals:
        chosen = RunnerOptions(sizes=SIZES, **options)  # type: ignore[arg-type]
        with self.workspace() as workspace:
            return run(workspace, chosen, self.events.append)

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if event.state == "note"]

    def attempts(self) -> set[tuple[int, int]]:
        """Counted against models: failures, and silences."""
        with self.workspace() as workspace:
            records = [records_of(row).values() for row in workspace.status()]
        return {(record.attempts, record.silent) for each in records for record in each}

    def statuses(self) -> dict[str, str]:
        with self.workspace() as workspace:
            return {str(row["name"]): str(row["status"]) for row in workspace.status()}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_faces(tmp_path / "data", 24, 32, seed=5)
    return tmp_path / "data"


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def a_pipe(data: Path) -> None:
    shutil.rmtree(data)
    data.write_text("no folder")


def wrong_labels(data: Path) -> None:
    Image.fromarray(np.full((32, 32), 77, np.uint8)).save(sorted(data.glob("*_seg.png"))[-1])


BROKEN: dict[str, Callable[[Path], object]] = {
    "is not there": shutil.rmtree,
    "is no folder": a_pipe,
    "no images": lambda data: [path.unlink() for path in data.iterdir()],
    "every image needs its labels": lambda data: sorted(data.glob("*_seg.png"))[3].unlink(),
    "cannot be read as an image": lambda data: cut_off(sorted(data.glob("0*.png"))[0]),
    "holds label 77": wrong_labels,
    "label_map.json": lambda data: (data / "label_map.json").write_text("{"),
    "holds 1 image": lambda data: [p.unlink() for p in sorted(data.iterdir())[2:]],
    "no images NNNNNN.png": lambda data: [p.rename(p.with_suffix(".jpg")) for p in data.iterdir()],
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_runner_whose_dataset_is_no_good_says_so_and_takes_no_work(
    project: Project, data: Path, sentence: str
) -> None:
    BROKEN[sentence](data)
    with pytest.raises(EdgeloopError, match=sentence):
        project.drain(data)
    assert set(project.statuses().values()) == {"new"}
    assert project.attempts() == {(0, 0)}


def sdk(folder: Path, mode: int = 0o755) -> Path:
    """As much of the Neural Processing SDK as is looked at before the first model."""
    tools = folder / "bin/x86_64-linux-clang"
    tools.mkdir(parents=True)
    for name in ("snpe-onnx-to-dlc", "snpe-dlc-quantize", "snpe-dlc-info"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(mode)
    return folder


def broken_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime_qnn

    (folder / "libQnnSystem.so").write_text("no library")
    monkeypatch.setattr(onnxruntime_qnn, "LIB_DIR_FULL_PATH", str(folder))


def hidden(name: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    return lambda _, monkeypatch: monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]


def with_sdk(mode: int, path: str = "") -> Callable[[Path, pytest.MonkeyPatch], None]:
    def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SNPE_ROOT", str(sdk(folder / "sdk", mode)))
        if path:
            monkeypatch.setenv("PATH", path)

    return prepare


LACKING: dict[str, tuple[dict[str, object], Callable[[Path, pytest.MonkeyPatch], None]]] = {
    r"pip install 'edgeloop\[qnn\]'": ({}, hidden("onnxruntime_qnn")),
    r"qnn toolchain needs .*'edgeloop\[qnn\]'": ({}, hidden("onnxruntime")),
    "compiler cannot be loaded": ({}, broken_library),
    "neither SNPE_ROOT nor": ({"toolchain": "snpe"}, lambda *_: None),
    "not executable": ({"toolchain": "snpe"}, with_sdk(0o644)),
    "adb": ({"devices": ("adb:gone",)}, with_sdk(0o755, "/nowhere")),
    "choose another folder with --workdir": ({"workdir": Path(__file__)}, lambda *_: None),
}


@pytest.mark.parametrize("sentence", LACKING)
def test_a_machine_that_lacks_something_says_so_and_takes_no_work(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentence: str
) -> None:
    options, prepare = LACKING[sentence]
    prepare(tmp_path, monkeypatch)
    with pytest.raises(EdgeloopError, match=sentence):
        project.run(**options)
    assert not {event.state for event in project.events} - {"note"}, "nothing was begun"
    assert project.attempts() == {(0, 0)}


def test_a_package_that_breaks_in_the_middle_of_a_stage_is_not_the_models_fault(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ImportError("No module named 'onnx'")

    monkeypatch.setattr("edgeloop.runner.worker.perform", broken)
    with pytest.raises(ImportError, match="onnx"):
        project.drain()
    assert {event.state for event in project.events if event.model} == {"begun", "released"}
    assert project.attempts() == {(0, 0)}


def test_a_runner_whose_calibration_is_gone_takes_no_work(project: Project, tmp_path: Path) -> None:
    with pytest.raises(EdgeloopError, match="gone is not there"):
        project.drain(calibration=tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EdgeloopError, match="holds nothing to calibrate on"):
        project.drain(calibration=tmp_path / "empty")
    assert project.attempts() == {(0, 0)}


@pytest.mark.slow
def test_a_dataset_that_breaks_later_costs_no_model_an_attempt(
    project: Project, data: Path
) -> None:
    """One image among those that are looked at only by the test."""
    image = sorted(data.glob("??????.png"))[15]
    whole = image.read_bytes()
    cut_off(image)
    with pytest.raises(DatasetUnavailable, match=f"{image.name} cannot be read"):
        project.drain(data, task="segmentation")
    assert project.attempts() == {(0, 0)}
    assert len([text for text in project.notes if image.name in text]) == 1, "said once"
    assert {event.state for event in project.events if event.stage == "f1_onnx"} == {
        "begun",
        "released",
    }
    image.write_bytes(whole)
    totals = project.drain(data, task="segmentation")
    assert totals.done == 2 and totals.failed == totals.released == 0


def test_files_that_are_not_mounted_are_not_the_models_fault(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_module, "PATIENCE", 2)
    blobs = project.folder / ".edgeloop" / "blobs"
    blobs.rename(project.folder / "elsewhere")
    blobs.mkdir()
    with pytest.raises(StoreUnavailable, match=r"not one of their files.*not mounted"):
        project.drain()
    assert set(project.statuses().values()) == {"new"}
    assert project.attempts() == {(0, 0)}
    assert len(project.notes) == 2, "that there is no dataset, and that there are no files"


def test_a_model_whose_own_file_is_gone_says_so(project: Project) -> None:
    for file in (project.folder / ".edgeloop" / "blobs").rglob("calm-heron.onnx"):
        file.unlink()
    totals = project.drain(subset=("calm-heron",))
    assert totals.done == 0 and totals.failed > 0
    with project.workspace() as workspace:
        (row,) = workspace.status("calm-heron")
    assert row["status"] == "error"
    assert "calm-heron.onnx is no longer in the store" in str(row["error"])


@pytest.mark.slow
def test_calibration_that_does_not_fit_a_model_leaves_it_to_other_machines(
    project: Project, tmp_path: Path
) -> None:
    np.savez(tmp_path / "inputs.npz", image=np.zeros((2, 48, 48, 3), np.uint8))
    totals = project.drain(calibration=tmp_path / "inputs.npz", subset=("calm-heron",))
    assert (totals.done, totals.failed, totals.released) == (1, 0, 1), project.events
    with project.workspace() as workspace:
        (row,) = workspace.status("calm-heron")
        assert "the model takes images of 32 × 32 × 3" in str(row["error"])
        assert (records_of(row)["convert"].attempts, records_of(row)["convert"].silent) == (0, 1)
    assert project.drain(subset=("calm-heron",)).failed == 0
    with project.workspace() as workspace:
        (row,) = workspace.status("calm-heron")
    assert row["quantized"] is True and not row.get("error")


def test_once_ends_with_1_where_nothing_could_be_done(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.folder)

    def once(*more: str) -> Finished:
        return run_main(("runner", "--once", *more), monkeypatch, capfd)

    away = "postgresql://me@127.0.0.1:1/gone?blobs=file:///nowhere"
    assert "cannot be reached" in once("--store", away).sentence
    for file in (project.folder / ".edgeloop" / "blobs").rglob("calm-heron.onnx"):
        file.unlink()
    for _ in range(3):
        failed = once("--subset", "calm-heron")
        assert (failed.code, "0 stages done, 1 failed." in failed.out) == (1, True), failed
    idle = once("--subset", "calm-heron")
    assert (idle.code, "0 stages done." in idle.out) == (0, True), "there was no work left"


def put_behind_link(path: Path, elsewhere: Path) -> None:
    elsewhere.mkdir()
    shutil.move(path, elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["default", "default/calm-heron", "default/calm-heron/MODEL"])
def test_files_behind_a_symbolic_link_are_no_model_s_fault(
    project: Project, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The models that can be reached are evaluated; the others are left as they are."""
    blobs = project.folder / ".edgeloop/blobs"
    link = blobs / place.replace("MODEL", "calm-heron.onnx")
    put_behind_link(link, tmp_path / "elsewhere")
    behind = {"calm-heron", "wise-otter"} if place == "default" else {"calm-heron"}
    monkeypatch.chdir(project.folder)
    said = run_main(("runner", "--device", "host", "--drain"), monkeypatch, capfd)
    assert said.code == 1 and "out of reach" in said.out
    assert (said.out + said.err).count(f"{link} is a symbolic link") == 1
    assert "mount --bind" in said.out + said.err
    expected = {name: "new" if name in behind else "complete" for name in project.statuses()}
    assert project.statuses() == expected
    with project.workspace() as workspace:
        rows = [workspace.model(name).row for name in behind]
    counted = [(r.attempts, r.silent) for row in rows for r in records_of(row).values()]
    assert set(counted) == {(0, 0)}
    if not place.endswith("MODEL"):
        refusal = run_main(("delete", "calm-heron", "-y"), monkeypatch, capfd).sentence
        assert f"{link} is a symbolic link" in refusal
        assert project.statuses() == expected
