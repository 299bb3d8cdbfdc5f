"""Worker processes: native code runs apart from the program, which outlives its crashes.

A compiler that crashes or hangs must cost one model and nothing more. It therefore runs in a
process of its own, which stays warm between calls. Each call has a timeout, which waiting for a
busy CPU does not use up, and a memory limit. A process that dies, exceeds a limit, has grown or has
served many calls is replaced before the next call.

There is one program for all of them, `serve` below. A module makes functions available with
`register_calls`, and any `WorkerProcess` can then be asked for them by name. A process may be
started with another interpreter, for vendors whose packages need a Python of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from queue import LifoQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeloop import errors
from edgeloop._util.files import ScratchFolder
from edgeloop._util.system import (
    FairLimit,
    native_memory_bytes,
    step_back,
    variables_with,
)
from edgeloop._util.values import size_text
from edgeloop.errors import (
    EdgeloopError,
    MemoryExceeded,
    MissingExtra,
    ModelFailed,
    ModelRefused,
    TimeLimitReached,
    WorkerFailed,
)

T = TypeVar("T")

DEFAULT_LIMIT_S = 120.0
_START_LIMIT_S = 60.0
_CLOSE_LOOK_S = 0.05
_SHOWN_LINES = 4
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")  # the machine's fault
_MOST_CALLS = 10_000
_MOST_GROWTH_BYTES = 2 << 30
_NOISE = re.compile(r"\[[WIV]:onnxruntime|LIBNATIVE|WARNING")  # printed whatever happens


@dataclass(frozen=True)
class _RegisteredModule:
    module: str
    what: str
    extra: str


_MODULES: dict[str, _RegisteredModule] = {}


def register_calls(prefix: str, module: str, what: str, extra: str = "qnn") -> None:
    """Let worker processes be asked for `PREFIX.NAME`, for every NAME in `CALLS` of a module.

    `CALLS` maps names to functions that take arrays and plain values and return an `Answer`. Its
    `hello` is called before any other and loads what they need, all of it with `warm=True`. The
    module is imported in the worker process alone; where an import fails there, the error is that
    `what` needs the optional package `extra`.
    """
    _MODULES[prefix] = _RegisteredModule(module, what, extra)


class WorkerProcess:
    """A process that is started by its first call and replaced when it breaks.

    It serves one call at a time; threads that share it wait for each other. `python` is the
    interpreter to start, by default this one. Another one needs Python 3.11 and NumPy besides what
    the calls import, but no Edgeloop: it gets this package, and nothing else of our environment.
    """

    def __init__(self, python: Path | None = None) -> None:
        self._python = str(python or sys.executable)
        self._loaded: set[str] = set()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: ScratchFolder | None = None
        self._is_ending = False
        self._is_closed = False
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
        name: str,
        /,
        arrays: Sequence[Array] = (),
        limit_s: float = DEFAULT_LIMIT_S,
        **fields: Any,
    ) -> tuple[dict[str, Any], list[Array]]:
        """The result of a registered call; errors that it raises are raised here."""
        prefix, _, work = name.partition(".")
        limit_s *= _PATIENCE.get()
        with self._lock:
            if self._is_closed:
                raise WorkerFailed(reason="it was closed")
            self._retire((name, fields.get("model")))
            child = self._ready(prefix)
            log = self._folder.path / "log" if self._folder else Path()
            seen = log.stat().st_size if log.exists() else 0
            limit = CallLimits(work, limit_s, child.pid)
            try:
                answer, more = self._exchange(child, _body(name, fields, limit_s), arrays, limit)
            except CallTimeout:
                self._stop()
                reason = f"{work} did not end within {limit_s:g} s and was stopped"
                if limit.time.is_unfair:
                    raise WorkerFailed(reason=f"{reason}: this machine is too busy") from None
                raise TimeLimitReached(reason=reason) from None
            except ConnectionLost:
                if self._is_closed:
                    self._stop()
                    raise WorkerFailed(reason="it was closed") from None
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

    def warm(self, prefix: str) -> None:
        """Start it and load the libraries of some calls before the first of them needs them."""
        self.call(f"{prefix}.hello", warm=True, limit_s=_START_LIMIT_S)

    def kill(self) -> None:
        """End it, in the middle of a call too, which then fails; the next call gets a new one."""
        child = self._child
        if child is not None:
            self._is_ending = True
            child.kill()

    def close(self) -> None:
        """End it for good, without waiting for calls of other threads, which fail as calls of a
        process that does not run: the model is not to blame."""
        self._is_closed = True
        while not self._lock.acquire(timeout=_CLOSE_LOOK_S):
            self.kill()  # again and again: a call may be about to start it
        try:
            self._stop()
        finally:
            self._lock.release()

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

    def _ready(self, prefix: str) -> subprocess.Popen[bytes]:
        """The process, with the module of these calls loaded."""
        child = self._child
        if child is None or child.poll() is not None:
            self._stop()
            child = self._start()
        if prefix not in self._loaded:
            before = own_bytes(child.pid) if self._loaded else 0
            self._load(child, prefix)
            self._small_bytes += own_bytes(child.pid) - before
        return child

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._folder = ScratchFolder(Path(tempfile.gettempdir()), "edgeloop-native-")
            temporary = self._folder.path / TEMPORARY
            temporary.mkdir()
        except OSError as error:
            raise WorkerFailed(reason=f"{tempfile.gettempdir()}: {error.strerror}") from None
        # With -P, files of the current folder such as random.py do not replace modules.
        command = [self._python, "-P", "-c", _PROGRAM, _PACKAGE, str(self._folder.path)]
        try:
            # A session of its own: Ctrl-C on the terminal is ours to handle, not the child's.
            child = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=variables_with(TMPDIR=str(temporary)),
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerFailed(reason=error.strerror or str(error)) from None
        self._child = child
        self._is_ending, self._calls, self._small_bytes = False, 0, 0
        return child

    def _load(self, child: subprocess.Popen[bytes], prefix: str) -> None:
        limit = CallLimits("start", _START_LIMIT_S, child.pid)
        try:
            body = _body(f"{prefix}.hello", {}, _START_LIMIT_S)
            answer, _ = self._exchange(child, body, (), limit)
        except CallTimeout:
            self._stop()
            raise WorkerFailed(reason=f"it did not start within {_START_LIMIT_S:g} s") from None
        except ConnectionLost:
            raise WorkerFailed(reason=f"it {self._cause_of_death()[1]} while it started") from None
        except BaseException:  # too large, or Ctrl-C: the pipes hold half a message
            self._stop()
            raise
        if "error" in answer:
            raise _error_of("start", answer, "")
        self._loaded.add(prefix)

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
        self._loaded.clear()
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


class LendingPool(Generic[T]):
    """Things that threads borrow, each by one thread at a time. The one returned last is lent
    first: its process is warm, and others are not started before they are needed."""

    def __init__(self, items: Iterable[T]) -> None:
        self.items = tuple(items)
        self._free: LifoQueue[T] = LifoQueue()
        for item in reversed(self.items):
            self._free.put(item)

    @contextmanager
    def borrow(self) -> Iterator[T]:
        item = self._free.get()
        try:
            yield item
        finally:
            self._free.put(item)


def _body(name: str, fields: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    prefix, _, work = name.partition(".")
    registered = _MODULES[prefix]
    longest_s = (1 + FairLimit.MOST) * limit_s
    return {"work": work, "fields": fields, "limit_s": longest_s, **asdict(registered)}


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


_PATIENCE: ContextVar[float] = ContextVar("patience", default=1.0)


@contextmanager
def more_time(times: float) -> Iterator[None]:
    """Calls of this thread may take so many times as long as they say, whoever makes them."""
    token = _PATIENCE.set(times * _PATIENCE.get())
    try:
        yield
    finally:
        _PATIENCE.reset(token)


# How much time and memory a worker process may take.
#
# Time spent waiting for a CPU does not count. Memory is that of the process and its children, read
# several times a second. Neither limit says that something is wrong with a model: one that is
# reached on a busy or small machine may not be reached on another.


NO_MEMORY = re.compile(r"bad_alloc|allocate memory|out of memory|MemoryError", re.IGNORECASE)
_LOOK_S = 0.25
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class CallLimits:
    """The limits of one call, for a process that leads a session of its own."""

    def __init__(self, work: str, limit_s: float, pid: int) -> None:
        self.time = FairLimit(limit_s, pid)
        self._work, self._pid = work, pid
        self._most_bytes = native_memory_bytes()
        self._look_at = time.monotonic() + _LOOK_S

    def pause_s(self) -> float:
        """How long to wait before asking again; 0 when the time is over. Raises MemoryExceeded."""
        pause_s = self.time.pause_s()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._check_memory()
        return min(pause_s, _LOOK_S)

    def _check_memory(self) -> None:
        if resident_bytes(self._pid) > self._most_bytes:
            raise memory_exceeded(self._work, self._most_bytes)


def memory_exceeded(work: str, most_bytes: int | None = None) -> MemoryExceeded:
    return MemoryExceeded(work=work, limit=size_text(most_bytes or native_memory_bytes()))


def resident_bytes(pid: int) -> int:
    """The memory of a process and of all below it; 0 where the system does not say."""
    return sum(own_bytes(each) for each in _tree(pid))


def own_bytes(pid: int) -> int:
    """Without memory shared with files: a mapped model takes none from other processes."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return _PAGE * (int(fields[1]) - int(fields[2]))
    return 0


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError, ValueError):
            for child in file.read_text().split():
                yield from _tree(int(child))


# Messages between a program and its worker process: JSON, then arrays as raw bytes.
#
# No pickle: what a crashed or confused process writes is parsed, never run.


Array = NDArray[Any]

_LENGTH = struct.Struct("<Q")
_LARGEST = 1 << 34
_PIECE = 1 << 20


class ConnectionLost(Exception):
    """The other side is gone, or sent something that is no message."""


Pause = Callable[[], float]  # how long to wait before asking again; 0: the time is over


class CallTimeout(Exception):
    """The time for this message is over."""


def send(pipe: int, body: dict[str, Any], arrays: Sequence[Array], pause_s: Pause | None) -> None:
    """Write a message before the time is over, or raise."""
    whole = [np.ascontiguousarray(array) for array in arrays]
    head = dict(body, arrays=[[array.dtype.str, list(array.shape)] for array in whole])
    text = json.dumps(head).encode()
    _write(pipe, _LENGTH.pack(len(text)) + text, pause_s)
    for array in whole:
        _write(pipe, array.reshape(-1).view(np.uint8).data, pause_s)


def receive(pipe: int, pause_s: Pause | None) -> tuple[dict[str, Any], list[Array]]:
    (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size, pause_s))
    if length > _LARGEST:
        raise ConnectionLost
    try:
        body = json.loads(_read(pipe, length, pause_s))
        kinds = [(np.dtype(kind), tuple(shape)) for kind, shape in body.pop("arrays")]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConnectionLost from None
    arrays = []
    for kind, shape in kinds:
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if not 0 <= size <= _LARGEST:
            raise ConnectionLost
        arrays.append(np.frombuffer(_read(pipe, size, pause_s), dtype=kind).reshape(shape))
    return body, arrays


def _write(pipe: int, data: bytes | memoryview, pause_s: Pause | None) -> None:
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    while view:
        _wait(pipe, pause_s, for_writing=True)
        try:
            view = view[os.write(pipe, view[:4096] if pause_s is not None else view) :]
        except OSError:
            raise ConnectionLost from None


def _read(pipe: int, count: int, pause_s: Pause | None) -> bytearray:
    data = bytearray()
    while len(data) < count:
        _wait(pipe, pause_s, for_writing=False)
        try:
            piece = os.read(pipe, min(_PIECE, count - len(data)))
        except OSError:
            raise ConnectionLost from None
        if not piece:
            raise ConnectionLost
        data += piece
    return data


def _wait(pipe: int, pause_s: Pause | None, for_writing: bool) -> None:
    if pause_s is None:
        return
    poll = select.poll()
    poll.register(pipe, select.POLLOUT if for_writing else select.POLLIN)
    while not poll.poll(1000 * pause_s()):
        if pause_s() <= 0:
            raise CallTimeout


# The other end of a `WorkerProcess`: the program that every one of them runs.
#
# It reads calls from its standard input and answers on its standard output. Output of libraries
# goes into FOLDER/log, and files that they leave in the current folder, or in the folder for
# temporary files, are deleted after each call.
# It ends when its parent does: by the closed pipe between calls, by a watch on the parent's id or,
# when a library keeps Python from running at all, by an alarm that no code has to serve.


Answer = tuple[dict[str, Any], Sequence[Array]]
WorkerCall = Callable[..., Answer]

_GRACE_S = 5
_LARGEST_LOG = 1 << 20
TEMPORARY = "tmp"  # of what libraries call the folder for temporary files, below ours


_PACKAGE = str(Path(errors.__file__).with_name("__init__.py"))
# Loads this package from its file and not from a path: our environment must not get into that of
# another interpreter.
_PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("edgeloop", sys.argv[1])
package = sys.modules["edgeloop"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from edgeloop._util.isolation import serve
serve(sys.argv[2])
"""


def serve(place: str) -> None:
    """Answer calls, one after the other, in a folder of the parent until the parent is gone."""
    step_back()
    folder = Path(place).resolve()
    calls, answers = _take_over_pipes(folder / "log")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    os.chdir(work)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    with contextlib.suppress(OSError):  # before the runner, when memory runs out
        Path("/proc/self/oom_score_adj").write_text("800")
    while True:
        try:
            body, arrays = receive(calls, None)
        except ConnectionLost:
            break
        signal.alarm(int(body["limit_s"]) + _GRACE_S)
        answer, more = _answer(body, arrays)
        signal.alarm(0)
        _sweep(folder)
        try:
            send(answers, answer, more, None)
        except ConnectionLost:
            break
    shutil.rmtree(folder, ignore_errors=True)


def _answer(body: dict[str, Any], arrays: list[Array]) -> tuple[dict[str, Any], list[Array]]:
    """Errors of ours travel with their fields; any other is a library's verdict on the model."""
    try:
        calls: Mapping[str, WorkerCall] = import_module(body["module"]).CALLS
        result, more = calls[body["work"]](*arrays, **body["fields"])
    except EdgeloopError as error:
        fields = {name: str(value) for name, value in error.fields.items()}
        return {"error": type(error).__name__, "fields": fields}, []
    except ImportError:
        fields = {"what": body["what"], "extra": body["extra"]}
        return {"error": MissingExtra.__name__, "fields": fields}, []
    except MemoryError:
        return {"error": "", "text": "out of memory"}, []
    except OSError as error:
        return {"error": "OSError", "text": str(error) or type(error).__name__}, []
    except Exception as error:  # noqa: BLE001  libraries raise what they like; the call has an answer
        return {"error": "", "text": f"{type(error).__name__}: {error}"}, []
    return {"result": result}, list(more)


def _take_over_pipes(log: Path) -> tuple[int, int]:
    """Keep the pipes for messages alone: libraries print to the standard ones."""
    calls, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    noise = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(noise, 1)
    os.dup2(noise, 2)
    return calls, answers


def _sweep(folder: Path) -> None:
    """What a call left in its current folder and in that for temporary files."""
    for place in (folder / "work", folder / TEMPORARY):
        for path in place.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    log = folder / "log"
    if log.stat().st_size > _LARGEST_LOG:
        os.truncate(log, 0)
