"""What is asked, what is answered, and who answers it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

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
