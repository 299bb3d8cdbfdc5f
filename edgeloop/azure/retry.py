"""How long Azure may be away, and waiting for what it does, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class GaveUp(Exception):
    """Azure asks for more patience than there is. No error of Azure's, which would be tried again:
    `error` is that one."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


PATIENCE_S = 90.0  # a network that is away for a minute is waited for
CONNECT_S = 10
READ_S = 60
_TRIES = 8
_LONGEST_PAUSE_S = 20
_ASKS_TO_WAIT = (429, 503)
_BEGAN = "edgeloop.began"
_POLL_S = 0.2
_LONGEST_POLL_S = 5.0


def network_limits(patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """For Azure's clients: time limits, and retries (429 with its Retry-After, 5xx, a connection
    that breaks) that end."""
    return {
        "connection_timeout": CONNECT_S,
        "read_timeout": READ_S,
        "retry_total": _TRIES,
        "retry_connect": _TRIES,
        "retry_read": _TRIES,
        "retry_status": _TRIES,
        "retry_backoff_factor": 0.4,
        "retry_backoff_max": _LONGEST_PAUSE_S,
        "timeout": patience_s,
    }


def no_longer_than(patience_s: float) -> Any:
    """A policy for the inside of Azure's retries. Those wait as long as a service asks them to,
    which may be an hour: this one ends them instead. Several clients may share it."""
    from azure.core.exceptions import HttpResponseError
    from azure.core.pipeline.policies import RetryPolicy, SansIOHTTPPolicy

    class NoLongerThan(SansIOHTTPPolicy[Any, Any]):
        def on_request(self, request: Any) -> None:
            request.context.setdefault(_BEGAN, time.monotonic())

        def on_response(self, request: Any, response: Any) -> None:
            if response.http_response.status_code not in _ASKS_TO_WAIT:
                return
            after = RetryPolicy().get_retry_after(response) or 0.0
            if time.monotonic() - request.context[_BEGAN] + after > patience_s:
                raise GaveUp(HttpResponseError(response=response.http_response))

    return NoLongerThan()


def until(
    done: Callable[[], Result | None],
    limit_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Result | None:
    """The first answer that is one; None when the time is over."""
    deadline = clock() + limit_s
    pause = _POLL_S
    while True:
        found = done()
        if found is not None or clock() > deadline:
            return found
        sleep(pause)
        pause = min(pause * 1.5, _LONGEST_POLL_S)
