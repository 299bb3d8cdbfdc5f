"""Azure Resource Manager: the few questions about roles and providers that the SDK does not ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgeloop.azure.retry import no_longer_than

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential

MOST_PAGES = 100
SUBSCRIPTION_VERSION = "2022-12-01"
PROVIDER_VERSION = "2021-04-01"
ROLES_VERSION = "2022-04-01"
WORKSPACE_VERSION = "2024-10-01"


class Manager:
    """Reads only. `clock_off_s` is how far this machine's clock is ahead of Azure's."""

    def __init__(
        self,
        address: Callable[[], str],
        credential: TokenCredential,
        limits: Mapping[str, Any],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._now = now
        self._told_address = address
        self._credential = credential
        self._limits = dict(limits)
        self.clock_off_s: float | None = None

    @cached_property
    def address(self) -> str:
        return self._told_address().rstrip("/")

    def token(self) -> str:
        """Raises what azure-identity raises where nobody is logged in."""
        return self._credential.get_token(f"{self.address}/.default").token

    def get(self, path: str, version: str, **query: str) -> Mapping[str, Any]:
        return self._ask(f"{self.address}{path}", {"api-version": version, **query})

    def rows(self, path: str, version: str, **query: str) -> Iterator[Mapping[str, Any]]:
        answer = self.get(path, version, **query)
        for _ in range(MOST_PAGES):
            yield from answer.get("value") or ()
            following = answer.get("nextLink")
            if not following:
                return
            answer = self._ask(str(following), {})

    def _ask(self, address: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        from azure.core.rest import HttpRequest

        response = self._client.send_request(HttpRequest("GET", address, params=dict(query)))
        self._compare_clocks(response.headers.get("Date"))
        response.raise_for_status()
        answer = response.json()
        return answer if isinstance(answer, Mapping) else {}

    def _compare_clocks(self, date: str | None) -> None:
        try:
            there = parsedate_to_datetime(date or "")
        except ValueError:
            return
        if there.tzinfo is not None:
            self.clock_off_s = (self._now() - there).total_seconds()

    @cached_property
    def _client(self) -> PipelineClient[Any, Any]:
        from azure.core import PipelineClient
        from azure.core.pipeline.policies import BearerTokenCredentialPolicy, RetryPolicy

        token = BearerTokenCredentialPolicy(self._credential, f"{self.address}/.default")
        limits = {name: self._limits[name] for name in ("connection_timeout", "read_timeout")}
        patience = no_longer_than(self._limits["timeout"])
        return PipelineClient("", policies=[RetryPolicy(**self._limits), patience, token], **limits)
