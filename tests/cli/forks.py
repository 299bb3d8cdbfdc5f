"""Commands as processes of their own that do not start Python each: forks of one that did.

A command costs half a second of CPU before it does anything, most of it for imports. So each
process of pytest starts one that imports what commands need and then only forks: a fork has its own
folder, environment, pipes, signals and exit code, and ends as any program ends. Where the start of
Python itself is at stake, run `command_line` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

IMPORTED = (
    *("edgeloop.cli.app", "edgeloop.cli.bench", "edgeloop.cli.data", "edgeloop.cli.fleet"),
    *("edgeloop.cli.jobs", "edgeloop.cli.models", "edgeloop.cli.runner", "edgeloop.cli.search"),
    *("edgeloop.cli.status", "edgeloop.cli.terminal", "edgeloop.workspace"),
    *("edgeloop.models.upload", "edgeloop.graph", "edgeloop.graph.worker", "edgeloop.jobs.spec"),
    *("edgeloop.jobs.client", "edgeloop.node.datasets", "edgeloop.search.campaign"),
    *("edgeloop.operate.fleet.control", "edgeloop.operate.fleet.local"),
    *("edgeloop.operate.fleet.records", "edgeloop.store.azure", "edgeloop.store.postgres"),
    *("edgeloop.store.sql", "azure.data.tables", "numpy", "obstore.store", "onnx.checker"),
    *("onnx.shape_inference", "PIL.Image", "rich.live", "rich.progress", "yaml"),
)
_LONGEST_REQUEST = 200_000


@dataclass(frozen=True)
class Request:
    arguments: tuple[str, ...]
    folder: str
    environ: dict[str, str]
    code: str = ""
    """Python that runs instead of `python -m edgeloop`."""
    has_session: bool = False
    """Whether it leads a process group of its own."""
    has_terminal: bool = False
    """Whether its standard input is a terminal that it controls."""


class Fork:
    """A command under way, with as much of `subprocess.Popen` as tests use."""

    def __init__(self, request: Request, files: list[int]) -> None:
        """The files become its standard input, output and error, and are closed here."""
        self._told = _server().send(request, files)
        for file in set(files):
            os.close(file)
        self.pid = int(_line(self._told))
        self.returncode: int | None = None
        self.cpu_s = self.peak_mb = 0.0  # known in the end; both also of what it has waited for

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("edgeloop", timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        code, cpu_s, peak_mb = _line(self._told).split()
        self.returncode, self.cpu_s, self.peak_mb = int(code), float(cpu_s), float(peak_mb)
        os.close(self._told)


class PipedFork(Fork):
    def __init__(self, request: Request) -> None:
        stdin, ours = os.pipe()
        out, stdout = os.pipe()
        err, stderr = os.pipe()
        self.stdin: IO[str] = os.fdopen(ours, "w")
        self.stdout: IO[str] = os.fdopen(out, errors="backslashreplace")
        self.stderr: IO[str] = os.fdopen(err, errors="backslashreplace")
        super().__init__(request, [stdin, stdout, stderr])

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        said: dict[IO[str], str] = {}

        def read(file: IO[str]) -> None:
            with file:
                said[file] = file.read()

        readers = [
            threading.Thread(target=read, args=[file], daemon=True)
            for file in (self.stdout, self.stderr)
        ]
        for reader in readers:
            reader.start()
        with contextlib.suppress(BrokenPipeError), self.stdin:  # it may end without reading
            self.stdin.write(text)
        for reader in readers:
            reader.join(None if deadline is None else max(0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("edgeloop", timeout or 0)
        self.wait(None if deadline is None else max(0, deadline - time.monotonic()))
        return said[self.stdout], said[self.stderr]


class ForkServer:
    """Our side of the process that forks; it ends when we do."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(self.close)

    def send(self, request: Request, files: list[int]) -> int:
        """Starts it; the pipe that comes back tells the process id, and in the end the code."""
        told, telling = os.pipe()
        message = json.dumps(asdict(request)).encode()
        socket.send_fds(self._socket, [message], [telling, *files])
        os.close(telling)
        return told

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60)


@cache
def _server() -> ForkServer:
    return ForkServer()


def _line(file: int) -> bytes:
    content = os.read(file, 100)
    assert content, "the process that forks has ended"
    return content


# In the other process.


def _serve(control: socket.socket) -> Request | None:
    """The request, in a fork that is to run it; nothing when no more will come."""
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    message, files, *_ = socket.recv_fds(control, _LONGEST_REQUEST, 4)
                    if not message:
                        return None
                    request = Request(**json.loads(message))
                    pid = os.fork()
                    if pid == 0:
                        control.close()
                        os.close(files[0])
                        _become(request, files[1:])
                        return request
                    os.write(files[0], f"{pid}\n".encode())
                    ended = os.pidfd_open(pid)
                    running[ended] = (pid, files[0])
                    selector.register(ended, selectors.EVENT_READ)
                    for number in files[1:]:
                        os.close(number)
                else:
                    ended = key.fd
                    pid, telling = running.pop(ended)
                    selector.unregister(ended)
                    _, status, used = os.wait4(pid, 0)
                    cpu_s, peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
                    _tell(telling, f"{os.waitstatus_to_exitcode(status)} {cpu_s} {peak_mb}\n")
                    os.close(ended)


def _tell(file: int, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever started it has gone
        os.write(file, line.encode())
    os.close(file)


def _become(request: Request, files: list[int]) -> None:
    """Makes the fork what a new process would be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.has_terminal:
        os.login_tty(files[0])
    else:
        if request.has_session:
            os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environ)
    time.tzset()
    # New ones: what they were opened on decides how they are buffered and whether they seek.
    sys.stdin = sys.__stdin__ = _opened(sys.stdin, "r")
    sys.stdout = sys.__stdout__ = _opened(sys.stdout, "w")
    sys.stderr = sys.__stderr__ = _opened(sys.stderr, "w")
    sys.path[0] = request.folder
    sys.argv = ["edgeloop", *request.arguments]


def _opened(old: Any, mode: str) -> Any:
    encoding, errors = old.encoding, old.errors
    new: Any = os.fdopen(old.fileno(), mode, encoding=encoding, errors=errors, closefd=False)
    if mode == "w":
        is_line_buffered = old.line_buffering or new.isatty()
        new.reconfigure(line_buffering=is_line_buffered, write_through=old.write_through)
    return new


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: forks get it, and we end last
    sys.path[0] = str(Path(__file__).parents[2])
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request = _serve(control)
    if request is None:
        return
    if request.code:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(request.code, "<code>", "exec"), names)
    else:
        runpy.run_module("edgeloop", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
