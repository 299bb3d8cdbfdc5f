"""The real `adb` client as a subprocess: a list of arguments, a time limit, and a clear answer to
whether the board did what it was told.

A client that is cut off leaves with the same exit codes as a program of the board, so every script
ends with a mark on stderr. Without the mark the board did not get through it: that is the board's
trouble, never the model's. A running server is never killed: other users' boards need it too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import struct
import subprocess
import tarfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from edgeloop.errors import BadInput, DeviceUnavailable
from edgeloop.platforms.base import DeviceCondition

T = TypeVar("T")
_MARK = "edgeloop-end:"
_SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\[\]-]{0,127}")
_TCP = re.compile(r".+:\d{1,5}")
_LAST_BYTES = 64 * 1024
SMALL_CALL_S = 15.0
_HEADING = "List of devices attached"

ADVICE = {
    "unauthorized": "it has not accepted this computer: unlock its screen and accept the dialog "
    "'Allow USB debugging'",
    "authorizing": "it is asking whether to accept this computer: unlock its screen and say yes",
    "offline": "adb says it is offline: unplug it and plug it in again, or restart it",
    "no permissions": "this user may not open its USB port: install the udev rules for Android "
    "devices and plug it in again",
    "not found": "it is not connected; 'edgeloop devices' lists the boards that are",
}


@dataclass(frozen=True)
class ShellResult:
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
            reason = f"{serial!r} is not the serial number of a board: see 'edgeloop devices'"
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
    ) -> ShellResult:
        """Run a script on the board; whatever it answers is small enough to hold."""
        return self.stream(script, lambda out: out.read(), limit_s, send)[0]

    def stream(
        self,
        script: str,
        receive: Callable[[IO[bytes]], T],
        limit_s: CallLimit | float | None = None,
        send: Iterable[bytes] = (),
    ) -> tuple[ShellResult, T | None]:
        """As `shell`, with what comes back read by `receive` while it comes; None where the script
        failed and gave nothing that could be read.

        Raises DeviceUnavailable when the board did not get to the end of the script.
        """
        if self._closed:
            raise self.unavailable("this runner is stopping")
        limit_s = self._call_s if limit_s is None else limit_s
        limit = limit_s if isinstance(limit_s, CallLimit) else CallLimit(limit_s)
        marked = f"(\n{script}\n)\nprintf '\\n%s%s\\n' {words(_MARK)} $? >&2"
        run = AdbCall(
            [find_program(self._program), "-s", self.serial, "shell", marked], limit, send
        )
        self._live.add(run.process)
        try:
            result, trouble = run.received_by(receive)
        finally:
            self._live.discard(run.process)
        with self._counting:
            self.sent += run.sent
            self.received += run.received
        err, mark, code = run.err.rpartition(_MARK)
        if not mark:
            raise self.unavailable(self._why(run, limit.seconds))
        if trouble is not None and int(code.strip() or 1) == 0:
            raise self.unavailable(f"what came back from it was damaged ({trouble})") from trouble
        out = result if isinstance(result, bytes) else b""
        return ShellResult(int(code.strip() or 1), out, err.strip()), result

    def probe(self) -> None:
        """A hung board still calls itself a device, so it must run something. What does not
        answer is reconnected once: this board alone."""
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

    def condition(self) -> DeviceCondition:
        """What the adb server says of it; the board itself is not asked."""
        try:
            boards = {board.serial: board for board in attached_boards(self._program)}
        except DeviceUnavailable as error:
            return DeviceCondition("offline", str(error))
        if self.serial in boards:
            return boards[self.serial].condition
        return DeviceCondition("unplugged", "plug it in again")

    def unavailable(self, reason: str) -> DeviceUnavailable:
        return DeviceUnavailable(device=f"adb:{self.serial}", reason=reason)

    def _why(self, run: AdbCall, limit_s: float) -> str:
        if self._closed:
            return "this runner is stopping"
        if run.overdue:
            return f"it did not answer within {limit_s:g} s"
        text = run.err.strip()
        last = text.splitlines()[-1].removeprefix("error: ") if text else ""
        return _advice_on(text) or f"the connection broke{f' ({last})' if last else ''}"

    def _connect_again(self) -> None:
        """`connect` brings back what a restarted server forgot; `reconnect` what hangs."""
        states = {board.serial: board.state for board in attached_boards(self._program)}
        if self.serial in states:
            self._quietly("-s", self.serial, "reconnect")
        if _TCP.fullmatch(self.serial):
            self._quietly("connect", self.serial)

    def _quietly(self, *arguments: str) -> None:
        """Whether it helped is for the next probe to say."""
        with contextlib.suppress(DeviceUnavailable):
            _run_adb([find_program(self._program), *arguments], self._probe_s)


@dataclass(frozen=True)
class AttachedBoard:
    """A board as `adb devices -l` lists it."""

    serial: str
    state: str
    details: str = ""

    @property
    def advice(self) -> str:
        """What to do so that it can be used; empty where it can."""
        if self.state == "device":
            return ""
        return _advice_on(self.state) or f"adb says {self.state!r}: restart it"

    @property
    def condition(self) -> DeviceCondition:
        if not self.advice:
            return DeviceCondition()
        refuses = self.state in ("unauthorized", "authorizing", "no permissions")
        return DeviceCondition("unauthorized" if refuses else "offline", self.advice)


def attached_boards(program: str = "adb", limit_s: float = SMALL_CALL_S) -> list[AttachedBoard]:
    """The boards that this machine's adb server knows."""
    listing = _run_adb([find_program(program), "devices", "-l"], limit_s)
    boards = []
    text = listing.stdout.decode("utf-8", "replace")
    for line in text.rpartition(_HEADING)[2].splitlines():  # before it a server may announce itself
        serial, _, rest = line.partition(" " if "\t" not in line else "\t")
        if not serial or serial.startswith("*") or not rest.strip():
            continue
        rest = rest.strip()
        state = "no permissions" if rest.startswith("no permissions") else rest.split()[0]
        boards.append(AttachedBoard(serial, state, rest.removeprefix(state).strip()))
    return boards


def _run_adb(arguments: list[str], limit_s: float) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(  # noqa: S603 - a list of arguments, no shell
            arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"the adb server did not answer within {limit_s:g} s"
        raise DeviceUnavailable(device="adb", reason=reason) from None


def find_program(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        reason = (
            f"the program {program!r} was not found: install Android's platform-tools (on Debian "
            "and Ubuntu: apt install adb)"
        )
        raise BadInput(reason=reason)
    return path


def _advice_on(text: str) -> str:
    return next((advice for state, advice in ADVICE.items() if state in text), "")


class CallLimit:
    """The time a call may take; waiting for anything else stops the clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._timer: threading.Timer | None = None
        self._end: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._is_over = False

    def start(self, end: Callable[[], None]) -> None:
        self._end = end
        self.restart(self.seconds)

    def restart(self, seconds: float) -> None:
        self.pause()
        with self._lock:
            if self._is_over:
                return
            self.seconds = seconds
            self._timer = threading.Timer(seconds, self._end)
            self._timer.daemon = True
            self._timer.start()

    def pause(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    def finish(self) -> None:
        self.pause()
        with self._lock:
            self._is_over = True


class AdbCall:
    """One run of the client: fed, read and drained at once, and ended when its time is over."""

    def __init__(self, arguments: list[str], limit: CallLimit, send: Iterable[bytes]) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - a list of arguments, no shell
            arguments,
            stdin=subprocess.PIPE if send else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.overdue = False
        self.sent = 0
        self.received = 0
        self.err = ""
        self._feed_trouble: Exception | None = None
        self._limit = limit

        def stop() -> None:
            self.overdue = True
            self.process.kill()

        limit.start(stop)
        self._helpers = [threading.Thread(target=self._drain, daemon=True)]
        if send:
            self._helpers.append(threading.Thread(target=self._feed, args=(send,), daemon=True))
        for helper in self._helpers:
            helper.start()

    def received_by(self, receive: Callable[[IO[bytes]], T]) -> tuple[T | None, Exception | None]:
        """What was read, or why it could not be; the process is over afterwards."""
        assert self.process.stdout is not None
        source = _Counted(self.process.stdout)
        result: T | None = None
        trouble: Exception | None = None
        try:
            result = receive(source)  # type: ignore[arg-type]
            source.read()  # a stream may end before its pipe does
        except Exception as error:  # noqa: BLE001 - judged by the caller, who knows if the line broke
            trouble = error
            self.process.kill()
        except BaseException:
            self.process.kill()
            raise
        finally:
            self.process.wait()
            self._limit.finish()
            for helper in self._helpers:
                helper.join()
            self.process.stdout.close()
            self.received = source.count
        return result, self._feed_trouble or trouble

    def _feed(self, send: Iterable[bytes]) -> None:
        assert self.process.stdin is not None
        try:
            with self.process.stdin as target:
                for piece in send:
                    target.write(piece)
                    target.flush()
                    self.sent += len(piece)
        except OSError:
            return  # the other end left: its answer says why
        except Exception as error:  # noqa: BLE001 - raised by the maker of the pieces; the caller sees it
            self._feed_trouble = error
            self.process.kill()
        finally:
            if isinstance(send, Generator):
                send.close()  # it may hold what others wait for

    def _drain(self) -> None:
        assert self.process.stderr is not None
        tail = b""
        with self.process.stderr as source:
            while piece := os.read(source.fileno(), _LAST_BYTES):
                tail = (tail + piece)[-_LAST_BYTES:]
        self.err = tail.decode("utf-8", "replace")


class _Counted:
    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        piece = self._source.read(size)
        self.count += len(piece)
        return piece

    def readline(self) -> bytes:
        piece = self._source.readline()
        self.count += len(piece)
        return piece


# Many files through one pipe: by far the fastest way to a board and back.


_PIECE = 1 << 20
_BLOCK = 1 << 18
_THREADS = 4
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"  # deflate, fastest, no name, no time
_LAST_BLOCK = b"\x03\0"


@dataclass(frozen=True)
class Entry:
    """A file of a stream: its name there, its size, and its bytes when they are wanted."""

    name: str
    size: int
    pieces: Iterable[bytes]
    mode: int = 0o644


def entry_of(name: str, content: bytes) -> Entry:
    return Entry(name, len(content), (content,))


def entry_of_file(name: str, path: Path, mode: int = 0o644) -> Entry:
    return Entry(name, path.stat().st_size, pieces_of(path), mode)


def pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def packed(entries: Iterable[Entry]) -> Iterator[bytes]:
    """A tar stream, made while it is sent."""
    for entry in entries:
        info = tarfile.TarInfo(entry.name)
        info.size, info.mode = entry.size, entry.mode
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield from entry.pieces
        yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def squeezed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """One gzip stream, made by several threads at its fastest level: blocks of deflate that end at
    a byte may follow each other. Most cables are slower than that."""

    def deflate(block: bytes) -> bytes:
        compressor = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
        return compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)

    yield _GZIP_HEAD
    crc = size = 0
    waiting: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_THREADS, "squeeze") as pool:
        for block in _blocks(pieces):
            crc, size = zlib.crc32(block, crc), size + len(block)
            waiting.append(pool.submit(deflate, block))
            if len(waiting) > 2 * _THREADS:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()
    yield _LAST_BLOCK + struct.pack("<II", crc, size & 0xFFFFFFFF)


def unpacked(stream: IO[bytes], is_squeezed: bool = False) -> dict[str, bytes]:
    """The plain files of a stream by their names; links and the like are passed over."""
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream, mode="r|gz" if is_squeezed else "r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                files[member.name.removeprefix("./")] = content.read()
    return files


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    gathered, length = [], 0
    for piece in pieces:
        gathered.append(piece)
        length += len(piece)
        if length >= _BLOCK:
            yield b"".join(gathered)
            gathered, length = [], 0
    if gathered:
        yield b"".join(gathered)
