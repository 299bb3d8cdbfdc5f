"""HTTP with the standard library: kept connections, proxies, time limits, and retries that end."""

from __future__ import annotations

import http.client
import random
import ssl
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from edgeloop._util.retry import asked_pause, delays, limit_of

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
