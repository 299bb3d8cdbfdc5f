"""The store scripts of Microsoft Archai and Edgeloop's commands on one account: every command is a
process, in an environment that has only what its own package needs.

Archai's side is its own package from PyPI, whose scripts are functions of `archai.common.store`;
only its address is Azurite's.
"""

from __future__ import annotations

import csv
import io
import json
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgeloop.jobs.bundle import edgeloop_requirements
from tests.conftest import StoreUnderTest
from tests.kept import REPOSITORY
from tests.peers.environments import ENVIRONMENTS, Definition
from tests.runner.conftest import NETS

pytestmark = pytest.mark.soak

TABLE = "facesynthetics"
NET = NETS / "unet-w8.onnx"
LIMIT_S = 300
THEIRS = ("torch", "numpy", "azure-data-tables", "azure-storage-blob")
SCRIPTS = """
import os, sys
from archai.common import store

made = store.ArchaiStore.__init__
def at_azurite(self, *arguments, **options):
    made(self, *arguments, **options)
    self.storage_connection_string = os.environ[store.CONNECTION_NAME]
store.ArchaiStore.__init__ = at_azurite
script, *words = sys.argv[1:]
getattr(store, script)(os.environ[store.CONNECTION_NAME], words)
"""


@dataclass(frozen=True)
class Machine:
    """A folder, an environment, and a program in it."""

    folder: Path
    command: tuple[str, ...]
    environ: dict[str, str]

    def __call__(self, *words: object, fails: bool = False) -> str:
        """What it printed; as an error where it `fails`."""
        done = subprocess.run(
            [*self.command, *map(str, words)],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stderr if fails else done.stdout


@pytest.fixture
def account(make_place: Callable[[str], StoreUnderTest]) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", **make_place("azure").environ}


@pytest.fixture
def theirs(account: dict[str, str], archai_package: Path, tmp_path: Path) -> Machine:
    python = ENVIRONMENTS.bin_of(Definition(THEIRS)) / "python"
    folder = tmp_path / "theirs"
    folder.mkdir()
    environ = {**account, "PYTHONPATH": str(archai_package), "HOME": str(folder)}
    return Machine(folder, (str(python), "-c", SCRIPTS), environ)


@pytest.fixture
def ours(account: dict[str, str], tmp_path: Path) -> Machine:
    python = ENVIRONMENTS.bin_of(Definition(edgeloop_requirements("azure", "qnn"))) / "python"
    folder = tmp_path / "ours"
    folder.mkdir()
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "edgeloop").symlink_to(REPOSITORY / "edgeloop")
    environ = {
        **account,
        "PYTHONPATH": str(installed),
        "HOME": str(folder),
        "EDGELOOP_EXPERIMENT": TABLE,
        "EDGELOOP_NODE": "lab-1",
    }
    return Machine(folder, (str(python), "-m", "edgeloop"), environ)


def their_rows(theirs: Machine, *options: str) -> dict[str, dict[str, str]]:
    """Its CSV has blanks behind the commas."""
    text = theirs("status", "--table", TABLE, *options)
    rows = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    return {row["name"]: {k: v for k, v in row.items() if k and v} for row in rows}


def our_rows(ours: Machine, *options: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(ours("status", "--json", *options))}


def evaluate(ours: Machine) -> None:
    words = ("--drain", "--device", "host", "--benchmark-only", "--calibration-images", "4")
    ours("runner", *words, "--runs", "1")


def test_what_archais_scripts_upload_our_commands_manage(theirs: Machine, ours: Machine) -> None:
    theirs("upload", "lazy-gecko", NET, "--priority", "7", "--table", TABLE)
    assert our_rows(ours) == {
        "lazy-gecko": {"name": "lazy-gecko", "status": "uploaded", "priority": 7}
    }
    ours("download", "lazy-gecko")
    assert (ours.folder / "lazy-gecko" / NET.name).read_bytes() == NET.read_bytes()

    theirs("lock", "lazy-gecko", "--status", "Running f1_onnx", "--table", TABLE)
    held = f"lazy-gecko,Running f1_onnx,{platform.node()},7"
    assert ours("status", "--locked", "--csv", "-").splitlines()[1:] == [held]
    for verb in ("reset", "delete"):
        refusal = ours(verb, "lazy-gecko", "--yes", fails=True)
        assert f"another tool works on it on {platform.node()}" in refusal
        assert "edgeloop unlock lazy-gecko" in refusal
    ours("unlock", "lazy-gecko")
    assert their_rows(theirs, "--locked") == {}

    evaluate(ours)
    row = their_rows(theirs)["lazy-gecko"]
    assert (row["quantized"], row["priority"], row["macs"]) == ("True", "7", "1556480")
    assert float(row["mean"]) > 0 and "node" not in row
    ours("reset", "lazy-gecko")
    row = their_rows(theirs, "--cols", "name,status,priority,macs,mean")["lazy-gecko"]
    assert row == {"name": "lazy-gecko", "status": "new", "priority": "7"}
    theirs("download", "--name", "lazy-gecko", "--table", TABLE)
    (file,) = (theirs.folder / "lazy-gecko").iterdir()
    assert file.read_bytes() == NET.read_bytes()

    ours("delete", "lazy-gecko", "--yes")
    assert their_rows(theirs) == {}
    file.unlink()
    theirs("download", "--name", "lazy-gecko", "--table", TABLE)
    assert list((theirs.folder / "lazy-gecko").iterdir()) == []


def test_what_our_commands_upload_archais_scripts_manage(theirs: Machine, ours: Machine) -> None:
    ours("upload", NET, "--name", "calm-heron", "--priority", "3")
    evaluate(ours)
    row = their_rows(theirs)["calm-heron"]
    assert (row["status"], row["priority"], row["quantized"]) == ("waiting", "3", "True")
    assert (row["model_name"], row["experiment"]) == (NET.name, TABLE)

    folder = f"{TABLE}/calm-heron"
    theirs("download", "--name", folder, "--file", r".*\.onnx")
    onnx_files = sorted((theirs.folder / folder).rglob("*.*"), key=str)  # as the account lists them
    assert onnx_files[0].name == NET.name, "what its runner takes for the float model"
    assert onnx_files[0].read_bytes() == NET.read_bytes()
    theirs("download", "--name", folder)
    suffixes = {path.suffix for path in (theirs.folder / folder).iterdir()}
    assert {".onnx", ".dlc", ".csv", ".json"} <= suffixes

    theirs("lock", "calm-heron", "--status", "busy", "--table", TABLE)
    assert our_rows(ours, "--locked")["calm-heron"]["node"] == platform.node()
    theirs("unlock", "--node", platform.node(), "--table", TABLE)
    assert our_rows(ours, "--locked") == {}

    theirs("reset", "calm-heron", "--table", TABLE)
    row = our_rows(ours)["calm-heron"]
    assert row["status"] == "reset" and "mean" not in row
    evaluate(ours)
    row = our_rows(ours)["calm-heron"]
    assert row["quantized"] is True and row["mean"] > 0

    theirs("delete", "calm-heron", "--table", TABLE)
    assert our_rows(ours) == {} and ours("download", "--list", "--json") == "[]\n"
    ours("upload", NET, "--name", "calm-heron")
    assert set(their_rows(theirs)) == {"calm-heron"}
