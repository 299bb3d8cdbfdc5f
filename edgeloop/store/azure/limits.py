"""What Azure's SDK does when a storage account limits requests: all clients of this process wait.

The SDK waits for as long as an answer asks, each request for itself and without an end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgeloop._util.retry import PATIENCE_S, asked_pause, limit_of
from edgeloop.errors import StoreLimited

if TYPE_CHECKING:
    from azure.core.exceptions import HttpResponseError
    from azure.core.pipeline.transport import RequestsTransport

_CODE = "x-ms-error-code"
_TIMED_OUT = "OperationTimedOut"


def limited_transport(service: str, store: str) -> RequestsTransport:
    """A transport for clients of one service of an account, by its address, which repeats what that
    service limits and raises StoreLimited at the end."""
    from azure.core.exceptions import ServiceResponseError
    from azure.core.pipeline.transport import RequestsTransport

    class LimitedTransport(RequestsTransport):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            answer = limit_of(service).keep(
                lambda: super(LimitedTransport, self).send(request, **options), _pause_of
            )
            if _is_cut_off(answer):
                raise ServiceResponseError("the connection ended in the middle of an answer")
            if _pause_of(answer) is None:
                return answer
            code = answer.headers.get(_CODE, "")
            reason = f"{answer.status_code} {code}".strip()
            raise StoreLimited(store=store, reason=reason, seconds=PATIENCE_S)

    return LimitedTransport()


def pause_of_error(error: HttpResponseError) -> float | None:
    """How long a service asks to wait by this error; None if it limits nobody."""
    return None if error.response is None else _pause_of(error.response)


def _is_cut_off(answer: Any) -> bool:
    """Python's HTTP client takes headers that break off for whole ones, and the body for empty. An
    answer over a connection that stays open says how long it is; some have no body."""
    if answer.status_code in (204, 304) or answer.request.method == "HEAD":
        return False
    headers = {str(name).lower(): str(value) for name, value in answer.headers.items()}
    raw = getattr(answer.internal_response, "raw", None)
    is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    says_its_end = is_chunked or headers.get("content-length", "").isdecimal()
    is_open = getattr(raw, "version", 0) == 11 and headers.get("connection", "").lower() != "close"
    return is_open and not says_its_end


def _pause_of(answer: Any) -> float | None:
    headers = {str(name).lower(): str(value) for name, value in answer.headers.items()}
    status = 503 if headers.get(_CODE) == _TIMED_OUT else int(answer.status_code or 0)
    return asked_pause(status, headers)
