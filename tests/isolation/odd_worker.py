"""Calls that behave badly, for a worker process."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from edgeloop._util.isolation import Answer

_KEPT: list[bytearray] = []


def hello(warm: bool = False) -> Answer:
    return {"temporary": tempfile.gettempdir()}, ()


def leave_files(seconds: float = 0.0) -> Answer:
    """As libraries do, beside those that they remove."""
    Path(tempfile.mkdtemp(prefix="ort.quant."), "weights").write_bytes(bytes(1000))
    _, file = tempfile.mkstemp()
    time.sleep(seconds)
    return {"file": file}, ()


def grow(megabytes: int, keep: bool, seconds: float = 0.0) -> Answer:
    held: Any = [bytearray(b"x" * (1 << 20)) for _ in range(megabytes)]
    if keep:
        _KEPT.extend(held)
    time.sleep(seconds)
    return {}, ()


CALLS = {"hello": hello, "leave_files": leave_files, "grow": grow}
