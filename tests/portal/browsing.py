"""A browser and portals for the tests of this room: real processes, both."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.peers.browser import Browser
from tests.peers.process import wait_until
from tests.portal.farm import fill

START_S, STOP_S, COMMAND_S = 60.0, 20.0, 120.0
_OUTSIDE = ("EDGELOOP_", "MODEL_STORAGE_", "AWS_", "AZURE_", "GOOGLE_", "PG")


@dataclass(frozen=True)
class Site:
    """A project, and the portal that shows it."""

    folder: Path
    url: str
    environ: dict[str, str] = field(default_factory=dict, repr=False)

    def at(self, path: str) -> str:
        return self.url.rstrip("/") + path

    def edgeloop(self, *arguments: object) -> str:
        """A command in another process, as somebody else would give it."""
        done = subprocess.run(
            [sys.executable, "-m", "edgeloop", *map(str, arguments)],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def workspace(self) -> Workspace:
        return Workspace(Settings.load(self.folder, self.environ))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A farm's project behind a portal that only shows."""
    folder = make_project(tmp_path_factory.mktemp("portal"))
    fill(folder)
    with portal_of(folder) as found:
        yield found


def make_project(folder: Path) -> Path:
    settings = "lease_seconds: 30\nbenchmark_runs: 2\n"
    (folder / "edgeloop.yaml").write_text(settings)
    return folder


@contextmanager
def portal_of(
    folder: Path, *options: str, environ: dict[str, str] | None = None, asks: bool = False
) -> Iterator[Site]:
    """`edgeloop portal` on a free port; ends as Ctrl-C ends it. `asks` for a token."""
    token = () if asks else ("--no-token",)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OUTSIDE)}
    every = {**kept, **(environ or {})}
    log = folder / "portal.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "edgeloop", "portal", "--port", "0", *token, *options],
            cwd=folder,
            env=every,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Site(folder, _address(process, log), every)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    def told() -> re.Match[str] | None:
        return re.search(r"(http://\S+)\s", log.read_text())

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        return told() is not None

    wait_until(ready, START_S, "the portal to say its address")
    found = told()
    assert found
    return found[1]
