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

from tests.peers.board.places import FAULTS, TOOL_RUNS
from tests.peers.board.tools import netrun
from tests.peers.board.tools.calling import receive_call

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
        call = receive_call(connection)
        if call is None:
            return
        started = time.monotonic()
        run = netrun.Run(
            version=call.version,
            dsp_folders=call.dsp_folders,
            folder=call.folder,
            argv=call.arguments,
            caller=connection,
            streams=_Streams(call.output, call.errors),
        )
        code = 1
        try:
            code = run.execute(_faults())
        finally:
            for stream in (call.output, call.errors):
                os.close(stream)
            _record(call.arguments, started, code)
            with contextlib.suppress(OSError):
                connection.sendall(bytes([code]))


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
