"""Where everything is: one subscription, one group, one workspace, and the ids below it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.peers.azureml.routing import PROVIDER, Handler, Request, Response, Route, ServiceError

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
