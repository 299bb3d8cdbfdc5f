"""Files in Azure Blob Storage, S3 or Google Cloud Storage, through obstore.

Files in a folder are `node/files.py`, which jobs have, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from edgeloop._util.retry import PATIENCE_S, limit_of, retry
from edgeloop.errors import (
    BadSetting,
    BlobMissing,
    EdgeloopError,
    LocalFileError,
    StoreLimited,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.node.files import FolderBlobs, HashedFile
from edgeloop.node.identity import TokenOfMachine, plain_http_allowed
from edgeloop.store.base import (
    IN_MEMORY_BYTES,
    Access,
    BlobInfo,
    Blobs,
    check_blob_key,
    is_blob_key,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

Item = TypeVar("Item")

DELETE_BATCH = 256
ONE_REQUEST_BYTES = 32 << 20  # bytes in memory go as one request up to here: faster than parts
ONE_PIECE_BYTES = 1 << 20  # a file up to here is read whole: half the work of reading in pieces
REPEATS = 3  # of what failed for a reason that may pass; each is tried twice by obstore
FIRST_DELAY_S = 0.25
NO_SIGNING = "no links can be made with this kind of access: use the store's own address"


class ObjectBlobs(Blobs):
    """Blobs on an obstore store that is there already, or that a first put may make.

    `ask_pause`: obstore does not say how long a service that limits requests asks to wait, so this
    asks for that; 0 where it does not say. `delete_if` deletes a file that has this version still.
    """

    def __init__(
        self,
        store: ObjectStore,
        description: str,
        make_container: Callable[[], None] | None = None,
        make_access: Callable[[int], Access] | None = None,
        make_link: Callable[[str, int], str] | None = None,
        ask_pause: Callable[[], float] = lambda: 0.0,
        delete_if: Callable[[str, str], bool] | None = None,
    ) -> None:
        start_threads()
        self._limit = limit_of(f"files of {description}")
        self._ask_pause = ask_pause
        self._asking = threading.Lock()
        self._store = store
        self._description = description
        self._make_container = make_container
        self._make_access = make_access
        self._make_link = make_link
        self._delete_if = delete_if

    def put(self, key: str, source: Path | bytes) -> None:
        check_blob_key(key)
        if isinstance(source, Path) and not source.is_file():
            raise LocalFileError(path=source, reason="the file is not there")
        self._asked(key, lambda: self._put(key, source, "overwrite"))

    def put_hashed(self, key: str, source: Path) -> str:
        check_blob_key(key)
        try:
            if source.stat().st_size <= IN_MEMORY_BYTES:
                return super().put_hashed(key, source)
            sent = HashedFile(source)
            self._asked(key, lambda: self._put(key, sent, "overwrite"))
            if sent.error is None:
                return sent.sha256.hexdigest()
            raise sent.error
        except OSError as error:
            raise LocalFileError(path=source, reason=_first_line(error)) from None

    def read(self, key: str) -> bytes:
        import obstore

        check_blob_key(key)
        return self._asked(key, lambda: bytes(obstore.get(self._store, key).bytes()))

    def get(self, key: str, target: Path) -> None:
        check_blob_key(key)
        self._asked(key, lambda: self._get(key, target))

    def _get(self, key: str, target: Path) -> None:
        import obstore

        with self._our_errors(key):
            answer = obstore.get(self._store, key)
            is_small = answer.meta["size"] <= ONE_PIECE_BYTES
            chunks: Iterable[Any] = [answer.bytes()] if is_small else answer.stream()
        partial = target.with_name(f".{os.urandom(8).hex()}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                for chunk in self._guarded(key, iter(chunks)):
                    file.write(chunk)
            partial.replace(target)
        except OSError as error:
            raise LocalFileError(path=target, reason=_first_line(error)) from None
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()

    def create(self, key: str, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        def put() -> bool:
            try:
                self._put(key, content, "create")
            except (AlreadyExistsError, FileExistsError):
                return False
            return True

        check_blob_key(key)
        return self._asked(key, put)

    def size(self, key: str) -> int | None:
        info = self.info(key)
        return None if info is None else info.size

    def info(self, key: str) -> BlobInfo | None:
        import obstore

        check_blob_key(key)
        try:
            meta = self._asked(key, lambda: obstore.head(self._store, key))
        except BlobMissing:
            return None
        return BlobInfo(key, int(meta["size"]), meta["last_modified"], meta["e_tag"] or "")

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """A range that begins at or after the end is refused by some stores: that is no bytes."""
        import obstore

        check_blob_key(key)
        if start == 0 and length > 0:  # most files are small: then one request is enough
            return self._asked(key, lambda: self._read_beginning(key, length))
        size = self.size(key)
        if size is None:
            raise BlobMissing(key=key, store=self._description)
        length = min(length, size - start)
        if length <= 0:
            return b""

        def read() -> bytes:
            store = self._store
            return bytes(obstore.get_range(store, key, start=start, length=length))

        return self._asked(key, read)

    def _read_beginning(self, key: str, length: int) -> bytes:
        import obstore

        answer = obstore.get(self._store, key)
        if answer.meta["size"] <= length:
            return bytes(answer.bytes())
        return bytes(obstore.get_range(self._store, key, start=0, length=length))

    def link(self, key: str, seconds: int) -> str:
        """obstore signs for S3 and GCS; for Azure it signs names with spaces wrongly."""
        import obstore
        from obstore.store import GCSStore, S3Store

        check_blob_key(key)
        if self._make_link is not None:
            return self._make_link(key, seconds)
        with self._our_errors(key):
            store = self._store
            if isinstance(store, S3Store | GCSStore):
                return str(obstore.sign(store, "GET", key, timedelta(seconds=seconds)))
        raise StoreRefused(store=self._description, reason=NO_SIGNING)

    def access(self, seconds: int) -> Access:
        if self._make_access is None:
            raise StoreRefused(store=self._description, reason="it lives in this process only")
        return self._make_access(seconds)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """obstore's prefixes are whole folders; the filter makes them plain prefixes."""
        folder = prefix.rpartition("/")[0]
        if not is_blob_key(f"{folder or 'x'}/x"):
            return
        try:
            for page in self._pages(prefix, folder or None):
                for meta in page:
                    if meta["path"].startswith(prefix):
                        version = meta["e_tag"] or ""
                        yield BlobInfo(meta["path"], meta["size"], meta["last_modified"], version)
        except BlobMissing:  # the container itself is not there yet
            return

    def _pages(self, key: str, folder: str | None) -> Iterator[Sequence[Any]]:
        """One that breaks off is continued after the last key that it gave."""
        import obstore

        stream: Iterator[Sequence[Any]] | None = None
        last = ""

        def following() -> Sequence[Any] | None:
            nonlocal stream
            pages, stream = stream, None
            if pages is None:
                listed = obstore.list(self._store, folder, offset=last or None)
                pages = iter(cast("Any", listed))
            page = next(pages, None)
            stream = pages
            return page

        while (page := self._asked(key, following)) is not None:
            if page:
                last = page[-1]["path"]
                yield page

    def delete(self, keys: Iterable[str]) -> None:
        checked = [check_blob_key(key) for key in keys]
        for start in range(0, len(checked), DELETE_BATCH):
            self._delete_batch(checked[start : start + DELETE_BATCH])

    def _delete_batch(self, keys: Sequence[str]) -> None:
        """A batch stops at the first key that is gone, so then they go one by one."""
        import obstore

        try:
            self._asked(keys[0], lambda: obstore.delete(self._store, keys))
        except BlobMissing:
            for key in keys if len(keys) > 1 else ():
                self._delete_batch([key])

    def _delete_unchanged(self, file: BlobInfo) -> bool:
        if self._delete_if is None:
            return super()._delete_unchanged(file)
        return self._delete_if(file.key, file.version)

    def _put(
        self, key: str, source: Path | bytes | HashedFile, mode: Literal["create", "overwrite"]
    ) -> None:
        try:
            self._put_once(key, source, mode)
        except FileNotFoundError:
            if self._make_container is None:
                reason = "there is no such bucket or container"
                raise StoreRefused(store=self._description, reason=reason) from None
            self._make_container()
            self._put_once(key, source, mode)

    def _put_once(
        self, key: str, source: Path | bytes | HashedFile, mode: Literal["create", "overwrite"]
    ) -> None:
        import obstore

        small = isinstance(source, bytes) and len(source) <= ONE_REQUEST_BYTES
        parts = False if small else None
        obstore.put(self._store, key, source, mode=mode, use_multipart=parts)

    def _asked(self, key: str, action: Callable[[], Item]) -> Item:
        """What `action` returns, with our errors. What a service limits is asked again when its
        pause is over, for a time; another failure that may pass, a few times."""
        limit = self._limit

        def once() -> Item | StoreLimited:
            try:
                return self._repeated(key, action)
            except StoreLimited as error:
                return error

        def pause_of(answer: Item | StoreLimited) -> float | None:
            if not isinstance(answer, StoreLimited):
                return None
            with self._asking:  # one thread asks for all
                return 0.0 if limit.is_paused else self._ask_pause()

        answer = limit.keep(once, pause_of)
        if isinstance(answer, StoreLimited):
            raise answer
        return answer

    def _repeated(self, key: str, action: Callable[[], Item]) -> Item:
        def once() -> Item:
            with self._our_errors(key):
                return action()

        return retry(
            once,
            StoreUnavailable,
            PATIENCE_S,
            first_s=FIRST_DELAY_S,
            most_tries=REPEATS + 1,
            unless=lambda error: isinstance(error, StoreLimited),
        )

    def _guarded(self, key: str, items: Iterator[Item]) -> Iterator[Item]:
        """Translates the errors of the stream, and leaves those of its consumer alone."""
        while True:
            with self._our_errors(key):
                item = next(items, None)
            if item is None:
                return
            yield item

    @contextlib.contextmanager
    def _our_errors(self, key: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise _explain(error, key, self._description) from None
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise StoreUnavailable(store=self._description, reason=_first_line(error)) from None


def url_blobs(url: str) -> Blobs:
    """`file:`, `s3://`, `gs://` or `az://` URLs; credentials come from the usual environment."""
    if url.startswith("file:"):
        return FolderBlobs(Path(url.removeprefix("file:").removeprefix("//")))
    if not url.startswith(("s3://", "gs://", "az://", "abfs://", "abfss://", "https://")):
        reason = f"blobs={url!r} is not a file:, s3://, gs:// or az:// URL"
        raise BadSetting(where="the store", reason=reason)
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    client, retry = network_limits(plain_http_allowed())
    try:
        store = from_url(url, client_options=client, retry_config=retry)
        return ObjectBlobs(store, url, make_access=lambda _: Access("from_url", {"url": url}))
    except (BaseError, ValueError) as error:
        raise BadSetting(where=f"blobs={url}", reason=_first_line(error)) from None


def open_access(access: Access) -> Blobs:
    """Open the files that another process gave access to; see `Blobs.access`."""
    options = dict(access.options)
    if access.make == "LocalStore":
        return FolderBlobs(Path(options["folder"]))
    if access.make == "from_url":
        return url_blobs(options["url"])
    from obstore.store import AzureStore

    client, retry = network_limits(options["endpoint"].startswith("http:"))
    if access.make == "AzureIdentity":
        provider = TokenOfMachine(options.pop("client_id", ""))
        options["credential_provider"] = cast("Any", provider)
    store = AzureStore(client_options=client, retry_config=retry, **cast("Any", options))
    return ObjectBlobs(store, f"azure:{options['endpoint']}", make_access=lambda _: access)


def network_limits(allow_http: bool = False) -> tuple[ClientConfig, RetryConfig]:
    """No call without a time limit, no retry without an end. obstore itself repeats a request once:
    it does not know what a service that limits requests asks for (see `ObjectBlobs`)."""
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=5),
        "read_timeout": timedelta(seconds=60),
        "timeout": timedelta(hours=6),  # one large file as a whole
        "allow_http": allow_http,
    }
    retry: RetryConfig = {"max_retries": 1, "retry_timeout": timedelta(seconds=60)}
    return client, retry


@cache
def start_threads() -> None:
    """obstore starts its threads at the first request, and where that fails (too many open files)
    it never works again in that process. So they start with the store, before descriptors can run
    out."""
    import obstore
    from obstore.store import MemoryStore

    try:
        next(iter(cast("Any", obstore.list(MemoryStore()))), None)
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise StoreUnavailable(store="its files", reason=_first_line(error)) from None


def _is_panic(error: BaseException) -> bool:
    """What went wrong inside obstore; not an Exception, so it would end a runner."""
    return type(error).__module__ == "pyo3_runtime"


def _explain(error: Exception, key: str, store: str) -> EdgeloopError:
    """Our own errors out of obstore's, whose texts carry pages of debug output."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = str(error)
    if isinstance(error, FileNotFoundError) or "ContainerNotFound" in text:
        return BlobMissing(key=key, store=store)
    reason = _first_line(error).rpartition(" - ")[2].partition(": <?xml")[0]
    refused = re.search(r"status code: 40[13]\b", text)  # what a listing says
    if refused or isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
        return StoreRefused(store=store, reason=reason)
    if reason_of_limit := _limit_reason(text):
        return StoreLimited(store=store, reason=reason_of_limit, seconds=PATIENCE_S)
    return StoreUnavailable(store=store, reason=reason)


def _limit_reason(text: str) -> str:
    """What a service that limits requests says: its status and its own word for it. Azure also
    limits by letting an operation time out."""
    status = re.search(r"status code: (429|500|503)\b", text)
    code = re.search(r"<Code>(\w{1,60})</Code>", text)
    is_limit = status and (status[1] != "500" or (code and code[1] == "OperationTimedOut"))
    return f"{status[1]} {code[1] if code else ''}".strip() if status and is_limit else ""


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).partition("\n")[0] or type(error).__name__
