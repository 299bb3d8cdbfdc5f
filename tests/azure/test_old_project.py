"""What the settings make of an older project's `.azureml/`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeloop.errors import BadSetting
from edgeloop.settings import Settings
from edgeloop.store import AzureLocation, SqliteLocation

DATASTORE = {
    "datastore_name": "faces_store",
    "account_name": "lab",
    "container_name": "faces",
    "account_key": "c2VjcmV0",
}


@pytest.fixture
def folder(tmp_path: Path, clean_environment: None) -> Path:
    (tmp_path / ".azureml").mkdir()
    write(tmp_path, "config", {"workspace_name": "w"})
    write(tmp_path, "compute_target", {"compute_target": "old-cluster"})
    write(tmp_path, "datastore", DATASTORE)
    return tmp_path


def write(folder: Path, name: str, content: object) -> None:
    (folder / f".azureml/{name}.json").write_text(json.dumps(content))


def test_the_datastore_is_the_store_and_its_key_is_not_shown(folder: Path):
    found = Settings.load(folder).location
    blob, table = (f"https://lab.{kind}.core.windows.net" for kind in ("blob", "table"))
    assert found == AzureLocation("lab", blob, table, "c2VjcmV0", None, "faces")
    assert "c2VjcmV0" not in f"{found} {found!r} {Settings.load(folder)!r}"
    write(folder, "datastore", {k: v for k, v in DATASTORE.items() if k != "account_key"})
    found = Settings.load(folder).location
    assert isinstance(found, AzureLocation) and found.key is None


def test_whatever_else_names_a_store_wins(folder: Path):
    other = {"EDGELOOP_STORE": "azure://other"}
    assert str(Settings.load(folder, environ=other).location).endswith(
        "//other.blob.core.windows.net"
    )
    (folder / ".edgeloop/index").mkdir(parents=True)  # of datasets: no store was begun here
    assert isinstance(Settings.load(folder).location, AzureLocation)
    (folder / ".edgeloop/blobs").mkdir()
    assert Settings.load(folder).location == SqliteLocation(folder / ".edgeloop")


def test_the_project_is_found_from_a_folder_below(folder: Path):
    (folder / "src/deep").mkdir(parents=True)
    assert Settings.load(folder / "src/deep").project == folder


def test_the_compute_target_is_a_compute_by_its_own_name(folder: Path):
    settings = Settings.load(folder)
    assert settings.compute_settings("old-cluster")["kind"] == "azureml"
    with pytest.raises(BadSetting, match="no compute 'another'"):
        settings.compute_settings("another")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"account_name": "a/b"}, "its account_name may hold letters and digits only"),
        ({"container_name": "../x"}, "its container_name may hold letters and digits only"),
        ({"account_name": 5}, "its account_name must be a text"),
        ({"account_key": "cut-off"}, "its account_key is cut off or mistyped"),
        ({"blob_endpoint": "lab"}, "its blob_endpoint must be an http"),
    ],
)
def test_a_datastore_file_that_cannot_be_meant_is_refused(
    folder: Path, change: dict[str, object], says: str
):
    write(folder, "datastore", {**DATASTORE, **change})
    with pytest.raises(BadSetting, match=f"^.azureml/datastore.json: {says}"):
        Settings.load(folder)
