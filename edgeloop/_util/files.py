"""Files, locks and temporary folders of one machine.

Files are either whole or absent: they are written beside their place, then renamed onto it. Of
files that others may have placed, only regular ones are opened, and JSON is measured before it is
parsed. A lock is released by the system when its process dies, and a scratch folder lasts as long
as its process.

Where there is no `fcntl` (Windows), and on network folders that do not support locks, nothing is
locked: the callers' writes are safe without, only less economical.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from edgeloop._util.system import (
    O_CLOEXEC,
    O_DIRECTORY,
    O_NOFOLLOW,
    O_NONBLOCK,
    has_users,
    is_own,
    is_running,
)
from edgeloop.errors import Conflict, LocalFileError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

_LIST_BYTES, _ITEM_BYTES, _COPIES = 64, 8, 3  # of values of JSON in memory
PRIVATE_FOLDER = ".edgeloop"  # made for its owner alone
MARK_S = 600.0  # well within the half hour after which a clean-up may take something for unused
_POLL_S = 0.05
ABANDONED_S = 24 * 3600.0  # of another machine, whose locks may not be seen from here


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
    """Create a folder and its parents. The one that Edgeloop keeps in a project is private: it
    holds logs, tickets and models."""
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
    """Mark an entry of a cache as used now: the least recently used are removed first. The file of
    another user cannot be marked, but it can be used."""
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


@contextlib.contextmanager
def file_lock(
    path: Path | None, shared: bool = False, timeout_s: float = 3_600.0
) -> Iterator[None]:
    """Waits for the lock on `path`; raises Conflict after `timeout_s`. None locks nothing.

    A folder is locked as itself, without a file in it; any other path is created as an empty file.
    """
    if path is None:
        yield
        return
    descriptor = wait_for_lock(path, timeout_s, shared)
    if descriptor is None:
        reason = f"{path} has been in use by another process for {timeout_s:g} s: is it stuck?"
        raise Conflict(reason=reason)
    try:
        yield
    finally:
        os.close(descriptor)


def wait_for_lock(
    path: Path, timeout_s: float, shared: bool = False, poll_s: float = _POLL_S
) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process still holds it
    after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        descriptor = try_lock(path, shared)
        if descriptor is not None or time.monotonic() >= deadline:
            return descriptor
        time.sleep(poll_s)


def try_lock(path: Path, shared: bool = False) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process holds it.

    The content of the file is left alone, and a link is not followed: any user who may write to
    the folder could make it point at any file.
    """
    try:
        if path.is_dir():
            descriptor = _opened_folder(path)
        else:
            make_folder(path.parent)
            descriptor = _opened_file(path)
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.ELOOP:
            reason = "this is a link, and a lock must be a file of its own: remove it"
        raise LocalFileError(path=path, reason=reason) from None
    if _locked(descriptor, shared) is False:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether a living process holds this lock for itself. Nothing is created."""
    try:
        descriptor = os.open(path, os.O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return _locked(descriptor, shared=True) is False
    finally:
        os.close(descriptor)


def own_folder(path: Path) -> Path:
    """The folder, created if necessary, which no other user can enter: one who can open a lock
    file can hold it forever. Raises LocalFileError if it belongs to another user."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise LocalFileError(path=path, reason="this is not a folder: remove it")
        if not is_own(status):
            reason = (
                "this folder belongs to another user, who could read and change what Edgeloop "
                "keeps there: remove it, or set HOME or EDGELOOP_STATE to a folder of yours"
            )
            raise LocalFileError(path=path, reason=reason)
        if has_users() and status.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
    return path


def home_folder(environ: Mapping[str, str]) -> Path:
    """A container may run as a user that does not exist, and so has no home: then one in the folder
    for temporary files, where others could be before us."""
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path.home()
    except RuntimeError:
        user = os.getuid() if has_users() else "user"
        return own_folder(Path(tempfile.gettempdir()) / f"edgeloop-{user}")


class ScratchFolder:
    """A temporary folder that goes when it is closed, when its process ends or, after a kill, when
    another process of the same user makes one in the same place.

    That a process lives is told by the lock on its folder, which works across containers. Where
    folders cannot be locked, one counts as abandoned only if its process was one of the same
    machine and container; and one of another machine, or from before a restart, after a day.
    """

    def __init__(self, root: Path, prefix: str = "") -> None:
        root.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(root, prefix)
        self.path, lock = _locked_folder(root, prefix)
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        self._finalizer()


def _opened_folder(path: Path) -> int:
    """Windows opens no folders; without locks, any descriptor will do to be closed."""
    return os.open(os.devnull if fcntl is None else path, os.O_RDONLY | O_CLOEXEC)


def _opened_file(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise LocalFileError(path=path, reason="this is not a plain file, so it cannot be a lock")


def _locked(descriptor: int, shared: bool = False) -> bool | None:
    """Whether the lock is ours now; None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network folder without locks
        return None
    return True


def _locked_folder(root: Path, prefix: str) -> tuple[Path, int]:
    """Another process may take it for abandoned before it is locked; then there is a next one."""
    while True:
        boot, space = _where_we_are()
        path = root / f"{prefix}{boot}-{space}-{os.getpid()}-{secrets.token_hex(6)}"
        path.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            descriptor = _opened_folder(path)
            if _locked(descriptor) is not False and path.is_dir():
                return path, descriptor
            os.close(descriptor)


def is_abandoned(path: Path) -> bool:
    """Whether it is a `ScratchFolder` of a process that is gone."""
    with contextlib.suppress(OSError), _held(path, path.name.split("-")) as is_free:
        return is_free
    return False


def _clear_abandoned(root: Path, prefix: str) -> None:
    with contextlib.suppress(OSError):
        names = [entry.name for entry in os.scandir(root) if entry.name.startswith(prefix)]
        for name in names:
            path = root / name
            with contextlib.suppress(OSError), _held(path, name[len(prefix) :].split("-")) as free:
                if free:
                    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _held(path: Path, parts: list[str]) -> Iterator[bool]:
    """Whether a folder is abandoned; no other process can take it meanwhile. `parts` are those of
    its name. Only folders that are named like ours and belong to this user are."""
    if len(parts) == 2 and parts[0].isdecimal():  # of a version that had no locks
        parts = ["", "", *parts]
    if len(parts) != 4 or not parts[2].isdecimal():
        yield False
        return
    descriptor = os.open(path, os.O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW)
    try:
        status, is_free = os.fstat(descriptor), _locked(descriptor)
        boot, space = _where_we_are()
        if not is_own(status) or is_free is False:
            yield False
        elif parts[0] != boot:
            yield time.time() - status.st_mtime > ABANDONED_S
        else:
            yield bool(is_free) or (parts[1] == space and not is_running(int(parts[2])))
    finally:
        os.close(descriptor)


def _where_we_are() -> tuple[str, str]:
    """This start of this machine, and this container: numbers of processes are unique there."""
    return _digest("/proc/sys/kernel/random/boot_id"), _digest("/proc/self/ns/pid")


def _digest(file: str) -> str:
    try:
        text = os.readlink(file) if os.path.islink(file) else Path(file).read_text()  # noqa: PTH114
    except OSError:  # not Linux
        text = os.uname().nodename if hasattr(os, "uname") else ""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _remove(path: Path, lock: int, owner: int) -> None:
    """A forked child has the folder of its parent, and leaves it alone."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
