"""Faces, trained nets, and runners: in this process, or as processes of their own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from unittest import mock

import pytest

from edgeloop.settings import Settings
from edgeloop.testing.faces import make_faces
from edgeloop.workspace import Workspace
from tests.cli.running import exit_code_of_main
from tests.conftest import StoreUnderTest
from tests.kept import REPOSITORY
from tests.peers.process import MissingComponent

NETS = Path(__file__).parents[1] / "data/nets"
SIZES = ("--calibration-images", "24", "--quick-images", "10", "--thorough-images", "20")


@dataclass
class Farm:
    """A project folder on a store, and commands in it."""

    folder: Path
    faces: Path
    environ: dict[str, str]
    program: tuple[str, ...] = ("-m", "edgeloop")

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
        """The program's own `main`, in this process: nothing is waited for but its work."""
        command = ["edgeloop", *arguments]
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, self.environ, clear=True),
            mock.patch.object(sys, "argv", command),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = exit_code_of_main()
        done = subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
        assert code == 0 or not check, (command, done.stdout, done.stderr)
        return done

    def runner(self, *more: str, device: str = "htp") -> subprocess.Popen[str]:
        """As a process of its own, which can be killed and told to stop."""
        return subprocess.Popen(
            [sys.executable, *self.program, *self._words(more, device)],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def drain(self, *more: str, device: str = "htp", check: bool = True) -> str:
        """What a runner said that worked off what was ready."""
        return self.edgeloop(*self._words(("--drain", *more), device), check=check).stdout

    def _words(self, more: tuple[str, ...], device: str) -> tuple[str, ...]:
        return ("runner", "--dataset", str(self.faces), "--device", device, *SIZES, *more)


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """Two programs compute beside what is tested."""
    with contextlib.ExitStack() as running:
        for _ in range(2):
            load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            running.callback(load.wait)
            running.callback(load.kill)
        yield


@pytest.fixture(scope="session")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "faces"
    make_faces(folder, 60, 64, seed=3)
    return folder


@pytest.fixture(scope="session")
def archai_package() -> Path:
    """The folder of Microsoft Archai's own package from PyPI. What its store imports is in the test
    environment already."""
    folder = REPOSITORY / ".tools/archai"
    if not (folder / "archai").is_dir():
        raise MissingComponent("archai")
    return folder


@pytest.fixture
def make_farm(
    tmp_path: Path, faces: Path, make_place: Callable[[str], StoreUnderTest]
) -> Callable[[str], Farm]:
    return lambda kind: Farm.make(
        tmp_path / "project", faces, {**os.environ, **make_place(kind).environ}
    )
