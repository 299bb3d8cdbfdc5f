"""What the settings make of an older project's `.azureml/`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.azureml.options import read_azureml
from edgeloop.jobs.computes.azureml.requirements import EnvironmentRecipe, default_recipe
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


CORE = {  # as azureml-core's Environment.save_to_directory writes it, shortened
    "name": "faces",
    "version": "7",
    "environmentVariables": {"OMP_NUM_THREADS": "4"},
    "docker": {
        "baseImage": "azureml/openmpi4.1.0-ubuntu20.04:20240101",
        "baseDockerfile": None,
        "baseImageRegistry": {"address": "mcr.microsoft.com", "username": None, "password": None},
        "enabled": True,
    },
    "python": {
        "userManagedDependencies": False,
        "interpreterPath": "python",
        "condaDependenciesFile": None,
        "condaDependencies": {
            "name": "project_environment",
            "channels": ["conda-forge"],
            "dependencies": ["python=3.10", {"pip": ["torch==1.13"]}],
        },
    },
    "inferencingStackVersion": None,
}


def recipe(folder: Path) -> EnvironmentRecipe:
    settings = Settings.load(folder).compute_settings("azureml")
    return default_recipe(read_azureml("azureml", settings))


def changed(**python: object) -> dict[str, object]:
    return {**CORE, "python": {**CORE["python"], **python}}


@pytest.fixture
def workspace(folder: Path) -> Path:
    write(folder, "config", dict.fromkeys(("subscription_id", "resource_group"), "x")
          | {"workspace_name": "w"})  # fmt: skip
    return folder


def test_an_environment_of_azureml_core_is_built_as_it_says(workspace: Path):
    write(workspace, "environment", CORE)
    made = recipe(workspace)
    assert made.image == "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04:20240101"
    assert json.loads(made.conda) == {
        "channels": ["conda-forge"],
        "dependencies": ["python=3.10", "pip", {"pip": ["torch==1.13"]}],
    }
    options = read_azureml("azureml", Settings.load(workspace).compute_settings("azureml"))
    assert dict(options.variables) == {"OMP_NUM_THREADS": "4"}


def test_its_shared_memory_is_that_of_the_containers(workspace: Path):
    def shm(**keys: object) -> str:
        settings = Settings.load(workspace).compute_settings("azureml")
        return read_azureml("azureml", {**settings, **keys}).shm

    write(workspace, "environment", {**CORE, "docker": {**CORE["docker"], "shmSize": "8g"}})
    assert (shm(), shm(shm="16g"), shm(image="acme/own:1")) == ("8g", "16g", "")
    for unsaid in (None, ""):
        write(workspace, "environment", {**CORE, "docker": {**CORE["docker"], "shmSize": unsaid}})
        assert shm() == ""
    write(workspace, "environment", {**CORE, "docker": {**CORE["docker"], "shmSize": "8 GB"}})
    with pytest.raises(BadSetting, match=r"docker\.shmSize must be a number and b, k, m or g"):
        shm()


def test_its_conda_file_may_lie_beside_it_or_in_the_project(workspace: Path):
    for place in (".azureml/conda.yml", "conda.yml"):
        (workspace / place).write_text("dependencies: [python>=3.8, numpy]\n")
        write(
            workspace,
            "environment",
            changed(condaDependencies=None, condaDependenciesFile="conda.yml"),
        )
        assert json.loads(recipe(workspace).conda)["dependencies"] == [
            "python>=3.8",
            "numpy",
            "pip",
        ]
        (workspace / place).unlink()
    with pytest.raises(BadSetting, match=r"condaDependenciesFile names conda\.yml, which is not"):
        recipe(workspace)


def test_an_image_with_its_own_packages_is_taken_as_it_is(workspace: Path):
    write(
        workspace, "environment", changed(userManagedDependencies=True, interpreterPath="/opt/py")
    )
    assert recipe(workspace) == EnvironmentRecipe(
        image="mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04:20240101"
    )
    options = read_azureml("azureml", Settings.load(workspace).compute_settings("azureml"))
    assert options.python == "/opt/py"


def test_a_dockerfile_may_stand_in_for_the_image(workspace: Path):
    docker = {"baseImage": None, "baseDockerfile": "FROM python:3.8-slim\nRUN true\n"}
    write(workspace, "environment", {"docker": docker, "python": {"userManagedDependencies": True}})
    assert recipe(workspace) == EnvironmentRecipe(dockerfile="FROM python:3.8-slim\nRUN true\n")
    write(workspace, "environment", {**CORE, "docker": docker})
    assert "torch==1.13" in recipe(workspace).conda


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"docker": "x"}, "its docker must be an object"),
        ({"python": {"userManagedDependencies": True}}, "userManagedDependencies needs docker"),
        ({"python": {"condaDependencies": {"x": 1}}}, "needs a list of dependencies"),
    ],
)
def test_an_environment_that_cannot_be_meant_is_refused_before_anything_is_built(
    workspace: Path, content: dict[str, object], says: str
):
    write(workspace, "environment", content)
    with pytest.raises(BadSetting, match=rf"^\.azureml/environment\.json: .*{says}"):
        recipe(workspace)


def test_a_registered_environment_keeps_its_version(workspace: Path):
    write(workspace, "environment", {"name": "AzureML-sklearn-1.5", "version": 26})
    assert recipe(workspace) == EnvironmentRecipe("AzureML-sklearn-1.5:26")
