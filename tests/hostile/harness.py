"""Runs commands on hostile input and judges how they ended."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPU_S = 10.0  # of the command and all that it started
PEAK_MB = 512.0  # of the largest of its processes
WALL_S = 120.0  # a command that waits for ever; a slow and busy machine comes nowhere near


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    wall_s: float
    cpu_s: float
    peak_mb: float

    @property
    def refusal(self) -> str:
        """The sentence with which the input was refused."""
        assert self.code in (1, 2), self
        return self._last_line()

    @property
    def settled(self) -> str:
        """For input that is odd and may be right: used, or refused with a sentence."""
        assert self.code in (0, 1, 2), self
        self._is_bounded()
        return self._last_line() if self.code else self.err

    def _last_line(self) -> str:
        """Usage errors of click show the usage first; all others are one line."""
        self._is_bounded()
        lines = self.err.splitlines()
        assert lines, self
        sentence = lines[-1]
        assert sentence.startswith("edgeloop: " if self.code == 1 else "Error: "), self
        assert len(sentence) < 2_000, (len(sentence), sentence[:500])
        assert sentence.isprintable(), repr(sentence)
        return sentence

    def _is_bounded(self) -> None:
        for text in (self.out, self.err):
            assert "Traceback" not in text and "unexpected" not in text, self
            assert "\x1b" not in text, repr(text)
        assert self.cpu_s < CPU_S, self
        assert self.peak_mb < PEAK_MB, self


class Harness:
    """Commands, each in a fork of one process that has imported everything before."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server = server
        self._folder = folder

    def run(
        self,
        arguments: Iterable[object],
        cwd: Path,
        environ: Mapping[str, str],
        limit_s: float = WALL_S,
        forks_worker: bool = False,
    ) -> Ended:
        """`environ` is the whole environment of the command. With `forks_worker` the process that
        reads models is forked, too, and not started."""
        files = {name: self._folder / name for name in ("stdin", "out", "err")}
        files["stdin"].write_bytes(b"")
        order = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd),
            "environ": {"TERM": "dumb", "COLUMNS": "200", **environ},
            "limit_s": limit_s,
            "forks_worker": forks_worker,
            **{name: str(path) for name, path in files.items()},
        }
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        texts = {name: files[name].read_text(errors="replace") for name in ("out", "err")}
        return Ended(**answer, **texts)


@contextmanager
def hostile_harness() -> Iterator[Harness]:
    """The fork server, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.hostile.server"]
        server = subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            yield Harness(server, Path(folder))
        finally:
            assert server.stdin is not None and server.stdout is not None
            server.stdin.close()
            server.wait()
            server.stdout.close()
