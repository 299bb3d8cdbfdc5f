"""A service gets what its unit says and no more, and a unit that systemd refuses is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import guard
from tests.jobs.waiting import eventually
from tests.peers.systemctl import log_of, make_systemctl

pytestmark = pytest.mark.slow

UNIT = """[Service]
Type=exec
WorkingDirectory={folder}
EnvironmentFile={folder}/one.env
ExecStart={python} -c "import os, time; print(sorted(os.environ), flush=True); time.sleep(600)"
"""


class Services:
    def __init__(self, home: Path) -> None:
        self.home, self.state = home, home / "services"
        self.units = home / ".config/systemd/user"
        self.units.mkdir(parents=True)
        make_systemctl(home / "systemctl", self.state, {**guard.mark(), "OF_THE_MANAGER": "1"})

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.home / "systemctl", "--user", *words],
            env={"HOME": str(self.home), "PATH": "/usr/bin:/bin", "OF_THE_SHELL": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def services(tmp_path: Path) -> Services:
    return Services(tmp_path)


def test_a_service_has_the_managers_environment_and_its_own_until_it_is_disabled(
    services: Services, tmp_path: Path
) -> None:
    unit = UNIT.format(folder=tmp_path, python=sys.executable)
    (services.units / "one.service").write_text(unit)
    (tmp_path / "one.env").write_text('# a comment\nOF_THE_UNIT="a \\"b\\""\n')
    assert services("restart", "one.service").returncode == 0
    eventually(lambda: log_of(services.state, "one.service"))
    assert "'OF_THE_MANAGER', 'OF_THE_UNIT'" in log_of(services.state, "one.service")
    assert "OF_THE_SHELL" not in log_of(services.state, "one.service")
    assert "ActiveState=active" in services("show", "one.service").stdout
    assert services("disable", "--now", "one.service").returncode == 0
    assert "ActiveState=inactive" in services("show", "one.service").stdout


def test_a_unit_that_systemd_does_not_accept_is_not_started(
    services: Services, tmp_path: Path
) -> None:
    unit = UNIT.format(folder=tmp_path, python="not-a-path/python")
    (services.units / "one.service").write_text(unit)
    refused = services("restart", "one.service")
    assert refused.returncode == 1 and "one.service" in refused.stderr
    assert "ActiveState=inactive" in services("show", "one.service").stdout
