"""JSON from outside, read only if it cannot take more memory than its size explains.

A megabyte of `[],` becomes twenty of lists, and a deep nest ends the interpreter's stack.
"""

from __future__ import annotations

import json
from typing import Any

_LIST_BYTES, _ITEM_BYTES, _COPIES = 64, 8, 3


def memory_of(text: bytes) -> int:
    """About how many bytes the values of a JSON text will take, with the text itself."""
    lists = text.count(b"[") + text.count(b"{")
    return _COPIES * len(text) + _LIST_BYTES * lists + _ITEM_BYTES * text.count(b",")


def parse_json(text: bytes, most_bytes: int) -> Any:
    """Raises ValueError for anything that is not JSON, is too deep, or would take more memory."""
    if memory_of(text) > most_bytes:
        raise ValueError("it has more lists and values than a file of its size should")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
