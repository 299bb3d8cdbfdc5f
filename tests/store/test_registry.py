"""Stores of plug-ins: found by the scheme of their URL, opened by their factory."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from edgeloop.errors import BadSetting
from edgeloop.settings import Settings
from edgeloop.store import PluginLocation, Store, open_blobs, open_store, parse_location
from edgeloop.store.location import unversioned
from edgeloop.testing import MemoryStore

OPENED: list[PluginLocation] = []


def make_store(location: PluginLocation) -> Store:
    OPENED.append(location)
    return MemoryStore()


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "edgeloop.stores"
    points = EntryPoints(
        (
            EntryPoint("shelf", f"{__name__}:make_store", group),
            EntryPoint("torn", f"{__name__}:no_such_name", group),
        )
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", points.select)
    OPENED.clear()


def test_a_plug_in_opens_the_urls_of_its_scheme(tmp_path: Path):
    location = parse_location("Shelf://u:SECRET@host/top?x=SECRET", "s3://files", tmp_path)
    assert isinstance(unversioned(open_store(location)), MemoryStore)
    assert [location] == OPENED
    assert isinstance(location, PluginLocation)
    assert location.url == "Shelf://u:SECRET@host/top?x=SECRET"
    assert (location.scheme, location.base, location.blobs) == ("shelf", tmp_path, "s3://files")


def test_neither_str_nor_repr_of_a_plug_ins_location_shows_its_secret():
    location = parse_location("shelf://u:SECRET@host/top?x=SECRET")
    assert str(location) == "shelf://host/top"
    assert str(parse_location("shelf:top")) == "shelf:top"
    assert "SECRET" not in repr(location)


def test_the_files_of_a_plug_ins_store_open_alone():
    blobs = open_blobs(parse_location("shelf:top"))
    blobs.put("a/b", b"content")
    assert blobs.read("a/b") == b"content"


def test_the_settings_take_a_plug_ins_url(tmp_path: Path):
    (tmp_path / "edgeloop.yaml").write_text("store: shelf:files")
    location = Settings.load(tmp_path, {}).location
    assert location == PluginLocation("shelf", "shelf:files", tmp_path)


def test_an_unknown_scheme_is_named_in_one_sentence():
    with pytest.raises(BadSetting) as caught:
        parse_location("mysql://u:SECRET@h/db")
    assert str(caught.value).startswith("EDGELOOP_STORE: no store is known for mysql: URLs; it")
    assert str(caught.value).endswith("or the URL of an installed plug-in")


def test_a_plug_in_that_cannot_be_loaded_is_named():
    with pytest.raises(BadSetting, match=r"the plug-in '.*:no_such_name' cannot be loaded"):
        open_store(parse_location("torn:x"))


def test_a_plug_in_that_has_gone_since_is_told():
    with pytest.raises(BadSetting, match="the plug-in for gone: URLs is not installed"):
        open_store(PluginLocation("gone", "gone:x", Path()))
