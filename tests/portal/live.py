"""`edgeloop portal` as a process, and its events."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.cli.running import command_line, environment

LIMIT_S = 60.0


class Live:
    """Starts at once; `address` is what the program printed."""

    def __init__(
        self, project: Path, arguments: Sequence[str] = (), environ: dict[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            command_line(("portal", "--port", "0", "--json", *_without_token(arguments))),
            cwd=project,
            env=environment(environ or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if line == "]\n":
                break
        assert lines, self.process.stderr.read()  # type: ignore[union-attr]
        self.said = json.loads("".join(lines))[0]
        self.address = str(self.said["url"])

    def end(self, by: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """Its exit code, and what it complained of."""
        if self.process.poll() is None:
            self.process.send_signal(by)
        try:
            _, err = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode, err


def _without_token(arguments: Sequence[str]) -> Sequence[str]:
    """Most tests are not about it; those that are say where it comes from."""
    is_about = any(word in ("--token-file", "--new-token", "--token") for word in arguments)
    return arguments if is_about else (*arguments, "--no-token")


@contextlib.contextmanager
def live(project: Path, *arguments: str, environ: dict[str, str] | None = None) -> Iterator[Live]:
    portal = Live(project, arguments, environ)
    try:
        yield portal
    finally:
        portal.end()


class Events:
    """What a stream has told so far, read by a thread."""

    def __init__(self, address: str, headers: dict[str, str] | None = None) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.ended = threading.Event()
        self._address, self._headers = address, headers or {}
        threading.Thread(target=self._read, daemon=True).start()

    def names(self) -> set[str]:
        """Every model that some event said has changed."""
        return {name for kind, data in self.told if kind == "change" for name in data["changed"]}

    def _read(self) -> None:
        kind = ""
        try:
            with httpx.stream("GET", self._address, headers=self._headers, timeout=LIMIT_S) as got:
                for line in got.iter_lines():
                    if line.startswith("event: "):
                        kind = line.removeprefix("event: ")
                    elif line.startswith("data: "):
                        self.told.append((kind, json.loads(line.removeprefix("data: "))))
        except httpx.HTTPError:
            pass
        finally:
            self.ended.set()
