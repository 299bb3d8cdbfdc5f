"""A workspace, and somebody who may use it. Made without contacting anybody."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgeloop.azure.environment import cloud_variables, has_terminal, identity_client
from edgeloop.azure.history import History, tell
from edgeloop.azure.manager import Manager
from edgeloop.azure.retry import PATIENCE_S, network_limits, no_longer_than
from edgeloop.azure.workspace import Cloud, Place
from edgeloop.errors import BadSetting, MissingExtra

if TYPE_CHECKING:
    from azure.ai.ml import MLClient
    from azure.core.credentials import TokenCredential


def connect(
    place: Place, patience_s: float = PATIENCE_S, credential: TokenCredential | None = None
) -> Connection:
    """Azure's packages are loaded when something is first asked of the workspace."""
    return Connection(place, patience_s, credential)


def require_packages() -> None:
    """Raises MissingExtra, for those who handle Azure's own errors before they ask anything. They
    are looked for, not loaded: that takes seconds, and for a private cloud the network."""
    from importlib.util import find_spec

    try:
        is_there = find_spec("azure.ai.ml") and find_spec("azure.identity")
    except ModuleNotFoundError:
        is_there = None
    if not is_there:
        raise MissingExtra(what="Azure ML", extra="azureml")


class Connection:
    """One per process and workspace is enough: it keeps tokens and connections."""

    def __init__(
        self,
        place: Place,
        patience_s: float = PATIENCE_S,
        credential: TokenCredential | None = None,
    ) -> None:
        self.place = place
        self._patience_s = patience_s
        self._given = credential

    @cached_property
    def credential(self) -> TokenCredential:
        _quiet()
        return self._given or _credential(self.place)

    @cached_property
    def ml(self) -> MLClient:
        """Azure's own client."""
        try:
            from azure.ai.ml import MLClient
        except ImportError:
            raise MissingExtra(what="Azure ML", extra="azureml") from None
        place = self.place
        cloud: dict[str, Any] = {"cloud": place.cloud.name} if place.cloud.name else {}
        if place.cloud.metadata is not None:
            cloud["cloud_metadata"] = place.cloud.metadata
        _quiet()
        return MLClient(
            self.credential,
            place.subscription,
            place.resource_group,
            place.workspace,
            show_progress=False,
            enable_telemetry=False,
            **network_limits(self._patience_s),
            per_retry_policies=[no_longer_than(self._patience_s)],
            **cloud,
        )

    @cached_property
    def workspace(self) -> Any:
        """What Azure tells of the workspace; asked once."""
        return self.ml.workspaces.get(self.place.workspace)

    @cached_property
    def history(self) -> History:
        """The service that knows how far runs are."""
        limits = network_limits(self._patience_s)
        scope = f"{_manager(self.place.cloud, limits).rstrip('/')}/.default"
        discovery = lambda: str(self.workspace.discovery_url)  # noqa: E731
        return History(self.place, self.credential, scope, discovery, limits)

    @cached_property
    def manager(self) -> Manager:
        """Who answers for roles and providers."""
        limits = network_limits(self._patience_s)
        return Manager(lambda: _manager(self.place.cloud, limits), self.credential, limits)


_MANAGERS = {
    "AzureCloud": "https://management.azure.com",
    "AzureUSGovernment": "https://management.usgovcloudapi.net",
    "AzureChinaCloud": "https://management.chinacloudapi.cn",
}
_AUTHORITIES = {
    "AzureUSGovernment": "https://login.microsoftonline.us",
    "AzureChinaCloud": "https://login.chinacloudapi.cn",
}


def _manager(cloud: Cloud, limits: Mapping[str, Any]) -> str:
    """The resource manager's address, which tokens are asked for."""
    if cloud.endpoints is not None:
        return cloud.endpoints["resource_manager"]
    name, metadata = cloud_variables()
    name = cloud.name or name
    if name in _MANAGERS or not metadata:
        return _MANAGERS.get(name, _MANAGERS["AzureCloud"])
    for told in tell(metadata, limits):
        if told.get("name") == name:
            return str(told.get("resourceManager") or "")
    raise BadSetting(where="AZUREML_CURRENT_CLOUD", reason=f"{metadata} knows no cloud {name!r}")


def _credential(place: Place) -> TokenCredential:
    """Workload and managed identity, the logins of Azure's tools, and a browser where somebody
    sits before one; or the one way that `login` names."""
    try:
        from azure import identity
    except ImportError:
        raise MissingExtra(what="Azure ML", extra="azureml") from None
    where = _authority(place)
    client = identity_client()
    if place.login == "device-code":
        return identity.DeviceCodeCredential(**where)
    if place.login == "browser":
        return identity.InteractiveBrowserCredential(**where)
    if place.login == "cli":
        return identity.AzureCliCredential()
    if place.login == "managed":
        return identity.ManagedIdentityCredential(client_id=client)
    return identity.DefaultAzureCredential(
        managed_identity_client_id=client,
        exclude_interactive_browser_credential=not has_terminal(),
        **where,
    )


def _authority(place: Place) -> dict[str, Any]:
    if place.cloud.endpoints is not None:
        authority = place.cloud.endpoints["active_directory"]
        return {"authority": authority, "disable_instance_discovery": True}
    found = _AUTHORITIES.get(place.cloud.name)
    return {"authority": found} if found else {}


def _quiet() -> None:
    """The SDK warns of experimental classes that it uses itself, and logs what fails in pages that
    Python would print where nobody has set up logging; an error of ours says it in a sentence."""
    import logging
    import warnings

    warnings.filterwarnings("ignore", module=r"azure\.ai\.ml.*")
    logging.getLogger("azure.ai.ml._utils._experimental").setLevel(logging.ERROR)
    for name in ("azure", "msrest"):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            logger.addHandler(logging.NullHandler())
