"""What is asked, what is answered, and who answers it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import threading
import time
import traceback
import urllib.parse
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.peers.certificate import Certificate

_PARAMETER = re.compile(r"\{(\w+)\}")
PROVIDER = "Microsoft.MachineLearningServices"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    parameters: Mapping[str, str] = field(default_factory=dict)
    who: str = ""

    @property
    def json(self) -> dict[str, Any]:
        try:
            read = json.loads(self.body)
        except ValueError as error:
            raise ServiceError(400, "InvalidRequestContent", f"not JSON: {error}") from None
        if not isinstance(read, dict):
            raise ServiceError(400, "InvalidRequestContent", "the body must be a JSON object")
        return read

    @property
    def action(self) -> str:
        """The permission it needs, as Azure names them: types without names, then the verb."""
        parts = self.path.strip("/").split("/")
        lowered = [part.lower() for part in parts]
        if "providers" not in lowered:
            return ""
        at = len(lowered) - 1 - lowered[::-1].index("providers")
        provider, rest = parts[at + 1 : at + 2], parts[at + 2 :]
        verb = {"GET": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}
        return "/".join([*provider, *rest[::2], verb.get(self.method, "action")])


@dataclass(frozen=True)
class Response:
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class ServiceError(Exception):
    """Becomes the body that Azure Resource Manager gives an error."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message
        self.headers = dict(headers or {})

    def response(self) -> Response:
        name = HTTPStatus(self.status).phrase
        body = {"error": {"code": self.code or name, "message": self.message}}
        return Response(self.status, body, self.headers)


Handler = Callable[[Request], Response]


@dataclass(frozen=True)
class Route:
    method: str
    pattern: str
    handler: Handler
    is_open: bool = False  # no token is asked for

    def match(self, method: str, path: str) -> dict[str, str] | None:
        if method != self.method:
            return None
        found = re.fullmatch(_PARAMETER.sub(r"(?P<\1>[^/]+)", self.pattern), path, re.IGNORECASE)
        return found.groupdict() if found else None


class Router:
    def __init__(self, *routes: Route) -> None:
        self._routes = routes

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        for route in self._routes:
            found = route.match(method, path)
            if found is not None:
                return route, found
        raise ServiceError(404, "InvalidResourceType", f"no route for {method} {path}")


class NetworkAway(Exception):
    """The connection ends without an answer."""


@dataclass
class _Answers:
    """The next few requests that fit get an error instead of an answer."""

    left: int
    error: ServiceError
    method: str
    containing: str

    def fits(self, request: Request) -> bool:
        return self.method in ("", request.method) and self.containing in request.path


@dataclass
class Faults:
    token_lifetime_s: float = 3_600
    logged_out: bool = False  # the token endpoint knows nobody
    never_start: str = ""  # every job stays queued, with this reason
    cancel_takes_s: float = 0.0  # that long a job stays in CancelRequested
    cores_per_family: int = 100  # the quota of each family of machines
    broken_environments: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)  # paths of resources that nobody has made yet
    unheard: int = 0  # requests while the network was away
    _answers: list[_Answers] = field(default_factory=list)
    _forbidden: dict[str, str] = field(default_factory=dict)
    _away_until: float = 0.0
    _lost: tuple[str, str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def throttle(
        self,
        next: int = 1,  # noqa: A002 - reads as it should where it is called
        retry_after_s: float = 1.0,
        method: str = "",
        containing: str = "",
    ) -> None:
        if retry_after_s < 1:
            headers = {"x-ms-retry-after-ms": f"{1000 * retry_after_s:.0f}"}
        else:
            headers = {"Retry-After": f"{retry_after_s:.0f}"}
        message = "The request is being throttled as the limit has been reached for this operation."
        error = ServiceError(429, "TooManyRequests", message, headers)
        self._add(_Answers(next, error, method, containing))

    def fail(
        self,
        next: int = 1,  # noqa: A002
        status: int = 500,
        method: str = "",
        containing: str = "",
    ) -> None:
        """Errors that pass by themselves, such as 500 and 503; or for good, with a large `next`."""
        error = ServiceError(status, "", "Something went wrong on our side. Please try again.")
        self._add(_Answers(next, error, method, containing))

    def forbid(self, action: str, who: str = "") -> None:
        """`action` as Azure names it (`Microsoft.MachineLearningServices/workspaces/jobs/write`);
        `who` is an identity: `user` or a job's name; nobody may when it is left out."""
        self._forbidden[action.lower()] = who

    @property
    def forbidden(self) -> list[str]:
        return [action for action, who in self._forbidden.items() if not who]

    def break_environment(self, name: str) -> None:
        """Its image fails to build, and so does every job that wants it."""
        self.broken_environments.add(name)

    def network_away(self, seconds: float = 3_600) -> None:
        self._away_until = time.monotonic() + seconds

    def network_back(self) -> None:
        self._away_until = 0.0

    def lose_answers(self, method: str, containing: str) -> None:
        """What is asked is done, and nobody hears of it."""
        self._lost = (method, containing)

    def after(self, request: Request) -> None:
        if self._lost and request.method == self._lost[0] and self._lost[1] in request.path:
            raise NetworkAway

    @property
    def is_away(self) -> bool:
        return time.monotonic() < self._away_until

    def clear(self) -> None:
        """All is well again."""
        fresh = Faults()
        with self._lock:
            for name, value in vars(fresh).items():
                if name != "_lock":
                    setattr(self, name, value)

    def before(self, request: Request) -> None:
        if self.is_away:
            self.unheard += 1
            raise NetworkAway
        path = request.path.lower()
        for gone in sorted(self.missing, key=len):
            if f"{path}/".startswith(f"{gone}/") and (request.method, path) != ("PUT", gone):
                code = "ResourceNotFound" if "/providers/" in gone else "ResourceGroupNotFound"
                raise ServiceError(404, code, f"'{gone}' could not be found.")
        with self._lock:
            for answers in self._answers:
                if answers.left > 0 and answers.fits(request):
                    answers.left -= 1
                    raise answers.error

    def permission(self, request: Request, who: str) -> None:
        action = request.action
        if self._forbidden.get(action.lower(), "nobody") not in ("", who):
            return
        scope = request.path.rpartition("/")[0]
        raise ServiceError(
            403,
            "AuthorizationFailed",
            f"The client '{who}' with object id '{who}' does not have authorization to perform "
            f"action '{action}' over scope '{scope}' or the scope is invalid. If access was "
            "recently granted, please refresh your credentials.",
        )

    def _add(self, answers: _Answers) -> None:
        with self._lock:
            self._answers.append(answers)


IDLE_LIMIT_S = 60.0
Authenticate = Callable[[Request, Route], str]


@dataclass(frozen=True)
class Logged:
    method: str
    path: str
    query: dict[str, str]
    status: int
    body: Any
    who: str


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is no event."""


class Server:
    def __init__(self, certificate: Certificate | None, faults: Faults) -> None:
        self.log: list[Logged] = []
        self.crashes: list[str] = []
        self._faults = faults
        self._router = Router()
        self._authenticate: Authenticate = lambda _request, _route: ""
        self._http = _Server(("127.0.0.1", 0), self._handler())
        self.port = int(self._http.server_address[1])
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.file, certificate.key)
            # The handshake happens in the connection's own thread, at its first read.
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )

    def serve(self, router: Router, authenticate: Authenticate) -> None:
        self._router, self._authenticate = router, authenticate
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, request: Request) -> Response:
        who, shown = "", request
        try:
            self._faults.before(request)
            route, parameters = self._router.find(request.method, request.path)
            shown = replace(request, parameters=parameters)
            who = self._authenticate(shown, route)
            self._faults.permission(shown, who)
            response = route.handler(replace(shown, who=who))
            self._faults.after(request)
        except ServiceError as error:
            response = error.response()
        except NetworkAway:
            raise
        except Exception:
            self.crashes.append(traceback.format_exc())
            response = Response(500, {"error": {"code": "Crash", "message": self.crashes[-1]}})
        self.log.append(
            Logged(
                *(request.method, request.path, dict(request.query), response.status),
                *(_readable(request.body), who),
            )
        )
        return response

    def _handler(server: Server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = IDLE_LIMIT_S
            # Headers and body in one packet: a body behind its headers waits 40 ms for the client
            # to acknowledge those.
            wbufsize = -1
            disable_nagle_algorithm = True

            def _serve(self) -> None:
                parts = urllib.parse.urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
                request = Request(
                    *(self.command, urllib.parse.unquote(parts.path).rstrip("/"), query),
                    *(dict(self.headers), self.rfile.read(length)),
                )
                try:
                    self._send(server.answer(request))
                except NetworkAway:
                    self.close_connection = True
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do_HEAD = _serve  # noqa: N815

            def _send(self, response: Response) -> None:
                data = b"" if response.body is None else json.dumps(response.body).encode()
                self.send_response(response.status)
                self.send_header("Content-Type", "application/json; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                for name, value in response.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """The log is ours."""

        return Handler


def _readable(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")


SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP = "lab"
WORKSPACE = "vision"
WORKSPACE_GUID = "0f0f0f0f-1111-2222-3333-444455556666"
LOCATION = "westeurope"
_BASE = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{PROVIDER}"
_WORKSPACES = _BASE + "/workspaces/{workspace}"
_SYSTEM = {"createdBy": "user", "createdByType": "User"}


@dataclass
class Scope:
    url: str
    page_size: int = 10
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def group_id(self) -> str:
        return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"

    @property
    def workspace_id(self) -> str:
        return f"{self.group_id}/providers/{PROVIDER}/workspaces/{WORKSPACE}"

    def id_of(self, kind: str, name: str, version: str | None = None) -> str:
        return f"{self.workspace_id}/{kind}/{name}" + (f"/versions/{version}" if version else "")

    def resource(self, kind: str, name: str, properties: Any, version: str = "") -> dict[str, Any]:
        tail = f"{kind}/versions" if version else kind
        return {
            "id": self.id_of(kind, name, version or None),
            "name": version or name,
            "type": f"{PROVIDER}/workspaces/{tail}",
            "properties": properties,
            "systemData": {**_SYSTEM, "createdAt": now(), "lastModifiedAt": now()},
        }

    def page(self, request: Request, items: Sequence[Any], size: int | None = None) -> Response:
        """A page, and where the next one is."""
        start, size = int(request.query.get("$skipToken") or 0), size or self.page_size
        body: dict[str, Any] = {"value": list(items[start : start + size])}
        if start + size < len(items):
            query = {**request.query, "$skipToken": str(start + size)}
            tail = "&".join(f"{name}={value}" for name, value in query.items())
            body["nextLink"] = f"{self.url}{request.path}?{tail}"
        return Response(200, body)


def workspace_route(method: str, tail: str, handler: Handler, prefix: str = "") -> Route:
    """A route below the workspace; other workspaces do not exist."""
    return Route(method, f"{prefix}{_WORKSPACES}{tail}", _only_here(handler))


def _only_here(handler: Handler) -> Callable[[Request], Response]:
    def checked(request: Request) -> Response:
        subscription, group = request.parameters["subscription"], request.parameters["group"]
        workspace = request.parameters["workspace"]
        if subscription != SUBSCRIPTION:
            what = f"The subscription '{subscription}' could not be found."
            raise ServiceError(404, "SubscriptionNotFound", what)
        if group.lower() != GROUP:
            what = f"Resource group '{group}' could not be found."
            raise ServiceError(404, "ResourceGroupNotFound", what)
        if workspace.lower() != WORKSPACE:
            what = (
                f"The Resource '{PROVIDER}/workspaces/{workspace}' under resource group "
                f"'{group}' was not found. For more details please go to "
                "https://aka.ms/ARMResourceNotFoundFix"
            )
            raise ServiceError(404, "ResourceNotFound", what)
        return handler(request)

    return checked


def not_found(kind: str, name: str) -> ServiceError:
    return ServiceError(404, "UserError", f"Not found {kind} {name} in workspace {WORKSPACE}.")


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


_PLACE = f"/subscriptions/{SUBSCRIPTION}/providers/{PROVIDER}/locations/{LOCATION}"
_POLL = {"x-ms-retry-after-ms": "20"}
Done = Callable[[], bool]


class Operations:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._under_way: dict[str, Done] = {}
        self.failure = ""  # why those that end from now on fail

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{_PLACE}/operationsStatus/{{name}}", self._status),
            Route("GET", f"{_PLACE}/operationResults/{{name}}", self._result),
        ]

    def begin(self, done: Done, status: int, body: Any = None) -> Response:
        """Accepted: done when `done()` says so."""
        name = str(uuid.uuid4())
        self._under_way[name] = done
        headers = {
            "Azure-AsyncOperation": f"{self._scope.url}{_PLACE}/operationsStatus/{name}",
            "Location": f"{self._scope.url}{_PLACE}/operationResults/{name}",
            **_POLL,
        }
        return Response(status, body, headers)

    def begin_by_location(self, done: Done) -> Response:
        """As cancelling a job does: an address that says 202 until it is done."""
        response = self.begin(done, 202)
        headers = {k: v for k, v in response.headers.items() if k != "Azure-AsyncOperation"}
        return Response(202, None, headers)

    def _status(self, request: Request) -> Response:
        done = self._find(request)()
        if done and self.failure:
            error = {"code": "OperationFailed", "message": self.failure}
            return Response(200, {"status": "Failed", "error": error}, _POLL)
        status = "Succeeded" if done else "InProgress"
        return Response(200, {"name": request.parameters["name"], "status": status}, _POLL)

    def _result(self, request: Request) -> Response:
        if self._find(request)():
            return Response(204)
        return Response(202, None, {"Location": f"{self._scope.url}{request.path}", **_POLL})

    def _find(self, request: Request) -> Done:
        name = request.parameters["name"]
        if name not in self._under_way:
            raise ServiceError(404, "NotFound", f"no operation {name}")
        return self._under_way[name]
