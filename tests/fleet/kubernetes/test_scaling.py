"""What KEDA asks, as the chart tells it to, is asked of a real portal and of a real database."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from starlette.testclient import TestClient

from edgeloop.operate.fleet.demand import read_waiting_work
from edgeloop.operate.fleet.kubernetes import KubernetesValues, fleet_objects
from edgeloop.settings import Settings
from edgeloop.testing.models import save_classification_model
from edgeloop.view.portal.app import create_app
from edgeloop.view.portal.state import PortalOptions
from edgeloop.workspace import Workspace
from tests.peers.postgres import Postgres
from tests.portal.test_queue import keda_json

TOKEN = "a-token-nobody-guesses"
CHIP = "htp:snapdragon-888"


def triggers(experiment: str, **runner: Any) -> list[dict[str, Any]]:
    values = {"runner": runner, "experiments": [{"name": experiment}]}
    objects = fleet_objects(KubernetesValues.model_validate(values), "edgeloop", "fleet")
    scaled = [item for item in objects if item["kind"].startswith("Scaled")]
    found: list[dict[str, Any]] = scaled[0]["spec"]["triggers"]
    return found


def fill(workspace: Workspace, folder: Path) -> dict[str, int]:
    """Eight models: three are new, one of them is being converted, one waits for any device, one is
    to be scored on a chip, and three are to be converted for two devices. How many runners would
    help, by capability."""
    model = save_classification_model(folder / "model.onnx")
    for name in ("one", "two", "three"):
        workspace.upload(model, name=name, check=False)
    table = workspace.store.models(workspace.experiment)
    done = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]", "output_shape": "[1]"}
    done |= {"status": "waiting", "toolchain": "qnn", "f1_onnx": 0.8}
    table.insert("any", {"name": "any", **done})
    measured = {"total_inference_avg": "[1, 1, 1, 1, 1]", "mean": 0.1, "stdev": 0.0, "device": CHIP}
    table.insert("pinned", {"name": "pinned", **done, **measured})
    leases = workspace.leases()
    leases.sweep_if_due(0)
    for number, form in enumerate(["qnn:x-elite"] * 3 + ["snpe:qcs8550"] * 2):
        device = "htp:x-elite" if "qnn" in form else "qcs8550"
        row = {"targets": json.dumps({"primary": device, "devices": {device: form}})}
        name = f"asked-{number}"
        table.insert(name, {"name": name, "status": "new", "benchmark_only": 1, **row})
        toolchain = form.partition(":")[0]
        key = f"quantize@{toolchain}|{20:012.3f}|x|{name}|convert"
        workspace.store.queue(workspace.experiment).insert(key, {"model": name, "stage": "convert"})
    assert leases.claim(["quantize"], "a-node") is not None
    lines = read_waiting_work(workspace, workspace.runners())
    return {line.capability: line.runners for line in lines}


def test_keda_finds_every_number_at_the_portal(tmp_path: Path):
    settings = Settings.load(tmp_path, {}, store=f"sqlite:{tmp_path}/store", experiment="My_Nets")
    with Workspace(settings) as workspace:
        wanted = fill(workspace, tmp_path)
        app = create_app(workspace, PortalOptions("0.0.0.0", 8750, TOKEN))
        with TestClient(app, "http://edgeloop-portal.fleet.svc:8750") as client:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            for runner, names in (
                ({}, ["linux", "convert qnn"]),
                ({"toolchains": ["qnn", "snpe"]}, ["linux", "convert qnn", "convert snpe"]),
                ({"device": CHIP}, ["linux", "convert qnn", "device", CHIP]),
                ({"capabilities": ["htp:chip-v2.5"]}, []),  # nobody has it yet
                ({"capabilities": ["convert tvm-0.9"]}, []),
            ):
                asked = triggers("My_Nets", **runner)
                numbers = []
                for trigger in asked:
                    url = urlsplit(trigger["metadata"]["url"])
                    assert client.get(f"{url.path}?{url.query}").status_code == 401
                    answer = client.get(trigger["metadata"]["url"], headers=headers)
                    assert answer.status_code == 200, answer.text
                    location = trigger["metadata"]["valueLocation"]
                    numbers.append(keda_json(answer.json(), location))
                assert numbers == ([wanted[name] for name in names] or [0])


@pytest.mark.parametrize(
    ("values", "followed"),
    [
        ({}, ["linux", "convert qnn"]),
        ({"runner": {"toolchains": ["qnn", "snpe"]}}, ["linux", "convert qnn", "convert snpe"]),
        ({"runner": {"toolchains": []}}, ["linux"]),
        ({"runner": {"snpeClaim": "sdk"}}, ["linux", "convert qnn", "convert snpe"]),
        ({"settings": {"toolchain": "snpe"}}, ["linux", "convert snpe"]),
        (
            {"runner": {"args": ["--toolchain", "snpe", "--precision", "a16w8"]}},
            ["linux", "convert snpe"],
        ),
        ({"runner": {"args": ["--toolchain=snpe"]}}, ["linux", "convert snpe"]),
        ({"runner": {"args": ["--no-quantize"]}}, ["linux"]),
        ({"experiments": [{"name": "default", "toolchains": ["snpe"]}]}, ["linux", "convert snpe"]),
    ],
)
def test_no_pod_starts_for_a_conversion_that_its_image_cannot_do(
    values: dict[str, Any], followed: list[str]
):
    """It would find nothing and end, every fifteen seconds."""
    objects = fleet_objects(KubernetesValues.model_validate(values), "edgeloop", "fleet")
    (job,) = [item for item in objects if item["kind"] == "ScaledJob"]
    urls = [urlsplit(each["metadata"]["url"]) for each in job["spec"]["triggers"]]
    assert [parse_qs(url.query)["capability"][0] for url in urls] == followed


def test_the_database_answers_what_the_portal_would(postgres: Postgres, tmp_path: Path):
    url = postgres.url_of(postgres.make_database())
    settings = Settings.load(
        tmp_path, {}, store=f"{url}?blobs=file://{tmp_path}/blobs", experiment="My_Nets"
    )
    with Workspace(settings) as workspace:
        wanted = fill(workspace, tmp_path)
        assert (wanted["linux"], wanted["device"], wanted[CHIP]) == (6, 1, 3)
        needs = {stage.capability for stage in workspace.plan.stages}
        scaler = {"type": "postgresql"}
        (trigger,) = triggers("My_Nets", scaler=scaler, capabilities=["linux", "device"])
        asked = set(re.findall(r"key, '([a-z-]+)\|'", trigger["metadata"]["query"]))
        assert (wanted["convert qnn"], wanted["convert snpe"]) == (3, 2)
        assert needs == asked, "hints of a kind that the query does not know"
        for runner, names in (
            ({}, ["linux", "convert qnn"]),
            ({"snpeClaim": "sdk"}, ["linux", "convert qnn", "convert snpe"]),
            ({"device": CHIP}, ["linux", "convert qnn", "device", CHIP]),
            ({"capabilities": ["device"]}, ["device"]),
            ({"capabilities": ["convert snpe"]}, ["convert snpe"]),
        ):
            (trigger,) = triggers("My_Nets", scaler=scaler, **runner)
            with psycopg.connect(url, autocommit=True) as connection:
                answer = connection.execute(trigger["metadata"]["query"]).fetchall()
            assert answer == [(sum(wanted[name] for name in names),)]
        (trigger,) = triggers("nobody", scaler=scaler)
        with psycopg.connect(url, autocommit=True) as connection:
            assert connection.execute(trigger["metadata"]["query"]).fetchall() == [(0,)]
