"""What Azure Resource Manager knows beside the workspace's insides: the workspace itself, sizes of
machines, quotas, roles, the storage account; what comes before a workspace; and where the other
services are."""

from __future__ import annotations

import uuid
from typing import Any

from tests.peers.azureml.bodies import Check, Must, one_of, record, text, whole, yes_no
from tests.peers.azureml.computes import FAMILIES, SIZES, Computes
from tests.peers.azureml.identity import TENANT
from tests.peers.azureml.server import (
    GROUP,
    LOCATION,
    PROVIDER,
    SUBSCRIPTION,
    WORKSPACE,
    WORKSPACE_GUID,
    Faults,
    Request,
    Response,
    Route,
    Scope,
    ServiceError,
    workspace_route,
)
from tests.peers.azureml.storage import Storage

_SUBSCRIPTION = "/subscriptions/{subscription}"
_GROUP = _SUBSCRIPTION + "/resourceGroups/{group}"
_ACCOUNT = f"{_GROUP}/providers/Microsoft.Storage/storageAccounts/{{account}}"
_PLACE = f"{_SUBSCRIPTION}/providers/{PROVIDER}/locations/{{location}}"
_ROLES = "/providers/Microsoft.Authorization/roleAssignments"
_IDENTITIES = "/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
_PERMISSIONS = "/providers/Microsoft.Authorization/permissions"


class ResourceManager:
    def __init__(
        self,
        scope: Scope,
        storage: Storage,
        computes: Computes,
        faults: Faults,
        account: Account,
        cloud: str,
    ) -> None:
        self._account = account
        self._scope, self._storage = scope, storage
        self._computes, self._faults = computes, faults
        self._cloud = cloud
        self.roles: dict[str, dict[str, Any]] = {}
        self.actions, self.not_actions = ["*"], list[str]()
        self.data_actions = ["*"]
        self.unregistered = set[str]()

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/metadata/endpoints", self._clouds, is_open=True),
            Route("GET", "/discovery", self._discovery, is_open=True),
            Route("GET", _SUBSCRIPTION, self._subscription),
            Route("GET", _GROUP, self._group),
            Route("GET", _SUBSCRIPTION + "/providers/{namespace}", self._provider),
            Route("POST", _SUBSCRIPTION + "/providers/{namespace}/register", self._register),
            workspace_route("GET", "", lambda _: Response(200, self._workspace())),
            Route("GET", f"{_PLACE}/vmSizes", self._sizes),
            Route("GET", f"{_PLACE}/usages", self._usages),
            Route("POST", f"{_ACCOUNT}/listKeys", self._keys),
            Route("GET", _SUBSCRIPTION + _IDENTITIES, self._identities),
            *self._role_routes(),
        ]

    def _role_routes(self) -> list[Route]:
        found = []
        workspace = f"{_GROUP}/providers/{PROVIDER}/workspaces/{{workspace}}"
        for scope in (_GROUP, workspace, _ACCOUNT):
            found += [
                Route("GET", scope + _PERMISSIONS, self._permissions),
                Route("GET", scope + _ROLES, self._list_roles),
                Route("GET", scope + _ROLES + "/{role}", self._role),
                Route("PUT", scope + _ROLES + "/{role}", self._assign),
            ]
        return found

    def _clouds(self, _request: Request) -> Response:
        """What `ARM_CLOUD_METADATA_URL` leads to."""
        return Response(200, [{
            "name": self._cloud,
            "portal": "https://portal.edgeloop.localhost",
            "resourceManager": f"{self._scope.url}/",
            "authentication": {"loginEndpoint": self._scope.url, "audiences": [self._scope.url]},
            "suffixes": {"storage": self._storage.suffix},
        }])  # fmt: skip

    def _discovery(self, _request: Request) -> Response:
        names = ("api", "history", "experimentation", "modelmanagement", "mlflow", "studio")
        return Response(200, dict.fromkeys(names, self._scope.url))

    def _subscription(self, request: Request) -> Response:
        self._ours(request)
        return Response(
            200,
            {
                "id": f"/subscriptions/{SUBSCRIPTION}",
                "subscriptionId": SUBSCRIPTION,
                "tenantId": TENANT,
            },
        )

    def _provider(self, request: Request) -> Response:
        self._ours(request)
        namespace = request.parameters["namespace"]
        state = "NotRegistered" if namespace in self.unregistered else "Registered"
        return Response(200, {"namespace": namespace, "registrationState": state})

    def _register(self, request: Request) -> Response:
        self.unregistered.discard(request.parameters["namespace"])
        return Response(200, {"registrationState": "Registering"})

    def _group(self, request: Request) -> Response:
        self._ours(request)
        return Response(200, {"id": self._scope.group_id, "name": GROUP, "location": LOCATION})

    def _workspace(self) -> dict[str, Any]:
        made = self._account.made.get(self._scope.workspace_id.lower(), {}).get("properties", {})
        properties = {
            "workspaceId": WORKSPACE_GUID,
            "friendlyName": WORKSPACE,
            "description": "",
            "provisioningState": "Succeeded",
            "discoveryUrl": f"{self._scope.url}/discovery",
            "storageAccount": made.get("storageAccount") or self._storage_id(),
            "containerRegistry": None,
            "keyVault": f"{self._scope.group_id}/providers/Microsoft.Keyvault/vaults/lab",
            "applicationInsights": None,
            "mlFlowTrackingUri": f"{self._scope.url}/mlflow",
            "publicNetworkAccess": "Enabled",
            "systemDatastoresAuthMode": "accesskey",
        }
        return {
            "id": self._scope.workspace_id,
            "name": WORKSPACE,
            "type": f"{PROVIDER}/workspaces",
            "kind": "Default",
            "location": LOCATION,
            "tags": {},
            "sku": {"name": "Basic", "tier": "Basic"},
            "identity": {"type": "SystemAssigned", "principalId": str(uuid.UUID(int=7))},
            "properties": properties,
        }

    def _sizes(self, request: Request) -> Response:
        self._ours(request)
        return Response(200, {"value": [size.row() for size in SIZES.values()]})

    def _usages(self, request: Request) -> Response:
        return self._scope.page(request, [self._usage(family) for family in FAMILIES])

    def _usage(self, family: str) -> dict[str, Any]:
        kind = f"{PROVIDER}/vmFamily/dedicatedCores/usages"
        return {
            "id": f"/subscriptions/{SUBSCRIPTION}/providers/{kind}/{family}",
            "type": kind,
            "unit": "Count",
            "currentValue": self._computes.cores_in_use(family),
            "limit": self._faults.cores_per_family,
            "name": {"value": family, "localizedValue": family},
        }

    def _storage_id(self) -> str:
        provider = "providers/Microsoft.Storage/storageAccounts"
        return f"{self._scope.group_id}/{provider}/{self._storage.account}"

    def _keys(self, request: Request) -> Response:
        account = self._account.account(request.parameters["account"])
        if not account["properties"].get("allowSharedKeyAccess", True):
            what = "Key based authentication is not permitted on this storage account."
            raise ServiceError(403, "KeyBasedAuthenticationNotPermitted", what)
        key = {"keyName": "key1", "value": self._storage.key, "permissions": "FULL"}
        return Response(200, {"keys": [key]})

    def _identities(self, request: Request) -> Response:
        self._ours(request)
        known = self._computes.user_identities.items()
        return self._scope.page(request, [{"id": rid, "properties": ids} for rid, ids in known])

    def _permissions(self, request: Request) -> Response:
        forbidden = [*self.not_actions, *self._faults.forbidden]
        row = {"actions": self.actions, "notActions": forbidden, "notDataActions": [],
               "dataActions": self.data_actions}  # fmt: skip
        return self._scope.page(request, [row])

    def _list_roles(self, request: Request) -> Response:
        return self._scope.page(request, list(self.roles.values()))

    def _role(self, request: Request) -> Response:
        found = self.roles.get(request.parameters["role"])
        if found is None:
            raise ServiceError(404, "RoleAssignmentNotFound", "no such role assignment")
        return Response(200, found)

    def _assign(self, request: Request) -> Response:
        name, properties = request.parameters["role"], request.json["properties"]
        for needed in ("roleDefinitionId", "principalId"):
            if not isinstance(properties.get(needed), str):
                raise ServiceError(400, "InvalidRequestContent", f"{needed} is required")
        wanted = (properties["roleDefinitionId"], properties["principalId"])
        for row in self.roles.values():
            if (row["properties"]["roleDefinitionId"], row["properties"]["principalId"]) == wanted:
                what = "The role assignment already exists."
                raise ServiceError(409, "RoleAssignmentExists", what)
        self.roles[name] = {
            "id": request.path,
            "name": name,
            "type": "Microsoft.Authorization/roleAssignments",
            "properties": properties,
        }
        return Response(201, self.roles[name])

    def _ours(self, request: Request) -> None:
        if request.parameters["subscription"] != SUBSCRIPTION:
            raise ServiceError(404, "SubscriptionNotFound", "The subscription could not be found.")
        if request.parameters.get("group", GROUP).lower() != GROUP:
            raise ServiceError(404, "ResourceGroupNotFound", "The group could not be found.")


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
            return {"properties": {"allowSharedKeyAccess": True}}
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
