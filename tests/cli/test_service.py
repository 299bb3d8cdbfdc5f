"""Runners and the portal as systemd services: units that systemd accepts, and no secret in them."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edgeloop.cli.app import app
from edgeloop.errors import BadInput
from edgeloop.operate.service import ServiceUnit, environment_text, service_place
from tests.peers.systemctl import verified

SECRET = "DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=c2VjcmV0LWtleQ==;"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["service", *arguments])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my project").mkdir()
    monkeypatch.chdir(tmp_path / "my project")
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", SECRET)
    monkeypatch.setenv("EDGELOOP_NODE", 'a "b" $c `d` \\e')
    return tmp_path / "units"


def test_systemd_waits_longer_than_the_grace_period(folder: Path) -> None:
    texts = [
        call("install", "runner", *more, "--dry-run").output
        for more in ((), ("--grace", "600"), ("--grace=600",))
    ]
    assert ["TimeoutStopSec=90\n" in text for text in texts] == [True, False, False]
    assert ["TimeoutStopSec=660\n" in text for text in texts] == [False, True, True]
    assert "--idle has no use" in str(call("install", "runner", "--idle", "5").exception)


@pytest.mark.parametrize("scope", ["--user", "--system"])
def test_units_of_runners_and_portals_are_valid_and_hold_no_secret(
    folder: Path, scope: str
) -> None:
    odd = ("--device", "adb:8c2f", "--dataset", 'the $faces "100%"', "--subset", "a;b*")
    more = ("--as-user", "root") if scope == "--system" else ()
    done = call(
        *("install", "runner", "--name", "board-1", scope, "--into", str(folder)), *more, *odd
    )
    assert done.exit_code == 0, done.output
    assert call("install", "portal", scope, "--into", str(folder), "--port", "0").exit_code == 0
    for name in ("board-1", "portal"):
        unit, environment = folder / f"edgeloop-{name}.service", folder / f"{name}.env"
        text = unit.read_text()
        assert verified(unit, unit.parent) == ""
        assert "c2VjcmV0" not in text + done.output
        assert "Restart=always" in text
        assert "c2VjcmV0" in environment.read_text()
        assert stat.S_IMODE(environment.stat().st_mode) == 0o600
    text = (folder / "edgeloop-board-1.service").read_text()
    assert '"the $$faces \\"100%%\\""' in text
    assert f"WorkingDirectory={folder.parent / 'my project'}\n" in text


def test_an_environment_file_that_somebody_edited_is_kept_and_goes_with_the_service(
    folder: Path,
) -> None:
    install = ("install", "runner", "--user", "--into", str(folder))
    assert call(*install).exit_code == 0
    (folder / "runner.env").write_text("EDGELOOP_STORE=mine\n")
    assert "kept as it is" in call(*install).output
    assert (folder / "runner.env").read_text() == "EDGELOOP_STORE=mine\n"
    listed = json.loads(call("status", "--user", "--into", str(folder), "--json").output)
    assert [row["name"] for row in listed] == ["runner"]
    assert call("uninstall", "runner", "--user", "--into", str(folder)).exit_code == 0
    assert list(folder.iterdir()) == []
    gone = call("uninstall", "runner", "--user", "--into", str(folder))
    assert isinstance(gone.exception, BadInput)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--store", "postgresql://me:password@db/farm"), "no secret may stand in its options"),
        (("--drain",), "a service never ends"),
        (("--devise", "host"), "No such option"),
        (("--name", "../x"), "cannot be named"),
    ],
)
def test_what_no_service_can_have_is_refused_before_anything_is_written(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = call("install", "runner", "--user", "--into", str(folder), *arguments)
    assert done.exit_code != 0
    assert said in done.output + str(done.exception)
    assert not folder.exists()


def test_print_writes_nothing(folder: Path) -> None:
    done = call("install", "portal", "--system", "--into", str(folder), "--dry-run")
    assert "ExecStart=" in done.output and "WantedBy=multi-user.target" in done.output
    assert not folder.exists()


def test_the_environment_file_reads_back_as_a_shell_reads_it(tmp_path: Path) -> None:
    values = {"A": 'x "y" $z `w` \\v', "B": "plain", "C": "ü 100%"}
    (tmp_path / "env").write_text(environment_text(values))
    script = f"set -a; . {tmp_path / 'env'}; env -0"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True, timeout=60)
    read = dict(item.split("=", 1) for item in done.stdout.decode().split("\0") if "=" in item)
    assert {name: read[name] for name in values} == values
    with pytest.raises(BadInput, match="line break"):
        environment_text({"A": "x\ny"})


def test_a_machines_services_lie_where_systemd_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    place = service_place(is_system=True)
    assert place.unit("a") == Path("/etc/systemd/system/edgeloop-a.service")
    unit = ServiceUnit("a", "runner", (), Path("/srv/farm"), "lab")
    assert "User=lab\n" in unit.text(place)
    assert "User=" not in ServiceUnit("a", "runner", (), Path("/srv")).text(place)
