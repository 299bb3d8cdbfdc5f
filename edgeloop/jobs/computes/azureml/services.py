"""Azure services that the SDK does not cover: the run history and Resource Manager, with limits on
how long Azure may be unavailable.

The SDK asks about one job at a time. Its own client of the run history has the batch that is used
here (`batchrundata`), but keeps it private, so the few calls that are needed are spelled out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgeloop._util.redact import redact
from edgeloop._util.retry import spread
from edgeloop.jobs.computes.azureml.workspace import WorkspaceAddress

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential
    from azure.core.rest import HttpResponse

PATIENCE_S = 90.0  # an interruption of a minute is tolerated
SUBSCRIPTION_VERSION = "2022-12-01"
PROVIDER_VERSION = "2021-04-01"
IDENTITY_VERSION = "2023-01-31"
ROLES_VERSION = "2022-04-01"
WORKSPACE_VERSION = "2024-10-01"
_CONNECT_S = 10
_READ_S = 60
_TRIES = 8
BACKOFF_FACTOR = 0.4  # as Azure's clients count: pauses of 0, 0.8, 1.6, 3.2 … seconds
_LONGEST_PAUSE_S = 20
_THROTTLED = (429, 503)
_BEGAN = "edgeloop.began"
_WAITED = "edgeloop.waited"  # as long as the service asked, before this request is sent again
_BATCH = 100
_LARGEST_LOG = 16 * 1024 * 1024
_MOST_PAGES = 1_000


class RetriesExhausted(Exception):
    """Azure asks to wait longer than allowed. Not one of Azure's errors, which would be retried:
    `error` is that one."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def network_limits(patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """For Azure's clients: time limits, and retries (429 with its Retry-After, 5xx, a broken
    connection) that end."""
    return {
        "connection_timeout": _CONNECT_S,
        "read_timeout": _READ_S,
        "retry_total": _TRIES,
        "retry_connect": _TRIES,
        "retry_read": _TRIES,
        "retry_status": _TRIES,
        "retry_backoff_factor": BACKOFF_FACTOR,
        "retry_backoff_max": _LONGEST_PAUSE_S,
        "timeout": patience_s,
    }


def patience_policy(patience_s: float) -> Any:
    """A policy inside of Azure's retries. Those wait as long as a service asks, which may be an
    hour: this one ends them, and lets each request come back at a moment of its own. Several
    clients may share it."""
    from azure.core.exceptions import HttpResponseError
    from azure.core.pipeline.policies import RetryPolicy, SansIOHTTPPolicy

    class PatiencePolicy(SansIOHTTPPolicy[Any, Any]):
        def on_request(self, request: Any) -> None:
            request.context.setdefault(_BEGAN, time.monotonic())
            time.sleep(spread(float(request.context.pop(_WAITED, 0.0))))

        def on_response(self, request: Any, response: Any) -> None:
            if response.http_response.status_code not in _THROTTLED:
                return
            after = RetryPolicy().get_retry_after(response) or 0.0
            if time.monotonic() - request.context[_BEGAN] + after > patience_s:
                raise RetriesExhausted(HttpResponseError(response=response.http_response))
            request.context[_WAITED] = after

    return PatiencePolicy()


def fetch_rows(url: str, limits: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a public address of a cloud lists."""
    with _client(limits) as client:
        rows = _send(client, "GET", url).json()
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _client(
    limits: Mapping[str, Any], credential: TokenCredential | None = None, scope: str = ""
) -> PipelineClient[Any, Any]:
    from azure.core import PipelineClient
    from azure.core.pipeline.policies import BearerTokenCredentialPolicy, RetryPolicy

    policies: list[Any] = [RetryPolicy(**limits)]
    if credential is not None:
        policies.append(patience_policy(limits["timeout"]))
        policies.append(BearerTokenCredentialPolicy(credential, scope))
    timeouts = {name: limits[name] for name in ("connection_timeout", "read_timeout")}
    return PipelineClient("", policies=policies, **timeouts)


def _send(client: PipelineClient[Any, Any], method: str, url: str, **options: Any) -> HttpResponse:
    from azure.core.rest import HttpRequest

    response: HttpResponse = client.send_request(HttpRequest(method, url, **options))
    response.raise_for_status()
    return response


def _mapping(response: HttpResponse) -> Mapping[str, Any]:
    content = response.json()
    return content if isinstance(content, Mapping) else {}


@dataclass(frozen=True)
class AzureRun:
    """A run as the service reports it; `error` and `warnings` are sentences for people."""

    id: str
    status: str
    name: str = ""
    error: str = ""
    warnings: tuple[str, ...] = ()
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    parent: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> AzureRun:
        return cls(
            id=str(row.get("runId") or ""),
            status=str(row.get("status") or ""),
            name=str(row.get("displayName") or ""),
            error=_error_text(row.get("error")),
            warnings=tuple(str(item.get("message")) for item in row.get("warnings") or ()),
            created=_time(row.get("createdUtc") or row.get("createdTimeUtc")),
            started=_time(row.get("startTimeUtc")),
            ended=_time(row.get("endTimeUtc")),
            parent=str(row.get("parentRunId") or ""),
            tags=row.get("tags") or {},
            properties=row.get("properties") or {},
        )


def _error_text(error: object) -> str:
    """The innermost message of nested error objects."""
    if not isinstance(error, Mapping):
        return ""
    inner = error.get("error")
    inner = inner if isinstance(inner, Mapping) else error
    return " ".join(redact(str(inner.get("message") or inner.get("code") or "")).split())


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None


class RunHistory:
    """The states of many runs with one request."""

    def __init__(
        self,
        workspace: WorkspaceAddress,
        credential: TokenCredential,
        scope: str,
        discovery: Callable[[], str],
        limits: Mapping[str, Any],
    ) -> None:
        self._workspace = workspace
        self._credential = credential
        self._scope = scope
        self._discovery = discovery
        self._limits = dict(limits)

    def runs(self, ids: Sequence[str]) -> dict[str, AzureRun]:
        """Those of these that exist."""
        found = {}
        for start in range(0, len(ids), _BATCH):
            asked = {id_: {"runId": id_, "selectRunMetadata": True} for id_ in ids[start:][:_BATCH]}
            url = self._url("batchrundata")
            batch = _mapping(_send(self._client, "POST", url, json={"requests": asked}))
            for key, result in (batch.get("successfulResults") or {}).items():
                row = result.get("runMetadata")
                if row:
                    found[key] = AzureRun.of(row)
        return found

    def children(self, run: str) -> Iterator[AzureRun]:
        """The steps of a pipeline."""
        url: str | None = self._url(f"runs/{run}/children")
        for _ in range(_MOST_PAGES):
            page = self._get(str(url))
            yield from (AzureRun.of(row) for row in page.get("value") or ())
            url = page.get("nextLink")
            if not url:
                return

    def log_files(self, run: str) -> dict[str, str]:
        """The addresses of a run's logs, each with its own signature: never show them."""
        details = self._get(self._url(f"runs/{run}/details"))
        return {str(name): str(url) for name, url in (details.get("logFiles") or {}).items()}

    def read(self, url: str) -> str:
        """A log, by an address from `log_files`: no token is sent there."""
        from azure.core.rest import HttpRequest

        response = self._anonymous.send_request(HttpRequest("GET", url), stream=True)
        with response:
            if response.status_code == 404:
                return ""
            response.raise_for_status()
            content = b""
            for part in response.iter_bytes():
                content += part
                if len(content) > _LARGEST_LOG:
                    break
        return content.decode(errors="replace")

    def _get(self, url: str) -> Mapping[str, Any]:
        return _mapping(_send(self._client, "GET", url))

    def _url(self, path: str) -> str:
        return f"{self._base}/history/v1.0{self._workspace.path}/{path}"

    @cached_property
    def _base(self) -> str:
        services = self._get(self._discovery())
        return str(services.get("history") or services.get("api") or "").rstrip("/")

    @cached_property
    def _client(self) -> PipelineClient[Any, Any]:
        return _client(self._limits, self._credential, self._scope)

    @cached_property
    def _anonymous(self) -> PipelineClient[Any, Any]:
        return _client(self._limits)


class ResourceManager:
    """Resource groups, accounts, roles and providers. `clock_off_s` is how far this machine's clock
    is ahead of Azure's."""

    def __init__(
        self,
        url: Callable[[], str],
        credential: TokenCredential,
        limits: Mapping[str, Any],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._now = now
        self._find_url = url
        self._credential = credential
        self._limits = dict(limits)
        self.clock_off_s: float | None = None

    @cached_property
    def url(self) -> str:
        return self._find_url().rstrip("/")

    def token(self) -> str:
        """Raises what azure-identity raises without a login."""
        return self._credential.get_token(f"{self.url}/.default").token

    def get(self, path: str, version: str, **query: str) -> Mapping[str, Any]:
        return self._get(f"{self.url}{path}", {"api-version": version, **query})

    def send(
        self, method: str, path: str, version: str, body: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """A request that may change something. Sending it twice is the same as once."""
        options: dict[str, Any] = {"params": {"api-version": version}}
        if body is not None:
            options["json"] = body
        response = _send(self._client, method, f"{self.url}{path}", **options)
        return _mapping(response) if response.content else {}

    def rows(self, path: str, version: str, **query: str) -> Iterator[Mapping[str, Any]]:
        page = self.get(path, version, **query)
        for _ in range(_MOST_PAGES):
            yield from page.get("value") or ()
            following = page.get("nextLink")
            if not following:
                return
            page = self._get(str(following), {})

    def _get(self, url: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        from azure.core.rest import HttpRequest

        response = self._client.send_request(HttpRequest("GET", url, params=dict(query)))
        try:
            theirs = parsedate_to_datetime(response.headers.get("Date") or "")
        except ValueError:
            theirs = None
        if theirs is not None and theirs.tzinfo is not None:
            self.clock_off_s = (self._now() - theirs).total_seconds()
        response.raise_for_status()
        return _mapping(response)

    @cached_property
    def _client(self) -> PipelineClient[Any, Any]:
        return _client(self._limits, self._credential, f"{self.url}/.default")
