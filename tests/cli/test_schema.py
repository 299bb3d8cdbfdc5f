"""`edgeloop schema`: what editors are told about files is what Edgeloop accepts."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from edgeloop.cli.app import app
from edgeloop.cli.schema import file_schema
from edgeloop.errors import BadSetting
from edgeloop.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = """
store: postgresql://u:${PASSWORD}@h/db
lease_seconds: 30
max_attempts: 7
gpu2: {kind: ray, address: "http://x:8265"}
azure: {workspace: w, cloud: AzureUSGovernment, datastore_key: true}
computes:
  local: {cpus: 4, memory: 8Gi, gpus: [0, 1], custom: {board: 1}}
  cluster: {kind: ray, address: "http://head:8265", headers: {Authorization: "${TOKEN}"}}
  cloud: {kind: azureml, size: STANDARD_NC4AS_T4_V3, max_nodes: 4, idle: 15m, identity: true}
"""


def complaints(what: str, text: str, kind: str = "") -> list[str]:
    validator = jsonschema.Draft202012Validator(file_schema(what, kind))
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("what", ["settings", "job", "search", "compute"])
def test_the_schema_is_printed_and_valid(what: str):
    kind = ["ray"] if what == "compute" else []
    done = CliRunner().invoke(app, ["schema", what, *kind])
    assert done.exit_code == 0
    printed = json.loads(done.output)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed["properties"]


def test_a_kind_that_is_not_there_is_said_with_those_near():
    with pytest.raises(BadSetting, match="unknown kind 'rey': did you mean 'ray'"):
        file_schema("compute", "rey")
    done = CliRunner().invoke(app, ["schema", "compute"])
    assert "name the kind of compute" in str(done.exception)


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: file.stem)
def test_the_examples_meet_their_schema(file: Path):
    what = "search" if file.parent.name == "search" else "job"
    assert complaints(what, file.read_text()) == []


def test_settings_that_are_accepted_meet_the_schema(tmp_path: Path):
    (tmp_path / "edgeloop.yaml").write_text(SETTINGS)
    environ = {"PASSWORD": "x", "EDGELOOP_BLOBS": "s3://bucket"}
    assert set(Settings.load(tmp_path, environ).computes) == {"local", "cluster", "cloud", "gpu2"}
    assert complaints("settings", SETTINGS) == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("settings", "lease_seconds: 0"),
        ("settings", "lease_secs: 3"),
        ("settings", "azure: {workspac: w}"),
        ("settings", "computes: {gpu: {kind: ray}}"),
        ("settings", "computes: {gpu: {kind: local, cpu: 3}}"),
        ("job", "script: train.py\nepoch: 3"),
        ("job", "script: train.py\nresources: {nodes: 0}"),
        ("job", "script: train.py\nenvironment: {docker: x}"),
        ("job", "script: train.py\ntimeout: soon"),
        ("search", "search: {budget: 0}"),
        ("search", "objectives: {val_iou: {train: {epoch: 3}}}"),
        ("search", "search: {constraints: {params: [1, 2, 3]}}"),
    ],
)
def test_what_is_refused_does_not_meet_the_schema(what: str, text: str):
    assert complaints(what, text)


def described(node: object, path: str = "") -> list[str]:
    """Keys without a description, at any depth."""
    found: list[str] = []
    if isinstance(node, dict):
        for name, value in node.get("properties", {}).items():
            if isinstance(value, dict) and not ({"description", "const", "$ref"} & value.keys()):
                found.append(f"{path}.{name}")
        for name, value in node.items():
            found += described(value, f"{path}.{name}")
    elif isinstance(node, list):
        for item in node:
            found += described(item, path)
    return found


@pytest.mark.parametrize("what", ["settings", "job", "search"])
def test_every_key_says_what_it_means(what: str):
    assert described(file_schema(what)) == []
