"""Messages between us and the process for native work: JSON, then arrays as raw bytes.

No pickle: what a crashed or confused process writes is parsed, never run.
"""

from __future__ import annotations

import json
import os
import select
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
