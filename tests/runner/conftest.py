"""Faces, trained nets, and runners as real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from edgeloop.demo import make_faces
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.conftest import StoreUnderTest

NETS = Path(__file__).parents[2] / "edgeloop" / "demo" / "models"
SIZES = ("--calibration-images", "24", "--quick-images", "10", "--thorough-images", "20")


@dataclass
class Farm:
    """A project folder on a store, and commands in it."""

    folder: Path
    faces: Path
    environ: dict[str, str]

    @classmethod
    def make(cls, folder: Path, faces: Path, environ: dict[str, str]) -> Self:
        """Short leases, so that what a killed runner held is free again soon."""
        folder.mkdir()
        settings = "lease_seconds: 3\nclock_margin_seconds: 0.5\nbenchmark_runs: 2\n"
        (folder / "edgeloop.yaml").write_text(settings)
        return cls(folder, faces, environ)

    def workspace(self) -> Workspace:
        return Workspace(Settings.load(self.folder, self.environ))

    def edgeloop(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "edgeloop", *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=check,
            timeout=240,
        )

    def runner(self, *more: str, device: str = "htp") -> subprocess.Popen[str]:
        where = ("--dataset", str(self.faces), "--device", device, *SIZES)
        return subprocess.Popen(
            [sys.executable, "-m", "edgeloop", "runner", *where, *more],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def drain(self, *more: str, device: str = "htp") -> str:
        runner = self.runner("--drain", *more, device=device)
        output, _ = runner.communicate(timeout=240)
        assert runner.returncode == 0, output
        return output


@pytest.fixture(scope="session")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "faces"
    make_faces(folder, 60, 64, seed=3)
    return folder


@pytest.fixture
def make_farm(
    tmp_path: Path, faces: Path, make_place: Callable[[str], StoreUnderTest]
) -> Callable[[str], Farm]:
    return lambda kind: Farm.make(
        tmp_path / "project", faces, {**os.environ, **make_place(kind).environ}
    )
