"""A vendor in one file: registered by an entry point, and nothing else in Edgeloop knows it."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from pydantic import Field

from edgeloop._util.schema import Section
from edgeloop.cli.app import app
from edgeloop.errors import BadInput
from edgeloop.graph.isolated import GraphProcess
from edgeloop.operate.doctor import examine
from edgeloop.platforms import (
    Converted,
    HealthCheck,
    ListedDevice,
    Measurement,
    Platform,
    converted_by,
    device_names,
    list_devices,
    open_device,
    open_toolchain,
    platform_names,
)
from edgeloop.platforms.batching import check_batch
from edgeloop.runner.compare import compare_model
from edgeloop.runner.loop import RunnerOptions, run
from edgeloop.runner.stages.base import Sizes
from edgeloop.settings import Settings, settings_model
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from edgeloop.workspace import Workspace

CLASSES = 19


class ToySettings(Section):
    toy_ms: float = Field(2.5, gt=0, description="How long a toy takes.")


class ToyPlatform(Platform):
    name = "toy"
    device_names = ("toy", "toy:COLOUR")
    file_suffixes = (".quant.toy",)
    settings = ToySettings

    def open_toolchain(self, settings):
        return ToyToolchain()

    def open_device(self, name, settings):
        return ToyDevice(name, settings.section(ToySettings).toy_ms)

    def list_devices(self, settings):
        return [ListedDevice("toy:red", state="ready to play", is_attached=True)]

    def health(self, settings):
        return [HealthCheck("toys", True, "a box of them")]


class ToyToolchain:
    name = "toy"
    inspected = 0

    def __init__(self):
        self._graphs = GraphProcess()

    def inspect(self, model):
        ToyToolchain.inspected += 1
        return self._graphs.inspect(model)

    def convert(self, model, calibration, folder, precision="a8w8-per-channel", chips=()):
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{model.stem}.quant.toy"
        shutil.copyfile(model, folder / name)
        info = self._graphs.inspect(model)
        return Converted(info, precision, {name: folder / name}, name)

    def close(self):
        self._graphs.close()


class ToyDevice:
    chip = ""
    float_kind = "float"
    artefacts = {"quantized": ".quant.toy"}  # noqa: RUF012

    def __init__(self, name, latency_ms):
        self.name = name
        self._seconds = latency_ms / 1000

    def probe(self):
        return "a toy"

    def measure(self, model, info):
        assert model.name.endswith(".quant.toy")
        return Measurement(self._seconds, (self._seconds,))

    def infer(self, model, info, kind, images):
        for batch in images:
            count = check_batch(batch, info)
            yield {info.output_name: np.zeros((count, *info.output_shape[1:]), np.float32)}

    def close(self):
        pass


class PlainPlatform(Platform):
    """One that says no more than its devices' names."""

    name = "plain"
    device_names = ("plain", "plain:SERIAL")


class BrokenPlatform(Platform):
    def __init__(self):
        raise RuntimeError("its library is missing")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three plug-ins, one of which does not work."""
    points = [
        EntryPoint(name, f"{__name__}:{kind}", "edgeloop.platforms")
        for name, kind in (
            ("toy", "ToyPlatform"),
            ("broken", "BrokenPlatform"),
            ("plain", "PlainPlatform"),
        )
    ]
    others = importlib.metadata.entry_points

    def found(group: str, **more: str):
        return points if group == "edgeloop.platforms" else others(group=group, **more)

    monkeypatch.setattr(importlib.metadata, "entry_points", found)
    settings_model.cache_clear()
    yield
    settings_model.cache_clear()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "edgeloop.yaml").write_text("toy_ms: 4\nbenchmark_runs: 2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plug_in_is_found_by_its_names(project: Path):
    assert platform_names()[-3:] == ("broken", "plain", "toy")
    assert {"host", "htp:CHIP", "adb:SERIAL", "toy", "toy:COLOUR"} <= set(device_names())
    assert open_device("toy:red").name == "toy:red"
    assert open_toolchain("toy").name == "toy"
    assert converted_by(["m.onnx", "m.quant.toy"]) == "toy"
    with pytest.raises(BadInput, match=r"no device 'toi': did you mean 'toy'.*toy:COLOUR"):
        open_device("toi")
    with pytest.raises(BadInput, match="no toolchain 'host'"):
        open_toolchain("host")


def test_devices_of_every_plug_in_are_listed_whatever_another_one_does(project: Path):
    listed = {device.device: device.state for device in list_devices(Settings.load(project))}
    assert listed["toy:red"] == "ready to play" and listed["host"]
    assert listed["plain"] == "ready" and listed["plain:SERIAL"] == "write your serial"
    assert "its library is missing" in listed["broken"]


@pytest.mark.slow
def test_a_runner_converts_benchmarks_and_scores_a_model_with_it(project: Path):
    make_faces(project / "faces", 40, 64, seed=3)
    save_segmentation_model(project / "net.onnx", 64, CLASSES)
    with Workspace(Settings.load(project)) as workspace:
        workspace.upload(project / "net.onnx", "calm-heron")
        options = RunnerOptions(("toy:red",), project / "faces", drain=True, sizes=Sizes(4, 4, 6))
        ToyToolchain.inspected = 0
        events = []
        run(workspace, options, events.append)
        (row,) = workspace.status()
        assert not row.get("error"), row
        assert (row["toolchain"], row["device"]) == ("toy", "toy:red")
        assert row["mean"] == pytest.approx(0.004)
        assert all(0 <= row[stage] <= 1 for stage in ("f1_onnx", "f1_1k", "f1_1k_f", "f1_10k"))
        assert ToyToolchain.inspected == 1
        compared = compare_model(
            workspace, "calm-heron", "toy:red", project / "faces", "segmentation", 4
        )
        names = [variant.name for variant in compared.variants]
        assert names == ["float, CPU", "quantized, toy:red", "float, toy:red"]
        run(workspace, replace(options, devices=("toy:red", "host")), events.append)
        (row,) = workspace.status()
        stays = (row["status"], row["toolchain"], row["device"])
        assert stays == ("complete", "toy", "toy:red"), "the host is measured only on its own"
        with pytest.raises(BadInput, match="toy:red needs the toolchain toy, not 'qnn'"):
            run(workspace, replace(options, toolchain="qnn"), events.append)


def test_it_is_listed_and_examined_and_a_broken_one_says_why(project: Path):
    listed = CliRunner().invoke(app, ["devices"])
    assert "toy:red" in listed.output and "ready to play" in listed.output
    assert "htp:snapdragon-888" in listed.output
    checks = {check.what: check for check in examine(f"sqlite:{project / 'store'}", None)}
    assert checks["toys"].text == "a box of them"
    assert not checks["broken"].ok and not checks["broken"].needed
    assert "its library is missing" in checks["broken"].text
