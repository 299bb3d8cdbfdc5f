"""Requests as they come from anybody: what is refused by its head, and bodies with bounds.

A body is read before anything else happens with it, but only `MOST_BODY` bytes of it and only for
`BODY_S`; the largest that any route takes is a change with some names of stages. This holds for all
methods and paths, and for bodies that do not announce their length.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi.requests import Request

MOST_BODY = 64 << 10
MOST_HEAD = 32 << 10
MOST_HEADERS = 100
MOST_PATH = 8 << 10
BODY_S = 20.0
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"

_VERSIONS = ("1.0", "1.1", "2", "2.0", "3")  # the later ones by other servers
_ONCE = ("authorization", "content-type", "origin", "sec-fetch-site", "x-edgeloop-token")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class Refusal(Exception):
    """An answer to a request that is not looked at further."""

    def __init__(self, status: int, sentence: str, closes: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.closes = closes


def check_head(request: Request) -> None:
    """Raises Refusal for what no browser and no honest program sends."""
    raw: list[tuple[bytes, bytes]] = request.scope["headers"]
    if len(raw) > MOST_HEADERS or sum(len(name) + len(value) for name, value in raw) > MOST_HEAD:
        raise Refusal(431, "The headers of the request are too large.", closes=True)
    if str(request.scope.get("http_version", "1.1")) not in _VERSIONS:
        raise Refusal(400, "This portal speaks HTTP/1.1.", closes=True)
    counts = Counter(name.decode("latin-1").lower() for name, _ in raw)
    if twice := [name for name in _ONCE if counts[name] > 1]:
        raise Refusal(400, f"The header {twice[0]} is there twice.", closes=True)
    if counts["content-length"] and counts["transfer-encoding"]:
        # A proxy in front may have taken the other one: what follows would be its next request.
        raise Refusal(400, "A request has a length or is chunked, not both.", closes=True)
    _check_target(request)
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise Refusal(400, "Content-Length is not a number.", closes=True)
    if len(length) > 18 or int(length) > MOST_BODY:
        raise _too_long()
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "Send the body as it is: no Content-Encoding is accepted.")


def _check_target(request: Request) -> None:
    path, query = str(request.scope["path"]), bytes(request.scope.get("query_string", b""))
    if not path.startswith("/"):
        raise Refusal(400, "The path of the request must begin with '/'.")
    raw = bytes(request.scope.get("raw_path") or b"")
    if len(raw) > MOST_PATH or len(query) > MOST_PATH:
        raise Refusal(414, "The address is too long.")
    try:
        texts = [unquote_to_bytes(part).decode() for part in (raw, query)]
    except UnicodeDecodeError:
        raise Refusal(400, "The address is not valid UTF-8.") from None
    if any(map(_CONTROL.search, (path, *texts))):
        raise Refusal(400, "The address contains a control character.")


def has_body(request: Request) -> bool:
    announced = request.headers.get("content-length", "0").strip("0")
    return bool(announced) or "transfer-encoding" in request.headers


async def read_body(request: Request, receive: Receive, limit_s: float = BODY_S) -> bytes | None:
    """All of it; None if the client went away."""
    body = b""
    try:
        async with asyncio.timeout(limit_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                body += bytes(message.get("body", b""))
                if len(body) > MOST_BODY:
                    raise _too_long()
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Refusal(408, "The body did not arrive in time.", closes=True) from None
    if kind_of(request) == JSON:
        check_json(body)
    return body


def replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then what the server says: that the client has gone."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return messages.pop() if messages else await receive()

    return receiving


def kind_of(request: Request) -> str:
    """The content type without parameters; a charset must be UTF-8."""
    kind, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    charset = re.fullmatch(r"""\s*charset\s*=\s*["']?([^"']*)["']?\s*""", parameters)
    if charset and charset[1] not in ("utf-8", "utf8"):
        raise Refusal(415, "Send texts as UTF-8.")
    return kind.strip()


def check_json(body: bytes) -> None:
    """Python reads more than JSON, and takes the last of two equal keys."""
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_object, parse_constant=_constant, parse_float=_float
        )
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except (ValueError, RecursionError) as error:
        reason = str(error) if type(error) is ValueError else "it cannot be read"
        raise Refusal(400, f"The body is not valid JSON: {reason[:200]}.") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not a number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _too_long() -> Refusal:
    return Refusal(413, f"The body is too long: at most {MOST_BODY >> 10} kB are accepted.")
