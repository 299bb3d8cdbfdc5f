"""A browser, and `edgeloop portal` as a process of its own for tests of the program itself."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import clean_environ
from tests.peers.browser import Browser
from tests.peers.process import wait_until
from tests.portal.farm import fill
from tests.portal.serving import Site, portal_here

START_S, STOP_S = 60.0, 20.0
SEARCH_LINKS = "main a[href^='/searches/']"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A farm's project behind a portal that only shows."""
    folder = make_project(tmp_path_factory.mktemp("portal"))
    fill(folder)
    with portal_here(folder) as found:
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
    every = {**clean_environ(), **(environ or {})}
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
