"""A connection to a workspace. Creating one makes no request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgeloop._util.redact import redact
from edgeloop.errors import (
    BadSetting,
    ComputeRefused,
    ComputeUnavailable,
    EdgeloopError,
    MissingExtra,
)
from edgeloop.jobs.computes.azureml.services import (
    PATIENCE_S,
    ResourceManager,
    RetriesExhausted,
    RunHistory,
    fetch_rows,
    network_limits,
    patience_policy,
)
from edgeloop.jobs.computes.azureml.workspace import (
    Cloud,
    WorkspaceAddress,
    cloud_variables,
    has_terminal,
    identity_client,
)

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


# Azure's errors as one sentence that says what to do.


_LONGEST = 400
_ACTION = re.compile(r"perform action '([^']+)'")
_WHO = re.compile(r"client '([^']+)'")
_SIZE = re.compile(r"(?i)vm ?size|compute size|instance ?type")
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_EXPIRED = ("ExpiredAuthenticationToken", "InvalidAuthenticationToken", "TokenExpired")
_NO_WORKSPACE = ("SubscriptionNotFound", "ResourceGroupNotFound", "InvalidSubscriptionId")


@contextmanager
def explained(
    compute: str, address: WorkspaceAddress, note: Callable[[], str] = str
) -> Iterator[None]:
    """Azure's errors become ours; `note` names what was already created, so that it is not left
    behind unnoticed."""
    try:
        yield
    except Exception as error:
        if not is_azure_error(error):
            raise
        raise explain(error, compute, address, note()) from None


def explain(
    error: Exception, compute: str, address: WorkspaceAddress, note: str = ""
) -> EdgeloopError:
    """One of BadSetting, ComputeRefused and ComputeUnavailable, by what went wrong."""
    found = _explain(
        error.error if isinstance(error, RetriesExhausted) else error, compute, address
    )
    if note:
        fields = {**found.fields, "reason": f"{found.fields['reason']} ({note})"}
        return type(found)(**fields)
    return found


def is_azure_error(error: Exception) -> bool:
    """Whether `explain` applies to it."""
    from azure.core.exceptions import AzureError

    return isinstance(error, AzureError | RetriesExhausted)


def is_missing(error: Exception) -> bool:
    from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

    if isinstance(error, ResourceNotFoundError):
        return code_of(error) not in _NO_WORKSPACE
    return isinstance(error, HttpResponseError) and error.status_code == 404


def code_of(error: Exception) -> str:
    return str(getattr(getattr(error, "error", None), "code", "") or "")


def words_of(error: Exception) -> str:
    """The service's own message on one line, without secrets."""
    inner = getattr(getattr(error, "error", None), "message", "")
    text = str(inner or getattr(error, "message", "") or error)
    line = " ".join(redact(text).split()).rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _explain(error: Exception, compute: str, address: WorkspaceAddress) -> EdgeloopError:
    from azure.core.exceptions import (
        ClientAuthenticationError,
        HttpResponseError,
        ServiceRequestError,
        ServiceResponseError,
    )

    status = getattr(error, "status_code", None)
    if isinstance(error, ServiceRequestError | ServiceResponseError):
        return ComputeUnavailable(compute=compute, reason=f"Azure does not answer: {_cause(error)}")
    if isinstance(error, ClientAuthenticationError) and status != 403:
        return ComputeRefused(compute=compute, reason=_login(error))
    if not isinstance(error, HttpResponseError) or status is None:
        return ComputeRefused(compute=compute, reason=f"Azure ML said: {words_of(error)}")
    return _of_status(error, int(status), compute, address)


def _of_status(
    error: Exception, status: int, compute: str, address: WorkspaceAddress
) -> EdgeloopError:
    code, words = code_of(error), words_of(error)
    where = f"computes.{compute}"
    if status == 401 or code in _EXPIRED:
        return ComputeRefused(compute=compute, reason=_login(error))
    if "quota" in f"{code} {words}".lower():
        reason = f"the quota does not allow it: {words}. Ask for more in the portal under Quotas"
        return ComputeRefused(compute=compute, reason=f"{reason}, or use fewer or smaller nodes")
    if status == 403:
        return ComputeRefused(compute=compute, reason=_role(error, address))
    if code in _NO_WORKSPACE or (status == 404 and f"workspaces/{address.workspace}'" in words):
        return BadSetting(where=where, reason=f"there is no {address}: check its three names")
    if _SIZE.search(f"{code} {words}"):
        return BadSetting(where=where, reason=f"unknown instance type: {words}")
    if status in _TRANSIENT:
        said = "it is throttling" if status == 429 else f"status {status}"
        return ComputeUnavailable(compute=compute, reason=f"Azure ML answered: {said}: {words}")
    return ComputeRefused(compute=compute, reason=f"Azure ML said: {words}")


def _login(error: Exception) -> str:
    """Azure's chain of credentials reports at length; what matters is what to do."""
    if code_of(error) in _EXPIRED or getattr(error, "status_code", None) == 401:
        return "the login has expired or is not accepted: 'az login' once more, then try again"
    return (
        "no login to Azure: run 'az login', or set 'login: device-code' for the compute, "
        "or run where a managed identity is"
    )


def _role(error: Exception, address: WorkspaceAddress) -> str:
    words = words_of(error)
    action = _ACTION.search(words)
    who = _WHO.search(words)
    if action is None:
        return f"not permitted on {address}: {words}"
    role = "AzureML Compute Operator" if "/computes/" in action[1] else "AzureML Data Scientist"
    name = f" of {who[1]}" if who else ""
    return (
        f"the login{name} lacks a role on {address} that allows {action[1]}: ask its owner for "
        f"'{role}' or another with that action"
    )


def _cause(error: Exception) -> str:
    inner = getattr(error, "inner_exception", None) or error
    text = " ".join(redact(str(inner)).split())
    match = re.search(r"\[Errno -?\d+\] ([^')\]]+)|(timed out)", text)
    return (match[1] or match[2]).strip() if match else text[:200]
