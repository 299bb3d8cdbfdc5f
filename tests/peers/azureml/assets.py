"""Things with versions: environments, codes, data, components, models."""

from __future__ import annotations

import uuid
from typing import Any

from tests.peers.azureml.bodies import Checker
from tests.peers.azureml.server import (
    Request,
    Response,
    Route,
    Scope,
    ServiceError,
    not_found,
    workspace_route,
)
from tests.peers.azureml.storage import ARTIFACTS, BLOBSTORE, Storage

KINDS = ("environments", "codes", "data", "components", "models")
Resource = dict[str, Any]


class Assets:
    def __init__(self, scope: Scope, storage: Storage, checker: Checker) -> None:
        self._scope, self._storage, self._checker = scope, storage, checker
        self._kept: dict[tuple[str, str, str], Resource] = {}

    def routes(self) -> list[Route]:
        found = []
        for kind in KINDS:
            for method, tail, handler in (
                ("GET", "", self._containers),
                ("GET", "/{name}/versions", self._versions),
                ("GET", "/{name}/versions/{version}", self._get),
                ("PUT", "/{name}/versions/{version}", self._put),
                ("POST", "/{name}/versions/{version}/startPendingUpload", self._upload),
            ):
                found.append(workspace_route(method, f"/{kind}{tail}", _of(kind, handler)))
        return found

    def find(self, id_or_name: str, kind: str) -> Resource:
        """By ARM id, `azureml:name:version` or long azureml:// id."""
        name, version = _name_and_version(id_or_name, kind)
        found = self._kept.get((kind, name, version))
        if found is None:
            raise not_found(kind, f"{name}:{version}")
        return found

    def named(self, kind: str, name: str | None = None) -> list[Resource]:
        with self._scope.lock:
            return [
                value
                for (k, n, _), value in self._kept.items()
                if k == kind and (name is None or n == name)
            ]

    def put(self, kind: str, name: str, version: str, properties: dict[str, Any]) -> Resource:
        made = self._scope.resource(kind, name, properties, version)
        with self._scope.lock:
            self._kept[kind, name, version] = made
        return made

    def _containers(self, kind: str, request: Request) -> Response:
        with self._scope.lock:
            names = sorted({name for k, name, _ in self._kept if k == kind})
        rows = [self._container_of(kind, name) for name in names]
        return self._scope.page(request, rows)

    def _container_of(self, kind: str, name: str) -> Resource:
        versions = [row["name"] for row in self.named(kind, name)]
        newest = max(versions, key=_order)
        after = str(int(newest) + 1) if newest.isdigit() else "1"
        properties = {"latestVersion": newest, "nextVersion": after, "isArchived": False}
        if kind == "data":
            properties["dataType"] = "uri_folder"
        return self._scope.resource(kind, name, properties)

    def _versions(self, kind: str, request: Request) -> Response:
        rows = self.named(kind, request.parameters["name"])
        if "hash" in request.query:
            # A container's name is no part of the question: equal code is found under any name.
            wanted = request.query["hash"]
            rows = [row for row in self.named(kind) if _hash_of(row) == wanted]
        elif not rows:
            raise not_found(kind, request.parameters["name"])
        rows.sort(key=lambda row: _order(row["name"]), reverse=True)
        top = request.query.get("$top")
        return self._scope.page(request, rows[: int(top)] if top else rows)

    def _get(self, kind: str, request: Request) -> Response:
        name, version = request.parameters["name"], request.parameters["version"]
        found = self._kept.get((kind, name, version))
        if found is None:
            raise not_found(kind, f"{name}:{version}")
        return Response(200, found)

    def _put(self, kind: str, request: Request) -> Response:
        name, version = request.parameters["name"], request.parameters["version"]
        body = self._checker.check(kind, request)
        with self._scope.lock:
            old = self._kept.get((kind, name, version))
            if old and _fixed(old["properties"]) != _fixed(body["properties"]):
                what = f"A {kind} asset {name}:{version} exists already and cannot be changed."
                raise ServiceError(409, "UserError", what)
            properties = {**body["properties"], "provisioningState": "Succeeded"}
            if kind == "environments":
                properties.setdefault("environmentType", "UserCreated")
                properties.setdefault("osType", "Linux")
            return Response(200 if old else 201, self.put(kind, name, version, properties))

    def _upload(self, _kind: str, _request: Request) -> Response:
        place, signed = self._storage.new_upload()
        body = {
            "pendingUploadId": str(uuid.uuid4()),
            "pendingUploadType": "TemporaryBlobReference",
            "blobReferenceForConsumption": {
                "blobUri": place,
                "storageAccountArmId": f"{self._scope.group_id}/providers/"
                f"Microsoft.Storage/storageAccounts/{self._storage.account}",
                "credential": {"credentialType": "SAS", "sasUri": signed},
            },
        }
        return Response(200, body)


def _of(kind: str, handler: Any) -> Any:
    return lambda request: handler(kind, request)


def _name_and_version(text: str, kind: str) -> tuple[str, str]:
    parts = text.split("/")
    if kind in parts and "versions" in parts:
        at = parts.index(kind)
        return parts[at + 1], parts[at + 3]
    name, _, version = text.removeprefix("azureml:").rpartition(":")
    return name, version


def _hash_of(row: Resource) -> str | None:
    properties: dict[str, str] = row["properties"].get("properties") or {}
    return properties.get("hash_sha256")


def _fixed(properties: dict[str, Any]) -> dict[str, Any]:
    """What no later PUT may change: descriptions, tags and what the service adds are not in it."""
    names = ("image", "condaFile", "build", "codeUri", "dataUri", "dataType", "modelUri")
    return {name: properties[name] for name in names if properties.get(name) is not None}


def _order(version: str) -> tuple[int, int, str]:
    return (1, int(version), "") if version.isdigit() else (0, 0, version)


DEFAULT = "workspaceblobstore"
ARTIFACT_STORE = "workspaceartifactstore"


class Datastores:
    def __init__(self, scope: Scope, storage: Storage, checker: Checker) -> None:
        self._scope, self._storage = scope, storage
        self._checker = checker
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

    def _list_secrets(self, request: Request) -> Response:
        name = request.parameters["name"]
        self._find(name)
        if name not in self._secrets:
            what = f"No secrets are kept for the datastore {name}."
            raise ServiceError(400, "UserError", what)
        return Response(200, self._secrets[name])

    def _shown(self, name: str) -> dict[str, Any]:
        properties = self._find(name)
        kind = self._secrets[name]["secretsType"] if name in self._secrets else "None"
        shown = {**properties, "credentials": {"credentialsType": kind}}
        return self._scope.resource("datastores", name, shown)

    def _find(self, name: str) -> dict[str, Any]:
        if name not in self._kept:
            raise not_found("datastore", name)
        return self._kept[name]
