"""The host's tools: one process that has ONNX loaded, and a copy of it (a fork) for each run.

Loading ONNX and ONNX Runtime takes a second, and a conversion runs eight tools. It is started with
the socket on which callers wait, loads at the first call, and ends when its standard input does.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback

from tests.peers.board.tools.calling import Call, receive_call

TOOLS = ("convert", "quantize", "info", "diagview")


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the copies
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            for tool in TOOLS:
                importlib.import_module(f"tests.peers.board.tools.{tool}")
            if os.fork() == 0:
                listener.close()
                _serve(connection)


def _serve(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        call = receive_call(connection)
        if call is not None:
            threading.Thread(target=_end_with_caller, args=(connection,), daemon=True).start()
            code = _run(call)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([code]))
        os._exit(0)


def _run(call: Call) -> int:
    os.dup2(call.output, 1)
    os.dup2(call.errors, 2)
    os.chdir(call.folder)
    tempfile.tempdir = call.temporary or None
    tool = sys.modules[f"tests.peers.board.tools.{call.tool}"]
    try:
        code: int = tool.main(call.arguments, call.version)
    except SystemExit as end:  # of the parser of arguments
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    return code


def _end_with_caller(connection: socket.socket) -> None:
    """The caller says nothing more; what can be read from it is that it was killed."""
    connection.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
