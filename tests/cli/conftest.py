"""The command line as a user has it: in a folder of its own, with nothing set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import Finished, run_command, run_main

Edgeloop = Callable[..., Finished]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder one stands in; the embedded store appears in it when it is first written to."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def edgeloop(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Edgeloop:
    """The program's own `main` in this process: quick, with its real exit codes and output."""
    return lambda *arguments: run_main(arguments, monkeypatch, capfd)


@pytest.fixture
def command(project: Path) -> Edgeloop:
    """The program as a process of its own; `environ` is added to a clean environment."""

    def call(
        *arguments: object, environ: dict[str, str] | None = None, stdin: str | None = None
    ) -> Finished:
        return run_command(arguments, project, environ or {}, stdin)

    return call
