"""The command line as a user has it: in a folder of its own, with nothing set."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeloop.cli import main
from tests.cli.running import Finished, run_command

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

    def call(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["edgeloop", *map(str, arguments)])
        capfd.readouterr()
        before = signal.getsignal(signal.SIGTERM)
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            signal.signal(signal.SIGTERM, before)
        said = capfd.readouterr()
        return Finished(code, said.out, said.err)

    return call


@pytest.fixture
def command(project: Path) -> Edgeloop:
    """The program as a process of its own; `environ` is added to a clean environment."""

    def call(
        *arguments: object, environ: dict[str, str] | None = None, stdin: str | None = None
    ) -> Finished:
        return run_command(arguments, project, environ or {}, stdin)

    return call
