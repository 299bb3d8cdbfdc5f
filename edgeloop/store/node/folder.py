"""Files in a folder, laid out as obstore lays them out: both may use it at the same time.

A name that ends in `#` and digits is a file that is still being written; obstore passes over it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from edgeloop.errors import (
    BlobMissing,
    EdgeloopError,
    LocalFileError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.store.base import Access, BlobInfo, Blobs, check_blob_key, is_blob_key

_FULL = (27, 28, 122)  # EFBIG, ENOSPC, EDQUOT
_READ_ONLY = (1, 13, 30)  # EPERM, EACCES, EROFS
_MOST_TRIES = 100


class PlainFolder(Blobs):
    """The folder is made when the first file comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, source: Path | bytes) -> None:
        check_blob_key(key)
        if isinstance(source, Path) and not source.is_file():
            raise LocalFileError(path=source, reason="the file is not there")
        self._write(key, source, os.replace)

    def create(self, key: str, content: bytes) -> bool:
        check_blob_key(key)

        def link(part: Path, target: Path) -> None:
            os.link(part, target)
            part.unlink()

        try:
            self._write(key, content, link)
        except FileExistsError:
            return False
        return True

    def read(self, key: str) -> bytes:
        with self._our_errors(key):
            return self._path(key).read_bytes()

    def get(self, key: str, target: Path) -> None:
        path = self._path(key)
        with self._our_errors(key):
            source = path.open("rb")
        with source, writing_whole(target) as part, part.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)

    def size(self, key: str) -> int | None:
        path = self._path(key)
        try:
            with self._our_errors(key):
                status = path.stat()
        except BlobMissing:
            return None
        return status.st_size if path.is_file() else None

    def read_range(self, key: str, start: int, length: int) -> bytes:
        with self._our_errors(key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(max(0, length))

    def link(self, key: str, seconds: int) -> str:
        raise StoreRefused(store=str(self._folder), reason="a job can make no links")

    def access(self, seconds: int) -> Access:
        return Access("LocalStore", {"folder": str(self._folder.absolute())})

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        parent = prefix.rpartition("/")[0]
        if not is_blob_key(f"{parent or 'x'}/x"):
            return
        yield from self._walk(f"{parent}/" if parent else "", prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """A folder that is empty then goes, too."""
        for key in [check_blob_key(key) for key in keys]:
            path = self._path(key)
            try:
                with self._our_errors(key):
                    path.unlink()
            except BlobMissing:
                continue
            with contextlib.suppress(OSError):
                for folder in path.parents:
                    if folder == self._folder:
                        break
                    folder.rmdir()

    def _walk(self, folder: str, prefix: str) -> Iterator[BlobInfo]:
        try:
            with os.scandir(self._folder / folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._explained(error, folder) from None
        for entry in found:
            key = folder + entry.name
            if entry.is_dir():
                if f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                    yield from self._walk(f"{key}/", prefix)
            elif key.startswith(prefix) and is_blob_key(key):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    modified = datetime.fromtimestamp(status.st_mtime, timezone.utc)
                    yield BlobInfo(key, status.st_size, modified)

    def _write(self, key: str, source: Path | bytes, place: Callable[[Path, Path], object]) -> None:
        """The folder of a file may go at any time, with the last other file in it."""
        target = self._folder / key
        for attempt in range(_MOST_TRIES):
            part = target.with_name(f"{target.name}#{random.getrandbits(62)}")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy(source, part)
                place(part, target)
            except FileExistsError:
                raise
            except FileNotFoundError as error:
                if attempt == _MOST_TRIES - 1:
                    raise self._explained(error, key) from None
            except OSError as error:
                raise self._explained(error, key) from None
            else:
                return
            finally:
                with contextlib.suppress(OSError):
                    part.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / check_blob_key(key)

    @contextlib.contextmanager
    def _our_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explained(error, key) from None

    def _explained(self, error: OSError, key: str) -> EdgeloopError:
        store = str(self._folder)
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            return BlobMissing(key=key, store=store)
        if error.errno in _FULL:
            return StoreFull(store=store, reason="no space left on the device")
        if error.errno in _READ_ONLY:
            return StoreRefused(store=store, reason="the folder is read-only")
        return StoreUnavailable(store=store, reason=error.strerror or str(error))


def _copy(source: Path | bytes, target: Path) -> None:
    with target.open("xb") as file:
        if isinstance(source, bytes):
            file.write(source)
        else:
            with source.open("rb") as opened:
                shutil.copyfileobj(opened, file, 1 << 20)


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
