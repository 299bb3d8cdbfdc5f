"""Runs `edgeloop` and looks at what it said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgeloop.cli import main
from edgeloop.store import Store
from tests.cli.forks import PipedFork, Request

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
    *,
    is_fresh: bool = False,
) -> Finished:
    """The program as a process of its own, which starts Python itself if it `is_fresh`."""
    variables = environment(environ)
    if is_fresh or [*prefix] or _changes_python(variables):
        done = subprocess.run(
            [*prefix, *command_line(arguments)],
            cwd=folder,
            env=variables,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)
    return finished(start_command(arguments, folder, environ), stdin or "", limit_s)


def _changes_python(variables: dict[str, str]) -> bool:
    """Whether Python would start otherwise than it did here."""

    def chosen(environ: Mapping[str, str]) -> dict[str, str]:
        names = [name for name in environ if name.startswith(("PYTHON", "LD_", "LANG", "LC_"))]
        return {name: environ[name] for name in names}

    return chosen(variables) != chosen(os.environ)


def finished(process: PipedFork, stdin: str = "", limit_s: float = LIMIT_S) -> Finished:
    try:
        out, err = process.communicate(stdin, limit_s)
    except BaseException:
        process.kill()
        raise
    return Finished(process.wait(), out, err)


def run_main(
    arguments: Iterable[object],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Finished:
    """The program's own `main` in this process: quick, with its real exit codes and output."""
    monkeypatch.setattr(sys, "argv", ["edgeloop", *map(str, arguments)])
    capfd.readouterr()
    code = exit_code_of_main()
    said = capfd.readouterr()
    return Finished(code, said.out, said.err)


def exit_code_of_main() -> int:
    """Run the program's `main` with the arguments in `sys.argv`. Commands handle SIGTERM, and this
    process must not do so after them."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def start_command(
    arguments: Iterable[object],
    folder: Path,
    environ: dict[str, str],
    code: str = "",
    *,
    has_session: bool = False,
) -> PipedFork:
    """The program, or other code of a test, with pipes to and from it."""
    return PipedFork(
        Request(
            tuple(map(str, arguments)),
            str(folder),
            environment(environ),
            code,
            has_session=has_session,
        )
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
