"""Runners and the portal as systemd services: the unit, its environment file, and systemctl.

A unit may be read by everybody on the machine, so it holds no secret. What a service needs of the
environment goes into a file beside it that only its owner can read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop._util.redact import redact
from edgeloop._util.system import python_module
from edgeloop._util.values import seconds_of
from edgeloop.errors import BadInput
from edgeloop.settings import config_folder

KINDS = ("runner", "portal")
PREFIX = "edgeloop-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
_SYSTEM_UNITS, _SYSTEM_FILES = Path("/etc/systemd/system"), Path("/etc/edgeloop")
_CALL_S = 60.0
_STOP_S = 60.0  # for what follows the grace period of a runner


@dataclass(frozen=True)
class ServicePlace:
    """Where units and environment files lie; `is_system`: for the machine, not for one user."""

    units: Path
    files: Path
    is_system: bool

    def unit(self, name: str) -> Path:
        return self.units / f"{PREFIX}{name}.service"

    def environment(self, name: str) -> Path:
        return self.files / f"{name}.env"


def service_place(is_system: bool, folder: Path | None = None) -> ServicePlace:
    if folder is not None:
        return ServicePlace(folder.absolute(), folder.absolute(), is_system)
    if is_system:
        return ServicePlace(_SYSTEM_UNITS, _SYSTEM_FILES, True)
    user_folder = config_folder()
    return ServicePlace(user_folder / "systemd/user", user_folder / "edgeloop", False)


@dataclass(frozen=True)
class ServiceUnit:
    """What is installed: `edgeloop KIND ARGUMENTS` in a folder, restarted whenever it ends."""

    name: str
    kind: str
    arguments: tuple[str, ...]
    folder: Path
    account: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            reason = f"a service cannot be named {self.name!r}: use letters, digits, '.', '_', '-'"
            raise BadInput(reason=reason)
        for text in (*self.arguments, str(self.folder)):
            if not text.isprintable():
                raise BadInput(reason=f"a service cannot have {text!r} in its command")
            if redact(text) != text:
                reason = (
                    "a unit can be read by everybody, so no secret may stand in its options: leave "
                    "--store out and set EDGELOOP_STORE or MODEL_STORAGE_CONNECTION_STRING when "
                    "you install the service; it goes into a file that only you can read"
                )
                raise BadInput(reason=reason)

    def text(self, place: ServicePlace) -> str:
        command = python_module("edgeloop", self.kind, *self.arguments)
        account = f"User={self.account}\n" if self.account else ""
        target = "multi-user.target" if place.is_system else "default.target"
        return f"""[Unit]
Description=Edgeloop {self.kind} {self.name}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
{account}WorkingDirectory={_plain(str(self.folder))}
EnvironmentFile={_plain(str(place.environment(self.name)))}
ExecStart={" ".join(map(_word, command))}
Restart=always
RestartSec=10
KillMode=mixed
TimeoutStopSec={_STOP_S + _grace_s(self.arguments):g}
NoNewPrivileges=yes
SyslogIdentifier={PREFIX}{self.name}

[Install]
WantedBy={target}
"""


def install(unit: ServiceUnit, place: ServicePlace, environment: Mapping[str, str]) -> bool:
    """Write unit and environment file. An existing environment file is kept, since it may
    have been edited. Returns whether it was written."""
    file = place.environment(unit.name)
    place.units.mkdir(parents=True, exist_ok=True)
    place.files.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    if is_new:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(environment_text(environment))
    file.chmod(0o600)
    write_atomic(place.unit(unit.name), unit.text(place))
    return is_new


def uninstall(name: str, place: ServicePlace) -> None:
    """Remove the unit and its environment file."""
    if not place.unit(name).exists():
        names = ", ".join(installed(place)) or "none"
        raise BadInput(reason=f"there is no service {name!r} in {place.units}; there are: {names}")
    place.unit(name).unlink()
    place.environment(name).unlink(missing_ok=True)


def installed(place: ServicePlace) -> list[str]:
    units = place.units.glob(f"{PREFIX}*.service")
    return sorted(file.name.removeprefix(PREFIX).removesuffix(".service") for file in units)


def systemctl(place: ServicePlace, *arguments: str) -> str:
    """What systemd answers; raises where it refuses, or is not there."""
    program = shutil.which("systemctl")
    if program is None:
        reason = "this machine has no systemctl, so it does not use systemd: --dry-run prints the "
        raise BadInput(reason=f"{reason}unit for another one")
    command = [program, *([] if place.is_system else ["--user"]), *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - a list of arguments, no shell
            command, capture_output=True, text=True, timeout=_CALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BadInput(reason=f"systemctl did not answer within {_CALL_S:g} s") from None
    if done.returncode:
        said = " ".join(redact(done.stderr).split())
        if "not been booted with systemd" in said:
            reason = "this machine does not run systemd, so nothing was started: --dry-run prints "
            raise BadInput(reason=f"{reason}the unit for another machine")
        raise BadInput(reason=f"systemctl {' '.join(arguments)} failed: {said}")
    return done.stdout


def state_of(name: str, place: ServicePlace) -> dict[str, str]:
    """`state`, `since` and `restarts` of a service, as systemd says; `unknown` if it does not."""
    keys = ("ActiveState", "SubState", "ActiveEnterTimestamp", "NRestarts")
    try:
        text = systemctl(place, "show", place.unit(name).name, f"--property={','.join(keys)}")
    except BadInput as error:
        return {"state": "unknown", "since": "", "restarts": "", "detail": str(error)}
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    state = f"{properties.get('ActiveState', 'unknown')} ({properties.get('SubState', '')})"
    since, restarts = properties.get("ActiveEnterTimestamp", ""), properties.get("NRestarts", "")
    return {"state": state, "since": since, "restarts": restarts, "detail": ""}


def environment_text(environment: Mapping[str, str]) -> str:
    """One quoted assignment per line, as systemd reads them."""
    lines = ["# What this service needs of the environment. Keep it secret: it may hold keys.\n"]
    for name, value in sorted(environment.items()):
        if not value.isprintable():
            raise BadInput(reason=f"{name} holds a line break or a control character")
        escaped = re.sub(r'(["\\$`])', r"\\\1", value)
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def _grace_s(arguments: Sequence[str]) -> float:
    """What the runner was given with --grace; its own default is 30."""
    for word, following in pairwise((*arguments, "")):
        option, _, value = word.partition("=")
        if option == "--grace":
            seconds = seconds_of(value or following)
            with suppress(ValueError):
                return float(value or following) if seconds is None else seconds
    return 30.0


def _plain(text: str) -> str:
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """One word of ExecStart, whatever it holds."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    is_simple = re.fullmatch(r"[A-Za-z0-9_@%+=:,./$-]+", escaped) is not None
    return escaped if is_simple else f'"{escaped}"'


def check_unused(arguments: Sequence[str]) -> None:
    """A service that ends by itself would be started again for ever."""
    ends = ("--drain", "--once", "--idle")
    ending = [word for word in arguments if word.partition("=")[0] in ends]
    if ending:
        raise BadInput(reason=f"a service never ends, so {ending[0]} has no use here: leave it out")
