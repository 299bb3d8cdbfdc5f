"""What a cluster with KEDA says about objects, without a cluster: the schemas of both, and Helm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from kubernetes_validate import utils

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy/chart"
KEDA = ROOT / ".tools/keda"
VERSIONS = ("1.33", "1.35")
KEDA_GROUP = "keda.sh/v1alpha1"
# Go's runtime stays out of the process of the tests.
HELM = """
import json, sys
import helm_python
answers = []
with helm_python.Chart.load(sys.argv[1]) as chart:
    for name, namespace, values in json.load(sys.stdin):
        try:
            chart.validate_schema(values)
            answers.append(chart.render(values, name=name, namespace=namespace))
        except helm_python.HelmError as error:
            answers.append(str(error))
    lint = helm_python.lint(sys.argv[1], values={}, namespace="fleet")
json.dump([answers, lint], sys.stdout)
"""


def helm(
    releases: Iterable[tuple[str, str, dict[str, Any]]],
) -> tuple[list[dict[str, str] | str], dict[str, Any]]:
    """The chart's files, rendered for each release, or why not; and what `helm lint` finds."""
    command = [sys.executable, "-c", HELM, str(CHART)]
    text = json.dumps(list(releases))
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=True
    )
    answers, lint = json.loads(done.stdout)
    return answers, lint


def documents(rendered: dict[str, str]) -> list[dict[str, Any]]:
    texts = [text for name, text in rendered.items() if name.endswith(".yaml")]
    return [item for text in texts for item in yaml.safe_load_all(text) if item]


def schema_problems(sets: Sequence[Sequence[dict[str, Any]]]) -> list[list[str]]:
    """What the schemas of Kubernetes and KEDA say about each set of objects, unknown fields
    included."""
    of_keda = [
        (number, item)
        for number, items in enumerate(sets)
        for item in items
        if item.get("apiVersion") == KEDA_GROUP
    ]
    found = [[problem for item in items for problem in _core_problems(item)] for items in sets]
    for (number, _), problems in zip(of_keda, _keda([i for _, i in of_keda]), strict=True):
        found[number] += problems
    return found


def _keda(items: list[dict[str, Any]]) -> list[list[str]]:
    command = ["node", str(Path(__file__).with_name("keda.mjs")), str(KEDA)]
    done = subprocess.run(
        command, input=json.dumps(items), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: list[list[str]] = json.loads(done.stdout)
    return answers


def _core_problems(item: dict[str, Any]) -> list[str]:
    if item.get("apiVersion") == KEDA_GROUP:
        job = item.get("spec", {}).get("jobTargetRef")
        if item.get("kind") != "ScaledJob" or not isinstance(job, dict):
            return []
        item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": job}
    utils.schema_contents = _schema  # reads megabytes of definitions for every object otherwise
    problems = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(item, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            problems.append(f"{'.'.join(map(str, error.path))}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError as error:
            problems.append(error.message)
    return problems


_read = utils.schema_contents


@cache
def _schema(filename: str, version: str) -> Any:
    return _read(filename, version)
