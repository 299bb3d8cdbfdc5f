"""Pinned versions have hashes, and what set-up and the image install is checked against them."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.setup.copies import ROOT

FILE = ROOT / "constraints.txt"
ENTRY = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)
INSTALLERS = ("scripts/make-venv", "scripts/build-image", "deploy/docker/install-dependencies")


def test_every_version_has_hashes() -> None:
    entries = ENTRY.findall(FILE.read_text())
    assert len(entries) == len(re.findall(r"^[\w.-]+==", FILE.read_text(), re.MULTILINE)) > 300
    assert [name for name, _, hashes in entries if not hashes] == []


def test_what_is_installed_here_is_what_is_pinned() -> None:
    pinned = {plain(name): version for name, version, _ in ENTRY.findall(FILE.read_text())}
    installed = {plain(each.name): each.version.split("+")[0] for each in distributions()}
    common = pinned.keys() & installed.keys()
    assert len(common) > 200
    assert {name: installed[name] for name in common if installed[name] != pinned[name]} == {}
    unpinned = installed.keys() - pinned.keys() - {"edgeloop", "setuptools", "wheel"}
    assert unpinned <= for_gpus(), "only what torch needs for GPUs has no pin"


def for_gpus() -> set[str]:
    """What the torch installed here needs on Linux alone, and all that this needs."""
    found: set[tuple[str, str]] = set()
    pending = [each for each in needs("torch", "") if "platform_system" in str(each.marker)]
    while pending:
        each = pending.pop()
        for extra in ("", *each.extras):
            if (plain(each.name), extra) not in found:
                found.add((plain(each.name), extra))
                pending += needs(each.name, extra)
    return {name for name, _ in found}


def needs(name: str, extra: str) -> list[Requirement]:
    """The requirements of a package that hold here with this extra; none if it is not installed."""
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return []
    every = [Requirement(line) for line in lines]
    return [each for each in every if not each.marker or each.marker.evaluate({"extra": extra})]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.slow
@pytest.mark.parametrize("installer", INSTALLERS)
def test_installers_refuse_a_file_with_another_hash(installer: str, tmp_path: Path) -> None:
    """With the options that the installer gives pip, a wheel passes until one byte is added."""
    text = (ROOT / installer).read_text()
    options = re.findall(r"--(?:no-)?require-hashes|--constraint", text)
    assert {"--no-require-hashes", "--constraint"} <= set(options)
    wheel = tmp_path / "pinned_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "pinned_thing-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: pinned-thing\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pins = tmp_path / "constraints.txt"
    pins.write_text(f"pinned-thing==1.0 --hash=sha256:{digest}\n")
    command = [
        *(sys.executable, "-m", "pip", "install", "--no-index", "--find-links", tmp_path),
        *("--no-require-hashes", "--constraint", pins, "--target", tmp_path / "target"),
        "pinned-thing>=0.5",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more.py", "")
    command[-2] = tmp_path / "other"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "other").exists()
