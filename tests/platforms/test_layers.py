"""Cost per layer without a board: which layer takes the time, and nothing is lost or hidden."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from edgeloop.cli.app import app
from edgeloop.errors import BadModel
from edgeloop.graph.count import LayerTiming, add_times, costliest
from edgeloop.graph.outline import write_viewer
from edgeloop.platforms import AttributesLatency, LayerCosts
from edgeloop.platforms.qnn.device import HtpDevice
from edgeloop.platforms.qnn.layers import (
    OUTPUT,
    CutTimes,
    GraphLayer,
    TimedCut,
    kept_cuts,
    layer_costs,
)
from edgeloop.runner.stages.base import complete_table, with_layers
from edgeloop.testing.waiting import wait_until
from tests.converted import open_htp
from tests.nets import save_tiny, with_scatter
from tests.nets_torch import Residual, SmallUNet, conv_norm, export

pytestmark = pytest.mark.slow
CHIP = "htp:qcs8550"


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 16, stride=2)
        self.branches = nn.ModuleList([conv_norm(16, 8, 1), conv_norm(16, 8), conv_norm(16, 8, 5)])
        self.head = nn.Conv2d(24, 4, 1)

    def forward(self, x):
        x = self.stem(x)
        return self.head(torch.cat([branch(x) for branch in self.branches], 1))


def planted() -> nn.Module:
    """Its third convolution costs most of the time."""
    costly = nn.Conv2d(32, 32, 7, padding=3)
    return nn.Sequential(
        *(conv_norm(3, 32, stride=2), conv_norm(32, 32), costly, nn.ReLU()),
        *(conv_norm(32, 32, stride=2), nn.Conv2d(32, 4, 1)),
    )


def residual() -> nn.Module:
    branch = nn.Sequential(conv_norm(16, 32, stride=2), conv_norm(32, 32, act=nn.Identity))
    shortcut = conv_norm(16, 32, 1, stride=2, act=nn.Identity)
    return nn.Sequential(
        *(conv_norm(3, 16), Residual(branch, shortcut, True), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 10)),
    )


NETS = {"planted": planted, "residual": residual, "unet": SmallUNet, "inception": Inception}


@pytest.fixture(scope="module")
def device() -> Iterator[HtpDevice]:
    found = open_htp(CHIP, workers=2)
    yield found
    found.close()


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("nets")
    return {name: export(make(), folder / f"{name}.onnx", 64) for name, make in NETS.items()}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the command names it in its cache folder."""
    return tmp_path_factory.mktemp("cache") / "layers"


def checked(costs: LayerCosts) -> dict[str, str]:
    """Every layer is in one entry, no entry is negative, and all of them are the whole. Returns the
    entry of each layer."""
    total = sum(layer.time_us for layer in costs.layers) + costs.unattributed_us
    assert total == pytest.approx(costs.total_us, rel=0.05)
    assert all(layer.time_us >= 0 and layer.name for layer in costs.layers)
    members = [name for layer in costs.layers for name in layer.members]
    assert len(members) == len(set(members))
    return {name: layer.name for layer in costs.layers for name in layer.members}


def test_the_costly_layer_is_found_and_a_fused_relu_costs_nothing(device, nets, cache, tmp_path):
    assert isinstance(device, AttributesLatency)
    costs = device.attribute(nets["planted"], cache=cache)
    entries = checked(costs)
    slowest = max(costs.layers, key=lambda layer: layer.time_us)
    assert slowest.name == "/2/Conv" and slowest.operator == "Conv"
    assert slowest.share > 0.4 and slowest.output == (1, 32, 32, 32)
    assert len(costs.layers) > 4 and "/3/Relu" not in entries
    table = tmp_path / "net.layers.csv"
    rows = [(name, "Conv", "", "", 0, 0, "", "", "", "") for name in (*entries, "/3/Relu")]
    header = "name operator inputs outputs parameters macs time_us share timed_with timed_on"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(), *rows])
    timings = [
        LayerTiming(layer.name, layer.members, layer.time_us, layer.share) for layer in costs.layers
    ]
    add_times(table, timings, costs.device)
    with table.open(newline="") as file:
        written = {row["name"]: row for row in csv.DictReader(file)}
    assert written["/3/Relu"]["time_us"] == "0.000"
    assert float(written["/2/Conv"]["share"]) == pytest.approx(slowest.share, abs=1e-4)
    assert written["/2/Conv"]["timed_on"] == CHIP
    assert costliest(table, 1)[0].name == "/2/Conv"


@pytest.mark.parametrize(
    "name",
    ["unet", *(pytest.param(name, marks=pytest.mark.soak) for name in ("residual", "inception"))],
)
def test_branches_add_up_to_the_whole(device, nets, cache, name):
    costs = device.attribute(nets[name], cache=cache)
    entries = checked(costs)
    assert (
        set(entries)
        >= {
            "residual": {"/1/branch/branch.0/branch.0.0/Conv", "/1/shortcut/shortcut.0/Conv"},
            "unet": {"/stem/stem.0/Conv", "/Concat", "/Concat_1", "/head/Conv"},
            "inception": {"/branches.0/branches.0.0/Conv", "/branches.2/branches.2.0/Conv"},
        }[name]
    )
    assert len(costs.layers) >= 5
    again = device.attribute(nets[name], cache=cache)
    assert again.compiles == 0 and again.layers == costs.layers


def test_a_runner_completes_the_table_of_layers(device, small_net, tmp_path, cache, monkeypatch):
    """Of the quantized file, which is taken as it is; what a short time left open is continued."""
    monkeypatch.setenv("EDGELOOP_CACHE", str(cache.parent))
    model = small_net.converted.files["unet.quant.onnx"]
    costs = device.attribute(model, cache=cache, limit_s=0.1)
    assert {"/Resize", "/head/Conv"} <= set(checked(costs))
    assert any("0.1 s were too short" in note for note in costs.notes)
    table = tmp_path / "unet.layers.csv"
    shutil.copyfile(small_net.converted.files["unet.layers.csv"], table)
    equipment = SimpleNamespace(attributor=device, device=device)
    files = {"unet.quant.onnx": model, table.name: table}
    assert complete_table(equipment, files, "unet.quant.onnx") == ""
    with table.open(newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert rows["/stem/stem.2/Relu"]["time_us"] == "0.000"
    assert {row["timed_on"] for row in rows.values()} == {CHIP}
    times_us = [float(row["time_us"]) for row in rows.values() if row["time_us"]]
    measured = with_layers(device.measure(model, small_net.converted.info), equipment, model)
    layers = {layer.name.partition(" +")[0]: layer.time_us for layer in measured.layers}
    assert sum(layers.values()) == pytest.approx(1e6 * measured.seconds)
    assert sum(times_us) == pytest.approx(sum(layers.values()) - layers.get(OUTPUT, 0), rel=1e-3)
    page = tmp_path / "page.html"
    write_viewer(page, "unet", table)
    assert f"estimated for {CHIP}" in page.read_text() and "share of time" in page.read_text()
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    why = complete_table(equipment, {**files, "broken.onnx": broken}, "broken.onnx")
    assert why.startswith("no cost of layers: ")


@pytest.mark.soak
def test_a_killed_run_is_continued(device, nets, tmp_path):
    words = ["layers", str(nets["inception"]), "--device", CHIP, "--workers", "1"]
    running = subprocess.Popen(
        [sys.executable, "-m", "edgeloop", *words],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "EDGELOOP_CACHE": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    folder = tmp_path / "layers"

    def cuts() -> int:
        files = list(folder.glob("*.json"))
        return len(json.loads(files[0].read_text())["cuts"]) if files else 0

    wait_until(lambda: cuts() >= 2 or running.poll() is not None, 120, "two cuts")
    running.kill()
    running.wait()
    done = cuts()
    assert done >= 2
    costs = device.attribute(nets["inception"], cache=folder)
    checked(costs)
    assert costs.compiles == 2 * (cuts() - done)
    (file,) = folder.glob("*.json")
    file.write_text('{"whole": ')
    assert not CutTimes.remembered(folder, file.stem.removesuffix("-1")).whole


def test_the_command_says_what_each_layer_costs(nets, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGELOOP_CACHE", str(cache.parent))
    monkeypatch.chdir(tmp_path)
    words = ["layers", str(nets["planted"]), "--device", CHIP]
    done = CliRunner().invoke(app, [*words, "--top", "3"])
    assert done.exit_code == 0, done.output
    title, heading, first, *_ = lines = done.output.splitlines()
    interval = r"(90 % interval|range) [\d.]+ – [\d.]+ µs"
    assert re.fullmatch(rf"planted: [\d.]+ µs on {CHIP} \(estimate, {interval}\)", title)
    assert heading.split() == ["layer", "operator", "output", "time", "share"]
    assert first.startswith("/2/Conv") and "32x32x32" in first and first.endswith("█")
    assert "other layers" in lines[5]
    assert all(len(line) <= 80 for line in lines)
    (found,) = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert found["device"] == CHIP and found["unattributed_us"] == 0
    assert found["low_us"] < found["total_us"] < found["high_us"] and found["missing_ops"] == 0
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)


def test_a_total_that_leaves_out_steps_is_a_lower_bound(device, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGELOOP_CACHE", str(cache.parent))
    monkeypatch.chdir(tmp_path)
    net = with_scatter(tmp_path / "scatter.onnx")
    done = CliRunner().invoke(app, ["layers", str(net), "--device", CHIP, "--timeout", "1s"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("scatter: ≥ ") and "(estimate)" in done.output
    assert "no interval: the compiler has no cost for" in done.output


def test_what_cannot_be_told_is_one_sentence(device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = str(save_tiny(tmp_path / "tiny.onnx"))
    (tmp_path / "calm-heron").mkdir()  # what `edgeloop download` makes is not the model
    done = CliRunner().invoke(app, ["layers", "calm-heron"])
    assert done.exit_code == 1 and "no model 'calm-heron'" in str(done.exception)
    for name, reason in (("htp:qcs855", "did you mean 'qcs8550'"), ("host", "use a chip")):
        done = CliRunner().invoke(app, ["layers", tiny, "--device", name])
        assert done.exit_code == 1 and reason in str(done.exception)
    refused = export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ELU()), tmp_path / "elu.onnx", 16)
    refused.write_bytes(refused.read_bytes().replace(b"Elu", b"Xlu"))
    with pytest.raises(BadModel):
        device.attribute(refused)


def layer(number: int, macs: int = 0) -> GraphLayer:
    return GraphLayer(f"l{number}", "Conv", (1, 8, 8, 8), macs, 64)


def test_cuts_that_cannot_be_true_are_dropped_the_unsure_first():
    sure, unsure = 0.0, 400.0
    cuts = {
        1: TimedCut(100, 100 + sure),
        2: TimedCut(700 + unsure, 700 + 2 * unsure),  # writing much, and above what follows
        3: TimedCut(300, 300),
        4: TimedCut(1200, 1200),  # more than the whole
        5: TimedCut(900, 900),
    }
    assert kept_cuts(cuts, 1000) == [1, 3, 5]
    costs = layer_costs([layer(1), layer(2, 5), layer(3), layer(4), layer(5, 7)], cuts, 1000, 50)
    assert [(cost.name, cost.members) for cost in costs] == [
        ("l1", ("l1",)),
        ("l2", ("l2", "l3")),
        ("l5", ("l4", "l5")),
        ("(output)", ()),
    ]
    assert [cost.time_us for cost in costs] == pytest.approx([5, 10, 30, 5])
    assert sum(cost.share for cost in costs) == pytest.approx(1)


def test_without_any_cut_all_layers_are_one_entry():
    (only,) = layer_costs([layer(1), layer(2, 3)], {}, 1000, 50)
    assert only.name == "l2" and only.members == ("l1", "l2") and only.time_us == 50
