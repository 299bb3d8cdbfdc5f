"""Runs commands on hostile input and judges how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cli.forks import PipedFork, Request

ROOT = Path(__file__).resolve().parents[2]
CPU_S = 10.0  # of the command and all that it started
PEAK_MB = 512.0  # of the largest of its processes
WALL_S = 120.0  # a command that waits for ever; a slow and busy machine comes nowhere near


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
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


def run(
    arguments: Iterable[object],
    cwd: Path,
    environ: Mapping[str, str],
    forks_worker: bool = False,
) -> Ended:
    """`environ` is the whole environment of the command. With `forks_worker` the process that
    reads models is forked, too, and not started."""
    path = f"import sys; sys.path.insert(1, {str(ROOT)!r})"
    code = f"{path}\nfrom tests.hostile.forked import begin\nbegin({forks_worker})"
    known = {"TERM": "dumb", "COLUMNS": "200", **environ}
    words = tuple(map(str, arguments))
    request = Request(words, str(cwd), known, code, has_session=True)
    command = PipedFork(request)
    try:
        out, err = command.communicate(timeout=WALL_S)
    except subprocess.TimeoutExpired:
        os.killpg(command.pid, signal.SIGKILL)
        out, err = "", f"not ended after {WALL_S:g} s"
    return Ended(command.wait(), out, err, command.cpu_s, command.peak_mb)
