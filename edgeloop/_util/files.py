"""Files that are either whole or not there: written beside their place, then renamed onto it. And
files of strangers: only regular ones are opened, and JSON is measured before it is read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from edgeloop._util.system import O_CLOEXEC, O_NONBLOCK

_LIST_BYTES, _ITEM_BYTES, _COPIES = 64, 8, 3  # of values of JSON in memory
PRIVATE_FOLDER = ".edgeloop"  # made for its owner alone
MARK_S = 600.0  # well within the half hour after which a clean-up may take something for unused


@contextlib.contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[Path]:
    """A temporary path in the same folder. It replaces `path` when the block ends, and is removed
    when the block fails. `durable` survives a power cut, at the price of a flush to disk."""
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}.part")
    try:
        yield temporary
        if durable:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """With those above it. What Edgeloop keeps in a project is nobody else's business: it has
    logs, tickets and models in it."""
    if folder.is_dir():
        return
    for path in reversed((folder, *folder.parents)):
        if not path.exists():
            path.mkdir(0o700 if path.name == PRIVATE_FOLDER else 0o777, exist_ok=True)
    folder.mkdir(exist_ok=True)  # a file in its place is an error


def write_atomic(path: Path, content: str | bytes, durable: bool = False) -> None:
    """Readers see the old content or the new one, never a part of it."""
    with replacing(path, durable) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_private(path: Path, content: str | bytes) -> None:
    """A new file that only its owner can read, from its first byte on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()  # jobs run with Python 3.8, which has no `file_digest`
        while piece := file.read(1 << 20):
            digest.update(piece)
        return digest.hexdigest()


def mark_used(path: Path) -> None:
    """What is in a cache and was not used for long goes first. Somebody else's file may not be
    touched; that is no reason not to use it."""
    with contextlib.suppress(OSError):
        os.utime(path)


@contextlib.contextmanager
def kept_in_use(path: Path, every_s: float = MARK_S) -> Iterator[None]:
    """Mark something in a cache as used now and again, for as long as the block takes."""
    done = threading.Event()

    def keep() -> None:
        mark_used(path)
        while not done.wait(every_s):
            mark_used(path)

    thread = threading.Thread(target=keep, name="in-use", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read; anything else is an OSError. A pipe would wait for a writer for ever, a
    device may never end, and both can have the name of a file."""
    descriptor = os.open(path, os.O_RDONLY | O_NONBLOCK | O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most: int) -> bytes:
    """All of a file, or an OSError if it is larger than `most` bytes or no regular file."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return content


def memory_of(text: bytes) -> int:
    """About how many bytes the values of a JSON text will take, with the text itself: a megabyte of
    `[],` becomes twenty of lists."""
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
