"""What comes before a workspace: the group, storage accounts, the vault and the logs, as their
published REST interfaces take them. They are there from the start unless a test calls `vanish`."""

from __future__ import annotations

from typing import Any

from tests.peers.azureml.faults import Faults
from tests.peers.azureml.routing import PROVIDER, Request, Response, Route, ServiceError
from tests.peers.azureml.scope import LOCATION, Scope
from tests.peers.azureml.shapes import Check, Must, one_of, record, text, whole, yes_no
from tests.peers.azureml.storage import Storage

_SUBSCRIPTION = "/subscriptions/{subscription}"
_GROUP = _SUBSCRIPTION + "/resourceGroups/{group}"
_ACCOUNT = f"{_GROUP}/providers/Microsoft.Storage/storageAccounts/{{account}}"
_CONTAINER = f"{_ACCOUNT}/blobServices/default/containers/{{container}}"
_LOCATED: dict[str, Check | Must] = {"location": Must(text)}
_SHAPES: dict[str, Check] = {
    "group": record({**_LOCATED}),
    "storage": record(
        {
            **_LOCATED,
            "kind": Must(one_of("StorageV2", "BlobStorage", "BlockBlobStorage")),
            "sku": Must(record({"name": Must(text)})),
            "properties": record(
                {
                    "accessTier": one_of("Hot", "Cool", "Premium"),
                    "allowSharedKeyAccess": yes_no,
                    "allowBlobPublicAccess": yes_no,
                    "defaultToOAuthAuthentication": yes_no,
                    "minimumTlsVersion": one_of("TLS1_0", "TLS1_1", "TLS1_2", "TLS1_3"),
                    "supportsHttpsTrafficOnly": yes_no,
                }
            ),
        }
    ),
    "container": record(
        {"properties": record({"publicAccess": one_of("None", "Blob", "Container")})}
    ),
    "vault": record(
        {
            **_LOCATED,
            "properties": Must(
                record(
                    {
                        "tenantId": Must(text),
                        "sku": Must(record({"family": one_of("A"), "name": one_of("standard")})),
                        "enableRbacAuthorization": yes_no,
                        "enableSoftDelete": yes_no,
                    }
                )
            ),
        }
    ),
    "logs": record(
        {
            **_LOCATED,
            "properties": record({"sku": record({"name": Must(text)}), "retentionInDays": whole}),
        }
    ),
    "insights": record(
        {
            **_LOCATED,
            "kind": Must(text),
            "properties": record(
                {"Application_Type": Must(one_of("web", "other")), "WorkspaceResourceId": text}
            ),
        }
    ),
    "workspace": record(
        {
            **_LOCATED,
            "identity": Must(record({"type": Must(one_of("SystemAssigned", "UserAssigned"))})),
            "properties": Must(
                record(
                    {
                        "friendlyName": text,
                        "storageAccount": Must(text),
                        "keyVault": Must(text),
                        "applicationInsights": text,
                        "publicNetworkAccess": one_of("Enabled", "Disabled"),
                        "systemDatastoresAuthMode": one_of("accesskey", "identity"),
                    }
                )
            ),
        }
    ),
}


class Account:
    def __init__(
        self, scope: Scope, storage: Storage, faults: Faults, complaints: list[str]
    ) -> None:
        self._scope, self._storage, self._faults = scope, storage, faults
        self._complaints = complaints
        self.made: dict[str, dict[str, Any]] = {}

    def vanish(self) -> None:
        """An empty subscription."""
        group, workspace = self._scope.group_id, self._scope.workspace_id
        self._faults.missing |= {group.lower(), workspace.lower()}

    def routes(self) -> list[Route]:
        provider = f"{_GROUP}/providers"
        kinds = {
            "storage": _ACCOUNT,
            "container": _CONTAINER,
            "vault": f"{provider}/Microsoft.KeyVault/vaults/{{name}}",
            "logs": f"{provider}/Microsoft.OperationalInsights/workspaces/{{name}}",
            "insights": f"{provider}/Microsoft.Insights/components/{{name}}",
        }
        places = {"group": _GROUP, **kinds}
        places["workspace"] = f"{provider}/{PROVIDER}/workspaces/{{workspace}}"
        found = [Route("PUT", path, self._putting(kind)) for kind, path in places.items()]
        found += [Route("GET", path, self._get) for path in kinds.values()]
        return [*found, Route("PATCH", _ACCOUNT, self._patch)]

    def account(self, name: str) -> dict[str, Any]:
        """A storage account: the workspace's own, or one that was put."""
        if name == self._storage.account and name not in self._named():
            return {"properties": {"allowSharedKeyAccess": self._faults.account_keys}}
        if name not in self._named():
            raise ServiceError(404, "ResourceNotFound", "The storage account was not found.")
        return self._named()[name]

    def _named(self) -> dict[str, dict[str, Any]]:
        kept = self.made.items()
        return {
            path.rpartition("/")[2]: body
            for path, body in kept
            if path.rpartition("/")[0].endswith("/storageaccounts")
        }

    def _putting(self, kind: str) -> Any:
        def put(request: Request) -> Response:
            body, path = request.json, request.path.lower()
            wrong = _SHAPES[kind](body, "body")
            for name in ("storageAccount", "keyVault", "applicationInsights"):
                used = str((body.get("properties") or {}).get(name) or "").lower()
                if kind == "workspace" and used and used not in self.made:
                    wrong.append(f"{name}: there is no {used}")
            if wrong:
                self._complaints.extend(f"PUT {request.path}: {line}" for line in wrong)
                raise ServiceError(400, "InvalidRequestContent", "; ".join(wrong))
            self._faults.missing.discard(path)
            # Not ready at once: a client has to ask again.
            self.made[path] = {**body, "id": request.path, "asked": 0}
            return Response(201, self._shown(path, "Creating"))

        return put

    def _get(self, request: Request) -> Response:
        path = request.path.lower()
        if path not in self.made:
            account = request.parameters.get("account", "")
            if account == self._storage.account and path.endswith(f"/{account}"):
                return Response(200, self._own(account))
            raise ServiceError(404, "ResourceNotFound", f"'{path}' could not be found.")
        self.made[path]["asked"] += 1
        state = "Succeeded" if self.made[path]["asked"] > 1 else "Creating"
        return Response(200, self._shown(path, state))

    def _patch(self, request: Request) -> Response:
        body = self.account(request.parameters["account"])
        body["properties"] |= request.json["properties"]
        return Response(200, self._shown(request.path.lower(), "Succeeded"))

    def _shown(self, path: str, state: str) -> dict[str, Any]:
        body = {key: value for key, value in self.made[path].items() if key != "asked"}
        properties = {**(body.get("properties") or {}), "provisioningState": state}
        name = path.rpartition("/")[2]
        if "/storageaccounts/" in path and "/blobservices/" not in path:
            properties["primaryEndpoints"] = self._storage.endpoints_of(name)
        return {**body, "name": name, "properties": properties}

    def _own(self, account: str) -> dict[str, Any]:
        blob = f"https://{account}.blob.{self._storage.suffix}/"
        return {
            "id": f"{self._scope.group_id}/providers/Microsoft.Storage/storageAccounts/{account}",
            "name": account,
            "location": LOCATION,
            "sku": {"name": "Standard_LRS"},
            "kind": "StorageV2",
            "properties": {
                "provisioningState": "Succeeded",
                "primaryEndpoints": {"blob": blob},
                "allowSharedKeyAccess": self._faults.account_keys,
            },
        }
