"""Azure ML's run history: how far many runs are, with one question.

The SDK asks about one job at a time; its own client of this service has the batch that is used
here (`batchrundata`), but keeps it private, so the few calls that are needed are spelt out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgeloop._util.redact import redact
from edgeloop.azure.retry import no_longer_than
from edgeloop.azure.workspace import Place

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential

BATCH = 100
LARGEST_LOG = 16 * 1024 * 1024
MOST_PAGES = 1_000


@dataclass(frozen=True)
class AzureRun:
    """A run as the service tells it; `error` and `warnings` are sentences for people."""

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
            error=error_text(row.get("error")),
            warnings=tuple(str(item.get("message")) for item in row.get("warnings") or ()),
            created=_time(row.get("createdUtc") or row.get("createdTimeUtc")),
            started=_time(row.get("startTimeUtc")),
            ended=_time(row.get("endTimeUtc")),
            parent=str(row.get("parentRunId") or ""),
            tags=row.get("tags") or {},
            properties=row.get("properties") or {},
        )


class History:
    def __init__(
        self,
        place: Place,
        credential: TokenCredential,
        scope: str,
        discovery: Callable[[], str],
        limits: Mapping[str, Any],
    ) -> None:
        self._place = place
        self._credential = credential
        self._scope = scope
        self._discovery = discovery
        self._limits = dict(limits)

    def runs(self, ids: Sequence[str]) -> dict[str, AzureRun]:
        """Those of these that there are, a batch of BATCH with each call."""
        found = {}
        for start in range(0, len(ids), BATCH):
            asked = {id_: {"runId": id_, "selectRunMetadata": True} for id_ in ids[start:][:BATCH]}
            answer = self._ask("POST", self._url("batchrundata"), {"requests": asked})
            for key, result in (answer.get("successfulResults") or {}).items():
                row = result.get("runMetadata")
                if row:
                    found[key] = AzureRun.of(row)
        return found

    def children(self, run: str) -> Iterator[AzureRun]:
        """The steps of a pipeline."""
        address: str | None = self._url(f"runs/{run}/children")
        for _ in range(MOST_PAGES):
            answer = self._ask("GET", address)
            yield from (AzureRun.of(row) for row in answer.get("value") or ())
            address = answer.get("nextLink")
            if not address:
                return

    def log_files(self, run: str) -> dict[str, str]:
        """The addresses of a run's logs, each with a signature of its own: show none of them."""
        answer = self._ask("GET", self._url(f"runs/{run}/details"))
        return {str(name): str(url) for name, url in (answer.get("logFiles") or {}).items()}

    def read(self, address: str) -> str:
        """A log, by the address that `log_files` gave: no token goes there."""
        from azure.core.rest import HttpRequest

        response = self._open.send_request(HttpRequest("GET", address), stream=True)
        with response:
            if response.status_code == 404:
                return ""
            response.raise_for_status()
            content = b""
            for part in response.iter_bytes():
                content += part
                if len(content) > LARGEST_LOG:
                    break
        return content.decode(errors="replace")

    def _ask(self, method: str, address: str | None, body: object = None) -> Mapping[str, Any]:
        from azure.core.rest import HttpRequest

        request = HttpRequest(method, str(address), json=body) if body is not None else None
        response = self._client.send_request(request or HttpRequest(method, str(address)))
        response.raise_for_status()
        answer = response.json()
        return answer if isinstance(answer, Mapping) else {}

    def _url(self, path: str) -> str:
        return f"{self._base}/history/v1.0{self._place.path}/{path}"

    @cached_property
    def _base(self) -> str:
        answer = self._ask("GET", self._discovery())
        return str(answer.get("history") or answer.get("api") or "").rstrip("/")

    @cached_property
    def _client(self) -> PipelineClient[Any, Any]:
        from azure.core import PipelineClient
        from azure.core.pipeline.policies import (
            BearerTokenCredentialPolicy,
            HeadersPolicy,
            RetryPolicy,
        )

        token = BearerTokenCredentialPolicy(self._credential, self._scope)
        patience = no_longer_than(self._limits["timeout"])
        policies = [HeadersPolicy(), RetryPolicy(**self._limits), patience, token]
        return PipelineClient("", policies=policies, **_transport(self._limits))

    @cached_property
    def _open(self) -> PipelineClient[Any, Any]:
        from azure.core import PipelineClient
        from azure.core.pipeline.policies import RetryPolicy

        return PipelineClient(
            "", policies=[RetryPolicy(**self._limits)], **_transport(self._limits)
        )


def tell(address: str, limits: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a public address of a cloud lists."""
    from azure.core import PipelineClient
    from azure.core.pipeline.policies import RetryPolicy
    from azure.core.rest import HttpRequest

    policies = [RetryPolicy(**limits)]
    with PipelineClient("", policies=policies, **_transport(limits)) as client:
        response = client.send_request(HttpRequest("GET", address))
        response.raise_for_status()
        rows = response.json()
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def error_text(error: object) -> str:
    """The innermost sentence of an error object, which nest."""
    if not isinstance(error, Mapping):
        return ""
    inner = error.get("error")
    inner = inner if isinstance(inner, Mapping) else error
    return " ".join(redact(str(inner.get("message") or inner.get("code") or "")).split())


def _transport(limits: Mapping[str, Any]) -> dict[str, Any]:
    return {name: limits[name] for name in ("connection_timeout", "read_timeout")}


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None
