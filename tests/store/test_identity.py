"""Azure without keys: a bearer token for tables and files alike.

Azurite checks a token's issuer, audience and times, not its signature, and it knows no roles; so
this shows that the token is asked for and sent, not what an account permits.
"""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest
from azure.core.credentials import AccessToken

from edgeloop.errors import StoreRefused
from edgeloop.store import AzureLocation, Store, parse_location
from edgeloop.store.azure import AzureStore
from tests.peers.azurite import Azurite
from tests.peers.certificate import Certificate

STORAGE = "https://storage.azure.com"


class Credential:
    """As azure-identity's are: asked for scopes, it gives a token."""

    def __init__(self, audience: str = STORAGE) -> None:
        self.audience = audience
        self.scopes: set[str] = set()

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        self.scopes |= set(scopes)
        now = int(time.time())
        claims = {
            "aud": self.audience,
            "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000000/",
            "iat": now - 60,
            "nbf": now - 60,
            "exp": now + 3_600,
        }
        parts = ({"alg": "none", "typ": "JWT"}, claims, "unsigned")
        token = ".".join(_base64url(json.dumps(part).encode()) for part in parts)
        return AccessToken(token, now + 3_600)


@pytest.fixture(autouse=True)
def trusted(azure_certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a private cloud: one variable is for requests, the other for obstore."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(azure_certificate.file))
    monkeypatch.setenv("SSL_CERT_FILE", str(azure_certificate.file))


@pytest.fixture
def location(azure_storage: Azurite) -> AzureLocation:
    account = azure_storage.new_account()
    blobs = azure_storage.blob_endpoint_of(account)
    place = parse_location(f"azure:{blobs}?table={azure_storage.table_endpoint_of(account)}")
    assert isinstance(place, AzureLocation)
    return place


def test_a_location_without_a_key_is_read_whole(
    location: AzureLocation, azure_storage: Azurite
) -> None:
    assert location.key is None
    assert location.table_endpoint == azure_storage.table_endpoint_of(location.account)


def test_rows_are_written_and_read_with_an_identity(location: AzureLocation) -> None:
    credential = Credential()
    store = _opened(location, credential)
    record = store.models("exp").insert("model", {"x": 1})
    assert store.models("exp").get("model") == record
    assert store.experiments() == ["exp"]
    assert credential.scopes == {f"{STORAGE}/.default"}


def test_files_are_written_and_read_with_an_identity(
    location: AzureLocation, tmp_path: Path
) -> None:
    """The container is made on the way, which is another client's work."""
    credential = Credential()
    blobs = _opened(location, credential).blobs
    blobs.put("model/file", b"content")
    blobs.get("model/file", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"content"
    assert [info.key for info in blobs.list("model/")] == ["model/file"]
    assert credential.scopes == {f"{STORAGE}/.default"}


def test_a_token_for_something_else_is_refused(location: AzureLocation) -> None:
    store = _opened(location, Credential("https://elsewhere.example"))
    with pytest.raises(StoreRefused):
        store.models("exp").get("model")
    with pytest.raises(StoreRefused):
        store.blobs.read("model/file")


def _opened(location: AzureLocation, credential: Credential) -> Store:
    return AzureStore(location, credential)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
