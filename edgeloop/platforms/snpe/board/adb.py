"""The real `adb` client as a subprocess: a list of arguments, a time limit, and a clear answer to
whether the board did what it was told.

A client that is cut off leaves with the same exit codes as a program of the board, so every script
ends with a mark on stderr. Without the mark the board did not get through it: that is the board's
trouble, never the model's. Nobody's server is ever killed: other people's boards hang on it too.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TypeVar

from edgeloop.errors import BadInput, DeviceUnavailable
from edgeloop.platforms.snpe.board.adb_call import Call, Limit
from edgeloop.platforms.snpe.board.listing import advice_on, attached, call, found

T = TypeVar("T")
_MARK = "edgeloop-end:"
_SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\[\]-]{0,127}")
_TCP = re.compile(r".+:\d{1,5}")


@dataclass(frozen=True)
class Answer:
    """What a script on the board gave back."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in f"{self.text}\n{self.err}".splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


def words(*parts: object) -> str:
    """The one way by which anything becomes part of a script for a board's shell."""
    return " ".join(shlex.quote(str(part)) for part in parts)


class Adb:
    """One board, by its serial. `sent` and `received` count the bytes that travelled."""

    def __init__(
        self, serial: str, program: str = "adb", call_s: float = 60.0, probe_s: float = 10.0
    ) -> None:
        if not _SERIAL.fullmatch(serial):
            reason = f"{serial!r} is no serial of a board; 'edgeloop devices' lists those there"
            raise BadInput(reason=reason)
        self.serial = serial
        self.sent = 0
        self.received = 0
        self._program = program
        self._call_s = call_s
        self._probe_s = probe_s
        self._live: set[subprocess.Popen[bytes]] = set()
        self._counting = threading.Lock()
        self._closed = False

    def shell(
        self, script: str, limit_s: float | None = None, send: Iterable[bytes] = ()
    ) -> Answer:
        """Run a script on the board; whatever it answers is small enough to hold."""
        return self.stream(script, lambda out: out.read(), limit_s, send)[0]

    def stream(
        self,
        script: str,
        receive: Callable[[IO[bytes]], T],
        limit_s: Limit | float | None = None,
        send: Iterable[bytes] = (),
    ) -> tuple[Answer, T | None]:
        """As `shell`, with what comes back read by `receive` while it comes; None where the script
        failed and gave nothing that could be read.

        Raises DeviceUnavailable when the board did not get to the end of the script.
        """
        if self._closed:
            raise self.unavailable("this runner is ending")
        limit_s = self._call_s if limit_s is None else limit_s
        limit = limit_s if isinstance(limit_s, Limit) else Limit(limit_s)
        marked = f"(\n{script}\n)\nprintf '\\n%s%s\\n' {words(_MARK)} $? >&2"
        run = Call([found(self._program), "-s", self.serial, "shell", marked], limit, send)
        with self._alive(run):
            result, trouble = run.received_by(receive)
        with self._counting:
            self.sent += run.sent
            self.received += run.received
        err, mark, code = run.err.rpartition(_MARK)
        if not mark:
            raise self.unavailable(self._why(run, limit.seconds))
        if trouble is not None and int(code.strip() or 1) == 0:
            raise self.unavailable(f"what came back from it was damaged ({trouble})") from trouble
        out = result if isinstance(result, bytes) else b""
        return Answer(int(code.strip() or 1), out, err.strip()), result

    def probe(self) -> None:
        """A hung board still calls itself a device, so it must run something. What does not
        answer is connected anew once: this board alone."""
        try:
            self.shell("true", self._probe_s)
        except DeviceUnavailable:
            self._connect_again()
            self.shell("true", self._probe_s)

    def close(self) -> None:
        """Ends the calls under way."""
        self._closed = True
        self.interrupt()

    def interrupt(self) -> None:
        for process in list(self._live):
            process.kill()

    def reopen(self) -> None:
        self._closed = False

    def unavailable(self, reason: str) -> DeviceUnavailable:
        return DeviceUnavailable(device=f"adb:{self.serial}", reason=reason)

    @contextlib.contextmanager
    def _alive(self, run: Call) -> Iterator[None]:
        self._live.add(run.process)
        try:
            yield
        finally:
            self._live.discard(run.process)

    def _why(self, run: Call, limit_s: float) -> str:
        if self._closed:
            return "this runner is ending"
        if run.overdue:
            return f"it did not answer within {limit_s:g} s"
        text = run.err.strip()
        last = text.splitlines()[-1].removeprefix("error: ") if text else ""
        return advice_on(text) or f"the connection broke{f' ({last})' if last else ''}"

    def _connect_again(self) -> None:
        """`connect` brings back what a restarted server forgot; `reconnect` what hangs."""
        states = {board.serial: board.state for board in attached(self._program)}
        if self.serial in states:
            self._quietly("-s", self.serial, "reconnect")
        if _TCP.fullmatch(self.serial):
            self._quietly("connect", self.serial)

    def _quietly(self, *arguments: str) -> None:
        """Whether it helped is for the next probe to say."""
        with contextlib.suppress(DeviceUnavailable):
            call([found(self._program), *arguments], self._probe_s)
