"""Who this machine is to a store in the cloud, as its environment says: keys, tokens, identities.

The same variables that obstore reads on the machine that submits. Tokens and keys that expire are
asked for again before they do.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import formatdate
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from edgeloop._util.system import ordered_map
from edgeloop.node.identity import plain_http_allowed, token_endpoint
from edgeloop.node.remote import (
    AT_ONCE,
    Answer,
    ListedFile,
    Remote,
    RemoteError,
    Transport,
    Unreachable,
    persistently,
)

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
        *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
        *("AZURE_ACCOUNT_KEY", "AZURE_ACCESS_KEY"),
    )
    sas = _first(
        environ,
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_SAS_KEY",
        "AZURE_SAS_TOKEN",
    )
    token = None if key or sas else Renewed(lambda: _azure_token(environ))
    return AzureRemote(endpoint, container, prefix, sas, account, key, token)


def _azure_token(environ: Mapping[str, str]) -> str:
    """A token given as it is, else of an application, of a Kubernetes pod, or of the machine."""
    given = _first(environ, "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_BEARER_TOKEN", "AZURE_TOKEN")
    if given:
        return given
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
    given = _first(environ, "AWS_ACCESS_KEY_ID"), _first(environ, "AWS_SECRET_ACCESS_KEY")
    if all(given):
        return Keys(*given, _first(environ, "AWS_SESSION_TOKEN", "AWS_TOKEN"))
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


def _keys(found: Mapping[str, Any]) -> Keys:
    token = found.get("Token") or found.get("SessionToken") or ""
    return Keys(str(found["AccessKeyId"]), str(found["SecretAccessKey"]), str(token))


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
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type"),
    *("date", "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
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
