"""docs/how-to/kubernetes.md: every command of ours in it is run, and every file in it gives objects
that a cluster takes."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgeloop.operate.fleet.kubernetes import KubernetesValues, fleet_manifest, fleet_objects
from edgeloop.settings import Settings
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_classification_model
from tests.cli.running import run_command
from tests.fleet.kubernetes.cluster import ROOT, schema_problems
from tests.fleet.kubernetes.rules import object_problems

pytestmark = pytest.mark.server  # Node, and KEDA's validators of `make setup`

PAGE = (ROOT / "docs/how-to/kubernetes.md").read_text()
BLOCKS = re.findall(r"^```yaml\n# (values|edgeloop)\.yaml\n(.*?)^```$", PAGE, re.M | re.S)
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.M | re.S)
    for line in block.splitlines()
    if line.startswith("$ edgeloop ")
]


def objects_of(kind: str, text: str, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    if kind == "values":
        values = KubernetesValues.model_validate(yaml.safe_load(text))
        return fleet_objects(values, "edgeloop", "edgeloop")
    (folder / "edgeloop.yaml").write_text(text)
    return fleet_manifest(Settings.load(folder, {}))


def test_every_file_of_the_guide_gives_objects_that_a_cluster_takes(tmp_path: Path):
    assert len(BLOCKS) >= 10
    assert len(BLOCKS) == PAGE.count("```yaml"), "a block does not say which file it is"
    sets = [
        objects_of(kind, text, tmp_path / str(number)) for number, (kind, text) in enumerate(BLOCKS)
    ]
    assert schema_problems(sets) == [[] for _ in sets]
    assert [list(object_problems(items)) for items in sets] == [[] for _ in sets]


def test_every_command_of_the_guide_works(tmp_path: Path):
    (tmp_path / "values.yaml").write_text(BLOCKS[0][1])
    save_classification_model(tmp_path / "model.onnx")
    make_faces(tmp_path / "data/working/faces", 4, 32, seed=3)
    printed = []
    assert {shlex.split(line)[1] for line in COMMANDS} >= {"fleet", "data", "upload", "queue"}
    for line in COMMANDS:
        words, _, target = line.partition(" > ")
        arguments = [
            match
            for word in shlex.split(words, comments=True)[1:]
            for match in ([p.name for p in tmp_path.glob(word)] if "*" in word else [word])
        ]
        done = run_command(arguments, tmp_path, {"EDGELOOP_STORE": f"sqlite:{tmp_path}/store"})
        assert done.code == 0, f"{line}: {done.err}"
        if target:
            printed.append(list(yaml.safe_load_all(done.out)))
    assert len(printed) >= 2
    assert schema_problems(printed) == [[] for _ in printed]


def test_a_dataset_is_pulled_into_a_folder_that_is_mounted(tmp_path: Path):
    """The init container's command: its folder exists already, and is empty."""
    environ = {"EDGELOOP_STORE": f"sqlite:{tmp_path}/store"}
    images = tmp_path / "data/raw/faces"
    shutil.copytree(ROOT / "edgeloop/view/demo_data", images)
    assert run_command(["data", "push", "faces"], tmp_path, environ).code == 0
    mounted, work = tmp_path / "mounted", tmp_path / "work"
    mounted.mkdir()
    work.mkdir()
    (work / "edgeloop.yaml").write_text("{}\n")
    values = KubernetesValues.model_validate({"dataset": {"pull": "faces@1"}})
    objects = fleet_objects(values, "edgeloop", "edgeloop")
    job = next(item for item in objects if item["kind"] == "ScaledJob")["spec"]["jobTargetRef"]
    (init,) = job["template"]["spec"]["initContainers"]
    arguments = [str(mounted) if word == "/data" else word for word in init["args"]]
    done = run_command(arguments, work, environ)
    assert done.code == 0, done.err
    assert {p.name for p in images.iterdir()} <= {p.name for p in mounted.iterdir()}
