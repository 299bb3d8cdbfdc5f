"""Files in a folder, laid out as obstore lays them out: both may use it at the same time.

A name that ends in `#` and digits is a file that is still being written; obstore passes over it.
Symbolic links below the folder are not followed: a listing leaves them out, reading what is behind
one is refused, and deleting removes the link at most.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from edgeloop._util.files import make_folder
from edgeloop._util.system import O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK
from edgeloop.errors import (
    BlobBehindLink,
    BlobMissing,
    EdgeloopError,
    LocalFileError,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.store.base import Access, BlobInfo, Blobs, check_blob_key, is_blob_key

_FULL = (27, 28, 122)  # EFBIG, ENOSPC, EDQUOT
_READ_ONLY = (1, 13, 30)  # EPERM, EACCES, EROFS
_MOST_TRIES = 100
_PIECE_BYTES = 1 << 20
_LONGEST_KEY = 4_096  # characters; no system opens longer paths
_FOLLOW = {"links": "follow"}
_SPARE_BYTES = 256 * 1024
_NO_LINKS = "a folder of this machine has no links: use 'results' to copy, or a store in the cloud"


@dataclass(frozen=True)
class FolderEntry:
    """Something below the folder that is no folder: a file, a link, or neither."""

    key: str
    status: os.stat_result

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)


class HashedFile:
    """A file's bytes, hashed on their way to a store; from the start at every try."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None

    def __iter__(self) -> Iterator[bytes]:
        self.sha256, self.error = hashlib.sha256(), None
        try:
            with self.path.open("rb") as file:
                while chunk := file.read(_PIECE_BYTES):
                    self.sha256.update(chunk)
                    yield chunk
        except OSError as error:
            self.error = error  # who sends it may show it as one of its own
            raise


class FolderBlobs(Blobs):
    """A folder of this machine, created with the first file. Links in it are not followed.

    `follows_links`: for a folder of the user's own that only they write to, such as the input of a
    job; never for a store.
    """

    def __init__(self, folder: Path, follows_links: bool = False) -> None:
        self._folder = folder
        self._follows = follows_links

    def put(self, key: str, source: Path | bytes | HashedFile) -> None:
        check_blob_key(key)
        if isinstance(source, Path) and not source.is_file():
            raise LocalFileError(path=source, reason="the file is not there")

        self._write(key, source, _replace)

    def put_private(self, key: str, content: bytes) -> None:
        self._write(check_blob_key(key), content, _replace, mode=0o600)

    def put_hashed(self, key: str, source: Path) -> str:
        sent = HashedFile(source)
        self.put(key, sent)
        return sent.sha256.hexdigest()

    def create(self, key: str, content: bytes) -> bool:
        check_blob_key(key)

        def place(part: str, name: str, folder: int) -> None:
            os.link(part, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            os.unlink(part, dir_fd=folder)

        try:
            self._write(key, content, place)
        except FileExistsError:
            return False
        return True

    def read(self, key: str) -> bytes:
        with self._our_errors(key), self._open(key) as file:
            return file.read()

    def get(self, key: str, target: Path) -> None:
        with self._our_errors(key):
            source = self._open(key)
        with source, writing_whole(target) as part, part.open("wb") as file:
            shutil.copyfileobj(source, file, _PIECE_BYTES)

    def size(self, key: str) -> int | None:
        info = self.info(key)
        return None if info is None else info.size

    def info(self, key: str) -> BlobInfo | None:
        check_blob_key(key)
        try:
            with self._our_errors(key), self._open(key) as file:
                return _info(key, os.fstat(file.fileno()))
        except BlobMissing:
            return None

    def read_range(self, key: str, start: int, length: int) -> bytes:
        with self._our_errors(key), self._open(key) as file:
            file.seek(start)
            return file.read(max(0, length))

    def link(self, key: str, seconds: int) -> str:
        raise StoreRefused(store=str(self._folder), reason=_NO_LINKS)

    def access(self, seconds: int) -> Access:
        folder = {"folder": str(self._folder.absolute())}
        return Access("LocalStore", {**folder, **(_FOLLOW if self._follows else {})})

    def is_there(self) -> bool:
        return self._folder.is_dir()

    def has_room_for(self, size: int) -> bool:
        """With some room to spare for the database, which often lies on the same disk."""
        there = next(path for path in (self._folder, *self._folder.parents) if path.exists())
        return shutil.disk_usage(there).free >= size + _SPARE_BYTES

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        for entry in self.entries(prefix):
            if entry.is_file and is_blob_key(entry.key):
                yield _info(entry.key, entry.status)

    def entries(self, prefix: str = "") -> Iterator[FolderEntry]:
        """Everything whose key starts with `prefix` but folders, links as they are. Raises
        BlobBehindLink where the way to `prefix` leads through a link."""
        parent = prefix.rpartition("/")[0]
        if not is_blob_key(f"{parent or 'x'}/x"):
            return
        pending = [f"{parent}/" if parent else ""]
        is_first = True
        while pending:
            folder = pending.pop()
            try:
                entries, inner = self._scanned(folder)
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                entries, inner = [], []
            except OSError as error:
                if isinstance(error, LinkFound) and not is_first:  # it was a folder a moment ago
                    continue
                raise self._explained(error, folder.rstrip("/")) from None
            is_first = False
            pending += [key for key in inner if key.startswith(prefix) or prefix.startswith(key)]
            yield from (entry for entry in entries if entry.key.startswith(prefix))

    def strange(self) -> Iterator[str]:
        for entry in self.entries():
            if not entry.is_file:
                yield f"{entry.key} ({'a symbolic link' if entry.is_link else 'no file'})"

    def delete(self, keys: Iterable[str]) -> None:
        """A folder that is empty then goes, too. A link goes, and what it points at stays."""
        for key in [check_blob_key(key) for key in keys]:
            *parents, name = key.split("/")
            try:
                with self._our_errors(key), inner_folder(self._folder, parents) as folder:
                    os.unlink(name, dir_fd=folder)
            except (BlobMissing, BlobBehindLink):
                continue
            self._remove_empty(parents)

    def delete_folder(self, folder: str) -> None:
        """With the links in it, but not with what they point at."""
        folder = folder.rstrip("/")
        try:
            entries = list(self.entries(f"{folder}/"))
        except BlobBehindLink:
            self.delete([folder])  # if it is a link itself; one above it stays
            return
        self.delete([entry.key for entry in entries if is_blob_key(entry.key)])

    def _open(self, key: str) -> BinaryIO:
        *parents, name = check_blob_key(key).split("/")
        with inner_folder(self._folder, parents, follows=self._follows) as folder:
            return os.fdopen(open_file(name, folder, self._follows), "rb")

    def _scanned(self, folder: str) -> tuple[Sequence[FolderEntry], Sequence[str]]:
        """What is in a folder, and the keys of the folders in it; the first of them last."""
        entries: list[FolderEntry] = []
        folders: list[str] = []
        names = [name for name in folder.split("/") if name]
        with inner_folder(self._folder, names, follows=self._follows) as descriptor:
            with os.scandir(descriptor) as scanned:
                sorted_entries = sorted(scanned, key=lambda entry: entry.name, reverse=True)
            for entry in sorted_entries:
                key = folder + entry.name
                if entry.is_dir(follow_symlinks=self._follows):
                    if len(key) < _LONGEST_KEY and not self._is_loop(key, entry):
                        folders.append(f"{key}/")
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(entry.name, dir_fd=descriptor, follow_symlinks=self._follows)
                    entries.append(FolderEntry(key, status))
        entries.reverse()
        return entries, folders

    def _is_loop(self, key: str, entry: os.DirEntry[str]) -> bool:
        """Whether a link leads to a folder that it lies in."""
        if not entry.is_symlink():
            return False
        path = self._folder / key
        return path.resolve() in [parent.resolve() for parent in path.parents]

    def _write(
        self,
        key: str,
        source: Path | bytes | HashedFile,
        place: Callable[[str, str, int], None],
        mode: int = 0o666,
    ) -> None:
        """The folder of a file may go at any time, with the last other file in it."""
        *parents, name = key.split("/")
        for attempt in range(_MOST_TRIES):
            try:
                with inner_folder(self._folder, parents, makes=True) as folder:
                    self._write_to(folder, name, source, place, mode)
                return
            except FileNotFoundError as error:
                if attempt == _MOST_TRIES - 1:
                    raise self._explained(error, key) from None
            except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                if isinstance(error, FileExistsError) and self.is_there():
                    raise
                self._check_root()
                reason = f"{key!r} is a folder there, or a folder above it is a file"
                raise StoreRefused(store=str(self._folder), reason=reason) from None
            except OSError as error:
                raise self._explained(error, key) from None

    @staticmethod
    def _write_to(
        folder: int,
        name: str,
        source: Path | bytes | HashedFile,
        place: Callable[[str, str, int], None],
        mode: int,
    ) -> None:
        part = f"part#{random.getrandbits(62)}"
        try:
            with os.fdopen(create_file(part, folder, mode), "wb") as file:
                _copy(source, file)
            place(part, name, folder)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=folder)

    def _check_root(self) -> None:
        """A folder that is missing has no files; a file in its place is another matter."""
        file = next((path for path in (self._folder, *self._folder.parents) if path.exists()), None)
        if file is not None and not file.is_dir():
            raise StoreError(store=str(file), reason=NOT_A_FOLDER)

    def _remove_empty(self, names: Iterable[str]) -> None:
        names = [*names]
        with contextlib.suppress(OSError):
            while names:
                name = names.pop()
                with inner_folder(self._folder, names) as folder:
                    os.rmdir(name, dir_fd=folder)

    @contextlib.contextmanager
    def _our_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explained(error, key) from None

    def _link_to(self, key: str) -> Path:
        """The first link on the way to a file, for a message."""
        parts = key.split("/")
        paths = [self._folder.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
        return next((path for path in paths if path.is_symlink()), paths[-1])

    def _explained(self, error: OSError, key: str) -> EdgeloopError:
        store = str(self._folder)
        if isinstance(error, LinkFound):
            return BlobBehindLink(link=self._link_to(key), store=store)
        if isinstance(error, FoldersNotSupported):
            return StoreError(store=store, reason=error.strerror)
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            self._check_root()
            return BlobMissing(key=key, store=store)
        if error.errno in _FULL:
            return StoreFull(store=store, reason="no space left on the device")
        if error.errno in _READ_ONLY:
            return StoreRefused(store=store, reason="the folder is read-only")
        return StoreUnavailable(store=store, reason=error.strerror or str(error))


def _replace(part: str, name: str, folder: int) -> None:
    os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)


def _info(key: str, status: os.stat_result) -> BlobInfo:
    modified = datetime.fromtimestamp(status.st_mtime, timezone.utc)
    version = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return BlobInfo(key, status.st_size, modified, version)


def _copy(source: Path | bytes | HashedFile, target: BinaryIO) -> None:
    if isinstance(source, bytes):
        target.write(source)
        return
    if isinstance(source, HashedFile):
        try:
            target.writelines(source)
        except OSError as error:
            if source.error is None:
                raise
            reason = error.strerror or str(error)
            raise LocalFileError(path=source.path, reason=reason) from None
        return
    try:
        opened = source.open("rb")
    except OSError as error:
        raise LocalFileError(path=source, reason=error.strerror or str(error)) from None
    with opened:
        shutil.copyfileobj(opened, target, _PIECE_BYTES)


@contextlib.contextmanager
def writing_whole(target: Path) -> Iterator[Path]:
    """A path beside `target`, which replaces it when the block ends well."""
    part = target.with_name(f".{os.urandom(8).hex()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(target)
    except OSError as error:
        raise LocalFileError(path=target, reason=error.strerror or str(error)) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


# Opens what lies inside a folder without following a symbolic link, at any depth and moment.
#
# A user who may write to a shared folder could otherwise place a link there, and have another
# user read or delete what it points at. A check beforehand would not help: the link may come in
# between. So every step goes from an open folder to a name in it, and never through a path. The
# folder itself may be a link: the user named it.


NOT_A_FOLDER = "this is a file, not a folder: move it away, or name another store"
_FOLDER = os.O_RDONLY | O_DIRECTORY | O_CLOEXEC
# Opening a pipe would otherwise wait for a writer.
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
