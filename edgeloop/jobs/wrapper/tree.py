"""The files below a folder as a command left them: links, loops and odd things included."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Look:
    """How a file looked; two equal looks mean that nobody wrote in between."""

    size: int
    modified_ns: int
    inode: int

    @classmethod
    def at(cls, path: Path) -> Look:
        return cls.of(path.stat())

    @classmethod
    def of(cls, status: os.stat_result) -> Look:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def files_below(
    folder: Path, fence: Path, say: Callable[[str], None]
) -> Iterator[tuple[str, Look]]:
    """Plain files by their names below `folder`. A link is followed where it stays in `fence`."""
    if not _inside(folder, fence):
        if folder.is_symlink():  # else it is not there: deleted, or never made
            say(f"{folder.name}/ was replaced by a link to elsewhere, which is not followed")
        return
    yield from _walk(folder, "", fence.resolve(), say, ())


def _walk(
    folder: Path, prefix: str, fence: Path, say: Callable[[str], None], above: tuple[int, ...]
) -> Iterator[tuple[str, Look]]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        name, path = prefix + entry.name, folder / entry.name
        try:
            if entry.is_symlink() and not _inside(path, fence):
                say(f"outputs/{ascii(name)[1:-1]} is a link to elsewhere, which is not followed")
                continue
            status = entry.stat()
        except OSError:
            continue  # gone, or a link to nothing
        if stat.S_ISREG(status.st_mode):
            yield name, Look.of(status)
        elif stat.S_ISDIR(status.st_mode) and status.st_ino not in above:
            yield from _walk(path, f"{name}/", fence, say, (*above, status.st_ino))


def _inside(path: Path, fence: Path) -> bool:
    try:
        return path.resolve(strict=True).is_relative_to(fence.resolve())
    except (OSError, RuntimeError):
        return False
