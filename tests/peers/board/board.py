"""A board: AOSP's adb daemon in namespaces of its own, and every mishap boards are known for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.peers.board import places, sensors
from tests.peers.board.adb import AdbServer, public_key_file
from tests.peers.board.loopback import listeners, listeners_of
from tests.peers.board.space import LIMIT_S, REPOSITORY, Space
from tests.peers.ports import free_port
from tests.peers.process import MissingComponent, wait_until

PROGRAM = REPOSITORY / ".tools/adbd/adbd"
_DISK_MB = 2_048


@dataclass(frozen=True)
class ToolRun:
    """One run of a stand-in on the board; times are of the machine's monotonic clock."""

    argv: tuple[str, ...]
    started_s: float
    ended_s: float
    exit_code: int


class VirtualBoard:
    """Starts connected. Everything in it ends with it, and no mount is left behind."""

    def __init__(
        self,
        folder: Path,
        server: AdbServer,
        name: str = "board",
        disk_mb: int = _DISK_MB,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        if not PROGRAM.is_file():
            raise MissingComponent("adbd")
        self.name = name
        self.server = server
        self.port = free_port()
        self.serial = f"127.0.0.1:{self.port}"
        self._properties = places.PROPERTIES | {"ro.serialno": name} | dict(properties or {})
        self._space = Space(folder / f"board-{name}", disk_mb << 20)
        self._secure = False

    # The board as adb sees it.

    @property
    def environ(self) -> dict[str, str]:
        """Leads a program that drives boards to this one's adb server."""
        return self.server.environ_of_clients

    def adb(self, *arguments: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        """The real client, for this board."""
        return self.server.call("-s", self.serial, *arguments, limit_s=limit_s)

    def shell(self, command: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        return self.adb("shell", command, limit_s=limit_s)

    @property
    def state(self) -> str | None:
        """What `adb devices` says of it; None when it is not listed."""
        return self.server.devices().get(self.serial)

    def connect(self) -> None:
        self.server.call("connect", self.serial)

    # The board from inside, behind adb's back.

    @property
    def root(self) -> Path:
        """The board's `/`, for tests: only while it runs."""
        return self._space.root

    @property
    def data(self) -> Path:
        return self.root / "data"

    def set_temperature(self, zone: int, millidegrees: int) -> None:
        (sensors.thermal_zone(self.root, zone) / "temp").write_text(f"{millidegrees}\n")

    def set_tool(
        self,
        *,
        delay_s: float = 0.0,
        fail: bool = False,
        hang: bool = False,
        until_full: bool = False,
        fewer: int = 0,
        nan: bool = False,
        lacks: int = 0,
        short: int = 0,
        times: int | None = None,
    ) -> None:
        """How the board's tools behave from now on: a delay for each inference; exit code 1; never
        an end; a wait until the disk is full; so many results fewer than inputs; outputs that are
        no numbers; so many outputs fewer in each result; so many bytes fewer in each output.
        `times` limits the fault (not the delay) to the next runs. With no argument they work as
        they should."""
        faults = {"fail": fail, "hang": hang, "until_full": until_full, "fewer": fewer, "nan": nan}
        faults |= {"lacks": lacks, "short": short}
        text = json.dumps({"delay_s": delay_s, "times": times, **faults})
        file = self._space.place(places.FAULTS)
        new = file.with_suffix(".new")
        new.write_text(text)
        new.replace(file)

    def tool_runs(self) -> list[ToolRun]:
        """Every run of a tool that has ended, oldest first."""
        file = self._space.place(places.TOOL_RUNS)
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [ToolRun(tuple(row.pop("argv")), **row) for row in rows]

    def processes(self) -> list[int]:
        """All that run on the board now, by their numbers on this machine."""
        return self._space.processes()

    def commands(self) -> list[bytes]:
        """What those were started with, arguments apart by NUL."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        return found

    def warm_up(self) -> None:
        """Loads the tools' server now, so that no first run waits for it."""
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(LIMIT_S)
            caller.connect(str(self._space.place(places.SOCKET)))
            caller.shutdown(socket.SHUT_WR)
            caller.recv(1)

    # Mishaps.

    def kill(self) -> None:
        """The daemon dies as in a crash and stays away until `restart`; programs run on."""
        for pid in self._daemons():
            os.kill(pid, signal.SIGKILL)
        wait_until(self._is_gone, LIMIT_S, "adbd to end")

    def restart(self) -> None:
        """The daemon again, on the same port: adb finds it by itself after a moment."""
        self.kill()
        self._start_daemon()

    def reboot(self) -> None:
        """Every program ends, then the daemon is back; `/data` is as it was."""
        self._space.signal_all(signal.SIGKILL, but=self._space.first_process)
        wait_until(lambda: not self._daemons(), LIMIT_S, "the board's programs to end")
        self._start_daemon()

    def freeze(self) -> None:
        """A hung board: connections stand, and nothing answers."""
        self._space.signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._space.signal_all(signal.SIGCONT)

    def unplug(self) -> None:
        """Gone from adb's list, as a cable pulled; programs run on."""
        self.kill()
        self.server.call("disconnect", self.serial)

    def plug(self) -> None:
        if not self._daemons():
            self._start_daemon()
        self.connect()

    def unauthorise(self) -> None:
        """Asks for a key and knows none: adb lists the board as `unauthorized`. It is AOSP's own
        authentication by RSA; nobody is there to confirm the key."""
        public_key_file(self.data).unlink(missing_ok=True)
        self._secure = True
        self.server.call("disconnect", self.serial)
        self.restart()
        self.connect()

    def authorise(self) -> None:
        """As when somebody confirms the question on the screen: adb's key is known from now on."""
        file = public_key_file(self.data)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.server.public_key + "\n")

    def fill_disk(self) -> None:
        """Not a byte is left on `/data`."""
        (self.data / ".filler").write_text("a file system has room for one page at least\n")
        wait_until(self._shrink_disk, LIMIT_S, "a moment in which nothing is written to /data")

    def _shrink_disk(self) -> bool:
        """Whether nobody wrote between the look and the change, which is refused then."""
        state = os.statvfs(self.data)
        try:
            self._space.resize_disk((state.f_blocks - state.f_bfree) * state.f_frsize)
        except subprocess.CalledProcessError:
            return False
        return os.statvfs(self.data).f_bfree == 0

    def free_disk(self) -> None:
        self._space.resize_disk()

    # Beginning and end.

    def start(self) -> Self:
        self._space.open(self._properties)
        self._start_daemon()
        self.connect()
        wait_until(lambda: self.state == "device", LIMIT_S, "adb to see the board")
        return self

    def close(self) -> None:
        if self._space.is_open:
            self.server.call("disconnect", self.serial)
            self._space.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_daemon(self) -> None:
        environ = {
            "ADBD_LISTEN": f"tcp:localhost:{self.port}",
            "PATH": f"{places.PROGRAMS}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/data",
            "TMPDIR": "/data/local/tmp",
        }
        if self._secure:
            environ["ADBD_SECURE"] = "1"
        self._space.run([str(PROGRAM)], environ)
        wait_until(self._is_listening, LIMIT_S, "adbd to listen")
        self._check_loopback()

    def _is_gone(self) -> bool:
        """A process that ends gives up its program first and its sockets a moment later."""
        return not self._daemons() and not self._is_listening()

    def _is_listening(self) -> bool:
        return any(found.port == self.port for found in listeners())

    def _check_loopback(self) -> None:
        """It lets anybody in, as root: not one moment of use on another address."""
        held = [found for pid in self._daemons() for found in listeners_of(pid)]
        ports = {found.port for found in held}  # a child of it may hold the same one for a moment
        if ports != {self.port} or not all(found.is_loopback for found in held):
            self.kill()
            raise RuntimeError(f"adbd must listen on loopback alone; it listens on {held}")

    def _daemons(self) -> list[int]:
        return self._space.processes_of(PROGRAM)
