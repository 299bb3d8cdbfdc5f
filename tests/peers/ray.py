"""A real Ray cluster of one node, in a network namespace of its own: its ports clash with nothing
and nobody else's jobs are on it. The dashboard answers at an ordinary address of this machine.

Its node has an environment of its own, as a lab would make it: Ray, and what trains a model. It
does not have Edgeloop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from edgeloop.jobs import edgeloop_requirements
from tests.peers import namespace
from tests.peers.environments import ENVIRONMENTS, CannotBuild, Definition
from tests.peers.process import MissingComponent, ServerProcess, find_program

CPUS = 4
BOARDS = {"snapdragon888": 1}
_DASHBOARD_PORT = 8265
_OBJECT_STORE_BYTES = 80 * 1024 * 1024


class RayCluster(ServerProcess):
    """Jobs on it see the files of this machine, but none of its servers."""

    name = "ray"
    graceful_signal = signal.SIGKILL  # to `unshare`, which heeds no other and ends what is inside

    def __init__(self) -> None:
        self._unshare = find_program("unshare")
        node = Definition(("ray[default]", *edgeloop_requirements("train")))
        try:
            self._ray = ENVIRONMENTS.bin_of(node) / "ray"
        except CannotBuild as error:
            raise MissingComponent(f"the environment of a Ray node: {error}") from None
        super().__init__()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        namespace.forward(self._listener, namespace.to_unix(self._entrance))

    def command(self) -> list[str]:
        inside = [sys.executable, "-I", namespace.__file__, str(self._entrance)]
        return [
            *(self._unshare, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(*inside, str(_DASHBOARD_PORT), str(self._ray), "start", "--head", "--block"),
            *("--node-ip-address=127.0.0.1", "--port=6379", "--dashboard-host=127.0.0.1"),
            *(f"--dashboard-port={_DASHBOARD_PORT}", f"--num-cpus={CPUS}", "--num-gpus=0"),
            *(f"--resources={json.dumps(BOARDS)}", f"--object-store-memory={_OBJECT_STORE_BYTES}"),
            *(f"--temp-dir={self.folder / 'ray'}", "--disable-usage-stats"),
        ]

    def environ(self) -> Mapping[str, str]:
        inherited = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return inherited | {
            "PATH": f"{self._ray.parent}{os.pathsep}{os.environ['PATH']}",
            "EDGELOOP_CACHE": str(self.folder / "cache"),
        }

    def is_ready(self) -> bool:
        """The dashboard answers before it can take jobs: ask for a node that has its CPUs."""
        try:
            with urllib.request.urlopen(f"{self.address}/api/v0/nodes?detail=1", timeout=5) as page:
                nodes = json.load(page)["data"]["result"]["result"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return any(node["resources_total"].get("CPU") == CPUS for node in nodes)

    def kill_head(self) -> None:
        """Ray alone dies, as on a machine that runs out of memory; what jobs started lives on."""
        for process in self._inside():
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes()
                if command.startswith(b"ray::") or b"/site-packages/ray/" in command:
                    os.kill(int(process.name), signal.SIGKILL)

    def close(self) -> None:
        self._listener.close()
        super().close()

    def _inside(self) -> list[Path]:
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
