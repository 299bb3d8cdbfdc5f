"""The machines of the page that sets up a farm: each has an environment, a home and a cache of its
own, and all they share is a store in PostgreSQL and S3. Boards are virtual ones."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgeloop.jobs.bundle import edgeloop_requirements
from edgeloop.testing.faces import make_faces
from tests import guard
from tests.documented.running import Project
from tests.documented.scenes import DEMO_MODELS
from tests.kept import REPOSITORY
from tests.peers.board import VirtualBoard
from tests.peers.environments import Definition, Environments
from tests.peers.ports import free_port
from tests.peers.postgres import Postgres
from tests.peers.s3 import S3
from tests.peers.systemctl import make_systemctl, stop_all

ENVIRONMENTS = Environments()  # apart from those of jobs, which never have Edgeloop
NAMES = ("lab-1", "quant-1", "quant-2", "laptop")
SERIALS = ("8c2f11d0", "1f00aa42", "77c190de")
# Time decides no test: a board on a busy machine may be slow to answer.
_SETTINGS = "board_probe_seconds: 60\nboard_transfer_seconds: 300\nboard_tool_seconds: 300\n"


@dataclass
class FarmPeers:
    """What a farm consists of that no page can make."""

    store: str
    variables: Mapping[str, str]
    boards: list[VirtualBoard]
    sdk: Path


def _start_peers(request: pytest.FixtureRequest, cleaning: ExitStack) -> FarmPeers:
    database: Postgres = request.getfixturevalue("postgres")
    s3: S3 = request.getfixturevalue("s3")
    make_board: Callable[..., VirtualBoard] = request.getfixturevalue("boards")
    name = database.lend_database()
    cleaning.callback(database.take_back, name)
    return FarmPeers(
        store=f"{database.url_of(name)}?blobs=s3://{s3.make_bucket()}",
        variables=s3.environ,
        boards=sorted((make_board(name) for name in SERIALS), key=lambda board: board.serial),
        sdk=request.getfixturevalue("sdk"),
    )


def set_up_machines(project: Project, request: pytest.FixtureRequest, cleaning: ExitStack) -> None:
    """Each is as the page's first lines leave it: Debian's packages, `store.env`, and in `.venv`
    what pip would install."""
    peers = _start_peers(request, cleaning)
    python = ENVIRONMENTS.bin_of(Definition(edgeloop_requirements("all"))) / "python"
    if not (python.parent / "edgeloop").exists():
        _install_edgeloop(python)
    portal = f"127.0.0.1:{free_port()}"
    for name in NAMES:
        machine = Machine(project.home / name, name, python, peers, portal)
        cleaning.callback(stop_all, machine.services)
        project.machines[name] = machine


class Machine(Project):
    """Everything runs in Bash, with `/srv` in this machine's own folder."""

    def __init__(self, home: Path, name: str, python: Path, peers: FarmPeers, portal: str) -> None:
        super().__init__(home)
        self.services = home / "services"
        srv = home / "srv"
        programs = home / "bin"
        for folder in (srv, programs):
            folder.mkdir()
        self.real_words = {
            "/opt/qairt/2.28": str(peers.sdk),
            "lab-1:8750": portal,
            "--host 0.0.0.0": f"--host 127.0.0.1 --port {portal.rpartition(':')[2]}",
            **{word: board.serial for word, board in zip(SERIALS, peers.boards, strict=True)},
            "/srv": str(srv),
        }
        self.environ = {
            **guard.mark(),
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(home),
            "USER": "root",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "EDGELOOP_NODE": name,  # on one host all machines would have the same name
        }
        if name == "lab-1":
            self.environ |= peers.boards[0].environ | {"HOME": str(home)}
        else:
            _write_program(programs / "adb", "echo List of devices attached")
        make_systemctl(programs / "systemctl", self.services, self.environ)
        _write_program(programs / "sudo", 'exec "$@"')  # tests of boards are root
        self._lay_out(srv, python, peers)
        self.folder = home

    def run(self, line: str, ctrl_c_after: str = "") -> tuple[int, list[str]]:
        for shown, real in self.real_words.items():
            line, ctrl_c_after = (text.replace(shown, real) for text in (line, ctrl_c_after))
        code, printed = super().run(line, ctrl_c_after)
        for shown, real in self.real_words.items():
            printed = [text.replace(real, shown) for text in printed]
        return code, printed

    def _is_for_shell(self, line: str) -> bool:
        return True

    def _lay_out(self, srv: Path, python: Path, peers: FarmPeers) -> None:
        farm = srv / "farm"
        (farm / ".venv").mkdir(parents=True)
        (farm / ".venv/bin").symlink_to(python.parent)
        (farm / "edgeloop.yaml").write_text(_SETTINGS)
        variables = {"EDGELOOP_STORE": peers.store, **peers.variables}
        variables["EDGELOOP_EXPERIMENT"] = "faces"
        lines = (f"{key}={shlex.quote(value)}\n" for key, value in variables.items())
        (farm / "store.env").write_text("".join(lines))
        if self.home.name == "laptop":
            make_faces(srv / "faces", 60, 64, seed=3)
            shutil.copy(DEMO_MODELS / "unet-w8.onnx", farm / "net.onnx")


def _write_program(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def _install_edgeloop(python: Path) -> None:
    """As pip would: the package, and its program."""
    [packages] = (python.parents[1] / "lib").glob("python*/site-packages")
    (packages / "edgeloop").symlink_to(REPOSITORY / "edgeloop")
    program = python.parent / "edgeloop"
    program.write_text(
        f"#!{python} -P\nimport sys\nfrom edgeloop.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
