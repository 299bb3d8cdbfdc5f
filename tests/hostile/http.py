"""Requests that no browser and no honest program sends, and the answers they deserve.

A request is bytes on a socket, and its answer one of some statuses. `{token}`, `{cookie}` and
`{change}` are filled in; a value that is a list of bytes is sent in parts.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = b"Host: 127.0.0.1\r\n"
AUTH = b"Authorization: Bearer {token}\r\n"
JSON = b"Content-Type: application/json\r\n"
ODD = b"/api/v1/models/odd"
CHANGE = ODD + b"/priority"


@dataclass(frozen=True)
class HostileRequest:
    content: bytes
    statuses: tuple[int, ...]


def get(path: bytes, *headers: bytes, to: tuple[int, ...]) -> HostileRequest:
    head = b"GET " + path + b" HTTP/1.1\r\n" + HOST + AUTH + b"".join(h + b"\r\n" for h in headers)
    return HostileRequest(head + b"\r\n", to)


def post(
    body: bytes, *headers: bytes, to: tuple[int, ...], path: bytes = CHANGE, kind: bytes = JSON
) -> HostileRequest:
    length = f"Content-Length: {len(body)}\r\n".encode()
    more = b"".join(h + b"\r\n" for h in headers)
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + AUTH + kind + length + more
    return HostileRequest(head + b"\r\n" + body, to)


def raw(content: bytes, *statuses: int) -> HostileRequest:
    return HostileRequest(content, statuses)


def _heads() -> dict[str, HostileRequest]:
    good = b"GET / HTTP/1.1\r\n" + HOST + AUTH
    return {
        "noise": raw(b"\x00\x01\x02\xff" * 50 + b"\r\n\r\n", 400),
        "a TLS greeting": raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 200, 400),
        "HTTP/2 without asking": raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        "another protocol": raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 400),
        "no version": raw(b"GET /\r\n\r\n", 400),
        "a version of nobody": raw(b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", 400),
        "no host": raw(b"GET / HTTP/1.1\r\n\r\n", 400),
        "two hosts": raw(b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        "an empty host": raw(b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400, 421),
        "a foreign host": raw(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        "a host that looks like ours": raw(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", 421
        ),
        "a host with a path": raw(b"GET / HTTP/1.1\r\nHost: x/static/\r\n\r\n", 400, 421),
        "a host in the network": raw(b"GET / HTTP/1.1\r\nHost: 10.0.0.7\r\n\r\n", 421),
        "a bracket for a host": raw(b"GET / HTTP/1.1\r\nHost: [\r\n\r\n", 400, 421),
        "a host that is no address": raw(b"GET / HTTP/1.1\r\nHost: [::g\r\n\r\n", 400, 421),
        "a host with a user": raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1@evil\r\n\r\n", 400, 421),
        "HTTP/1.0 without a host": raw(b"GET / HTTP/1.0\r\n\r\n", 421),
        "a space in a name": raw(good + b"X Y: 1\r\n\r\n", 400),
        "a space before the colon": raw(good + b"X-Y : 1\r\n\r\n", 400),
        "a header without a colon": raw(good + b"nonsense\r\n\r\n", 400),
        "a zero byte in a value": raw(good + b"X-Y: a\x00b\r\n\r\n", 400),
        "a carriage return in a value": raw(good + b"X-Y: a\rSet-Cookie: b\r\n\r\n", 400),
        "a header of 40 kB": raw(good + b"X-Y: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        "a header of 400 kB": raw(good + b"X-Y: " + b"a" * 400_000 + b"\r\n\r\n", 400),
        "a thousand headers": raw(
            good + b"".join(b"X-%d: 1\r\n" % n for n in range(1_000)) + b"\r\n", 431
        ),
        "an address of 10 kB": get(b"/" + b"a" * 10_000, to=(414,)),
        "an address of 100 kB": get(b"/" + b"a" * 100_000, to=(400, 414)),
        "a query of 10 kB": get(b"/?text=" + b"a" * 10_000, to=(414,)),
        "two tokens": get(b"/api/v1/models", b"Authorization: Bearer x", to=(400,)),
        "a bare line feed": raw(good.replace(b"\r\n", b"\n") + b"\n", 200, 400),
    }


def _smuggled() -> dict[str, HostileRequest]:
    begin = b"POST " + CHANGE + b" HTTP/1.1\r\n" + HOST + AUTH + JSON
    hidden = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n"
    return {
        "a length and chunks": raw(
            begin + b"Content-Length: 4\r\n" + chunked + b"\r\n0\r\n\r\n" + hidden, 400
        ),
        "chunks and a length": raw(
            begin + chunked + b"Content-Length: 60\r\n\r\n0\r\n\r\n" + hidden, 400
        ),
        "two lengths": raw(
            begin + b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}" + hidden, 400
        ),
        "a list of lengths": raw(begin + b"Content-Length: 2, 40\r\n\r\n{}" + hidden, 400),
        "a negative length": raw(begin + b"Content-Length: -1\r\n\r\n{}", 400),
        "a length with a sign": raw(begin + b"Content-Length: +2\r\n\r\n{}", 400),
        "a hexadecimal length": raw(begin + b"Content-Length: 0x2\r\n\r\n{}", 400),
        "a length of many digits": raw(
            begin + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400, 413
        ),
        "an unknown coding": raw(begin + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        "a coding with a tab": raw(begin + b"Transfer-Encoding:\tx\r\n\r\n0\r\n\r\n", 400),
        "two codings": raw(begin + chunked + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400),
        "a chunk of no size": raw(begin + chunked + b"\r\nxyz\r\n{}\r\n0\r\n\r\n", 400),
        "a negative chunk": raw(begin + chunked + b"\r\n-2\r\n{}\r\n0\r\n\r\n", 400),
        "a chunk that is longer than it says": raw(
            begin + chunked + b"\r\n1\r\n{}{}\r\n0\r\n\r\n", 400
        ),
        "a chunk of all memory": raw(
            begin + chunked + b"\r\nfffffffffffffff0\r\n" + b"a" * 200_000, 413
        ),
        "chunks without end": raw(
            begin + chunked + b"\r\n" + (b"1000\r\n" + b"a" * 4_096 + b"\r\n") * 64, 413
        ),
    }


def _addresses() -> dict[str, HostileRequest]:
    files = b"/api/v1/models/odd/files/"
    found: dict[str, HostileRequest] = {
        "another machine": get(b"http://evil.example/", to=(400,)),
        "no slash": get(b"api/v1/models", to=(400,)),
        "two slashes": get(b"//evil.example/", to=(404,)),
        "a zero byte": get(b"/models/a%00b", to=(400,)),
        "a line break": get(b"/models/a%0d%0aSet-Cookie:%20x=1", to=(400,)),
        "half a character": get(b"/models/%c3", to=(400,)),
        "too long a character": get(b"/models/%c0%ae%c0%ae/x", to=(400,)),
        "half a character in a query": get(b"/api/v1/models?text=%ff", to=(400,)),
        "a surrogate": get(b"/models/%ed%a0%80", to=(400,)),
        "a name of 1,000 letters": get(b"/api/v1/models/" + b"a" * 1_000, to=(400, 404, 422)),
        "a model of another experiment": get(b"/api/v1/models?experiment=..%2f..", to=(400, 404)),
        "an experiment of 100 letters": get(b"/api/v1/models?experiment=" + b"a" * 100, to=(422,)),
        "a search outside": get(b"/api/v1/searches/..%2f..%2fetc", to=(400, 404)),
        "a job outside": get(b"/api/v1/jobs/..%2f..%2fetc/log", to=(400, 404)),
    }
    outside = {
        "the parent": b"../../../../etc/passwd",
        "the encoded parent": b"..%2f..%2f..%2f..%2fetc%2fpasswd",
        "the doubly encoded parent": b"%252e%252e%252f%252e%252e%252fetc%252fpasswd",
        "the root": b"/etc/passwd",
        "the encoded root": b"%2fetc%2fpasswd",
        "a path of Windows": b"..%5c..%5cwindows%5cwin.ini",
    }
    found |= {
        f"a file at {name}": get(files + path, to=(400, 404)) for name, path in outside.items()
    }
    found |= {
        f"a static file at {n}": get(b"/static/" + p, to=(400, 404)) for n, p in outside.items()
    }
    return found


def _queries() -> dict[str, HostileRequest]:
    wrong = {
        "an unknown parameter": b"models?texts=a",
        "a parameter twice": b"models?page=1&page=2",
        "a name twice": b"models?text=a&text=b",
        "a page of 0": b"models?page=0",
        "a negative page": b"models?page=-1",
        "half a page": b"models?page=1.5",
        "a whole page as a fraction": b"models?page=1.0",
        "a page in words": b"models?page=true",
        "an empty page": b"models?page=",
        "a page of many digits": b"models?page=" + b"9" * 5_000,
        "a page of other digits": b"models?page=%D9%A3",
        "a page with an underscore": b"models?page=1_0",
        "a page with a sign": b"models?page=%2B1",
        "a page that is no number": b"models?page=nan",
        "an infinite size": b"models?size=inf",
        "a huge size": b"models?size=1000000000",
        "a vague flag": b"models?descending=perhaps",
        "a long text": b"models?text=" + b"a" * 300,
        "many days": b"usage?days=100000",
        "a negative offset": b"jobs/x/log?offset=-1",
        "an offset beyond numbers": b"jobs/x/log?offset=99999999999999999999",
        "an empty part of a log": b"jobs/x/log?limit=0",
        "a parameter where none is": b"experiments?x=1",
    }
    found = {name: get(b"/api/v1/" + path, to=(422,)) for name, path in wrong.items()}
    many = b"&".join(b"capability=%d" % number for number in range(60))
    found["sixty capabilities"] = get(b"/api/queue?" + many, to=(422,))
    found["a parameter of no metric"] = get(b"/metrics?x=1", to=(422,))
    return found


def _bodies() -> dict[str, HostileRequest]:
    texts = {
        "nothing": (b"", (400, 422)),
        "no JSON": (b"priority=1", (400,)),
        "half of it": (b'{"priority": 1', (400,)),
        "two of them": (b'{"priority": 1}{"priority": 2}', (400,)),
        "a key in two spellings": (b'{"priority": 1, "Priority": 2}', (422,)),
        "text after it": (b'{"priority": 1} x', (400,)),
        "a key twice": (b'{"priority": 1, "priority": 2}', (400,)),
        "a truth": (b'{"priority": true}', (422,)),
        "a text": (b'{"priority": "1"}', (422,)),
        "a fraction": (b'{"priority": 1.5}', (422,)),
        "a whole fraction": (b'{"priority": 1.0}', (422,)),
        "an exponent": (b'{"priority": 1e0}', (422,)),
        "no truth": (b'{"priority": false}', (422,)),
        "a list": (b'{"priority": [1]}', (422,)),
        "a list at the top": (b"[1]", (422,)),
        "a number at the top": (b"1", (422,)),
        "a text at the top": (b'"priority"', (422,)),
        "null at the top": (b"null", (422,)),
        "no priority": (b"{}", (422,)),
        "more than a priority": (b'{"priority": 1, "admin": true}', (422,)),
        "a prototype": (b'{"__proto__": {}, "priority": 1}', (422,)),
        "a negative": (b'{"priority": -1}', (422,)),
        "too large a number": (b'{"priority": 4294967296}', (422,)),
        "a number of 5,000 digits": (b'{"priority": ' + b"9" * 5_000 + b"}", (400,)),
        "not a number": (b'{"priority": NaN}', (400,)),
        "infinity": (b'{"priority": -Infinity}', (400,)),
        "an overflow": (b'{"priority": 1e999}', (400,)),
        "deep lists": (b"[" * 60_000, (400,)),
        "deep objects": (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, (400, 422)),
        "half a surrogate": (b'{"priority": "\\ud800"}', (400,)),
        "another encoding": ('{"priority": 1}'.encode("utf-16"), (400,)),
        "no text": (b"\xff\xfe\xfd", (400,)),
        "a byte order mark": (b"\xef\xbb\xbf{}", (400,)),
        "100 kB": (b" " * 100_000 + b'{"priority": 1}', (413,)),
        "10 MB": (b" " * 10_000_000, (413,)),
    }
    found = {f"a body of {name}": post(text, to=to) for name, (text, to) in texts.items()}
    resets = {
        "nothing known": (b'{"stages": ["rm -rf"]}', 400),
        "a text": (b'{"stages": "convert"}', 422),
        "numbers": (b'{"stages": [1]}', 422),
        "null": (b'{"stages": null}', 422),
        "51 stages": (b'{"stages": [' + b'"convert",' * 50 + b'"convert"]}', 422),
        "more than stages": (b'{"stages": [], "more": 1}', 422),
    }
    for name, (text, status) in resets.items():
        found[f"a reset of {name}"] = post(text, path=ODD + b"/reset", to=(status,))
    good = b'{"priority": 1}'
    form = b"Content-Type: application/x-www-form-urlencoded\r\n"
    return found | {
        "a body without a type": post(good, to=(415, 422), kind=b""),
        "a body as a form": post(good, to=(415, 422), kind=form),
        "a body as plain text": post(good, to=(415, 422), kind=b"Content-Type: text/plain\r\n"),
        "a body of two types": post(good, b"Content-Type: text/plain", to=(400,)),
        "a body in latin-1": post(
            good, to=(415,), kind=b"Content-Type: application/json; charset=latin-1\r\n"
        ),
        "a body that is packed": post(good, b"Content-Encoding: gzip", to=(415,)),
        "a body for nobody": post(good, path=b"/api/v1/models/nobody/priority", to=(404,)),
        "a deletion with more": post(b'{"really": true}', path=ODD + b"/delete", to=(422,)),
        "a body with a query": post(good, path=CHANGE + b"?force=1", to=(422,)),
        "a login in JSON": post(good, path=b"/login", to=(415,)),
        "a login of 5 kB": post(b"next=/" + b"a" * 5_000, path=b"/login", kind=form, to=(413,)),
        "a login of 60 kB": post(b"token=" + b"a" * 60_000, path=b"/login", kind=form, to=(413,)),
        "a login of many fields": post(b"a=1&" * 500, path=b"/login", kind=form, to=(400,)),
        "a login that is no text": post(
            b"token=\xff\xfe", path=b"/login", kind=form, to=(400, 401)
        ),
        "a login without a token": post(b"next=//evil", path=b"/login", kind=form, to=(401,)),
    }


def _methods() -> dict[str, HostileRequest]:
    found = {
        f"the method {name.decode()}": raw(
            name + b" /api/v1/models HTTP/1.1\r\n" + HOST + AUTH + b"\r\n", 400, 405
        )
        for name in (
            b"PUT",
            b"DELETE",
            b"PATCH",
            b"OPTIONS",
            b"TRACE",
            b"PROPFIND",
            b"get",
            b"X" * 90,
        )
    }
    begin = b" HTTP/1.1\r\n" + HOST + AUTH
    found["a tunnel"] = raw(b"CONNECT evil.example:443" + begin + b"\r\n", 400)
    found["everything"] = raw(b"OPTIONS *" + begin + b"\r\n", 400)
    found["a large body to read with"] = raw(
        b"GET /api/v1/models" + begin + b"Content-Length: 500000\r\n\r\n" + b"a" * 500_000, 413
    )
    found["a change by reading"] = get(b"/api/v1/models/odd/delete", to=(404, 405))
    found["an overridden method"] = get(
        b"/api/v1/models/odd/delete", b"X-HTTP-Method-Override: POST", to=(404, 405)
    )
    return found


def _strangers() -> dict[str, HostileRequest]:
    """Without the token: pages of other sites in the browser of somebody who has it."""
    page = b"Cookie: {cookie}\r\nX-Edgeloop-Token: {change}\r\n" + JSON
    body = b'{"priority": 1}'
    begin = b"POST " + CHANGE + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 15\r\n"
    own = b"GET /api/v1/models HTTP/1.1\r\n" + HOST
    return {
        "a change of nobody": raw(begin + JSON + b"\r\n" + body, 401),
        "a change without its token": raw(
            begin + b"Cookie: {cookie}\r\n" + JSON + b"\r\n" + body, 403
        ),
        "a change of another site": raw(
            begin + page + b"Sec-Fetch-Site: cross-site\r\n\r\n" + body, 403
        ),
        "a change of another port": raw(
            begin + page + b"Sec-Fetch-Site: same-site\r\n\r\n" + body, 403
        ),
        "a change of another origin": raw(
            begin + page + b"Origin: http://evil.example\r\n\r\n" + body, 403
        ),
        "a change of no origin": raw(begin + page + b"Origin: null\r\n\r\n" + body, 403),
        "a change of an origin that is no address": raw(
            begin + page + b"Origin: http://[bad\r\n\r\n" + body, 403
        ),
        "a change of an empty origin": raw(begin + page + b"Origin:\r\n\r\n" + body, 403),
        "a change of two origins": raw(
            begin + page + b"Origin: http://127.0.0.1\r\nOrigin: http://evil\r\n\r\n" + body, 400
        ),
        "a large body of nobody": raw(
            begin.replace(b"15", b"400000000") + JSON + b"\r\n" + b"a" * 100_000, 413
        ),
        "a wrong token": raw(own + b"Authorization: Bearer wrong\r\n\r\n", 401),
        "a token that is no text": raw(own + b"Authorization: Bearer \xff\xfe\r\n\r\n", 401),
        "another scheme": raw(own + b"Authorization: Basic {token}\r\n\r\n", 401),
        "a forged cookie": raw(own + b"Cookie: edgeloop_portal_8750=a-99999999999.b\r\n\r\n", 401),
        "a web socket": raw(
            b"GET /api/v1/events HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Sec-WebSocket-Version: 13\r\nOrigin: http://evil.example\r\n\r\n",
            401,
        ),
        "HTTP/2 by an upgrade": raw(
            own + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
            b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
            401,
        ),
    }


def _allowed() -> dict[str, HostileRequest]:
    """Odd, and answered as if it were not."""
    return {
        "a range beyond the end": get(b"/static/base.css", b"Range: bytes=9999999-", to=(200, 416)),
        "a thousand ranges": get(
            b"/static/base.css", b"Range: bytes=" + b"0-1," * 1_000 + b"0-1", to=(200, 416)
        ),
        "a range of nonsense": get(b"/static/base.css", b"Range: apples=1-2", to=(200, 416)),
        "a filter that looks like a pattern": get(
            b"/api/v1/models?text=" + b"*a" * 90 + b"b", to=(200,)
        ),
        "brackets in a filter": get(b"/api/v1/models?text=%5B%5B%5B!", to=(200,)),
        "markup in a filter": get(b"/?text=%3Cscript%3Ealert(1)%3C/script%3E", to=(200,)),
        "SQL in a filter": get(b"/api/v1/models?text=%27%3B%20DROP%20TABLE%20x--", to=(200,)),
        "a sort by nothing": get(b"/api/v1/models?sort=no_such_column", to=(200,)),
        "a page of nonsense": get(b"/?page=nan&size=inf&descending=what", to=(200,)),
        "limits of nonsense": get(b"/pareto?x_min=inf&x_max=nan&y_min=1e999", to=(200,)),
        "columns of nonsense": get(b"/pareto?x=%F0%9F%A6%A6&y=__class__", to=(200,)),
        "an event of nobody": get(b"/api/v1/health", b"Last-Event-ID: " + b"9" * 50, to=(200,)),
        "a proxy's word": get(
            b"/api/v1/health", b"X-Forwarded-Host: evil", b"X-Forwarded-Proto: x", to=(200,)
        ),
        "two requests at once": raw((b"GET /api/v1/health HTTP/1.1\r\n" + HOST + b"\r\n") * 2, 200),
    }


CORPUS: dict[str, HostileRequest] = {
    **_heads(),
    **_smuggled(),
    **_addresses(),
    **_queries(),
    **_bodies(),
    **_methods(),
    **_strangers(),
    **_allowed(),
}
