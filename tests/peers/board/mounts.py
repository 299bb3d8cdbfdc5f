"""Mounting, as `mount` does it: a board has thirty, and thirty programs would take their time."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE = 0x1, 0x20, 0x1000, 0x4000
_libc = ctypes.CDLL(None, use_errno=True)


def memory(place: Path, options: str = "mode=755") -> None:
    """A new file system in memory."""
    _mount("none", place, "tmpfs", 0, options)


def processes(place: Path) -> None:
    _mount("none", place, "proc", 0)


def bind(source: Path, place: Path, read_only: bool = False) -> None:
    """A folder seen in another place too, with what is mounted below it. Read-only is the folder,
    not those."""
    _mount(str(source), place, None, _BIND | _RECURSIVE)
    if read_only:
        _mount("none", place, None, _REMOUNT | _BIND | _READ_ONLY)


def _mount(source: str, place: Path, kind: str | None, flags: int, options: str = "") -> None:
    words = [source.encode(), str(place).encode(), kind.encode() if kind else None]
    if _libc.mount(*words, ctypes.c_ulong(flags), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))
