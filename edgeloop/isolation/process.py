"""Our side of the process for native work: started once, kept warm, replaced when it breaks.

A compiler that crashes or does not come to an end must be that model's error and nothing more. So
it works in a process of its own; a call has limits on time, in which waiting for a busy CPU does
not count, and on memory; a process that died or overran them is gone and the next call gets a new
one, and so it does when the process has grown, or done many calls.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edgeloop import errors
from edgeloop._util.locks import ScratchFolder
from edgeloop._util.system import FairLimit, native_memory_bytes, python_module, variables_with
from edgeloop.errors import EdgeloopError, MemoryExceeded, ModelFailed, ModelRefused, WorkerFailed
from edgeloop.isolation.limits import (
    NO_MEMORY,
    CallLimits,
    memory_exceeded,
    own_bytes,
)
from edgeloop.isolation.messages import Array, CallTimeout, ConnectionLost, receive, send
from edgeloop.isolation.server import TEMPORARY

DEFAULT_LIMIT_S = 120.0
_START_LIMIT_S = 60.0
_SHOWN_LINES = 4
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")  # the machine's fault
_MOST_CALLS = 10_000
_MOST_GROWTH_BYTES = 2 << 30
_NOISE = re.compile(r"\[[WIV]:onnxruntime|LIBNATIVE|WARNING")  # printed whatever happens


class NativeProcess:
    """One call at a time; threads that share one wait for each other. `module` is the program: one
    that calls `serve` with a table of its own."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: ScratchFolder | None = None
        self._is_ending = False
        self._calls, self._small_bytes = 0, 0
        self._task: object = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def call(
        self,
        work: str,
        arrays: Sequence[Array] = (),
        limit_s: float = DEFAULT_LIMIT_S,
        **fields: Any,
    ) -> tuple[dict[str, Any], list[Array]]:
        """The result of a piece of work in the module's table; its errors are raised here."""
        with self._lock:
            self._retire((work, fields.get("model")))
            child = self._running()
            log = self._folder.path / "log" if self._folder else Path()
            seen = log.stat().st_size if log.exists() else 0
            longest_s = (1 + FairLimit.MOST) * limit_s
            body = {"work": work, "fields": fields, "limit_s": longest_s}
            limit = CallLimits(work, limit_s, child.pid)
            try:
                answer, more = self._exchange(child, body, arrays, limit)
            except CallTimeout:
                self._stop()
                reason = f"{work} did not end within {limit_s:g} s and was stopped"
                if limit.time.is_unfair:
                    raise WorkerFailed(reason=f"{reason}: this machine is too busy") from None
                raise ModelFailed(reason=reason) from None
            except ConnectionLost:
                tail = _tail(log, seen)
                is_killed, cause = self._cause_of_death()
                if (is_killed and not self._is_ending) or NO_MEMORY.search(tail):
                    raise memory_exceeded(work) from None
                raise ModelFailed(reason=f"{work} {cause}{tail}") from None
            except BaseException:  # too large, or Ctrl-C: the pipes hold half a message
                self._stop()
                raise
            if "error" in answer:
                raise _error_of(work, answer, _tail(log, seen))
            return answer["result"], more

    def warm(self) -> None:
        """Start it and load the libraries now, so that the first call does not wait for that."""
        self.call("hello", warm=True, limit_s=_START_LIMIT_S)

    def kill(self) -> None:
        """End it, in the middle of a call too, which then fails; the next call gets a new one."""
        child = self._child
        if child is not None:
            self._is_ending = True
            child.kill()

    def close(self) -> None:
        """A call of another thread, which may take minutes, fails: nobody waits for it."""
        if self._lock.locked():
            self.kill()
        with self._lock:
            self._stop()

    def _exchange(
        self,
        child: subprocess.Popen[bytes],
        body: dict[str, Any],
        arrays: Sequence[Array],
        limit: CallLimits,
    ) -> tuple[dict[str, Any], list[Array]]:
        if child.stdin is None or child.stdout is None:
            raise ConnectionLost
        send(child.stdin.fileno(), body, arrays, limit.pause_s)
        return receive(child.stdout.fileno(), limit.pause_s)

    def _retire(self, task: object) -> None:
        """A process that has grown or done many calls goes before the next piece of work; not
        between two calls of the same, for which it may keep what took long to make."""
        is_same, self._task = task == self._task, task
        self._calls += 1
        if self._child is None or is_same:
            return
        most_bytes = self._small_bytes + min(_MOST_GROWTH_BYTES, native_memory_bytes() // 2)
        if self._calls > _MOST_CALLS or own_bytes(self._child.pid) > most_bytes:
            self._stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._stop()
        try:
            self._folder = ScratchFolder(Path(tempfile.gettempdir()), "edgeloop-native-")
            temporary = self._folder.path / TEMPORARY
            temporary.mkdir()
        except OSError as error:
            raise WorkerFailed(reason=f"{tempfile.gettempdir()}: {error.strerror}") from None
        command = python_module(self._module, str(self._folder.path))
        try:
            # A session of its own: Ctrl-C on the terminal is ours to handle, not the child's.
            self._child = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=variables_with(TMPDIR=str(temporary)),
                bufsize=0,
                start_new_session=True,
            )
            longest_s = (1 + FairLimit.MOST) * _START_LIMIT_S
            body = {"work": "hello", "fields": {}, "limit_s": longest_s}
            limit = CallLimits("start", _START_LIMIT_S, self._child.pid)
            answer, _ = self._exchange(self._child, body, (), limit)
        except OSError as error:
            raise WorkerFailed(reason=error.strerror or str(error)) from None
        except CallTimeout:
            self._stop()
            raise WorkerFailed(reason=f"it did not start within {_START_LIMIT_S:g} s") from None
        except ConnectionLost:
            raise WorkerFailed(reason=f"it {self._cause_of_death()[1]} while it started") from None
        except MemoryExceeded:
            self._stop()
            raise
        if "error" in answer:
            raise _error_of("start", answer, "")
        self._is_ending, self._calls = False, 0
        self._small_bytes = own_bytes(self._child.pid)
        return self._child

    def _cause_of_death(self) -> tuple[bool, str]:
        """Whether it was killed, by the system most likely, and what happened in words."""
        child = self._child
        code: int | None = None
        if child is not None:
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(timeout=5)
        self._stop()
        if code is None:
            return False, "closed its pipe"
        if code >= 0:
            return False, f"ended its process with code {code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
            return name == "SIGKILL", f"crashed its process with {name}"
        return False, f"ended its process with signal {-code}"

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if child.poll() is None:
                child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()


def _error_of(work: str, answer: dict[str, Any], tail: str) -> EdgeloopError:
    name = answer["error"]
    kind = getattr(errors, name, None) if name else None
    if isinstance(kind, type) and issubclass(kind, EdgeloopError):
        return kind(**answer["fields"])
    text = " ".join(str(answer.get("text", "")).split())
    if NO_MEMORY.search(text):
        return memory_exceeded(work)
    if name == "OSError" or _NO_ROOM.search(text):
        return WorkerFailed(reason=f"{work}: {text}")
    return ModelRefused(reason=f"{work} failed: {text}{tail}")


def _tail(log: Path, since: int) -> str:
    """The last lines that the libraries printed in this call: often the only real reason."""
    try:
        with log.open("rb") as file:
            file.seek(since)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    plain = (_COLOURS.sub("", line).strip() for line in lines)
    shown = [line for line in plain if line and not _NOISE.search(line)][-_SHOWN_LINES:]
    return f" [{' | '.join(line[:300] for line in shown)}]" if shown else ""


def as_file(array: Any, folder: Path, name: str = "calibration.bin") -> dict[str, Any]:
    """Where an array lies on the disk; one that is only in memory is written to `folder`."""
    import numpy as np

    offset = None
    if isinstance(array, np.memmap) and array.filename and array.flags.c_contiguous:
        offset = _offset_in_file(array)
    if offset is None:
        path = folder / name
        np.ascontiguousarray(array).tofile(path)
        file, offset = str(path), 0
    else:
        file = str(array.filename)
    return {"file": file, "offset": offset, "shape": list(array.shape), "dtype": array.dtype.str}


def mapped(described: Mapping[str, Any]) -> Any:
    """The array of `as_file`, where it lies: nothing is copied between processes."""
    import numpy as np

    file, offset, shape = described["file"], described["offset"], tuple(described["shape"])
    return np.memmap(file, np.dtype(described["dtype"]), "r", offset, shape)


def _offset_in_file(array: Any) -> int | None:
    """A slice of a memory map keeps the offset of the whole; its own is found by address."""
    import numpy as np

    whole = array
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    start = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return None if start < 0 else int(whole.offset) + int(start)
