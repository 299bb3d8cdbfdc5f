"""The image of deploy/docker, and containers from it as a cluster runs them.

`Image.build` executes the Dockerfile (scripts/build-image). A container gets what Kubernetes gives
one under the restricted profile: processes and mounts of its own, the image's file system
read-only, the image's user without any capability, and an emptyDir on every volume. What runs, as
whom and where comes from the image's own configuration. It shares this machine's network.

Run by path inside `unshare`, this file is the first process of a container: see `_enter`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

REPOSITORY = Path(__file__).parents[2]
TOOLS = REPOSITORY / ".tools/image"
LIMIT_S = 240.0
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38


@dataclass(frozen=True)
class Image:
    id: str
    config: Mapping[str, Any] = field(repr=False)

    @classmethod
    def build(cls, *options: str) -> Self:
        command = [REPOSITORY / "scripts/build-image", TOOLS, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        image = done.stdout.strip()
        with tempfile.TemporaryDirectory() as scratch:
            found = _buildah(scratch, "inspect", "--type", "image", image)
        return cls(image, json.loads(found)["Docker"]["config"])

    @property
    def user(self) -> tuple[int, int]:
        user, _, group = self.config["User"].partition(":")
        return int(user), int(group)

    def environ(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**dict(item.split("=", 1) for item in self.config["Env"]), **more}

    def run(self, *arguments: str, **options: Any) -> str:
        """What a container prints that ends by itself, and well."""
        with self.container(*arguments, **options) as container:
            code = container.wait()
            assert code == 0, (code, container.output)
            return container.output

    @contextlib.contextmanager
    def container(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        mounts: Mapping[Path, str] | None = None,
        entrypoint: Sequence[str] | None = None,
        user: tuple[int, int] | None = None,
    ) -> Iterator[Container]:
        """`docker run --read-only`: arguments replace the image's CMD; `mounts` are read-only."""
        from tests import guard

        name = f"test-{secrets.token_hex(6)}"
        with tempfile.TemporaryDirectory(prefix=guard.folder_prefix("container")) as scratch:
            _buildah(scratch, "from", "--pull-never", "--name", name, self.id)
            command = entrypoint or [*self.config["Entrypoint"], *(arguments or self.config["Cmd"])]
            order = {
                "mount": [*_storage(scratch), "mount", name],
                "volumes": list(self.config["Volumes"]),
                "mounts": {str(source): target for source, target in (mounts or {}).items()},
                "folder": self.config["WorkingDir"],
                "user": user or self.user,
                "environ": self.environ(environ or {}),
                "command": list(command),
            }
            container = Container(self, order, Path(scratch))
            try:
                yield container
            finally:
                container.kill()
                _buildah(scratch, "rm", name)


class Container:
    def __init__(self, image: Image, order: Mapping[str, Any], scratch: Path) -> None:
        from edgeloop.testing import wait_until

        self._image, self._order, self._log = image, order, scratch / "log"
        self._last_output = ""
        file = scratch / "order.json"  # its environment may hold secrets: no argument
        file.touch(mode=0o600)
        file.write_text(json.dumps(order))
        own = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", *own, sys.executable, __file__, file],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self._has_entered, LIMIT_S, "the container to start")

    @property
    def output(self) -> str:
        if self._log.exists():
            self._last_output = self._log.read_text(errors="replace")
        return self._last_output

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def exec(self, *command: str) -> subprocess.CompletedProcess[str]:
        """`docker exec`, and how a cluster probes."""
        user, group = self._order["user"]
        return subprocess.run(
            [
                *("nsenter", "--target", str(self._first_process()), "--mount", "--pid", "--ipc"),
                *("--root", f"--wd={self._order['folder']}", "--", "/usr/bin/setpriv"),
                *(f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"),
                *("--bounding-set=-all", "--inh-caps=-all", "/usr/bin/env", *command),
            ],
            env=self._order["environ"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def terminate(self) -> None:
        """What a cluster does first: the image's stop signal, to the first process."""
        number = getattr(signal, self._image.config.get("StopSignal") or "SIGTERM")
        os.kill(self._first_process(), number)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """The exit code; 128 and the number of the signal that ended it."""
        code = self._process.wait(limit_s)
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        """The end of `unshare` is the end of its child, and with it of all processes in there."""
        self._process.kill()
        self._process.wait()
        self._last_output = self.output

    def _has_entered(self) -> bool:
        """Or ended already. Before, its root is that of this machine."""
        try:
            return Path(f"/proc/{self._first_process()}/root").readlink() != Path("/")
        except (OSError, IndexError):
            return not self.is_running

    def _first_process(self) -> int:
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _storage(scratch: str) -> list[str]:
    folders = ["--root", str(TOOLS / "storage"), "--runroot", f"{scratch}/run"]
    return ["buildah", *folders, "--storage-driver", "overlay"]


def _buildah(scratch: str, *arguments: str) -> str:
    command = ["unshare", "--mount", *_storage(scratch), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _enter(order: Mapping[str, Any]) -> None:
    """Become the container's first process."""

    def mount(*arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True)

    libc = ctypes.CDLL(None)
    done = subprocess.run(order["mount"], stdout=subprocess.PIPE, text=True, check=True)
    root = done.stdout.strip()
    mount("-t", "proc", "proc", f"{root}/proc")
    for folder in order["volumes"]:
        mount("-t", "tmpfs", "-o", "mode=0777", "tmpfs", root + folder)
    for source, folder in order["mounts"].items():
        mount("--bind", "-o", "ro", source, root + folder)
    mount("-o", "remount,ro", root)
    os.chroot(root)
    os.chdir(order["folder"])
    user, group = order["user"]
    for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.execvpe(order["command"][0], order["command"], order["environ"])


if __name__ == "__main__":
    _enter(json.loads(Path(sys.argv[1]).read_text()))
