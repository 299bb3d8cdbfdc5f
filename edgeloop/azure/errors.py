"""Azure's errors as one sentence that says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgeloop._util.redact import redact
from edgeloop.azure.services import RetriesExhausted
from edgeloop.azure.workspace import WorkspaceAddress
from edgeloop.errors import BadSetting, ComputeRefused, ComputeUnavailable, EdgeloopError

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
        "nobody is logged in to Azure: 'az login', or set 'login: device-code' for the compute, "
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
