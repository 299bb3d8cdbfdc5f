"""A container of Azure Blob Storage, by a signature, the account's key, or a token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import formatdate
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from edgeloop._util.parallel import ordered_map
from edgeloop.store.node.remote import AT_ONCE, ListedFile, Remote

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
