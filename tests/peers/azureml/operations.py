"""Long-running operations: a request is accepted, and an address tells when it is done."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from tests.peers.azureml.routing import PROVIDER, Request, Response, Route, ServiceError
from tests.peers.azureml.scope import LOCATION, SUBSCRIPTION, Scope

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
