"""Commands on a terminal, as a person runs them."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import time
from pathlib import Path

from tests.cli.forks import Fork, Request
from tests.cli.running import environment


class Terminal:
    """A command on a terminal of its own, of so many columns."""

    def __init__(
        self, arguments: list[str], folder: Path, columns: int = 200, **environ: str
    ) -> None:
        shown = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40", **environ}
        variables = environment(shown)
        self._file, theirs = pty.openpty()
        self._process = Fork(
            Request(tuple(arguments), str(folder), variables, has_terminal=True), [theirs] * 3
        )
        self.seen = ""

    @classmethod
    def output(cls, arguments: list[str], folder: Path, columns: int, **environ: str) -> str:
        """Of a command that ends by itself, and well."""
        terminal = cls(arguments, folder, columns, **environ)
        assert terminal.wait() == 0, terminal.seen
        return terminal.seen.replace("\r\n", "\n")

    def read_until(self, text: str, limit_s: float = 60.0) -> None:
        """Only what comes from now on counts."""
        start, deadline = len(self.seen), time.monotonic() + limit_s
        while text not in self.seen[start:]:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not show in {self.seen!r}"
            if select.select([self._file], [], [], left)[0]:
                self.seen += os.read(self._file, 65_536).decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._file, keys)

    def wait(self, limit_s: float = 60.0) -> int:
        deadline = time.monotonic() + limit_s
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
                raise TimeoutError(self.seen)
            if select.select([self._file], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):  # the other end is closed
                    self.seen += os.read(self._file, 65_536).decode(errors="replace")
        with contextlib.suppress(OSError):  # the other end is closed
            while content := os.read(self._file, 65_536):
                self.seen += content.decode(errors="replace")
        os.close(self._file)
        return self._process.wait()
