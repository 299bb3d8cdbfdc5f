"""One runner per board: a lease on the board itself, so that every machine that reaches it sees it.

Making a folder is atomic there, so whoever makes it has the board. Its expiry is counted by the
board's own clock since it started: no clock of a host is trusted, and a board that was restarted
is free. An owner that died on this machine is recognised at once; any other silent one when its
time is over. Every run of a tool checks the token first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from pathlib import Path

from edgeloop._util.system import user_name
from edgeloop.errors import DeviceBusy, DeviceUnavailable
from edgeloop.platforms.snpe.board.adb import Adb, words

LONGEST_S = 6 * 3600.0  # an expiry beyond this was written before the board was restarted
_TRIES = 4
_FIELDS = ("token", "owner", "machine", "pid", "boot", "expires")
_CLOCK = """
up=$(cut -d. -f1 /proc/uptime)
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
"""


class BoardLease:
    def __init__(self, adb: Adb, root: str, lease_s: float = 60.0) -> None:
        self._adb = adb
        self._folder = f"{root}/lease"
        self._lease_s = lease_s
        self.token = secrets.token_hex(8)

    def take(self) -> None:
        """Ours afterwards, or DeviceBusy with who has it and for how long at most."""
        for _ in range(_TRIES):
            held = self._try()
            if held is None:
                return
            if held["token"] == self.token:
                self.renew()
                return
            if held["token"]:
                self._refuse_live(held)
            else:
                time.sleep(0.5)  # made this moment, or its maker died in it
                held = self._try()
                if held is None:
                    return
                if held["token"]:
                    continue
            self._clear(held["token"])
        raise self._adb.unavailable("its lease keeps changing owners; check who else uses it")

    def check_free(self) -> None:
        """Raises DeviceBusy where another one holds the board; changes nothing there."""
        answer = self._adb.shell("\n".join((_CLOCK, *self._reads())))
        held = _fields(answer.text)
        if held["token"] and held["token"] != self.token:
            self._refuse_live(held)

    def _refuse_live(self, held: dict[str, str]) -> None:
        left_s = _number(held["expires"]) - _number(held["up"])
        is_old = held["boot"] != held["now"] or left_s <= 0 or left_s > LONGEST_S
        if not is_old and not _died_here(held["machine"], held["pid"]):
            owner = held["owner"] or "another runner"
            raise DeviceBusy(device=f"adb:{self._adb.serial}", owner=owner, seconds=left_s)

    def renew(self, also: str = "") -> str:
        """`also` is shell text for the same call; what that printed."""
        script = f"{self.guard('exit 9')}\n{self.extension(self._lease_s)}\n{also}"
        answer = self._adb.shell(script)
        if answer.code == 9:
            raise self.lost()
        return answer.text

    def release(self) -> None:
        """If it is still ours; a board that is gone frees itself."""
        away = f"{self._folder}.{self.token}"
        script = f"{self.guard('exit 0')}\n{words('mv', self._folder, away)} && "
        with contextlib.suppress(DeviceUnavailable):
            self._adb.shell(script + words("rm", "-rf", away))

    def guard(self, otherwise: str) -> str:
        """Shell text that does `otherwise` where the lease is not ours. No program is started for
        it, since it stands between two tools."""
        file = words(f"{self._folder}/token")
        read = f"holder=; [ -f {file} ] && read -r holder < {file}"
        return f'{read}\n[ "$holder" = {words(self.token)} ] || {{ {otherwise}; }}'

    def extension(self, seconds: float) -> str:
        """Shell text that pushes the expiry out."""
        file, fresh = f"{self._folder}/expires", f"{self._folder}/expires.new"
        count = f"$(( ${{up%%.*}} + {int(seconds) + 1} ))"
        write = f'echo "{count}" > {words(fresh)} && {words("mv", "-f", fresh, file)}'
        return f"read -r up rest < /proc/uptime; {write}"

    def lost(self) -> DeviceUnavailable:
        return self._adb.unavailable("another runner took the board over while this one was silent")

    def _try(self) -> dict[str, str] | None:
        """None when the lease was free and is ours now, else what it says."""
        said = {
            "owner": f"{user_name()}@{socket.gethostname()} (process {os.getpid()})",
            "machine": _machine(),
            "pid": str(os.getpid()),
        }
        writes = [
            f"printf %s {words(value)} > {words(f'{self._folder}/{name}')}"
            for name, value in said.items()
        ]
        token = f"echo {words(self.token)} > {words(f'{self._folder}/token')}"
        boot = f'printf %s "$boot" > {words(f"{self._folder}/boot")}'
        script = "\n".join(
            (
                _CLOCK,
                f"if {words('mkdir', self._folder)} 2>/dev/null; then",
                " && ".join((*writes, boot, self.extension(self._lease_s), token)),
                f"[ $? = 0 ] || {{ {words('rm', '-rf', self._folder)}; exit 1; }}",
                "echo taken; else",
                *self._reads(),
                "fi",
            )
        )
        answer = self._adb.shell(script)
        if answer.code:
            raise self._adb.unavailable(f"no lease could be written to it: {answer.last_line}")
        if answer.text.startswith("taken"):
            return None
        return _fields(answer.text)

    def _reads(self) -> list[str]:
        """Shell text that says what the lease says, and the time of the board."""
        return [
            'echo "up=$up"; echo "now=$boot"',
            *(
                f'echo "{name}=$(cat {words(f"{self._folder}/{name}")} 2>/dev/null)"'
                for name in _FIELDS
            ),
        ]

    def _clear(self, judged: str) -> None:
        """Moved away first, so that of two who judge it dead one alone clears it; what turns out
        to be a fresh one goes back."""
        away = f"{self._folder}.{self.token}"
        script = f"""
{words("rm", "-rf", away)}
{words("mv", self._folder, away)} 2>/dev/null || exit 0
if [ "$({words("cat", f"{away}/token")} 2>/dev/null)" = {words(judged)} ]
then {words("rm", "-rf", away)}
else [ -e {words(self._folder)} ] || {words("mv", away, self._folder)}
fi"""
        self._adb.shell(script)


def _fields(text: str) -> dict[str, str]:
    found = dict(line.partition("=")[::2] for line in text.splitlines())
    return {name: found.get(name, "").strip() for name in ("up", "now", *_FIELDS)}


def _machine() -> str:
    """This machine since it started, and the processes that one can see from here."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    known = boot.read_text().strip() if boot.exists() else socket.gethostname()
    with contextlib.suppress(OSError):
        known += f" {Path('/proc/self/ns/pid').readlink()}"
    return known


def _died_here(machine: str, pid: str) -> bool:
    if machine != _machine() or not pid.isdecimal() or not Path("/proc/self").exists():
        return False
    return not Path(f"/proc/{pid}").exists()


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
