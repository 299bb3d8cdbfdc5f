"""Searches as a person runs them: a folder, a file, and `edgeloop`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgeloop.testing.faces import make_faces
from tests.cli.running import Finished, environment, run_main

SIDE = 32
TINY = {
    "base_channels": [4, 8],
    "stems": [2, 4],
    "kernels": ["conv3x3"],
    "factors": [1, 1.5],
    "depth": 2,
    "most_layers": 1,
    "most_hourglasses": 1,
}
DATA = "working/faces32"


class Program:
    """The program in a folder of its own, with a dataset of few faces. A call runs the command in
    this process; `start` runs it as a process, to be killed or to run beside others."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        self.folder = folder / "project"
        make_faces(self.folder / "data" / DATA, 48, SIDE, seed=3)
        self._monkeypatch, self._capfd = monkeypatch, capfd
        self._environ = {
            "EDGELOOP_STATE": str(folder / "state"),
            "EDGELOOP_CACHE": str(folder / "cache"),
            "INPUT_DATASET": str(self.folder / "data" / DATA),
        }

    def __call__(self, *arguments: object) -> Finished:
        with self._monkeypatch.context() as patch:
            patch.setattr("edgeloop.jobs.client.LONGEST_WAIT_S", 0.5)
            patch.chdir(self.folder)
            for name, value in self._environ.items():
                patch.setenv(name, value)
            return run_main(arguments, patch, self._capfd)

    def start(self, *arguments: object, module: str = "edgeloop") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=self.folder,
            env=environment(self._environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def settings(self, **settings: object) -> None:
        (self.folder / "edgeloop.yaml").write_text(json.dumps(settings))

    def write(self, name: str, objectives: Mapping[str, object], **search: object) -> str:
        """The file of a search of tiny hourglasses, without a pool, unless `search` says
        otherwise."""
        usual: dict[str, object] = {"size": SIDE, "budget": 4, "pool": 0}
        if "space" not in search:
            usual["options"] = TINY
        document = {"search": usual | search, "objectives": objectives, "data": DATA}
        (self.folder / f"{name}.yaml").write_text(json.dumps(document))
        return f"{name}.yaml"

    def table(self, search: str, file: str = "search_state_0.csv") -> list[dict[str, str]]:
        with (self.folder / "searches" / search / file).open(newline="") as text:
            return list(csv.DictReader(text))

    def status(self, experiment: str) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self("status", "-e", experiment, "--json").json}

    def trainings(self, search: str, below: str = "training") -> dict[str, int]:
        """When each training that was finished wrote its outcome, by its folder."""
        folder = self.folder / "searches" / search / below
        found = folder.glob("id_*/*/outcome.json")
        return {str(path.parent.relative_to(folder)): path.stat().st_mtime_ns for path in found}
