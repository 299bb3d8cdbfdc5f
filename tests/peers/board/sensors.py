"""What a board measures of itself: thermal zones, clocks, battery, in the files of a real one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.peers.board import mounts

THERMAL_ZONES = {0: "cpu-0-0-usr", 1: "gpuss-0-usr", 2: "nspss-0-usr", 3: "battery"}
TEMPERATURE = 36_500  # thousandths of a degree
_POLICY = {
    "affected_cpus": "0 1 2 3",
    "cpuinfo_min_freq": "300000",
    "cpuinfo_max_freq": "2841600",
    "scaling_min_freq": "300000",
    "scaling_max_freq": "2841600",
    "scaling_cur_freq": "1804800",
    "scaling_governor": "schedutil",
    "scaling_available_governors": "conservative powersave performance schedutil",
    "scaling_available_frequencies": "300000 691200 1075200 1804800 2246400 2841600",
}
_BATTERY = {
    "type": "Battery",
    "present": "1",
    "status": "Charging",
    "capacity": "87",
    "health": "Good",
    "temp": "312",
    "voltage_now": "4182000",
    "current_now": "-254000",
}


def make(root: Path) -> None:
    """Over the machine's own files, in the board's mount namespace alone."""
    for name in ("thermal", "power_supply"):
        _mount_over(root / "sys/class" / name)
    for number, kind in THERMAL_ZONES.items():
        _write(thermal_zone(root, number), {"type": kind, "temp": str(TEMPERATURE)})
    _write(root / "sys/class/power_supply/battery", _BATTERY)
    _write(root / "sys/class/power_supply/usb", {"type": "USB", "online": "1"})
    _make_clocks(root)


def thermal_zone(root: Path, number: int) -> Path:
    return root / f"sys/class/thermal/thermal_zone{number}"


def _make_clocks(root: Path) -> None:
    """The machine's processors with clocks added; the rest of what is said of them stays."""
    here, real = root / "sys/devices/system/cpu", root / "mnt/cpu"
    real.mkdir(parents=True)
    mounts.bind(here, real)
    _mount_over(here)
    for entry in real.iterdir():
        if not re.fullmatch(r"cpu\d+", entry.name):
            if entry.name != "cpufreq":
                (here / entry.name).symlink_to(Path("/mnt/cpu") / entry.name)
            continue
        (here / entry.name).mkdir()
        for part in entry.iterdir():
            if part.name != "cpufreq":
                target = Path("/mnt/cpu") / entry.name / part.name
                (here / entry.name / part.name).symlink_to(target)
        (here / entry.name / "cpufreq").symlink_to("../cpufreq/policy0")
    _write(here / "cpufreq/policy0", _POLICY)


def _mount_over(folder: Path) -> None:
    mounts.memory(folder if folder.is_dir() else folder.parent)
    folder.mkdir(exist_ok=True)


def _write(folder: Path, values: dict[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, value in values.items():
        (folder / name).write_text(value + "\n")
