"""Authentication: who may read, who may change, and what a browser may do with a page.

- Host: on loopback, only names of this machine are answered. Otherwise a foreign page could resolve
  its own name to 127.0.0.1 and read the portal through the browser of its visitor.
- Token: `Authorization: Bearer`, or once by the form or `?token=`; then a cookie.
- Changes: only from our own pages (Sec-Fetch-Site or Origin), with the change token of the session.
  A program that sends the token itself needs neither: no browser does that for a foreign page.
- Content security policy: our own scripts and styles, nothing inline, no frames, no other origins.

No list of sessions is kept. The cookie is a random session id and a keyed digest of it, never the
token itself. The change token is another digest of the same session, which a page of another site
can neither read nor guess.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode, urlsplit

from fastapi.requests import Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from edgeloop.view.portal.state import Portal


# Requests as they come from anybody: what is refused by its head, and bodies with bounds.
#
# A body is read before anything else happens with it, but only `MOST_BODY` bytes of it and only for
# `BODY_S`; the largest that any route takes is a change with some names of stages. This holds for
# all methods and paths, and for bodies that do not announce their length. Only a model file that is
# uploaded may be larger: who sends it is checked by the head, and its route writes it to a file.


MOST_BODY = 64 << 10
MOST_UPLOAD = 512_000_000
UPLOADS = "/api/v1/uploads"
MOST_HEAD = 32 << 10
MOST_HEADERS = 100
MOST_PATH = 8 << 10
BODY_S = 20.0
DISCARD_S = 2.0
FORM = "application/x-www-form-urlencoded"
BINARY = "application/octet-stream"
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
    if len(length) > 18 or int(length) > (MOST_UPLOAD if is_upload(request) else MOST_BODY):
        raise _too_long(request)
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
                    raise _too_long(request)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Refusal(408, "The body did not arrive in time.", closes=True) from None
    if kind_of(request) == JSON:
        check_json(body)
    return body


async def _discard(receive: Receive) -> None:
    """The rest of a body, for a moment: a browser that still sends does not read the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while (await receive()).get("more_body", False):
                pass


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
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key is there twice")
    return members


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not a number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def is_upload(request: Request) -> bool:
    return request.method == "POST" and _path(request) == UPLOADS


def _too_long(request: Request) -> Refusal:
    if is_upload(request):
        limit = f"The portal takes files of up to {MOST_UPLOAD // 1_000_000} MB"
        return Refusal(413, f"{limit}: use edgeloop upload for this one.", closes=True)
    return Refusal(413, f"The body is too long: at most {MOST_BODY >> 10} kB are accepted.")


LASTS_S = 30 * 86_400


class Sessions:
    """With a token, a session proves knowledge of it and survives a restart. Without one (on
    loopback), it only distinguishes our pages from others and ends with the process."""

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"edgeloop portal\0" + (self._token or secrets.token_bytes(32)))
        self._clock = clock

    @property
    def needs_token(self) -> bool:
        return bool(self._token)

    def knows(self, token: str) -> bool:
        """Compares digests in constant time: reveals neither content nor length."""
        sent = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return self.needs_token and hmac.compare_digest(sent, hashlib.sha256(self._token).digest())

    def begin(self) -> str:
        """A new session, as the value of the cookie."""
        session = f"{secrets.token_hex(16)}-{int(self._clock() + LASTS_S)}"
        return f"{session}.{self._digest('session', session)}"

    def is_valid(self, cookie: str) -> bool:
        session, _, digest = cookie.partition(".")
        if not hmac.compare_digest(digest.encode(), self._digest("session", session).encode()):
            return False
        until = session.rpartition("-")[2]
        return until.isdecimal() and int(until) > self._clock()

    def change_token(self, cookie: str) -> str:
        """What a page of this session sends with a change."""
        return self._digest("change", cookie.partition(".")[0])

    def allows_change(self, cookie: str, sent_token: str) -> bool:
        return self.is_valid(cookie) and hmac.compare_digest(
            sent_token.encode("utf-8", "surrogateescape"), self.change_token(cookie).encode()
        )

    def _digest(self, purpose: str, session: str) -> str:
        text = f"{purpose}:{session}".encode("utf-8", "surrogateescape")
        return hmac.new(self._key.digest(), text, "sha256").hexdigest()


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
CHANGE_HEADER = "x-edgeloop-token"
OPEN_PATHS = ("/login", "/api/v1/health")
READING = ("GET", "HEAD")

Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """Middleware in front of everything, pages and API alike."""

    def __init__(self, app: App, portal: Portal) -> None:
        self._app = app
        self._portal = portal

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        cookie = cookie_of(request)
        sessions = self._portal.sessions
        is_known = bool(cookie) and sessions.is_valid(cookie)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        bearer = bearer.strip() if scheme.lower() == "bearer" else ""
        shows_token = sessions.needs_token and sessions.knows(bearer)
        new = "" if is_known or shows_token or sessions.needs_token else sessions.begin()
        scope.setdefault("state", {})
        scope["state"]["session"] = cookie if is_known else new
        scope["state"]["shows_token"] = shows_token
        scope["state"]["is_secure"] = self._is_secure(request)
        sending = _with_headers(send, set_cookie(request, new) if new else "")
        try:
            check_head(request)
            answer = self._refusal(request, is_known or shows_token)
            if answer is None and is_upload(request):
                _check_upload(request)
            elif answer is None and has_body(request):
                body = await read_body(request, receive)
                if body is None:
                    return
                receive = replayed(body, receive)
        except Refusal as refusal:
            answer = _no(refusal.status, refusal.sentence)
            if refusal.closes:
                answer.headers["connection"] = "close"
            if is_upload(request):
                await _discard(receive)
        if answer is None:
            await self._app(scope, receive, sending)
        else:
            await answer(scope, receive, sending)

    def _is_secure(self, request: Request) -> bool:
        """Whether the visitor's connection is encrypted, by us or by a proxy."""
        is_ours = str(request.scope.get("scheme", "")) == "https"
        return is_ours or self._portal.options.public_url.startswith("https:")

    def _refusal(self, request: Request, is_known: bool) -> Response | None:
        sessions = self._portal.sessions
        options = self._portal.options
        if not _is_for_us(request, options.host, options.public_url):
            return _no(421, "This portal only answers to names of its own machine.")
        if not sessions.needs_token or _path(request).startswith("/static/"):
            return None
        link_token = request.query_params.get("token")
        if link_token is not None and request.method in READING:
            return self._by_link(request, link_token, is_known)
        if is_known or _path(request) in OPEN_PATHS:
            return None
        is_page = not _path(request).startswith("/api/") and _path(request) != "/metrics"
        if is_page and request.method in READING:
            if _is_from_elsewhere(request):
                return _again(_local(_path(request)), _query(request))
            back = _path(request) + (f"?{asked}" if (asked := _query(request)) else "")
            return RedirectResponse(f"/login?next={quote(back, safe='')}", 303)
        answer = _no(401, "Send the portal's token: Authorization: Bearer TOKEN.")
        answer.headers["www-authenticate"] = "Bearer"
        return answer

    def _by_link(self, request: Request, link_token: str, is_known: bool) -> Response:
        """The token is in the address only once: redirects to the address without it."""
        rest = [(k, v) for k, v in parse_qsl(_query(request), True) if k != "token"]
        path, query = _local(_path(request)), urlencode(rest)
        is_right = self._portal.sessions.knows(link_token)
        answer: Response = RedirectResponse(f"{path}?{query}" if query else path, 303)
        if is_right and _is_from_elsewhere(request):
            answer = _again(path, query)
        if is_right:
            answer.headers["set-cookie"] = set_cookie(request, self._portal.sessions.begin())
        elif not is_known:
            answer.headers["location"] = "/login?wrong=1"
        return answer


def _check_upload(request: Request) -> None:
    """Before a byte of the file is read. Raises Refusal."""
    if sentence := refuse_strangers(request):
        raise Refusal(403, sentence, closes=True)
    if kind_of(request) != BINARY:
        raise Refusal(415, f"Send the file as it is: Content-Type: {BINARY}.", closes=True)
    if "content-length" not in request.headers:
        raise Refusal(411, "Send the length of the file: Content-Length.", closes=True)


def change_token(request: Request) -> str:
    """What a page must send with a change, in the header X-Edgeloop-Token."""
    portal: Portal = request.app.state.portal
    return portal.sessions.change_token(request.state.session)


def refuse_strangers(request: Request) -> str:
    """Why this change is refused; empty if it is allowed."""
    portal: Portal = request.app.state.portal
    if not portal.options.allow_changes:
        return "This portal is read-only: start it with --allow-changes to change something here."
    if request.state.shows_token:
        return ""
    if not _is_same_origin(request, portal.options.public_url):
        return "A change must come from a page of this portal."
    if not portal.sessions.allows_change(
        request.state.session, request.headers.get(CHANGE_HEADER, "")
    ):
        return "The page is too old: reload it and try again."
    return ""


def cookie_name(request: Request) -> str:
    """Cookies are not per port, and a machine may have several portals."""
    server = request.scope.get("server") or ("", 0)
    return f"edgeloop_portal_{server[1]}"


def cookie_of(request: Request) -> str:
    return request.cookies.get(cookie_name(request), "")


def set_cookie(request: Request, session: str) -> str:
    secure = "; Secure" if request.scope["state"].get("is_secure") else ""
    return (
        f"{cookie_name(request)}={session}; HttpOnly; SameSite=Strict; Path=/; "
        f"Max-Age={LASTS_S}{secure}"
    )


def local_path(text: str) -> str:
    """Where a form redirects to: always a path of ours."""
    parts = urlsplit(text) if text.isprintable() and "\\" not in text else urlsplit("/")
    if parts.scheme or parts.netloc or not parts.path.startswith("/"):
        return "/"
    return _local(parts.path) + (f"?{parts.query}" if parts.query else "")


def _is_for_us(request: Request, bound_to: str, public_url: str) -> bool:
    """Beyond loopback the token protects: a foreign name has no cookie of ours."""
    if not is_loopback(bound_to):
        return True
    try:
        named = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return False
    if named is None:
        return False
    return is_loopback(named) or named == urlsplit(public_url).hostname


def _is_from_elsewhere(request: Request) -> bool:
    """A page of another site, or a file, has led a browser here, which then sends no strict cookie:
    neither now nor after a redirect."""
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


def _again(path: str, query: str) -> Response:
    """Leads to the same place from a page of ours, so that the browser sends the cookie."""
    there = escape(f"{path}?{query}" if query else path, quote=True)
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Edgeloop</title>'
        f'<meta http-equiv="refresh" content="0; url={there}">'
        f'<a href="{there}">Open the portal</a></html>'
    )


def _is_same_origin(request: Request, public_url: str) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = request.headers.get("origin")
    if origin is None:  # a program with a session of its own
        return True
    try:
        ours = (request.headers.get("host", ""), urlsplit(public_url).netloc)
        return bool(urlsplit(origin).netloc) and urlsplit(origin).netloc in ours
    except ValueError:
        return False


def _path(request: Request) -> str:
    """The path that is routed. `request.url` also depends on the Host header, which not every
    version of Starlette validates: `Host: x/static/` must not open anything."""
    return str(request.scope["path"])


def _query(request: Request) -> str:
    return bytes(request.scope.get("query_string", b"")).decode("latin-1")


def _local(path: str) -> str:
    """`//host/x` would be another site."""
    return quote("/" + path.lstrip("/"), safe="/%:@!$&'()*+,;=~-._")


def _no(status: int, sentence: str) -> Response:
    return JSONResponse({"detail": sentence}, status)


def _with_headers(send: Send, cookie: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers += [pair for pair in HEADERS if pair[0] not in names]
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"no-store"))
            if cookie:
                headers.append((b"set-cookie", cookie.encode()))
            message["headers"] = headers
        await send(message)

    return sending
