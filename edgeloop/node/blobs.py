"""Files of a store in the cloud, as a job sees them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path

from edgeloop._util.retry import LIMITING, PATIENCE_S
from edgeloop.errors import (
    BadSetting,
    BlobMissing,
    EdgeloopError,
    LocalFileError,
    StoreFull,
    StoreLimited,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.node.clouds import Remote, RemoteError, Unreachable, open_remote, remote_at
from edgeloop.node.files import FolderBlobs, writing_whole
from edgeloop.store.base import Access, BlobInfo, Blobs, check_blob_key, is_blob_key

_NO_CONTAINER = ("ContainerNotFound", "NoSuchBucket")
_EXISTS = (409, 412)


def open_from_job(access: Access) -> Blobs:
    """The files that a job was given access to, with the standard library alone."""
    if access.make == "LocalStore":
        follows = access.options.get("links") == "follow"
        return FolderBlobs(Path(access.options["folder"]), follows)
    place = access.options.get("endpoint") or access.options.get("url", "")
    name = place if access.make == "from_url" else f"azure:{place}"
    try:
        return PlainBlobs(open_remote(access.make, access.options), name, access)
    except (ValueError, KeyError) as error:
        raise BadSetting(where=name, reason=str(error)) from None


def url_from_job(url: str) -> Blobs:
    """`file:`, `s3://` or `az://`; this machine's environment says who it is."""
    if url.startswith("file:"):
        return FolderBlobs(Path(url[len("file:") :]))
    try:
        return PlainBlobs(remote_at(url), url, Access("from_url", {"url": url}))
    except ValueError as error:
        raise BadSetting(where=url, reason=str(error)) from None


class PlainBlobs(Blobs):
    def __init__(self, remote: Remote, description: str, access: Access) -> None:
        self._remote = remote
        self._description = description
        self._access = access

    def renew(self, access: Access) -> None:
        """Use a newer signature from now on. One for another place is ignored."""
        place = ("endpoint", "container_name")
        is_same = all(access.options.get(n) == self._access.options.get(n) for n in place)
        if is_same and access.make == self._access.make == "AzureStore":
            self._remote, self._access = open_remote(access.make, access.options), access

    def put(self, key: str, source: Path | bytes) -> None:
        check_blob_key(key)
        with self._our_errors(key, is_put=True):
            if isinstance(source, bytes):
                self._remote.put(key, source)
                return
        try:
            size = source.stat().st_size if source.is_file() else -1
            if size < 0:
                raise LocalFileError(path=source, reason="the file is not there")
            with self._our_errors(key, is_put=True):
                self._remote.put_file(key, source, size)
        except OSError as error:
            raise LocalFileError(path=source, reason=error.strerror or str(error)) from None

    def read(self, key: str) -> bytes:
        check_blob_key(key)
        with self._our_errors(key):
            return self._remote.read(key)

    def get(self, key: str, target: Path) -> None:
        check_blob_key(key)
        with writing_whole(target) as part, self._our_errors(key):
            self._remote.get(key, part)

    def create(self, key: str, content: bytes) -> bool:
        check_blob_key(key)
        with self._our_errors(key, is_put=True):
            try:
                self._remote.put(key, content, is_new=True)
            except RemoteError as error:
                if error.status in _EXISTS:
                    return False
                raise
        return True

    def size(self, key: str) -> int | None:
        check_blob_key(key)
        try:
            with self._our_errors(key):
                return self._remote.size(key)
        except BlobMissing:
            return None

    def read_range(self, key: str, start: int, length: int) -> bytes:
        check_blob_key(key)
        if length <= 0:
            if self.size(key) is None:
                raise BlobMissing(key=key, store=self._description)
            return b""
        with self._our_errors(key):
            return self._remote.read_range(key, start, length)

    def link(self, key: str, seconds: int) -> str:
        raise StoreRefused(store=self._description, reason="a job can make no links")

    def access(self, seconds: int) -> Access:
        return self._access

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        if not is_blob_key(f"{prefix.rpartition('/')[0] or 'x'}/x"):
            return
        pages = self._remote.list(prefix)
        while True:
            try:
                with self._our_errors(prefix):
                    file = next(pages, None)
            except BlobMissing:  # the container itself is not there yet
                return
            if file is None:
                return
            if is_blob_key(file.key):
                yield BlobInfo(file.key, file.size, _time(file.modified), file.version)

    def delete(self, keys: Iterable[str]) -> None:
        checked = [check_blob_key(key) for key in keys]
        with ThreadPoolExecutor(self.parallel) as pool:
            for future in [pool.submit(self._delete, key) for key in checked]:
                future.result()

    def _delete(self, key: str) -> None:
        with contextlib.suppress(BlobMissing), self._our_errors(key):
            self._remote.delete(key)

    @contextlib.contextmanager
    def _our_errors(self, key: str, is_put: bool = False) -> Iterator[None]:
        try:
            yield
        except Unreachable as error:
            raise StoreUnavailable(store=self._description, reason=str(error)) from None
        except RemoteError as error:
            raise self._explained(error, key, is_put) from None

    def _explained(self, error: RemoteError, key: str, is_put: bool) -> EdgeloopError:
        reason = str(error)
        if is_put and (error.code in _NO_CONTAINER or error.status == 404):
            reason = "there is no such bucket or container"
            return StoreRefused(store=self._description, reason=reason)
        if error.status == 404:
            return BlobMissing(key=key, store=self._description)
        if error.status in (401, 403):
            return StoreRefused(store=self._description, reason=reason)
        if error.status in LIMITING:
            return StoreLimited(store=self._description, reason=reason, seconds=PATIENCE_S)
        if error.status == 507:
            return StoreFull(store=self._description, reason=reason)
        return StoreUnavailable(store=self._description, reason=reason)


def _time(text: str) -> datetime:
    """`Mon, 16 Nov 2026 02:30:00 GMT` of Azure, `2026-11-16T02:30:00.000Z` of S3."""
    try:
        if text[:4].isdigit():
            return datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
        return parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return datetime.fromtimestamp(0, timezone.utc)
