"""Opens what lies inside a folder without following a symbolic link, at any depth and moment.

Whoever may write to a shared folder could otherwise place a link there, and have another user read
or delete what it points at. A check beforehand would not help: the link may come in between. So
every step goes from an open folder to a name in it, and never through a path. The folder itself may
be a link: the user named it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from edgeloop._util.files import make_folder
from edgeloop._util.system import O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK

NOT_A_FOLDER = "this is a file, not a folder: move it away, or name another store"
_FOLDER = os.O_RDONLY | O_DIRECTORY | O_CLOEXEC
# A pipe would keep whoever opens it waiting for somebody who writes.
_FILE = os.O_RDONLY | O_CLOEXEC | O_NONBLOCK
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_NOFOLLOW | O_CLOEXEC


class LinkFound(OSError):
    """A symbolic link where a file or a folder should be."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.ELOOP, "it is a symbolic link", name)


class FoldersNotSupported(OSError):
    """The system cannot open a file by its name in an open folder."""

    def __init__(self, name: str) -> None:
        reason = "this system cannot open folders safely: use a store on PostgreSQL or in the cloud"
        super().__init__(errno.ENOTSUP, reason, name)


@contextlib.contextmanager
def inner_folder(
    root: Path, names: Sequence[str], makes: bool = False, follows: bool = False
) -> Iterator[int]:
    """A descriptor of the folder below `root` with this path; `makes` those that are missing."""
    if os.open not in os.supports_dir_fd:  # Windows
        raise FoldersNotSupported(str(root))
    if makes:
        make_folder(root)
    current = os.open(root, _FOLDER)
    try:
        for name in names:
            if makes:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=current)
            inner = _opened(name, _FOLDER, current, follows)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def open_file(name: str, folder: int, follows: bool = False) -> int:
    """A descriptor of a regular file for reading; anything else is not there."""
    descriptor = _opened(name, _FILE, folder, follows)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "it is not a file", name)
    return descriptor


def create_file(name: str, folder: int, mode: int = 0o666) -> int:
    """A descriptor of a new file for writing."""
    return os.open(name, _NEW_FILE, mode, dir_fd=folder)


def _opened(name: str, flags: int, folder: int, follows: bool) -> int:
    try:
        return os.open(name, flags if follows else flags | O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and is_link(name, folder):
            raise LinkFound(name) from None
        raise


def is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
