"""Makes a fixture of `old_stores/`: a store as an older version of Edgeloop writes it.

    python -m tests.store.make_old_store INPUTS
    git archive COMMIT edgeloop | tar -x -C OLD
    PYTHONPATH=OLD python tests/store/make_old_store.py INPUTS TARGET

The first command draws a dataset and makes models, with today's code. The last one writes
`store.sql`, a dump of the database, and `blobs.zip`, its files. All work is done by the commands of
that version, except for a lease that is held until the year 2096: no command holds one for so long.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HELD_FROM = 4_000_000_000.0  # seconds since 1970
MODELS = ("fresh", "partly", "complete", "held", "deleted", "urgent")
SIZES = ("--calibration-images", "4", "--quick-images", "4", "--thorough-images", "8")


def make_inputs(folder: Path) -> None:
    from edgeloop.testing.faces import make_faces
    from edgeloop.testing.models import save_classification_model, save_segmentation_model

    make_faces(folder / "faces", 60, 32, seed=3)
    for seed, name in enumerate(MODELS):
        save_segmentation_model(folder / f"{name}.onnx", size=32, seed=seed)
    save_classification_model(folder / "failed.onnx")  # does not fit the dataset


def make_store(inputs: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        shutil.copytree(inputs, project)
        (project / "edgeloop.yaml").write_text("benchmark_runs: 2\nnode: old-machine\n")
        _fill(project)
        target.mkdir(parents=True, exist_ok=True)
        _save(project / ".edgeloop", target, f"{project}/")


def _fill(project: Path) -> None:
    def edgeloop(*words: str) -> int:
        command = [sys.executable, "-m", "edgeloop", *words]
        return subprocess.run(command, cwd=project, check=False).returncode

    def upload(name: str, *words: str) -> None:
        assert edgeloop("upload", f"{name}.onnx", "--name", name, *words) == 0

    runner = ("runner", "--device", "host", "--dataset", "faces", *SIZES)
    upload("deleted")
    assert edgeloop("delete", "deleted", "--yes") == 0
    upload("complete", "--tag", "unet")
    assert edgeloop(*runner, "--drain") == 0
    upload("partly", "--tag", "unet")
    assert edgeloop(*runner, "--once") == 0
    upload("failed")
    edgeloop(*runner, "--task", "segmentation", "--subset", "failed", "--drain")  # 0 or 1
    upload("held")
    _hold(project, "held")
    upload("fresh")
    upload("urgent", "--priority", "3", "--experiment", "second")


def _hold(project: Path, model: str) -> None:
    from edgeloop.settings import Settings
    from edgeloop.workspace import Workspace

    with Workspace(Settings.load(project)) as workspace:
        leases = workspace.leases()
        leases._clock = lambda: HELD_FROM
        lease = leases.claim(["quantize"], "old-machine:runner", only=lambda name: name == model)
        assert lease is not None and lease.stage == "convert"


def _save(store: Path, target: Path, private: str) -> None:
    """Paths of this machine become relative."""
    database = sqlite3.connect(store / "store.db")
    dump = "\n".join(database.iterdump()).replace(private, "")
    database.close()
    (target / "store.sql").write_text(dump + "\n", encoding="utf-8")
    with zipfile.ZipFile(target / "blobs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((store / "blobs").rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(store / "blobs"))


if __name__ == "__main__":
    folders = [Path(word).absolute() for word in sys.argv[1:]]
    make_inputs(*folders) if len(folders) == 1 else make_store(*folders)
