"""A fleet on a Ray cluster of one node; tests/fleet/test_ray.py has two, which are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.testing import wait_until
from edgeloop.testing.models import save_classification_model
from tests.fleet.ray_lab import LIMIT_S, open_lab

pytestmark = pytest.mark.server


def test_a_fleet_goes_from_nothing_to_a_result_and_back_and_shows_no_secret(tmp_path: Path):
    with open_lab(tmp_path, nodes=1) as lab:
        options = {"devices": ["host"], "options": ["--benchmark-only"]}
        lab.write_settings(benchmark_runs=1, fleet=options)
        save_classification_model(tmp_path / "net.onnx", size=16, classes=4)
        said = lab.shell("edgeloop fleet up --compute cluster --runners 0:1")
        assert "is up" in said
        lab.shell("edgeloop upload net.onnx --benchmark-only")
        wait_until(lambda: lab.is_complete("default", 1), LIMIT_S, "the model")
        assert not lab.leaks()
        lab.shell("edgeloop fleet down")
        wait_until(
            lambda: {actor["state"] for actor in lab.actors()} == {"DEAD"},
            LIMIT_S,
            "the runner and its supervisor, which were on the cluster, to end",
        )
        assert lab.shell("edgeloop fleet status").startswith("No fleet.")
