"""Datastores: names for containers, with or without a key."""

from __future__ import annotations

from typing import Any

from tests.peers.azureml.faults import Faults
from tests.peers.azureml.routing import Request, Response, Route, ServiceError
from tests.peers.azureml.scope import Scope, not_found, workspace_route
from tests.peers.azureml.shapes import Checker
from tests.peers.azureml.storage import ARTIFACTS, BLOBSTORE, Storage

DEFAULT = "workspaceblobstore"
ARTIFACT_STORE = "workspaceartifactstore"


class Datastores:
    def __init__(self, scope: Scope, storage: Storage, faults: Faults, checker: Checker) -> None:
        self._scope, self._storage = scope, storage
        self._faults, self._checker = faults, checker
        self._kept: dict[str, dict[str, Any]] = {}
        self._secrets: dict[str, dict[str, Any]] = {}
        for name, container in ((DEFAULT, BLOBSTORE), (ARTIFACT_STORE, ARTIFACTS)):
            self._kept[name] = {
                "datastoreType": "AzureBlob",
                "accountName": storage.account,
                "containerName": container,
                "endpoint": storage.suffix,
                "protocol": "https",
                "isDefault": name == DEFAULT,
                "serviceDataAccessAuthIdentity": "None",
            }
            self._secrets[name] = {"secretsType": "AccountKey", "key": storage.key}

    def routes(self) -> list[Route]:
        return [
            workspace_route("GET", "/datastores", self._list),
            workspace_route("GET", "/datastores/{name}", self._get),
            workspace_route("PUT", "/datastores/{name}", self._put),
            workspace_route("DELETE", "/datastores/{name}", self._delete),
            workspace_route("POST", "/datastores/{name}/listSecrets", self._list_secrets),
            workspace_route("GET", "/datastores/{name}/default", self._get),
        ]

    def place_of(self, name: str) -> tuple[str, str]:
        """The account and the container."""
        found = self._find(name)
        return found["accountName"], found["containerName"]

    def _list(self, request: Request) -> Response:
        wanted_default = request.query.get("isDefault", "").lower() == "true"
        with self._scope.lock:
            names = [n for n, p in self._kept.items() if not wanted_default or p["isDefault"]]
        return self._scope.page(request, [self._shown(name) for name in names])

    def _get(self, request: Request) -> Response:
        return Response(200, self._shown(request.parameters["name"]))

    def _put(self, request: Request) -> Response:
        name, body = request.parameters["name"], self._checker.check("datastores", request)
        properties = dict(body["properties"])
        credentials = properties.pop("credentials")
        with self._scope.lock:
            is_new = name not in self._kept
            self._kept[name] = {"isDefault": False, **properties}
            self._secrets.pop(name, None)
            if credentials["credentialsType"] != "None":
                self._secrets[name] = credentials["secrets"]
        return Response(201 if is_new else 200, self._shown(name))

    def _delete(self, request: Request) -> Response:
        with self._scope.lock:
            gone = self._kept.pop(request.parameters["name"], None)
        return Response(204 if gone is None else 200)

    def _list_secrets(self, request: Request) -> Response:
        name = request.parameters["name"]
        self._find(name)
        if name not in self._secrets or not self._faults.account_keys:
            what = f"No secrets are kept for the datastore {name}."
            raise ServiceError(400, "UserError", what)
        return Response(200, self._secrets[name])

    def _shown(self, name: str) -> dict[str, Any]:
        properties = self._find(name)
        has_secret = name in self._secrets and self._faults.account_keys
        kind = self._secrets[name]["secretsType"] if has_secret else "None"
        shown = {**properties, "credentials": {"credentialsType": kind}}
        return self._scope.resource("datastores", name, shown)

    def _find(self, name: str) -> dict[str, Any]:
        if name not in self._kept:
            raise not_found("datastore", name)
        return self._kept[name]
