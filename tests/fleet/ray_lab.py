"""A Ray cluster, a database that its nodes and this machine reach, and a project here."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from edgeloop.jobs.bundle import edgeloop_requirements
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.peers.postgres import Postgres
from tests.peers.ray import RayCluster, RayNode, node_programs

LIMIT_S = 400.0
PASSWORD = "hush-4f1c09"


@dataclass
class Lab:
    """A cluster, a database that its nodes and this machine reach, and a project here."""

    folder: Path
    postgres: Postgres
    cluster: RayCluster
    others: tuple[RayNode, ...]
    database: str
    store: str = field(repr=False)
    requirements: tuple[str, ...] = ()

    def write_settings(self, **keys: object) -> None:
        computes = {"cluster": {"kind": "ray", "address": self.cluster.address}}
        (self.folder / "edgeloop.yaml").write_text(json.dumps({"computes": computes, **keys}))

    def shell(self, line: str) -> str:
        """What a command printed; `edgeloop` is the one under test."""
        with self.background(line) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, f"{line}\n{out}{err}"
        return out + err

    @contextlib.contextmanager
    def background(self, line: str) -> Iterator[subprocess.Popen[str]]:
        environ = {n: v for n, v in os.environ.items() if not n.startswith("EDGELOOP_")}
        edgeloop = f'edgeloop() {{ {shlex.quote(sys.executable)} -m edgeloop "$@"; }}'
        process = subprocess.Popen(
            ["bash", "-euc", f"{edgeloop}; {line}"],
            cwd=self.folder,
            env={**environ, "EDGELOOP_STORE": self.store, "COLUMNS": "200", "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @contextlib.contextmanager
    def workspace(self, experiment: str) -> Iterator[Workspace]:
        environ = {"EDGELOOP_STORE": self.store}
        with Workspace(Settings.load(self.folder, environ, experiment=experiment)) as opened:
            yield opened

    def is_complete(self, experiment: str, count: int) -> bool:
        with self.workspace(experiment) as workspace:
            rows = [row.values for row in workspace.find(())]
        return [row["status"] for row in rows] == ["complete"] * count

    def inside(self, code: str, *words: str) -> str:
        """The last line that a script prints on a node of the cluster."""
        python = node_programs(self.requirements) / "python"
        enter = ["nsenter", f"--target={self.cluster.first_process}", "--net", "--pid", "--mount"]
        command = [*enter, str(python), "-c", code, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    def dashboard(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.cluster.address}{path}", timeout=30) as page:
            return page.read().decode()

    def actors(self) -> list[dict[str, Any]]:
        found = json.loads(self.dashboard("/api/v0/actors?detail=1&limit=1000"))
        rows: list[dict[str, Any]] = found["data"]["result"]["result"]
        return [row for row in rows if row["class_name"] == "ProcessActor"]

    def leaks(self, *more: RayNode) -> list[str]:
        """Where the store's password is to be seen."""
        found = [
            path
            for path in ("/api/jobs/", "/api/v0/actors?detail=1", "/api/v0/runtime_envs?detail=1")
            if PASSWORD in self.dashboard(path)
        ]
        for node in (self.cluster, *self.others, *more):
            for file in node.folder.rglob("*"):
                with suppress(FileNotFoundError):  # logs come and go
                    if file.is_file() and PASSWORD.encode() in file.read_bytes():
                        found.append(str(file))
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if PASSWORD.encode() in (process / "cmdline").read_bytes():
                    found.append((process / "cmdline").read_bytes().decode())
        return found


@contextlib.contextmanager
def open_lab(folder: Path, nodes: int) -> Iterator[Lab]:
    """Nodes have Ray, and what the how-to page says that Edgeloop requires."""
    needed = edgeloop_requirements("qnn")
    with ExitStack() as running:
        postgres = running.enter_context(Postgres())
        ways_out = {postgres.port: postgres.folder / f".s.PGSQL.{postgres.port}"}
        cluster = running.enter_context(RayCluster(needed, 2, {}, ways_out))
        others = [running.enter_context(RayNode(cluster, needed, 2)) for _ in range(nodes - 1)]
        database, role = postgres.make_database(), postgres.make_role(PASSWORD)
        with psycopg.connect(postgres.url_of(database), autocommit=True) as link:
            link.execute(f'GRANT ALL ON SCHEMA public TO "{role}"')
        address = postgres.url_of(database, role, PASSWORD)
        store = f"{address}?blobs=file://{folder}/blobs"
        yield Lab(folder, postgres, cluster, tuple(others), database, store, needed)
