from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.azure.projects import Project, make_project

if TYPE_CHECKING:
    from tests.peers.azureml import AzureML
    from tests.peers.azurite import Azurite


@pytest.fixture
def project(
    azureml: AzureML, azure_storage: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Project:
    return make_project(tmp_path / "project", azureml, azure_storage, monkeypatch)
