"""`edgeloop fleet manifest`: from the settings of a project to objects, or to one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from edgeloop.cli.app import app
from edgeloop.errors import BadSetting
from edgeloop.operate.fleet.kubernetes import (
    KubernetesValues,
    fleet_manifest,
    fleet_objects,
    fleet_values,
)
from edgeloop.settings import Settings
from tests.fleet.kubernetes.cases import CASES

FLEET = """
max_attempts: 5
stuck_seconds: 60
fleet:
  runners: 2:50
  cpus: 4
  grace: 600
  dataset: faces@3
  devices: [htp:snapdragon-888, adb]
  task: classification
  options: [--precision, a16w8]
  experiments: {default: 1, faces: {quota: 5}}
  kubernetes:
    image: {repository: registry.example/edgeloop}
    runner: {nodeSelector: {pool: runners}, resources: {limits: {memory: 9Gi}}}
"""


def project(folder: Path, text: str = "") -> Settings:
    (folder / "edgeloop.yaml").write_text(text)
    return Settings.load(folder, {})


def said(settings: Settings, *words: str, **options: Any) -> str:
    with pytest.raises(BadSetting) as raised:
        fleet_manifest(settings, words, **options)
    return str(raised.value)


def test_what_is_said_about_any_fleet_holds_on_kubernetes(tmp_path: Path):
    values = fleet_values(project(tmp_path, FLEET), ["runner.maxReplicas=60"])
    runner = values.runner
    assert (runner.min_replicas, runner.max_replicas, runner.cpus) == (
        0,
        60,
        4,
    )  # jobs end without work
    assert runner.grace_seconds == 615
    assert runner.device == "htp:snapdragon-888"  # boards are outside of the cluster
    assert runner.args == ["--task", "classification", "--precision", "a16w8"]
    assert runner.resources["requests"]["cpu"] == "4"
    assert runner.resources["limits"] == {"memory": "9Gi"}
    assert values.dataset.pull == "faces@3"
    assert values.settings == {"max_attempts": 5, "stuck_seconds": 60}
    assert [(each.name, each.max_replicas) for each in values.experiments] == [
        ("default", None),
        ("faces", 5),
    ]
    assert values.image.repository == "registry.example/edgeloop"


def test_the_least_of_a_fleet_holds_for_a_deployment_and_not_for_jobs(tmp_path: Path):
    settings = project(tmp_path, "fleet: {runners: '2:16', experiments: [one, two, three]}")
    file = tmp_path / "values.yaml"
    file.write_text("runner: {mode: deployment}\n")
    for values, least, kind in (
        (fleet_manifest(settings), 0, "ScaledJob"),
        (fleet_manifest(settings, ["runner.mode=deployment"]), 2, "ScaledObject"),
        (fleet_manifest(settings, file=file), 2, "ScaledObject"),
        (fleet_manifest(settings, ["runner.minReplicas=1"], file), 1, "ScaledObject"),
        (fleet_manifest(settings, ["runner.mode=job"], file), 0, "ScaledJob"),
    ):
        scaled = [item["spec"] for item in values if item["kind"] == kind]
        bounds = [(spec["minReplicaCount"], spec["maxReplicaCount"]) for spec in scaled]
        assert bounds == [(least, 16)] * 3  # for each experiment
    settings = project(tmp_path, "fleet: {kubernetes: {runner: {mode: deployment}}}")
    assert fleet_values(settings).runner.min_replicas == 0


def test_a_file_of_values_wins_over_the_settings_and_words_over_both(tmp_path: Path):
    settings = project(tmp_path, FLEET)
    file = tmp_path / "values.yaml"
    file.write_text(
        "runner: {mode: deployment, maxReplicas: 7, minReplicas: 1}\ndataset: {pull: faces@4}\n"
    )
    values = fleet_values(settings, ["runner.minReplicas=3"], file)
    assert (values.runner.min_replicas, values.runner.max_replicas) == (3, 7)
    assert values.dataset.pull == "faces@4"
    file.write_text("runner:\n  maxReplica: 7\n")
    assert said(settings, file=file).endswith(
        "values.yaml, line 2: unknown key 'runner.maxReplica': did you mean 'runner.maxReplicas'?"
    )


def test_without_settings_it_serves_the_experiment(tmp_path: Path):
    settings = Settings.load(tmp_path, {}, experiment="other")
    kinds = {item["kind"]: item for item in fleet_manifest(settings, name="prod", namespace="ns")}
    assert kinds["ScaledJob"]["metadata"]["name"] == "prod-runner-other"
    assert {item["metadata"]["namespace"] for item in kinds.values()} == {"ns"}


def test_the_command_prints_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    project(tmp_path, FLEET)
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    words = ["fleet", "manifest", "--name", "prod", "-n", "fleets"]
    printed = runner.invoke(app, words, catch_exceptions=False).output
    assert printed == runner.invoke(app, words, catch_exceptions=False).output
    assert "&id" not in printed  # no anchors: people read this
    listed = json.loads(runner.invoke(app, [*words, "--json"], catch_exceptions=False).output)
    assert (listed["kind"], listed["items"]) == ("List", list(yaml.safe_load_all(printed)))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["runner.maxReplica=3"], "did you mean 'runner.maxReplicas'?"),
        (["runner.minReplicas=1"], "for runners that stay, set mode: deployment"),
        (
            ["runner.minReplicas=30", "runner.mode=deployment"],
            "minReplicas of experiment default is above maxReplicas",
        ),
        (["runner.graceSeconds=5"], "runner.graceSeconds must be greater than 15, not 5"),
        (["runner.device=adb:1"], "boards are outside of the cluster"),
        (["portal.token=0123456789abcdef"], "portal.token would put a secret into the manifest"),
        (["store.create.A=b"], "store.create would put a secret into the manifest"),
        (["store.url=postgresql://u:p@h/d"], "holds a password or a key"),
        (["settings.store=postgresql://u:p@h/d"], "settings holds a password or a key"),
        (["image.repository=No Image"], "must be the name of an image"),
        (["runner.workSize=lots"], "runner.workSize must be a size such as 20Gi or 500Mi"),
        (["networkPolicy.storeCidrs=[10.0.0.1]"], "must be a range of addresses"),
        (["runner.maxUnavailable=half", "runner.mode=deployment"], "a number or a percentage"),
        (["nonsense"], "is not a valid override: write key=value"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_no_cluster_would_take_is_one_sentence(
    tmp_path: Path, words: list[str], sentence: str
):
    found = said(project(tmp_path), *words)
    assert sentence in found
    assert "\n" not in found


def test_a_name_or_namespace_that_no_cluster_takes(tmp_path: Path):
    settings = project(tmp_path)
    assert "'Fleet' is not a namespace" in said(settings, namespace="Fleet")
    assert "its name must have small letters" in said(settings, name="My_Fleet")
    assert "choose a shorter name" in said(settings, name="n" * 50)


def test_a_folder_of_this_machine_is_no_dataset_of_a_pod(tmp_path: Path):
    settings = project(tmp_path, "fleet: {dataset: /data/faces}")
    assert "pods have no folder /data/faces" in said(settings)
    settings = project(
        tmp_path, "fleet: {dataset: /data/faces, kubernetes: {dataset: {claim: faces}}}"
    )
    assert fleet_values(settings).dataset.claim == "faces"


@pytest.mark.parametrize("case", CASES)
def test_every_container_runs_a_command_that_exists(case: str):
    """Each option is one that this version of Edgeloop has."""
    values = KubernetesValues.model_validate(CASES[case])
    lines = []
    for item in fleet_objects(values, "edgeloop", "fleet"):
        spec = item.get("spec", {})
        pod = spec.get("jobTargetRef", spec).get("template", {}).get("spec", {})
        for container in [*pod.get("initContainers", []), *pod.get("containers", [])]:
            lines.append(container["args"])
            for probe in ("livenessProbe", "readinessProbe"):
                command = container.get(probe, {}).get("exec", {}).get("command")
                lines += [command[1:]] if command else []
    assert len(lines) >= 3
    for line in lines:
        parse(app, line)


def parse(command: click.Command, words: list[str], above: click.Context | None = None) -> None:
    """As click reads a command line, without running it."""
    context = command.make_context(command.name or "", list(words), parent=above)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        _, inner, words = command.resolve_command(context, rest)
        assert inner is not None
        parse(inner, words, context)
