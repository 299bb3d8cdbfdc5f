"""What Azure Resource Manager knows beside the workspace's insides: the workspace itself, sizes of
machines, quotas, roles, the storage account; and the addresses of the other services."""

from __future__ import annotations

import uuid
from typing import Any

from tests.peers.azureml.account import Account
from tests.peers.azureml.computes import Computes
from tests.peers.azureml.faults import Faults
from tests.peers.azureml.identity import TENANT
from tests.peers.azureml.machines import FAMILIES, SIZES
from tests.peers.azureml.routing import PROVIDER, Request, Response, Route, ServiceError
from tests.peers.azureml.scope import (
    GROUP,
    LOCATION,
    SUBSCRIPTION,
    WORKSPACE,
    WORKSPACE_GUID,
    Scope,
    workspace_route,
)
from tests.peers.azureml.storage import Storage

_SUBSCRIPTION = "/subscriptions/{subscription}"
_GROUP = _SUBSCRIPTION + "/resourceGroups/{group}"
_PLACE = f"{_SUBSCRIPTION}/providers/{PROVIDER}/locations/{{location}}"
_ACCOUNT = f"{_GROUP}/providers/Microsoft.Storage/storageAccounts/{{account}}"
_ROLES = "/providers/Microsoft.Authorization/roleAssignments"
_IDENTITIES = "/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
_PERMISSIONS = "/providers/Microsoft.Authorization/permissions"
OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"


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
        listing = f"/providers/{PROVIDER}/workspaces"
        return [
            Route("GET", "/metadata/endpoints", self._clouds, is_open=True),
            Route("GET", "/discovery", self._discovery, is_open=True),
            Route("GET", _SUBSCRIPTION, self._subscription),
            Route("GET", _GROUP, self._group),
            Route("GET", _SUBSCRIPTION + "/providers/{namespace}", self._provider),
            Route("POST", _SUBSCRIPTION + "/providers/{namespace}/register", self._register),
            Route("GET", _SUBSCRIPTION + listing, self._workspaces),
            Route("GET", _GROUP + listing, self._workspaces),
            workspace_route("GET", "", lambda _: Response(200, self._workspace())),
            Route("GET", f"{_PLACE}/vmSizes", self._sizes),
            Route("GET", f"{_PLACE}/usages", self._usages),
            Route("GET", f"{_PLACE}/quotas", self._quotas),
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

    def _workspaces(self, request: Request) -> Response:
        self._ours(request)
        return self._scope.page(request, [self._workspace()])

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
            "systemDatastoresAuthMode": "accesskey" if self._faults.account_keys else "identity",
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

    def _quotas(self, request: Request) -> Response:
        rows = [
            {
                "id": f"{self._scope.workspace_id}/quotas/{family}",
                "type": f"{PROVIDER}/workspaces/dedicatedCores/quotas",
                "limit": self._faults.cores_per_family,
                "unit": "Count",
                "name": {"value": family, "localizedValue": family},
            }
            for family in FAMILIES
        ]
        return self._scope.page(request, rows)

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
