"""A client for Azure Blob Storage and S3 that needs only the standard library.

Credentials come from the same environment variables that obstore reads on the machine that submits.
Tokens and keys that expire are renewed in time. A large file is transferred in parts, several at a
time, and only those parts are in memory.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import re
import ssl
import threading
import time
import urllib.request
import xml.etree.ElementTree as ET
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from edgeloop._util.retry import asked_pause, limit_of, retry
from edgeloop._util.system import ordered_map
from edgeloop.node.identity import plain_http_allowed, token_endpoint

# The requests that Azure Blob Storage and S3 have in common.
#
# A large file goes and comes in parts, several at a time; no more than those parts are in memory.


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
        byte_range = f"bytes={start}-{start + length - 1}"
        try:
            answer = self.call("GET", key, headers={**headers, "Range": byte_range})
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
        request_headers = dict(headers or {})
        if body or method in ("PUT", "POST"):
            request_headers["Content-Length"] = str(len(body))

        def send() -> Answer:
            signed, complete = self.sign(method, url, request_headers, body)
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
    element = re.search(rf"<{name}>([^<]{{1,2000}})</{name}>".encode(), body[:10_000])
    return element[1].decode(errors="replace").strip() if element else ""


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
            answer_headers = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, answer_headers, content)

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
    def once() -> Answer:
        answer = send()
        if answer.status in _RETRIED:
            raise _TryAgain(answer)
        return answer

    tries = MOST_RETRIES + 1
    try:
        return retry(once, (Unreachable, _TryAgain), RETRY_LIMIT_S, first_s=0.1, most_tries=tries)
    except _TryAgain as last:
        return last.answer


class _TryAgain(Exception):
    """An answer that may be another one a moment later."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


def _place(parts: SplitResult) -> tuple[str, int]:
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)


def _proxy(parts: SplitResult) -> SplitResult | None:
    """What HTTPS_PROXY, HTTP_PROXY and NO_PROXY say about this address."""
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


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


Secret = TypeVar("Secret")

_KEPT_S = 5 * 60.0  # services renew what they give at least that long before it expires
_STORAGE = "https://storage.azure.com"
_AWS_METADATA = "http://169.254.169.254"
_AWS_CONTAINERS = "http://169.254.170.2"
_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class Renewed(Generic[Secret]):
    """A secret that is asked for again when it has been kept for a while."""

    def __init__(self, ask: Callable[[], Secret]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._known: list[Secret] = []
        self._until = 0.0

    def __call__(self) -> Secret:
        with self._lock:
            if not self._known or time.monotonic() >= self._until:
                self._known = [self._ask()]
                self._until = time.monotonic() + _KEPT_S
            return self._known[0]


def open_remote(make: str, options: Mapping[str, str]) -> Remote:
    """The store that an `Access` describes. Raises ValueError if it cannot be opened here."""
    if make == "from_url":
        return remote_at(options["url"])
    if make not in ("AzureStore", "AzureIdentity"):
        raise ValueError(f"this wrapper does not know how to open the store: {make}")
    token = None
    if make == "AzureIdentity":
        client_id = options.get("client_id", "")
        token = Renewed(lambda: managed_identity_token(client_id))
    place = (options["endpoint"], options["container_name"])
    return AzureRemote(*place, sas=options.get("sas_key", ""), token=token)


def remote_at(url: str, environ: Mapping[str, str] = os.environ) -> Remote:
    """`s3://`, `az://`, `abfs(s)://`, or the https address of an account or a bucket."""
    parts = urlsplit(url)
    host, path = parts.hostname or "", parts.path.strip("/")
    if parts.scheme == "s3":
        return _s3(environ, parts.netloc, path)
    if parts.scheme == "az":
        return _azure(environ, parts.netloc, path)
    account = re.match(r"([a-z0-9-]+)\.(?:blob|dfs)\.", host)
    if parts.scheme in ("abfs", "abfss") and not parts.username:
        return _azure(environ, parts.netloc, path)
    if parts.scheme in ("abfs", "abfss") and account:
        return _azure(environ, parts.username or "", path, account[1], host)
    if parts.scheme == "https" and account:
        container, _, rest = path.partition("/")
        return _azure(environ, container, rest, account[1], host)
    bucket = re.match(r"(?:(.+)\.)?s3[.-]([a-z0-9-]+)\.amazonaws\.com$", host)
    if parts.scheme == "https" and bucket:
        name, _, rest = path.partition("/") if not bucket[1] else (bucket[1], "", path)
        return _s3({**environ, "AWS_REGION": bucket[2]}, name, rest)
    raise ValueError(f"a job cannot open {parts.scheme}://{host}: use s3:// or az://")


# Azure


def _azure(
    environ: Mapping[str, str], container: str, prefix: str, account: str = "", host: str = ""
) -> AzureRemote:
    account = account or _first(environ, "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
    endpoint = _first(environ, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    if not endpoint and not account:
        raise ValueError("AZURE_STORAGE_ACCOUNT_NAME is not set on this node")
    name = host.replace(".dfs.", ".blob.", 1) or f"{account}.blob.core.windows.net"
    endpoint = endpoint or f"https://{name}"
    key = _first(
        environ,
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_MASTER_KEY",
        "AZURE_ACCOUNT_KEY",
        "AZURE_ACCESS_KEY",
    )
    sas = _first(
        environ,
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_SAS_KEY",
        "AZURE_SAS_TOKEN",
    )
    token = None if key or sas else Renewed(lambda: _azure_token(environ))
    return AzureRemote(
        endpoint=endpoint,
        container=container,
        prefix=prefix,
        sas=sas,
        account=account,
        key=key,
        token=token,
    )


def _azure_token(environ: Mapping[str, str]) -> str:
    """A token given as it is, else of an application, of a Kubernetes pod, or of the machine."""
    token = _first(environ, "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_BEARER_TOKEN", "AZURE_TOKEN")
    if token:
        return token
    tenant = _first(environ, "AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID")
    client = _first(environ, "AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID")
    secret = _first(environ, "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET")
    file = _first(environ, "AZURE_FEDERATED_TOKEN_FILE", "AZURE_STORAGE_FEDERATED_TOKEN_FILE")
    if not (tenant and client and (secret or file)):
        return managed_identity_token(client, environ)
    authority = environ.get("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com"
    form = {"grant_type": "client_credentials", "client_id": client}
    form["scope"] = f"{_STORAGE}/.default"
    if secret:
        form["client_secret"] = secret
    else:
        form.update(client_assertion_type=_BEARER, client_assertion=_text_of(file))
    return _posted(f"{authority.rstrip('/')}/{quote(tenant)}/oauth2/v2.0/token", form)


def managed_identity_token(client_id: str = "", environ: Mapping[str, str] = os.environ) -> str:
    place = token_endpoint(client_id, environ)
    answer = _asked("GET", f"{place.address}?{urlencode(place.query)}", place.headers)
    return str(_json(answer)["access_token"])


# S3


def _s3(environ: Mapping[str, str], bucket: str, prefix: str) -> S3Remote:
    region = _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = _first(environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    is_virtual = _is_true(environ, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    if not endpoint:
        host = f"s3.{region}.amazonaws.com"
        address = f"https://{bucket}.{host}" if is_virtual else f"https://{host}/{bucket}"
    else:
        address = endpoint if is_virtual else f"{endpoint.rstrip('/')}/{bucket}"
    if _is_true(environ, "AWS_SKIP_SIGNATURE"):
        return S3Remote(address, prefix, region, lambda: None, plain_http_allowed(environ))
    keys: Callable[[], Keys | None] = Renewed(lambda: _aws_keys(environ, region))
    return S3Remote(address, prefix, region, keys, plain_http_allowed(environ))


def _aws_keys(environ: Mapping[str, str], region: str) -> Keys:
    """Given as they are, else of a pod's role, of a container's task, or of the machine."""
    static_keys = _first(environ, "AWS_ACCESS_KEY_ID"), _first(environ, "AWS_SECRET_ACCESS_KEY")
    if all(static_keys):
        return Keys(*static_keys, _first(environ, "AWS_SESSION_TOKEN", "AWS_TOKEN"))
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environ.get("AWS_ROLE_ARN"):
        return _role_keys(environ, region)
    relative = environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    address = environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if relative or address:
        place = address or f"{_AWS_CONTAINERS}{relative}"
        return _keys(_json(_asked("GET", place, _task(environ))))
    metadata = environ.get("AWS_METADATA_ENDPOINT") or _AWS_METADATA
    limit = {"X-aws-ec2-metadata-token-ttl-seconds": "600"}
    session = _asked("PUT", f"{metadata}/latest/api/token", limit).body.decode()
    proof = {"X-aws-ec2-metadata-token": session}
    roles = f"{metadata}/latest/meta-data/iam/security-credentials/"
    role = _asked("GET", roles, proof).body.decode().strip()
    return _keys(_json(_asked("GET", roles + quote(role), proof)))


def _task(environ: Mapping[str, str]) -> dict[str, str]:
    token = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    file = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "")
    token = token or (_text_of(file) if file else "")
    return {"Authorization": token} if token else {}


def _role_keys(environ: Mapping[str, str], region: str) -> Keys:
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": environ["AWS_ROLE_ARN"],
        "RoleSessionName": environ.get("AWS_ROLE_SESSION_NAME") or "edgeloop",
        "WebIdentityToken": _text_of(environ["AWS_WEB_IDENTITY_TOKEN_FILE"]),
    }
    place = environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
    answer = _asked("POST", place, {"Accept": "application/json", **_FORM}, _form(form))
    response = _json(answer)["AssumeRoleWithWebIdentityResponse"]
    return _keys(response["AssumeRoleWithWebIdentityResult"]["Credentials"])


def _keys(credentials: Mapping[str, Any]) -> Keys:
    token = credentials.get("Token") or credentials.get("SessionToken") or ""
    return Keys(str(credentials["AccessKeyId"]), str(credentials["SecretAccessKey"]), str(token))


# Asking


_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def _form(fields: Mapping[str, str]) -> bytes:
    return urlencode(fields).encode()


def _posted(url: str, form: Mapping[str, str]) -> str:
    return str(_json(_asked("POST", url, _FORM, _form(form)))["access_token"])


def _asked(method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
    """A machine's own services speak plain HTTP, and no proxy leads to them."""
    transport = Transport(allow_http=True, is_direct=url.startswith("http:"))
    answer = persistently(lambda: transport.send(method, url, headers, body), url)
    if answer.status >= 300:
        reason = f"{urlsplit(url).hostname} gives this node no credentials ({answer.status})"
        raise RemoteError(401, "", reason)
    return answer


def _json(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        raise RemoteError(401, "", "this node's credentials cannot be read") from None


def _text_of(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123
            return opened.read().strip()
    except OSError as error:
        raise RemoteError(401, "", f"{file} cannot be read: {error.strerror}") from None


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _is_true(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() in ("1", "true")


# A container of Azure Blob Storage, by a signature, the account's key, or a token.


_VERSION = "2021-12-02"
_SIGNED = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)


class AzureRemote(Remote):
    most_parts = 50_000

    def __init__(
        self,
        endpoint: str,
        container: str,
        prefix: str = "",
        sas: str = "",
        account: str = "",
        key: str = "",
        token: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(f"{endpoint.rstrip('/')}/{container}", prefix, endpoint[:5] == "http:")
        self._sas = sas.lstrip("?")
        self._account = account
        self._key = base64.b64decode(key) if key else b""
        self._token = token

    def sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[str, Mapping[str, str]]:
        complete = {**headers, "x-ms-version": _VERSION, "x-ms-date": formatdate(usegmt=True)}
        if self._token is not None:
            complete["Authorization"] = f"Bearer {self._token()}"
        elif self._key:
            complete["Authorization"] = self._shared_key(method, url, complete)
        elif self._sas:
            url = f"{url}{'&' if '?' in url else '?'}{self._sas}"
        return url, complete

    def _shared_key(self, method: str, url: str, headers: Mapping[str, str]) -> str:
        lower = {name.lower(): value for name, value in headers.items()}
        if lower.get("content-length") == "0":
            lower["content-length"] = ""
        lines = [method, *(lower.get(name, "") for name in _SIGNED)]
        lines += sorted(f"{name}:{value}" for name, value in lower.items() if name[:5] == "x-ms-")
        parts = urlsplit(url)
        lines.append(f"/{self._account}{parts.path}")
        query = sorted(parse_qsl(parts.query, keep_blank_values=True))
        lines += [f"{name.lower()}:{value}" for name, value in query]
        digest = hmac.new(self._key, "\n".join(lines).encode(), hashlib.sha256).digest()
        return f"SharedKey {self._account}:{base64.b64encode(digest).decode()}"

    def upload_headers(self) -> Mapping[str, str]:
        return {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream"}

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        upload = os.urandom(8).hex()  # two uploads of one key at once do not mix

        def put(numbered: tuple[int, bytes]) -> str:
            block = base64.b64encode(f"{upload}-{numbered[0]:06d}".encode()).decode()
            query = f"comp=block&blockid={quote(block, safe='')}"
            self.call("PUT", key, query, body=numbered[1])
            return block

        blocks = list(ordered_map(put, enumerate(parts), AT_ONCE, AT_ONCE))
        latest = "".join(f"<Latest>{block}</Latest>" for block in blocks)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{latest}</BlockList>'
        self.call("PUT", key, "comp=blocklist", body=body.encode())

    def _page(self, prefix: str, after: str) -> tuple[Sequence[ListedFile], str]:
        query = f"restype=container&comp=list&prefix={quote(prefix, safe='')}"
        root = self.listing(query + (f"&marker={quote(after, safe='')}" if after else ""))
        files = []
        for blob in root.iter("Blob"):
            name = blob.find("Name")
            key = (name.text or "") if name is not None else ""
            if name is not None and name.get("Encoded") == "true":
                key = unquote(key)
            size = int(blob.findtext("Properties/Content-Length") or 0)
            facts = ("Last-Modified", "Etag")
            modified, version = (blob.findtext(f"Properties/{fact}") or "" for fact in facts)
            files.append(ListedFile(key, size, modified, version))
        return files, root.findtext("NextMarker") or ""


# A bucket of S3, or of a service with the same interface.


_EMPTY = hashlib.sha256(b"").hexdigest()


class Keys(NamedTuple):
    """What a request is signed with; `token` belongs to keys that expire."""

    id: str
    secret: str
    token: str = ""


class S3Remote(Remote):
    most_parts = 10_000

    def __init__(
        self,
        endpoint: str,
        prefix: str,
        region: str,
        keys: Callable[[], Keys | None],
        allow_http: bool = False,
    ) -> None:
        super().__init__(endpoint, prefix, allow_http)
        self._region = region
        self._keys = keys

    def sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[str, Mapping[str, str]]:
        keys = self._keys()
        if keys is None:  # a public bucket
            return url, headers
        parts = urlsplit(url)
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest = hashlib.sha256(body).hexdigest() if body else _EMPTY
        signed = {"host": parts.netloc, "x-amz-content-sha256": digest, "x-amz-date": now}
        if keys.token:
            signed["x-amz-security-token"] = keys.token
        query = sorted(
            f"{quote(name, safe='~')}={quote(value, safe='~')}"
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
        )
        names = ";".join(signed)
        lines = [method, parts.path or "/", "&".join(query)]
        lines += [f"{name}:{value}" for name, value in signed.items()]
        canonical = "\n".join([*lines, "", names, digest])
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{_sha256(canonical)}"
        key = f"AWS4{keys.secret}".encode()
        for word in scope.split("/"):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={keys.id}/{scope},"
            f"SignedHeaders={names},Signature={signature}"
        )
        return url, {**headers, **signed, "Authorization": authorization}

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        started = self.call("POST", key, "uploads=").body
        upload = quote(_between(started, "UploadId"), safe="")

        def put(numbered: tuple[int, bytes]) -> str:
            number, content = numbered
            query = f"partNumber={number}&uploadId={upload}"
            tag = self.call("PUT", key, query, body=content).headers["etag"]
            return f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"

        try:
            sent = "".join(ordered_map(put, enumerate(parts, 1), AT_ONCE, AT_ONCE))
            body = f"<CompleteMultipartUpload>{sent}</CompleteMultipartUpload>"
            done = self.call("POST", key, f"uploadId={upload}", body=body.encode())
            if b"<Error>" in done.body:  # an error after the answer had begun
                raise RemoteError.of(done._replace(status=500))
        except BaseException:
            self._abort(key, upload)
            raise

    def _abort(self, key: str, upload: str) -> None:
        """Parts of an unfinished upload cost money."""
        with contextlib.suppress(RemoteError, Unreachable):
            self.call("DELETE", key, f"uploadId={upload}")

    def _page(self, prefix: str, after: str) -> tuple[Sequence[ListedFile], str]:
        query = f"encoding-type=url&list-type=2&prefix={quote(prefix, safe='')}"
        if after:
            query = f"continuation-token={quote(after, safe='')}&{query}"
        root = self.listing(query)
        is_quoted = root.findtext("EncodingType") == "url"
        files = []
        for item in root.iter("Contents"):
            name = item.findtext("Key") or ""
            size = int(item.findtext("Size") or 0)
            key = unquote(name.replace("+", " ")) if is_quoted else name
            modified, version = (item.findtext(fact) or "" for fact in ("LastModified", "ETag"))
            files.append(ListedFile(key, size, modified, version))
        return files, root.findtext("NextContinuationToken") or ""


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _between(body: bytes, name: str) -> str:
    start, end = f"<{name}>".encode(), f"</{name}>".encode()
    return body.partition(start)[2].partition(end)[0].decode()
