"""A bucket of S3, or of a service that speaks its language: Google Cloud Storage does, too."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from edgeloop._util.parallel import ordered_map
from edgeloop.store.node.remote import AT_ONCE, ListedFile, Remote, RemoteError
from edgeloop.store.node.transport import Unreachable

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


class GoogleRemote(S3Remote):
    """The same requests with another proof, and another way to say "if it is not there"."""

    if_absent: Mapping[str, str] = {"x-goog-if-generation-match": "0"}

    def __init__(
        self, endpoint: str, prefix: str, token: Callable[[], str], allow_http: bool = False
    ) -> None:
        super().__init__(endpoint, prefix, "", lambda: None, allow_http)
        self._token = token

    def sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[str, Mapping[str, str]]:
        token = self._token()
        return url, {**headers, "Authorization": f"Bearer {token}"} if token else headers


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _between(body: bytes, name: str) -> str:
    start, end = f"<{name}>".encode(), f"</{name}>".encode()
    return body.partition(start)[2].partition(end)[0].decode()
