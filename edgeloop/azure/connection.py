"""A connection to a workspace. Creating one contacts nobody."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgeloop.azure.services import (
    PATIENCE_S,
    ResourceManager,
    RunHistory,
    fetch_rows,
    network_limits,
    patience_policy,
)
from edgeloop.azure.workspace import (
    Cloud,
    WorkspaceAddress,
    cloud_variables,
    has_terminal,
    identity_client,
)
from edgeloop.errors import BadSetting, MissingExtra

if TYPE_CHECKING:
    from azure.ai.ml import MLClient
    from azure.core.credentials import TokenCredential


def connect(
    address: WorkspaceAddress,
    patience_s: float = PATIENCE_S,
    credential: TokenCredential | None = None,
) -> Connection:
    """Azure's packages are loaded with the first request."""
    return Connection(address, patience_s, credential)


def require_packages() -> None:
    """Raises MissingExtra, for callers that handle Azure's own errors. The packages are looked for,
    not loaded: loading takes seconds, and for a private cloud the network."""
    from importlib.util import find_spec

    try:
        is_there = find_spec("azure.ai.ml") and find_spec("azure.identity")
    except ModuleNotFoundError:
        is_there = None
    if not is_there:
        raise MissingExtra(what="Azure ML", extra="azureml")


class Connection:
    """One per process and workspace is enough: it caches tokens and connections."""

    def __init__(
        self,
        address: WorkspaceAddress,
        patience_s: float = PATIENCE_S,
        credential: TokenCredential | None = None,
    ) -> None:
        self.address = address
        self._patience_s = patience_s
        self._given = credential

    @cached_property
    def credential(self) -> TokenCredential:
        _quiet()
        return self._given or _credential(self.address)

    @cached_property
    def ml(self) -> MLClient:
        """Azure's own client."""
        try:
            from azure.ai.ml import MLClient
        except ImportError:
            raise MissingExtra(what="Azure ML", extra="azureml") from None
        address = self.address
        cloud: dict[str, Any] = {"cloud": address.cloud.name} if address.cloud.name else {}
        if address.cloud.metadata is not None:
            cloud["cloud_metadata"] = address.cloud.metadata
        _quiet()
        return MLClient(
            self.credential,
            address.subscription,
            address.resource_group,
            address.workspace,
            show_progress=False,
            enable_telemetry=False,
            **network_limits(self._patience_s),
            per_retry_policies=[patience_policy(self._patience_s)],
            **cloud,
        )

    @cached_property
    def workspace(self) -> Any:
        """Azure's description of the workspace; fetched once."""
        return self.ml.workspaces.get(self.address.workspace)

    @cached_property
    def history(self) -> RunHistory:
        """The service that knows the states of runs."""
        limits = network_limits(self._patience_s)
        scope = f"{_manager_url(self.address.cloud, limits).rstrip('/')}/.default"
        discovery = lambda: str(self.workspace.discovery_url)  # noqa: E731
        return RunHistory(self.address, self.credential, scope, discovery, limits)

    @cached_property
    def manager(self) -> ResourceManager:
        """The service for roles and providers."""
        limits = network_limits(self._patience_s)
        return ResourceManager(
            lambda: _manager_url(self.address.cloud, limits), self.credential, limits
        )


_MANAGERS = {
    "AzureCloud": "https://management.azure.com",
    "AzureUSGovernment": "https://management.usgovcloudapi.net",
    "AzureChinaCloud": "https://management.chinacloudapi.cn",
}
_AUTHORITIES = {
    "AzureUSGovernment": "https://login.microsoftonline.us",
    "AzureChinaCloud": "https://login.chinacloudapi.cn",
}


def _manager_url(cloud: Cloud, limits: Mapping[str, Any]) -> str:
    """The resource manager's URL, for which tokens are requested."""
    if cloud.endpoints is not None:
        return cloud.endpoints["resource_manager"]
    name, metadata = cloud_variables()
    name = cloud.name or name
    if name in _MANAGERS or not metadata:
        return _MANAGERS.get(name, _MANAGERS["AzureCloud"])
    for listed in fetch_rows(metadata, limits):
        if listed.get("name") == name:
            return str(listed.get("resourceManager") or "")
    raise BadSetting(
        where="AZUREML_CURRENT_CLOUD", reason=f"{metadata} does not list the cloud {name!r}"
    )


def _credential(address: WorkspaceAddress) -> TokenCredential:
    """Workload and managed identity, the logins of Azure's tools, and a browser if a person can use
    one; or the one way that `login` names."""
    try:
        from azure import identity
    except ImportError:
        raise MissingExtra(what="Azure ML", extra="azureml") from None
    where: dict[str, Any] = {}
    if address.cloud.endpoints is not None:
        authority = address.cloud.endpoints["active_directory"]
        where = {"authority": authority, "disable_instance_discovery": True}
    elif address.cloud.name in _AUTHORITIES:
        where = {"authority": _AUTHORITIES[address.cloud.name]}
    client = identity_client()
    if address.login == "device-code":
        return identity.DeviceCodeCredential(**where)
    if address.login == "browser":
        return identity.InteractiveBrowserCredential(**where)
    if address.login == "cli":
        return identity.AzureCliCredential()
    if address.login == "managed":
        return identity.ManagedIdentityCredential(client_id=client)
    return identity.DefaultAzureCredential(
        managed_identity_client_id=client,
        exclude_interactive_browser_credential=not has_terminal(),
        **where,
    )


def _quiet() -> None:
    """The SDK warns about experimental classes that it uses itself, and logs failures at length,
    which Python prints if logging is not set up; our own error says it in a sentence."""
    import logging
    import warnings

    warnings.filterwarnings("ignore", module=r"azure\.ai\.ml.*")
    logging.getLogger("azure.ai.ml._utils._experimental").setLevel(logging.ERROR)
    for name in ("azure", "msrest"):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            logger.addHandler(logging.NullHandler())
