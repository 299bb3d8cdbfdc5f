"""Which boards this machine's adb server knows, and what to do about those that cannot be used."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from edgeloop.errors import BadInput, DeviceUnavailable

SMALL_CALL_S = 15.0
_HEADING = "List of devices attached"

ADVICE = {
    "unauthorized": "it has not accepted this computer: unlock its screen and accept the dialog "
    "'Allow USB debugging'",
    "authorizing": "it is asking whether to accept this computer: unlock its screen and say yes",
    "offline": "adb says it is offline: unplug it and plug it in again, or restart it",
    "no permissions": "this user may not open its USB port: install the udev rules for Android "
    "devices and plug it in again",
    "not found": "it is not connected; 'edgeloop devices' lists the boards that are",
}


@dataclass(frozen=True)
class Attached:
    """A board as `adb devices -l` lists it."""

    serial: str
    state: str
    details: str = ""

    @property
    def advice(self) -> str:
        """What to do so that it can be used; empty where it can."""
        if self.state == "device":
            return ""
        return advice_on(self.state) or f"adb says {self.state!r}: restart it"


def attached(program: str = "adb", limit_s: float = SMALL_CALL_S) -> list[Attached]:
    """The boards that this machine's adb server knows."""
    listing = call([found(program), "devices", "-l"], limit_s)
    boards = []
    text = listing.stdout.decode("utf-8", "replace")
    for line in text.rpartition(_HEADING)[2].splitlines():  # before it a server may announce itself
        serial, _, rest = line.partition(" " if "\t" not in line else "\t")
        if not serial or serial.startswith("*") or not rest.strip():
            continue
        rest = rest.strip()
        state = "no permissions" if rest.startswith("no permissions") else rest.split()[0]
        boards.append(Attached(serial, state, rest.removeprefix(state).strip()))
    return boards


def call(arguments: list[str], limit_s: float) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(  # noqa: S603 - a list of arguments, no shell
            arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"the adb server did not answer within {limit_s:g} s"
        raise DeviceUnavailable(device="adb", reason=reason) from None


def found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        reason = (
            f"the program {program!r} is not there: install Android's platform-tools (on Debian "
            "and Ubuntu: apt install adb)"
        )
        raise BadInput(reason=reason)
    return path


def advice_on(text: str) -> str:
    return next((advice for state, advice in ADVICE.items() if state in text), "")
