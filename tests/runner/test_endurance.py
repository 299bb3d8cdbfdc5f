"""A runner that has done many models holds no more than one that has done few."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.runner.presence import RunnerEvent
from edgeloop.runner.stages.base import Sizes
from edgeloop.settings import Settings
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from edgeloop.workspace import Workspace

pytestmark = pytest.mark.slow


def held(temporary: Path) -> tuple[int, int, int]:
    """Descriptors, threads, and temporary files and folders."""
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return descriptors, threading.active_count(), len(list(temporary.rglob("*")))


@pytest.mark.parametrize("models", [9, pytest.param(60, marks=pytest.mark.soak)])
def test_descriptors_threads_and_temporary_files_do_not_grow_with_the_models_done(
    models: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    make_faces(tmp_path / "faces", 8, 16, seed=1)
    seen: list[tuple[int, int, int]] = []

    def report(event: RunnerEvent) -> None:
        assert event.state not in ("failed", "released"), event
        if event.state == "done":
            seen.append(held(temporary))

    with Workspace(Settings.load(tmp_path, {"HOME": str(tmp_path)})) as workspace:
        for number in range(models):
            net = save_segmentation_model(tmp_path / "net.onnx", 16, seed=number)
            workspace.upload(net, f"net-{number}", check=False)
        sizes = Sizes(calibration=2, quick=2, thorough=4)
        options = RunnerOptions(
            dataset=tmp_path / "faces", drain=True, quantize=False, sizes=sizes, task="segmentation"
        )
        totals = run(workspace, options, report)
    assert totals.done == len(seen) == models
    settled = models // 3
    early = [max(values) for values in zip(*seen[:settled], strict=True)]
    late = [max(values) for values in zip(*seen[-settled:], strict=True)]
    slack = (4, 4, 4)  # of the stage under way and of the one that is prepared
    assert all(b <= a + s for a, b, s in zip(early, late, slack, strict=True)), (early, late)
    assert list(temporary.iterdir()) == []
    assert list((tmp_path / ".edgeloop" / "work" / "stages").iterdir()) == []
