"""Devices of plug-in platforms in fleets and on Kubernetes, as the platform registry names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.errors import BadInput, BadSetting
from edgeloop.operate.fleet.control import completed_spec
from edgeloop.operate.fleet.kubernetes import fleet_manifest
from edgeloop.operate.fleet.records import FleetRecord, Fleets, read_spec
from edgeloop.operate.fleet.supervisor import board_order, machine_order, serves_board
from edgeloop.settings import Settings
from edgeloop.testing.memory import MemoryStore

EXAMPLE = Path(__file__).parents[2] / "examples/plugins/edgeloop-ort1"
BOARDS = """
from edgeloop.platforms import Platform

class PinPlatform(Platform):
    name = "pins"
    device_names = ("pin:NAME",)
    has_boards = True
"""


@pytest.fixture(autouse=True)
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example platform, and one with boards, as pip would have installed them."""
    site = tmp_path / "site"
    for module, value in (
        ("edgeloop_ort1", "ort1 = edgeloop_ort1:Ort1Platform"),
        ("edgeloop_pins", "pins = edgeloop_pins:PinPlatform"),
    ):
        about = site / f"{module}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[edgeloop.platforms]\n{value}\n")
    (site / "edgeloop_pins.py").write_text(BOARDS)
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.syspath_prepend(site)


def project(folder: Path, devices: str) -> Settings:
    (folder / "edgeloop.yaml").write_text(f"fleet: {{devices: {devices}}}\n")
    return Settings.load(folder, {})


def record(settings: Settings) -> FleetRecord:
    store = MemoryStore()
    spec = completed_spec(read_spec(settings.fleet), settings, store)
    return Fleets(store).declare(spec, "ray", "", {})[0]


def test_every_machine_of_a_fleet_runs_the_device_of_a_plug_in(tmp_path: Path):
    fleet = record(project(tmp_path, "[ort1]"))
    order = machine_order("runner-1", "default", fleet)
    assert order.arguments[order.arguments.index("--device") + 1] == "ort1"


def test_every_board_of_a_plug_in_gets_a_runner_of_its_own(tmp_path: Path):
    fleet = record(project(tmp_path, "[ort1, pin]"))
    assert serves_board(fleet, "pin:7") and not serves_board(fleet, "adb:8c2f11d0")
    order = board_order("board-1", "default", "pin:7", fleet)
    assert (order.device, order.resources) == ("pin:7", {"pin:7": 1.0})
    assert "pin" not in machine_order("runner-1", "default", fleet).arguments


def test_a_device_that_no_platform_has_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="there is no device 'ort2'"):
        record(project(tmp_path, "[ort2]"))
    with pytest.raises(BadSetting, match="there is no device 'ort2'"):
        fleet_manifest(project(tmp_path, "[ort2]"))


def test_pods_run_the_device_of_a_plug_in_and_leave_out_its_boards(tmp_path: Path):
    objects = fleet_manifest(project(tmp_path, "[ort1, pin:7]"))
    (scaled,) = [item["spec"] for item in objects if item["kind"] == "ScaledJob"]
    (container,) = scaled["jobTargetRef"]["template"]["spec"]["containers"]
    assert container["args"][container["args"].index("--device") + 1] == "ort1"
    places = [trigger["metadata"]["valueLocation"] for trigger in scaled["triggers"]]
    assert places == ["linux.wanted", "convert qnn.wanted", "device.wanted", "ort1.wanted"]
    with pytest.raises(BadSetting, match="boards are outside of the cluster"):
        fleet_manifest(project(tmp_path, "[]"), ["runner.device=pin:7"])
