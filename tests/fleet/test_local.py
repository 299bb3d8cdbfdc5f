"""A fleet on this machine, from outside: commands, real stores, real runners, and kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgeloop.cli.app import app
from edgeloop.errors import Conflict, EdgeloopError
from edgeloop.operate.fleet import control as fleet_control
from edgeloop.operate.fleet.local import LocalLauncher
from edgeloop.operate.fleet.records import Bounds, FleetRecord, Fleets, FleetSpec
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.conftest import StoreUnderTest
from tests.nets import save_tiny
from tests.peers.board import VirtualBoard, make_sdk
from tests.runner.conftest import NETS

LIMIT_S = 240.0
SETTINGS = (
    "lease_seconds: 5\nclock_margin_seconds: 1\nbenchmark_runs: 1\ncalibration_images: 4\n"
    "fleet:\n  devices: host\n  idle_seconds: 1\n  grace: 60\n"
)


@dataclass
class FleetUser:
    """Somebody with a project, a shell and a store."""

    folder: Path
    environ: dict[str, str] = field(repr=False)

    def run(self, *words: str) -> str:
        """What a command prints that ends well, in this process."""
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(self.folder)
            for name, value in self.environ.items():
                patched.setenv(name, value)
            done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def run_apart(self, *words: str) -> str:
        """In a process of its own: what it starts has to outlive it."""
        done = subprocess.run(
            [sys.executable, "-m", "edgeloop", *words],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.run("fleet", "status", "--json"))
        return found[0] if found else {}

    def shares(self) -> dict[str, int]:
        """Runners by experiment, as the supervisor tells."""
        with self.workspace() as workspace:
            seen = Fleets(workspace.store).named("fleet").observed.shares
        return {name: line["runners"] for name, line in seen.items()}

    def workspace(self, experiment: str = "default") -> Workspace:
        environ = {**self.environ, "EDGELOOP_EXPERIMENT": experiment}
        return Workspace(Settings.load(self.folder, environ))

    def upload(self, first: int, count: int, experiment: str = "default") -> None:
        with self.workspace(experiment) as workspace:
            for seed in range(first, first + count):
                net = save_tiny(self.folder / f"{seed}.onnx", seed)
                workspace.upload(net, f"net-{seed}", benchmark_only=True, check=False)

    def rows(self, experiment: str = "default") -> list[Any]:
        with self.workspace(experiment) as workspace:
            return [row["status"] for row in workspace.status()]

    def eventually(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.3)

    def logs(self) -> str:
        files = sorted((self.folder / "state").rglob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()[-1500:]}" for file in files)

    def processes(self, module: str) -> list[int]:
        """Of this user's own fleets: their working folder tells."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                here = (entry / "cwd").readlink() == self.folder
            except OSError:
                continue
            if here and any(module.encode() in word for word in words[:4]):
                found.append(int(entry.name))
        return found

    def shown(self) -> list[str]:
        """What others on this machine can see: command lines, and the files of the fleet."""
        files = [Path(f"/proc/{pid}/cmdline") for pid in self.processes("edgeloop")]
        files += [file for file in (self.folder / "state").rglob("*") if file.is_file()]
        found = []
        for file in files:
            with suppress(OSError):  # its runner has ended meanwhile
                found.append(file.read_text())
        return found

    def supervisor(self) -> int:
        (pid,) = self.processes("edgeloop.operate.fleet.local")
        return pid

    def runners(self) -> dict[str, int]:
        """Processes of runners by id."""
        states = self.folder.glob("state/fleet/*/*/runners/*/state.json")
        told = {file.parent.name: json.loads(file.read_text()) for file in states}
        return {name: t["pid"] for name, t in told.items() if t["state"] == "running"}


@pytest.fixture
def make_user(
    tmp_path: Path, make_place: Callable[[str], StoreUnderTest]
) -> Iterator[Callable[[str], FleetUser]]:
    made: list[FleetUser] = []

    def make(kind: str) -> FleetUser:
        folder = tmp_path / "my project"
        folder.mkdir()
        (folder / "edgeloop.yaml").write_text(SETTINGS)
        own = {"EDGELOOP_STATE": str(folder / "state"), "EDGELOOP_CACHE": str(folder / "cache")}
        made.append(FleetUser(folder, {**os.environ, **make_place(kind).environ, **own}))
        return made[0]

    yield make
    for user in made:
        for module in ("edgeloop.operate.fleet.local", "edgeloop.operate.fleet.keeper"):
            for pid in user.processes(module):
                os.kill(pid, signal.SIGKILL)


def test_from_zero_runners_to_results_and_back_to_nothing(make_user: Callable[[str], FleetUser]):
    """Two experiments share the fleet, and the store's password is nowhere to be seen."""
    user = make_user("postgresql")
    secret = user.environ["EDGELOOP_STORE"].partition("?")[0]
    user.upload(1, 2, "faces")
    user.upload(9, 1, "hands")
    shares = ("-e", "faces=2", "-e", "hands", "--quota", "hands=1")
    said = user.run_apart("fleet", "up", "--runners", "2", *shares)
    assert said.startswith("Fleet fleet is up: 2 runners with 1 core each on local, for")
    assert "\nSupervisor: process " in said
    user.eventually(lambda: user.shares() == {"faces": 1, "hands": 1})
    user.eventually(lambda: user.rows("faces") + user.rows("hands") == ["complete"] * 3)
    shown = user.shown()
    assert shown and not any(secret in text for text in shown)

    assert user.run("fleet", "scale", "0:2").startswith("Fleet fleet: 0 to 2 runners")
    user.eventually(
        lambda: not user.runners() and not user.processes("edgeloop.operate.fleet.keeper")
    )
    user.eventually(lambda: user.status()["running"] == 0)
    assert user.status()["supervised"] is True
    table = user.run("fleet", "status")
    assert all(len(line) <= 80 for line in table.splitlines())
    assert table.split()[:2] == ["fleet", "compute"]
    user.upload(3, 1, "faces")
    user.eventually(lambda: user.rows("faces") == ["complete"] * 3)

    assert user.run("fleet", "down") == "Fleet fleet is down.\n"
    user.eventually(lambda: not user.processes("edgeloop"))
    assert user.status() == {}
    assert user.run("fleet", "status") == "No fleet. 'edgeloop fleet up' starts one.\n"
    with user.workspace() as workspace:
        assert not Fleets(workspace.store).all() and not workspace.runners()


def test_every_process_may_be_killed(make_user: Callable[[str], FleetUser]):
    user = make_user("sqlite")
    said = user.run("fleet", "up", "--runners", "2")
    assert said.startswith(
        "Fleet fleet is up: 2 runners with 1 core each on local, for experiment default.\n"
        "Supervisor: process "
    )
    user.eventually(lambda: len(user.runners()) == 2)
    before = user.runners()

    first, second = before
    os.kill(before[first], signal.SIGKILL)
    user.eventually(lambda: user.runners().get(first, before[first]) != before[first])
    assert user.runners().keys() == before.keys(), "the same runner, in another process"

    os.kill(user.supervisor(), signal.SIGKILL)
    user.eventually(lambda: not user.processes("edgeloop.operate.fleet.local"))
    alive = user.runners()
    assert user.run("fleet", "up").startswith("Fleet fleet was up and is changed: 2 runners")
    assert user.runners() == alive, "adopted, with the bounds that it had"

    (keeper,) = [
        pid
        for pid in user.processes("edgeloop.operate.fleet.keeper")
        if second in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(keeper, signal.SIGKILL)
    user.eventually(lambda: not Path(f"/proc/{alive[second]}").exists())
    user.eventually(lambda: len(user.runners()) == 2)
    assert second not in user.runners() and first in user.runners()

    os.kill(user.supervisor(), signal.SIGKILL)
    user.eventually(lambda: not user.processes("edgeloop.operate.fleet.local"))
    assert user.run("fleet", "down", "--now") == "Fleet fleet is down.\n"
    user.eventually(lambda: not user.processes("edgeloop"))  # a new supervisor has ended them


@pytest.mark.soak
def test_a_board_has_a_runner_of_its_own_and_machines_convert_for_it(
    make_user: Callable[[str], FleetUser], boards: Callable[..., VirtualBoard], sdk: Path
):
    user = make_user("sqlite")
    board = boards("a")
    user.environ |= {**board.environ, "SNPE_ROOT": str(sdk)}
    with user.workspace() as workspace:
        workspace.upload(NETS / "unet-w8.onnx", "unet", benchmark_only=True)
    user.run("fleet", "up", "--runners", "0:1", "--device", "adb")
    user.eventually(lambda: user.rows() == ["complete"])
    with user.workspace() as workspace:
        (row,) = workspace.status()
    assert board.serial in str(row["boards"]), row
    user.eventually(lambda: len(user.runners()) == 1)
    assert user.status()["boards"] == 1, "the machine's runner has ended, the board's stays"
    user.run("fleet", "down")
    user.eventually(lambda: not user.processes("edgeloop"))


def test_runners_end_when_nobody_looks_after_them(make_user: Callable[[str], FleetUser]):
    user = make_user("sqlite")
    folder = user.folder / "state/fleet/here/night-1/runners/night-1a"
    folder.mkdir(parents=True)
    (folder / "order.json").write_text('{"id": "night-1a", "experiment": "default", "words": []}')
    keeper = subprocess.run(
        [sys.executable, "-m", "edgeloop.operate.fleet.keeper", folder, user.folder / "log", "0.1"],
        cwd=user.folder,
        env=user.environ,
        timeout=LIMIT_S,
        check=False,
    )
    assert keeper.returncode == 0
    assert json.loads((folder / "state.json").read_text())["state"] == "ended"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["down"], 1, "the store has no fleet 'fleet'; start one with 'fleet up'"),
        (["scale", "4:2"], 2, "must begin with the smaller number, such as 2:4"),
        (["up", "--runners", "many"], 1, "runners must be LEAST:MOST or one number"),
        (["up", "--compute", "azureml"], 1, "of kind azureml, which is not a place for fleets"),
        (["up", "--compute", "nowhere"], 1, "there is no compute 'nowhere'"),
        (["up", "--device", "htq:x"], 1, "htq"),
        (["up", "--dataset", "./nowhere"], 1, "there is no folder ./nowhere on this machine"),
        (["up", "--dataset", "faces@3"], 1, "no dataset 'faces'"),
        (["up", "--quota", "hands=2"], 2, "the fleet does not serve the experiment 'hands'"),
        (["up", "-e", "faces=0"], 1, "must be a number above 0"),
        (["status", "--name", "night"], 1, "the store has no fleet 'night'"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, said: str
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    result = CliRunner().invoke(app, ["fleet", *words])
    found = 1 if isinstance(result.exception, EdgeloopError) else result.exit_code
    assert (found, said in f"{result.output}{result.exception}") == (code, True), result.output
    with Workspace.open() as workspace:
        assert not Fleets(workspace.store).all()


def test_up_obeys_its_options_then_the_file_then_what_the_fleet_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def obeyed(fleets: Fleets, record: FleetRecord, started: object) -> FleetRecord:
        return record

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fleet_control, "ensure_supervisor", lambda *_: None)
    monkeypatch.setattr(fleet_control, "wait_until_obeyed", obeyed)
    for written, words in (
        ("runners: 1:2, grace: 60", ["--cpus", "2", "-e", "faces"]),
        ("runners: 3:4, idle_seconds: 7, options: [--drop]", ["--runners", "5"]),
        ("runners: 3:4, experiments: [hands]", []),
    ):
        (tmp_path / "edgeloop.yaml").write_text(f"fleet: {{{written}}}")
        done = CliRunner().invoke(app, ["fleet", "up", *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        with Workspace.open() as workspace:
            spec = Fleets(workspace.store).named("fleet").spec
        assert spec.runners == (Bounds(5, 5) if words[:1] == ["--runners"] else spec.runners)
    assert spec.to_json() == {
        **FleetSpec(name="fleet", compute="local").to_json(),
        **{"runners": "3:4", "cpus": 2, "grace": 60.0, "idle_seconds": 7.0},
        **{"options": ["--drop"], "experiments": {"hands": {"weight": 1.0, "quota": None}}},
    }
    monkeypatch.setattr(Fleets, "remove", lambda *_: False)
    said = CliRunner().invoke(app, ["fleet", "down", "--forget"]).exception
    assert isinstance(said, Conflict) and "the fleet 'fleet' was changed just now" in str(said)


def test_this_machine_names_the_toolchains_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What a fleet here follows: conversions that no runner of it could do are left."""
    for name in ("SNPE_ROOT", "QAIRT_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    assert list(LocalLauncher(tmp_path, Settings.load(tmp_path)).toolchains()) == ["qnn"]
    monkeypatch.setenv("SNPE_ROOT", str(make_sdk(tmp_path / "sdk")))
    assert list(LocalLauncher(tmp_path, Settings.load(tmp_path)).toolchains()) == ["qnn", "snpe"]
