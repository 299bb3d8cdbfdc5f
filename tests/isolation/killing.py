"""Ends the process for native work in the middle of a call."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from edgeloop._util import isolation as process_module
from edgeloop._util.isolation import WorkerProcess


def kill_in_call(process: WorkerProcess, number: int, patch: pytest.MonkeyPatch) -> None:
    """As soon as the next call was sent to it."""
    send: Callable[..., None] = process_module.send

    def send_and_kill(*request: object) -> None:
        patch.setattr(process_module, "send", send)
        send(*request)
        assert process.pid is not None
        os.kill(process.pid, number)

    patch.setattr(process_module, "send", send_and_kill)
