"""Runs `python -m edgeloop` and looks at what it said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgeloop.cli import main
from edgeloop.store import Store

LIMIT_S = 60.0


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """What a failed command said: one line on stderr, nothing of Python's, nothing else."""
        assert self.code == 1, (self.code, self.out, self.err)
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("edgeloop: "), self.err
        assert "Traceback" not in self.err and "unexpected" not in self.err, self.err
        return lines[0]


def command_line(arguments: Iterable[object]) -> list[str]:
    return [sys.executable, "-m", "edgeloop", *map(str, arguments)]


def environment(environ: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "TERM": "dumb", "COLUMNS": "200", **environ}


def run_command(
    arguments: Iterable[object],
    folder: Path,
    environ: dict[str, str],
    stdin: str | None = None,
    prefix: Iterable[str] = (),
    limit_s: float = LIMIT_S,
) -> Finished:
    done = subprocess.run(
        [*prefix, *command_line(arguments)],
        cwd=folder,
        env=environment(environ),
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def run_main(
    arguments: Iterable[object],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Finished:
    """The program's own `main` in this process: quick, with its real exit codes and output."""
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


def start_command(
    arguments: Iterable[object], folder: Path, environ: dict[str, str]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line(arguments),
        cwd=folder,
        env=environment(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows_of(store: Store, experiment: str = "default") -> dict[str, dict[str, Any]]:
    return {row.key: dict(row.values) for row in store.models(experiment).query()}


def notes_of(store: Store, experiment: str = "default") -> list[str]:
    return [row.key for row in store.queue(experiment).query()]


def hints_of(store: Store, experiment: str = "default") -> list[str]:
    return [key for key in notes_of(store, experiment) if not key.startswith("content|")]


def blobs_of(store: Store, prefix: str = "") -> dict[str, bytes]:
    return {blob.key: store.blobs.read(blob.key) for blob in store.blobs.list(prefix)}


def is_empty(store: Store, experiment: str = "default") -> bool:
    """No row, no file, no note and no hint."""
    return not (rows_of(store, experiment) or notes_of(store, experiment) or blobs_of(store))
