"""Locks between the processes of one machine, and folders that last as long as their process. The
system releases a lock when its process dies.

Where there is no `fcntl` (Windows), and on network folders that do not support locks, nothing is
locked: the callers' writes are safe without, only less economical.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

from edgeloop._util.files import make_folder
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

_POLL_S = 0.05


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
    deadline = time.monotonic() + timeout_s
    while (descriptor := try_lock(path, shared)) is None:
        if time.monotonic() > deadline:
            reason = f"{path} has been in use by another process for {timeout_s:g} s: is it stuck?"
            raise Conflict(reason=reason)
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path, shared: bool = False) -> int | None:
    """A descriptor that holds the lock until it is closed; None if another process holds it.

    What the file contains is left alone, and a link is not followed: whoever may write to the
    folder could make it point at any file.
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


def own_folder(path: Path) -> Path:
    """The folder, created if need be, which nobody else can enter: whoever may open a lock file
    can hold it for ever. Raises LocalFileError where it belongs to another user."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise LocalFileError(path=path, reason="this is not a folder: remove it")
        if not is_own(found):
            reason = (
                "this folder belongs to another user, who could read and change what Edgeloop "
                "keeps there: remove it, or set HOME or EDGELOOP_STATE to a folder of yours"
            )
            raise LocalFileError(path=path, reason=reason)
        if has_users() and found.st_mode & 0o077:
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


ABANDONED_S = 24 * 3600.0  # of another machine, whose locks may not be seen from here


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
    """Whether a folder is abandoned; nobody else can take it meanwhile. `parts`: of its name. Only
    what is named as ours is, and belongs to this user."""
    if len(parts) == 2 and parts[0].isdecimal():  # of a version that had no locks
        parts = ["", "", *parts]
    if len(parts) != 4 or not parts[2].isdecimal():
        yield False
        return
    descriptor = os.open(path, os.O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW)
    try:
        found, is_free = os.fstat(descriptor), _locked(descriptor)
        boot, space = _where_we_are()
        if not is_own(found) or is_free is False:
            yield False
        elif parts[0] != boot:
            yield time.time() - found.st_mtime > ABANDONED_S
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
