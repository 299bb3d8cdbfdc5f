"""The requests that Azure Blob Storage and S3 have in common.

A large file goes and comes in parts, several at a time; no more than those parts are in memory.
"""

from __future__ import annotations

import http.client
import random
import re
import ssl
import threading
import time
import urllib.request
import xml.etree.ElementTree as ET
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from edgeloop._util.retry import asked_pause, delays, limit_of
from edgeloop._util.system import ordered_map

PART_BYTES = 8 << 20
AT_ONCE = 4  # parts of one file
_LISTING_BYTES = 64 << 20
_MOST_RESTARTS = 3


class RemoteError(Exception):
    """An answer that says no. `code` is the service's own word, such as `BlobNotFound`."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code

    @classmethod
    def of(cls, answer: Answer) -> RemoteError:
        code = answer.headers.get("x-ms-error-code", "") or _element(answer.body, "Code")
        said = _element(answer.body, "Message").partition("\n")[0].rstrip(".")
        return cls(answer.status, code, said or code or f"the service answered {answer.status}")


class ListedFile(NamedTuple):
    key: str
    size: int
    modified: str  # as the service writes it
    version: str = ""  # another one where the content is another


class Remote(ABC):
    """One container or bucket, or a folder in it."""

    most_parts = 10_000

    def __init__(self, address: str, prefix: str, allow_http: bool) -> None:
        self.address = address.rstrip("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._transport = Transport(allow_http)

    @abstractmethod
    def sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[str, Mapping[str, str]]:
        """The request's address and headers, with what proves that we may send it."""

    @abstractmethod
    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        """A file in parts, seen when the last one has arrived."""

    @abstractmethod
    def _page(self, prefix: str, after: str) -> tuple[Sequence[ListedFile], str]:
        """Files whose whole key begins with `prefix`, and where the next page begins."""

    def put(self, key: str, content: bytes, is_new: bool = False) -> None:
        headers = {**self.upload_headers(), **({"If-None-Match": "*"} if is_new else {})}
        self.call("PUT", key, headers=headers, body=content)

    def upload_headers(self) -> Mapping[str, str]:
        return {}

    def put_file(self, key: str, path: Path, size: int) -> None:
        length = max(PART_BYTES, -(-size // self.most_parts))
        with path.open("rb") as file:
            if size <= PART_BYTES:
                self.put(key, file.read())
            else:
                self.put_parts(key, iter(lambda: file.read(length), b""))

    def read(self, key: str) -> bytes:
        return self.call("GET", key).body

    def size(self, key: str) -> int:
        return int(self.call("HEAD", key).headers["content-length"])

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """No bytes if the file ends before."""
        return self._range(key, start, length, {})[0]

    def get(self, key: str, target: Path) -> None:
        """Into a file. One that is replaced meanwhile is read again from its beginning."""
        for _ in range(_MOST_RESTARTS):
            try:
                self._get(key, target)
            except RemoteError as error:
                if error.status != 412:
                    raise
            else:
                return
        raise RemoteError(412, "", f"{key} keeps changing while it is read")

    def _get(self, key: str, target: Path) -> None:
        first, size, tag = self._range(key, 0, PART_BYTES, {})
        same = {"If-Match": tag} if tag else {}

        def part(start: int) -> bytes:
            return self._range(key, start, PART_BYTES, same)[0]

        with target.open("wb") as file:
            file.write(first)
            starts = range(len(first), size, PART_BYTES)
            for content in ordered_map(part, starts, AT_ONCE, AT_ONCE) if starts else ():
                file.write(content)
            if file.tell() != size:
                raise RemoteError(502, "", f"{key} came in part: {file.tell():,} of {size:,} bytes")

    def _range(
        self, key: str, start: int, length: int, headers: Mapping[str, str]
    ) -> tuple[bytes, int, str]:
        """Bytes, the size of the whole file, and its tag."""
        wanted = f"bytes={start}-{start + length - 1}"
        try:
            answer = self.call("GET", key, headers={**headers, "Range": wanted})
        except RemoteError as error:
            if error.status == 416:  # at or after the end; of an empty file that is everywhere
                return b"", 0, ""
            raise
        total = re.search(r"/(\d+)$", answer.headers.get("content-range", ""))
        if total is None:  # the whole file
            return answer.body[start : start + length], len(answer.body), ""
        return answer.body, int(total[1]), answer.headers.get("etag", "")

    def list(self, prefix: str) -> Iterator[ListedFile]:
        after = ""
        while True:
            page, after = self._page(self._prefix + prefix, after)
            for file in page:
                yield file._replace(key=file.key[len(self._prefix) :])
            if not after:
                return

    def delete(self, key: str) -> None:
        self.call("DELETE", key)

    def call(
        self,
        method: str,
        key: str | None,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """One request, with retries. Raises RemoteError or Unreachable. No key: the container."""
        path = "" if key is None else f"/{quote(self._prefix + key, safe='/~')}"
        url = f"{self.address}{path}" + (f"?{query}" if query else "")
        given = dict(headers or {})
        if body or method in ("PUT", "POST"):
            given["Content-Length"] = str(len(body))

        def send() -> Answer:
            signed, complete = self.sign(method, url, given, body)
            return self._transport.send(method, signed, complete, body)

        answer = persistently(send, self.address)
        if answer.status >= 300:
            raise RemoteError.of(answer)
        return answer

    def listing(self, query: str) -> ET.Element:
        """A page of a listing. Expat itself bounds what entities may expand to."""
        answer = self.call("GET", None, query)
        if len(answer.body) > _LISTING_BYTES:
            raise RemoteError(502, "", "a page of the listing is too large")
        try:
            return without_namespaces(ET.fromstring(answer.body))  # noqa: S314
        except ET.ParseError:
            raise RemoteError(502, "", "the listing cannot be read") from None


def without_namespaces(root: ET.Element) -> ET.Element:
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _element(body: bytes, name: str) -> str:
    found = re.search(rf"<{name}>([^<]{{1,2000}})</{name}>".encode(), body[:10_000])
    return found[1].decode(errors="replace").strip() if found else ""


# HTTP with the standard library: kept connections, proxies, time limits, and retries that end.


CONNECT_LIMIT_S = 5.0
READ_LIMIT_S = 60.0
MOST_RETRIES = 4
RETRY_LIMIT_S = 60.0
_RETRIED = frozenset({408, 500, 502, 504})
_PORTS = {"http": 80, "https": 443}


class Answer(NamedTuple):
    """A whole answer; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unreachable(Exception):
    """No answer: worth another try."""


class Transport:
    """For any number of threads. Plain HTTP only where it is allowed; `is_direct`: no proxy."""

    def __init__(self, allow_http: bool = False, is_direct: bool = False) -> None:
        self._allow_http = allow_http
        self._is_direct = is_direct
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """One request, once. Raises Unreachable."""
        parts = urlsplit(url)
        if parts.scheme == "http" and not self._allow_http:
            raise Unreachable(f"plain HTTP to {parts.hostname} is not allowed")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        proxy = None if self._is_direct else _proxy(parts)
        if proxy is not None and parts.scheme == "http":
            target = f"http://{parts.netloc}{target}"
            headers = {**headers, **_login(proxy)}
        while True:
            connection, was_used = self._connection(parts, proxy)
            try:
                connection.request(method, target, body or None, dict(headers))
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if was_used and isinstance(error, (ConnectionError, http.client.HTTPException)):
                    continue  # the server had closed a connection that was kept
                raise Unreachable(_reason(error)) from None
            if answer.will_close:
                connection.close()
            else:
                with self._lock:
                    self._idle.setdefault(parts.netloc, []).append(connection)
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, content)

    def _connection(
        self, parts: SplitResult, proxy: SplitResult | None
    ) -> tuple[http.client.HTTPConnection, bool]:
        """One that is connected, and whether it was used before."""
        with self._lock:
            idle = self._idle.get(parts.netloc)
            if idle:
                return idle.pop(), True
        host, port = _place(proxy or parts)
        connection = http.client.HTTPConnection(host, port, timeout=CONNECT_LIMIT_S)
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, port, timeout=CONNECT_LIMIT_S, context=self._context()
            )
            if proxy is not None:
                connection.set_tunnel(*_place(parts), headers=_login(proxy))
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(f"{host}:{port}: {_reason(error)}") from None
        connection.sock.settimeout(READ_LIMIT_S)
        return connection, False

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context(cafile=_certificates())
            return self._tls


def persistently(send: Callable[[], Answer], service: str) -> Answer:
    """Repeat a request that got no answer, or one that says "later", with growing delays. What a
    service asks us to wait, all threads of this process wait; `service` is its address."""
    return limit_of(urlsplit(service).netloc).keep(
        lambda: _repeated(send), lambda answer: asked_pause(answer.status, answer.headers)
    )


def _repeated(send: Callable[[], Answer]) -> Answer:
    deadline = time.monotonic() + RETRY_LIMIT_S
    for number, delay in enumerate(delays(0.1, 15.0)):
        is_last = number >= MOST_RETRIES or time.monotonic() + delay > deadline
        try:
            answer = send()
            if answer.status not in _RETRIED or is_last:
                return answer
        except Unreachable:
            if is_last:
                raise
        time.sleep(delay * random.uniform(0.5, 1.0))
    raise AssertionError("delays never end")


def _place(parts: SplitResult) -> tuple[str, int]:
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)


def _proxy(parts: SplitResult) -> SplitResult | None:
    """What HTTPS_PROXY, HTTP_PROXY and NO_PROXY say about this address."""
    found = urllib.request.getproxies().get(parts.scheme)
    if not found or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")


def _login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}


def _certificates() -> str | None:
    """A file of certificates for a small image that has none of its own; else the system's."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile is not None or paths.capath is not None:
        return None
    for name in ("certifi", "pip._vendor.certifi"):
        try:
            return str(__import__(name, fromlist=["where"]).where())
        except (ImportError, AttributeError):
            continue
    return None


def _reason(error: Exception) -> str:
    """One line, without an address that may hold a signature."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted here ({error.verify_message})"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).partition("\n")[0]
