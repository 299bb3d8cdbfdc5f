"""What stores take from the environment, and the tokens of a machine's managed identity.

In this room only this file and `node/environment` read the environment. Tokens need only the
standard library: a node need not have Azure's packages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

_RESOURCE = "https://storage.azure.com"
_METADATA = "http://169.254.169.254/metadata/identity/oauth2/token"
_LIMIT_S = 30.0
_KEPT = timedelta(minutes=20)  # a token is valid for at least an hour; asking again is cheap


@dataclass(frozen=True)
class TokenEndpoint:
    """Where this machine's managed identity gets its tokens, and what to ask there."""

    address: str
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)


def identity_client(environ: Mapping[str, str] = os.environ) -> str | None:
    """Which of several managed identities is meant: on a cluster of Azure ML, the cluster's."""
    return environ.get("AZURE_CLIENT_ID") or environ.get("DEFAULT_IDENTITY_CLIENT_ID") or None


def token_endpoint(client_id: str = "", environ: Mapping[str, str] = os.environ) -> TokenEndpoint:
    """As a service of Azure says it (App Service, a cluster of Azure ML), else the machine's."""
    query, headers = {"resource": _RESOURCE}, {"Metadata": "true"}
    client_id = client_id or environ.get("DEFAULT_IDENTITY_CLIENT_ID", "")
    address, version, name = _METADATA, "2018-02-01", "client_id"
    if environ.get("IDENTITY_ENDPOINT"):
        address, version = environ["IDENTITY_ENDPOINT"], "2019-08-01"
        headers["X-IDENTITY-HEADER"] = environ.get("IDENTITY_HEADER", "")
    elif environ.get("MSI_ENDPOINT"):
        address, version, name = environ["MSI_ENDPOINT"], "2017-09-01", "clientid"
        headers["secret"] = environ.get("MSI_SECRET", "")
    query["api-version"] = version
    if client_id:
        query[name] = client_id
    return TokenEndpoint(address, query, headers)


class TokenOfMachine:
    """For obstore, which asks when what it has is about to end."""

    def __init__(self, client_id: str = "") -> None:
        self._client_id = client_id

    def __call__(self) -> dict[str, Any]:
        from urllib.parse import urlencode
        from urllib.request import Request, urlopen

        place = token_endpoint(self._client_id)
        address = f"{place.address}?{urlencode(place.query)}"
        request = Request(address, headers=dict(place.headers))  # noqa: S310
        with urlopen(request, timeout=_LIMIT_S) as answer:  # noqa: S310
            token = str(json.load(answer)["access_token"])
        return {"token": token, "expires_at": datetime.now(timezone.utc) + _KEPT}


def plain_http_allowed(environ: Mapping[str, str] = os.environ) -> bool:
    """obstore reads these itself, but no longer once it is given time limits."""
    names = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
    return any(environ.get(name, "").lower() in ("1", "true") for name in names)
