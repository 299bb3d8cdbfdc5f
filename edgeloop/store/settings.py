"""What stores take from the environment; nothing else in this room reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

_RESOURCE = "https://storage.azure.com"
_METADATA = "http://169.254.169.254/metadata/identity/oauth2/token"


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
