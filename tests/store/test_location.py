"""Where a store is, read from one text; its secrets stay out of messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.errors import BadSetting
from edgeloop.store import (
    AzureLocation,
    PostgresLocation,
    SqliteLocation,
    datastore_location,
    location_text,
    parse_connection_string,
    parse_location,
)

KEY = "U0VDUkVUU0VDUkVUU0VDUkVU"


def test_sqlite_takes_a_folder_relative_absolute_or_as_a_url(tmp_path: Path):
    assert parse_location("sqlite:x/y", base=tmp_path) == SqliteLocation(tmp_path / "x/y")
    assert parse_location("sqlite:/srv/x") == SqliteLocation(Path("/srv/x"))
    assert parse_location("sqlite:///srv/x") == SqliteLocation(Path("/srv/x"))
    assert parse_location(" SQLite:/srv/x ") == SqliteLocation(Path("/srv/x"))
    assert parse_location("sqlite:~/x") == SqliteLocation(Path.home() / "x")


def test_postgresql_takes_its_blobs_out_of_the_url():
    found = parse_location("postgresql://u:pw@h:5433/db?blobs=file:///srv/b&sslmode=require")
    assert isinstance(found, PostgresLocation)
    assert found.blobs == "file:///srv/b"
    assert found.url == "postgresql://u:pw@h:5433/db?sslmode=require"


@pytest.mark.parametrize(
    ("login", "expected"),
    [("u:p@ss", "u:p%40ss"), ("u:p%40ss", "u:p%40ss"), ("a%3Ab:p:w", "a%3Ab:p%3Aw"), ("u", "u")],
)
def test_a_password_with_odd_characters_reaches_postgresql_whole(login: str, expected: str):
    found = parse_location(f"postgresql+psycopg://{login}@h/db?blobs=file:///srv/b")
    assert isinstance(found, PostgresLocation)
    assert found.url == f"postgresql://{expected}@h/db"


def test_options_of_a_postgresql_url_keep_their_spaces():
    found = parse_location("postgresql://h/db?blobs=file:///b&options=-c%20search_path%3Dx")
    assert isinstance(found, PostgresLocation)
    assert found.url == "postgresql://h/db?options=-c%20search_path%3Dx"


def test_postgresql_may_have_its_blobs_named_elsewhere():
    found = parse_location("postgres://h/db", blobs="s3://bucket")
    assert isinstance(found, PostgresLocation) and found.blobs == "s3://bucket"


def test_an_account_url_goes_with_an_identity():
    found = parse_location("azure:https://acme.blob.core.windows.net/")
    assert found == AzureLocation(
        "acme", "https://acme.blob.core.windows.net", "https://acme.table.core.windows.net"
    )
    assert parse_location("azure://acme") == found


def test_a_connection_string_is_read_as_the_portal_prints_it():
    text = f"DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={KEY};"
    found = parse_connection_string(text + "EndpointSuffix=core.chinacloudapi.cn")
    assert found.blob_endpoint == "https://acme.blob.core.chinacloudapi.cn"
    assert found.table_endpoint == "https://acme.table.core.chinacloudapi.cn"
    assert found.key == KEY
    assert parse_location(text) == parse_connection_string(text)


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:/srv/my store",
        "postgresql://me:p%40ss@h:5433/db?sslmode=require&blobs=s3://bucket/a b?region=x",
        "postgresql://h/db?blobs=file:///srv/b",
        "azure:https://acme.blob.core.windows.net?container=mine",
        f"AccountName=acme;AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn",
        "BlobEndpoint=https://x.example/acme;SharedAccessSignature=sv=1&sig=a%2Bb",
    ],
)
def test_a_location_can_be_given_to_another_process_as_text(text: str):
    location = parse_location(text)
    assert parse_location(location_text(location)) == location


def test_the_container_of_an_account_with_a_key_is_given_too():
    location = datastore_location("acme", "faces", KEY, "")
    assert parse_location(location_text(location)) == location


def test_a_connection_string_may_hold_a_signature_instead_of_a_key():
    found = parse_connection_string(
        "BlobEndpoint=https://acme.blob.core.windows.net/;"
        "TableEndpoint=https://acme.table.core.windows.net/;SharedAccessSignature=sv=1&sig=x%3D"
    )
    assert (found.account, found.key, found.sas) == ("acme", None, "sv=1&sig=x%3D")


def test_the_emulators_short_form_is_understood():
    assert parse_location("UseDevelopmentStorage=true").account == "devstoreaccount1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "mysql://u:SECRET@h/db",
        "sqlite:",
        "sqlite://",
        "sqlite://host/x",
        "postgresql://u:SECRET@h",
        "postgresql://u:SECRET@h/",
        "postgresql://u:SECRET@h/db",
        "postgresql://u:SECRET@[::1/db?blobs=file:///x",
        "postgresql://u:SECRET℀@h/db?blobs=file:///x",
        "azure:",
        "azure:acme",
        "azure://",
        "azure:https://[x",
        f"AccountName=acme;AccountKey=SECRET{KEY}$",
        "AccountName=acme",
        f"AccountKey={KEY}",
        f"DefaultEndpointsProtocol=https;AccountKey={KEY};EndpointSuffix=core.windows.net",
        f"AccountName=acme;AccountKey={KEY[:-1]}",
        f"AccountName=acme;SECRET{KEY}",
        f"AccountName=acme;AccountKey={KEY};BlobEndpoint=http://[SECRET",
    ],
)
def test_an_address_that_cannot_be_used_says_so_without_its_secret(text: str):
    with pytest.raises(BadSetting) as caught:
        parse_location(text)
    assert "SECRET" not in str(caught.value) and KEY[:-1] not in str(caught.value)
    assert "\n" not in str(caught.value)
    error = caught.value  # nor may a traceback show where it came from
    assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:SECRET@h/db?blobs=file:///x",
        f"AccountName=acme;AccountKey={KEY}",
        "BlobEndpoint=https://a.b.c;SharedAccessSignature=sv=1&sig=SECRET",
    ],
)
def test_neither_str_nor_repr_of_a_location_shows_its_secret(text: str):
    found = parse_location(text)
    for shown in (str(found), repr(found)):
        assert "SECRET" not in shown and KEY not in shown
