"""Settings, jobs, searches and fleets as a stranger may write them: one sentence, with the line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hostile import yaml_files
from tests.hostile.conftest import Attempt

pytestmark = pytest.mark.slow  # a process for every input

FAMILIES: Mapping[str, tuple[Mapping[str, yaml_files.Builder], tuple[str, ...]]] = {
    "settings": (yaml_files.SETTINGS, ("status",)),
    "odd settings": (yaml_files.SETTINGS_ODD, ("status",)),
    "job": (yaml_files.JOBS, ("job", "submit", "job.yaml")),
    "search": (yaml_files.SEARCHES, ("search", "faces.yaml", "--dry-run")),
    "space": (yaml_files.SPACES, ("search", "faces.yaml")),
    "ignore": (yaml_files.IGNORES, ("job", "submit", "train.py")),
    "fleet": (yaml_files.FLEETS, ("fleet", "up")),
    "architecture": (yaml_files.ARCHITECTURES, ("arch", "export", "arch.json", "-o", "net.onnx")),
    "table": (yaml_files.TABLES, ("devices", "calibrate", "board", "x.csv")),
    "azureml": (yaml_files.AZUREML, ("status",)),
}
ODD = {"space elsewhere"}  # a dry run does not look at it
INPUTS = [(family, name) for family, (files, _) in FAMILIES.items() for name in files]


@pytest.mark.parametrize(("family", "name"), INPUTS)
def test_a_hostile_file_is_refused_in_one_sentence(
    attempt: Attempt, project: Path, family: str, name: str
) -> None:
    files, command = FAMILIES[family]
    files[name](project)
    ended = attempt(*command)
    _ = ended.settled if name in ODD else ended.refusal
    assert not (project / "owned").exists()
