"""Every test is in one tier, and `pytest --tier unit` keeps servers out, whatever a test does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers

ROOT = Path(__file__).parents[1]
GUARDED = "from tests.tiers import forbid_servers; forbid_servers(); import socket; "


def run_guarded(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", GUARDED + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr.strip().rpartition("\n")[2]


def test_peers_cannot_be_imported():
    for peer in ("azureml", "azurite", "board", "browser", "certificate", "postgres", "ray", "s3"):
        with pytest.raises(tiers.ServerInUnitTest, match=f"{peer}: mark it `server`"):
            tiers.watch("import", (f"tests.peers.{peer}", None, None, None, None))
    assert "imports tests.peers.postgres: mark it" in run_guarded("import tests.peers.postgres")
    assert run_guarded("import tests.peers.process, tests.peers.ports") == ""


def test_ports_cannot_be_opened_and_sockets_in_the_file_system_can(tmp_path: Path):
    said = run_guarded("socket.create_server(('127.0.0.1', 0))")
    assert said.startswith("tests.tiers.ServerInUnitTest: a unit test listens on ('127.0.0.1'")
    assert run_guarded(f"s = socket.socket(socket.AF_UNIX); s.bind({str(tmp_path / 's')!r})") == ""


@pytest.mark.parametrize(
    ("line", "left_out"),
    [
        ("from tests.peers.postgres import Postgres", {"unit", "soak"}),
        ("from tests.peers.process import wait_until", {"soak"}),
        ("    from tests.peers.postgres import Postgres", {"soak"}),
        ("pytestmark = pytest.mark.slow", {"unit", "soak"}),
        ("pytestmark = pytest.mark.soak", {"unit", "test"}),
        ("pytestmark = pytest.mark.usefixtures('board')", {"soak"}),
        ("@pytest.mark.soak", set()),
        ("CASES = [pytest.param(1, marks=pytest.mark.soak)]", set()),
    ],
)
def test_a_file_is_left_out_as_a_whole(tmp_path: Path, line: str, left_out: set[str]):
    file = tmp_path / "test_it.py"
    file.write_text(f"import pytest\n{line}\n")
    assert {tier for tier in tiers.TIERS if tiers.is_left_out(file, tier)} == left_out


@pytest.mark.parametrize(
    ("marks", "found_in"),
    [
        ((), {"unit", "test"}),
        (("server",), {"test"}),
        (("slow",), {"test"}),
        (("soak",), {"soak"}),
        (("soak", "slow", "server"), {"soak"}),
    ],
)
def test_a_test_is_in_exactly_one_of_test_and_soak(
    request: pytest.FixtureRequest, marks: tuple[str, ...], found_in: set[str]
):
    item = pytest.Function.from_parent(request.node.parent, name="it", callobj=lambda: None)
    for mark in marks:
        item.add_marker(mark)
    assert {tier for tier in tiers.TIERS if tiers.is_in(item, tier)} == found_in


def test_this_run_has_imported_no_peer_if_it_is_one_of_units(request: pytest.FixtureRequest):
    if request.config.getoption("--tier") == "unit":
        peers = {name for name in sys.modules if name.startswith("tests.peers.")}
        assert peers <= tiers.HELPERS


def test_fixtures_that_import_a_peer_count_as_servers():
    source = (ROOT / "tests/conftest.py").read_text()
    for part in source.split("@pytest.fixture")[1:]:
        if "from tests.peers." in part:
            name = part.partition("def ")[2].partition("(")[0]
            assert name in tiers.SERVER_FIXTURES, name
