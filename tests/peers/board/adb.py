"""A private adb server, which sees no USB device and no emulator of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.peers.board.loopback import listeners
from tests.peers.ports import free_port
from tests.peers.process import ServerProcess, accepts_connections, find_program, wait_until

_CALL_LIMIT_S = 30.0
# The machine's own server must not lose its devices to ours, so ours finds none.
_HIDE_USB = 'if [ -d /dev/bus/usb ]; then mount -t tmpfs none /dev/bus/usb; fi; exec "$@"'


class AdbServer(ServerProcess):
    """`environ_of_clients` leads any adb client, and whatever starts one, to this server."""

    name = "adb"

    def __init__(self) -> None:
        self._adb = find_program("adb")
        self._unshare = find_program("unshare")
        self.port = free_port()
        super().__init__()

    @property
    def environ_of_clients(self) -> dict[str, str]:
        return {
            "ANDROID_ADB_SERVER_PORT": str(self.port),
            "ADB_LOCAL_TRANSPORT_MAX_PORT": "0",  # no search for emulators
            "HOME": str(self.folder),  # a client that starts a server makes its key here
        }

    @property
    def public_key(self) -> str:
        """What the server shows to boards that ask who it is."""
        return (self.folder / ".android/adbkey.pub").read_text().strip()

    def command(self) -> list[str]:
        listen = f"tcp:localhost:{self.port}"
        server = [self._adb, "-L", listen, "server", "nodaemon"]
        return [self._unshare, "--mount", "sh", "-c", _HIDE_USB, "sh", *server]

    def environ(self) -> Mapping[str, str]:
        keep = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return keep | self.environ_of_clients

    def is_ready(self) -> bool:
        if not accepts_connections(self.port):
            return False
        if not all(found.is_loopback for found in listeners() if found.port == self.port):
            raise RuntimeError("the adb server listens beyond loopback")
        return True

    def call(
        self, *arguments: str, limit_s: float = _CALL_LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """The real client, as a person would type it."""
        return subprocess.run(
            [self._adb, *arguments],
            env=dict(self.environ()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def devices(self) -> dict[str, str]:
        """Serial and state, as `adb devices` lists them."""
        lines = self.call("devices").stdout.splitlines()
        rows = [line.split("\t") for line in lines if "\t" in line]
        return {row[0]: row[1] for row in rows}

    def close(self) -> None:
        """Also the server that a client started where ours was killed."""
        super().close()
        if accepts_connections(self.port):
            self.call("kill-server")
            wait_until(lambda: not accepts_connections(self.port), 20, "the adb server to end")


def public_key_file(data: Path) -> Path:
    """Where a board keeps the keys of those it lets in."""
    return data / "misc/adb/adb_keys"
