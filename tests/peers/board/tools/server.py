"""The board's side of its tools: one process that has ONNX Runtime loaded, for all runs.

Started by the board's first process, with the socket on which callers wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.peers.board.places import FAULTS, TOOL_RUNS
from tests.peers.board.tools import netrun

_LOCK = threading.Lock()


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


@dataclass(frozen=True)
class _Streams:
    """What the caller would have written to. A caller that is gone reads nothing."""

    output: int
    errors: int

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self.output, f"{text}\n".encode(errors="surrogateescape"))

    def complain(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self.errors, f"{text}\n".encode(errors="surrogateescape"))


def _serve(connection: socket.socket) -> None:
    with connection:
        head, streams, _, _ = socket.recv_fds(connection, 4, 2)
        if len(head) < 4 or len(streams) < 2:  # somebody who only wanted us awake
            return
        request = _receive(connection, int.from_bytes(head, "big"))
        version, dsp, folder, *argv = request.decode(errors="surrogateescape").split("\0")
        started = time.monotonic()
        run = netrun.Run(version, dsp, Path(folder), argv, connection, _Streams(*streams))
        code = 1
        try:
            code = run.execute(_faults())
        finally:
            for stream in streams:
                os.close(stream)
            _record(argv, started, code)
            with contextlib.suppress(OSError):
                connection.sendall(bytes([code]))


def _receive(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        chunk = connection.recv(size - len(content))
        if not chunk:
            raise ConnectionError("the caller left in the middle of its request")
        content += chunk
    return content


def _faults() -> netrun.Faults:
    """What the tools are to do wrong this time; a fault that has been shown often enough ends."""
    with _LOCK:
        if not FAULTS.exists():
            return netrun.Faults()
        said = json.loads(FAULTS.read_text())
        times = said.pop("times")
        if times == 0:
            return netrun.Faults(delay_s=said["delay_s"])
        if times is not None:
            FAULTS.write_text(json.dumps(said | {"times": times - 1}))
        return netrun.Faults(**said)


def _record(argv: list[str], started: float, code: int) -> None:
    row = {"argv": argv, "started_s": started, "ended_s": time.monotonic(), "exit_code": code}
    with _LOCK, TOOL_RUNS.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
