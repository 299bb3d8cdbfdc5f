"""A real Ray cluster in a network namespace of its own: its ports clash with nothing and nobody
else's jobs are on it. The dashboard answers at an ordinary address of this machine.

It has one node, and as many more as a test adds. Each has an environment of its own, as a lab would
make it: Ray, and what trains a model or whatever else a test names. None has Edgeloop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeloop.jobs.bundle import edgeloop_requirements
from tests.peers import namespace
from tests.peers.environments import ENVIRONMENTS, CannotBuild, Definition
from tests.peers.process import MissingComponent, ServerProcess, find_program

CPUS = 4
BOARDS = {"snapdragon888": 1}
_DASHBOARD_PORT = 8265
_OBJECT_STORE_BYTES = 80 * 1024 * 1024
# Programs of a head that no job needs, each a second of CPU: the autoscaler's, and the one that
# copies logs to the terminals of drivers.
_WITHOUT = ("--no-monitor", "--include-log-monitor=false")


def node_programs(requirements: Sequence[str]) -> Path:
    """The programs of a node that has Ray and these."""
    try:
        return ENVIRONMENTS.bin_of(Definition(("ray[default]", *requirements)))
    except CannotBuild as error:
        raise MissingComponent(f"the environment of a Ray node: {error}") from None


def node_environ(programs: Path, folder: Path) -> dict[str, str]:
    """A node is a machine of its own: what machines share through their temporary folder, such as
    the CPUs that runners reserve, it does not share with us."""
    (folder / "tmp").mkdir(exist_ok=True)
    inherited = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return inherited | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "EDGELOOP_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        "RAY_AUTH_MODE": "disabled",  # a token of whoever runs the tests is not for this cluster
    }


class RayCluster(ServerProcess):
    """Jobs on it see the files of this machine, but of its servers only those in `ways_out`: ports
    inside, and the sockets of the servers that they lead to."""

    name = "ray"
    graceful_signal = signal.SIGKILL  # to `unshare`, which heeds no other and ends what is inside

    def __init__(
        self,
        requirements: Sequence[str] | None = None,
        cpus: int = CPUS,
        resources: Mapping[str, float] = BOARDS,
        ways_out: Mapping[int, Path] | None = None,
    ) -> None:
        self._unshare = find_program("unshare")
        self.cpus, self._resources, self._ways_out = cpus, resources, ways_out or {}
        needed = edgeloop_requirements("train") if requirements is None else requirements
        self._ray = node_programs(needed) / "ray"
        super().__init__()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        namespace.forward(self._listener, namespace.to_unix(self._entrance))

    def command(self) -> list[str]:
        ways_out = [f"{port}={path}" for port, path in self._ways_out.items()]
        inside = [sys.executable, "-I", namespace.__file__, *ways_out, str(self._entrance)]
        return [
            *(self._unshare, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(*inside, str(_DASHBOARD_PORT), str(self._ray), "start", "--head", "--block"),
            *("--node-ip-address=127.0.0.1", "--port=6379", "--dashboard-host=127.0.0.1"),
            *(f"--dashboard-port={_DASHBOARD_PORT}", f"--num-cpus={self.cpus}", "--num-gpus=0"),
            *(f"--resources={json.dumps(self._resources)}", "--disable-usage-stats"),
            *(f"--object-store-memory={_OBJECT_STORE_BYTES}", f"--temp-dir={self.folder / 'ray'}"),
            *_WITHOUT,
        ]

    def environ(self) -> Mapping[str, str]:
        return node_environ(self._ray.parent, self.folder)

    def is_ready(self) -> bool:
        """The dashboard answers before it can take jobs: ask for a node that has its CPUs."""
        return any(node["resources_total"].get("CPU") == self.cpus for node in self.nodes())

    def nodes(self) -> list[dict[str, Any]]:
        """The living nodes, as the dashboard shows them; none while it cannot be asked."""
        try:
            with urllib.request.urlopen(f"{self.address}/api/v0/nodes?detail=1", timeout=5) as page:
                nodes = json.load(page)["data"]["result"]["result"]
                return [node for node in nodes if node["state"] == "ALIVE"]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def shown(self) -> str:
        """All that the dashboard tells of jobs, actors, tasks and runtime environments."""
        lists = [f"v0/{name}?detail=1&limit=1000" for name in ("actors", "tasks", "runtime_envs")]
        texts = []
        for path in ("jobs/", *lists):
            with urllib.request.urlopen(f"{self.address}/api/{path}", timeout=30) as page:
                texts.append(page.read().decode())
        for job in json.loads(texts[0]):
            name = job["submission_id"] or job["job_id"]
            with contextlib.suppress(urllib.error.HTTPError):
                address = f"{self.address}/api/jobs/{name}/logs"
                with urllib.request.urlopen(address, timeout=30) as page:
                    texts.append(page.read().decode())
        return "\n".join(texts)

    @property
    def first_process(self) -> int:
        """The first process inside: another node joins its namespaces."""
        assert self._process is not None
        return int(Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text())

    def kill_head(self) -> None:
        """Ray alone dies, as on a machine that runs out of memory; what jobs started lives on."""
        for process in self.processes():
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes()
                if command.startswith(b"ray::") or b"/site-packages/ray/" in command:
                    os.kill(int(process.name), signal.SIGKILL)

    def close(self) -> None:
        self._listener.close()
        super().close()

    def processes(self) -> list[Path]:
        """The processes of this namespace, by their folders in /proc: no other Ray is touched."""
        assert self._process is not None
        namespace_id = Path(f"/proc/{self._process.pid}/ns/pid_for_children").readlink()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "ns/pid").readlink() == namespace_id:
                    found.append(process)
        return found

    @property
    def _entrance(self) -> Path:
        return self.folder / "dashboard"


class RayNode(ServerProcess):
    """Another node of a cluster, with a temporary folder of its own: two that share one delete the
    files of each other's jobs. Its end is that of a machine: nothing that it started goes on."""

    name = "ray-node"

    def __init__(
        self,
        cluster: RayCluster,
        requirements: Sequence[str],
        cpus: int = CPUS,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self._cluster, self._cpus, self._resources = cluster, cpus, dict(resources or {})
        self._nsenter = find_program("nsenter")
        self._ray = node_programs(requirements) / "ray"
        super().__init__()

    def command(self) -> list[str]:
        mark = {**self._resources, self._mark: 1}
        return [
            *(
                self._nsenter,
                f"--target={self._cluster.first_process}",
                "--net",
                "--pid",
                "--mount",
            ),
            *(str(self._ray), "start", "--block", "--address=127.0.0.1:6379"),
            *("--node-ip-address=127.0.0.1", f"--num-cpus={self._cpus}", "--num-gpus=0"),
            *(f"--resources={json.dumps(mark)}", "--disable-usage-stats"),
            *(f"--object-store-memory={_OBJECT_STORE_BYTES}", f"--temp-dir={self.folder / 'ray'}"),
        ]

    def environ(self) -> Mapping[str, str]:
        return node_environ(self._ray.parent, self.folder)

    def is_ready(self) -> bool:
        return any(self._mark in node["resources_total"] for node in self._cluster.nodes())

    def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            for process in _tree(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        super().kill()

    @property
    def _mark(self) -> str:
        return f"mark:{self.folder.name}"


def _tree(process: int) -> list[int]:
    """A process and all below it, stopped, so that none starts another while they are listed."""
    found = []
    with contextlib.suppress(OSError):
        os.kill(process, signal.SIGSTOP)
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return [process, *found]
