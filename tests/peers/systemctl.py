"""`systemctl --user` on a machine of a test: real units, run without a service manager.

`make_systemctl` writes the program. It refuses what systemd's own parser (`systemd-analyze verify`)
refuses, and starts a service with nothing but what systemd would give it: the manager's environment
and the unit's file. What it lacks is the watch: a service that ends is not started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 60.0


def make_systemctl(program: Path, state: Path, environ: Mapping[str, str]) -> None:
    """`environ` is what the machine's manager gives to all services."""
    state.mkdir(parents=True)
    (state / "manager.json").write_text(json.dumps(dict(environ)))
    words = shlex.join(["env", f"PYTHONPATH={_ROOT}", sys.executable, "-m", __name__, str(state)])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)


def stop_all(state: Path) -> None:
    for file in state.glob("*.pid"):
        _stop(state, file.stem)


def log_of(state: Path, unit: str) -> str:
    return (state / f"{unit}.log").read_text()


def main(state: Path, words: list[str]) -> int:
    assert words.pop(0) == "--user", "only services of a user are run here"
    verb, *rest = words
    units = [word for word in rest if word.endswith(".service")]
    if verb in ("daemon-reload", "enable"):
        return 0
    [unit] = units
    if verb == "restart":
        _stop(state, unit)
        return _start(state, unit)
    if verb == "disable":
        assert "--now" in rest
        _stop(state, unit)
        return 0
    assert verb == "show", words
    active, sub = ("active", "running") if _pid_of(state, unit) else ("inactive", "dead")
    print(f"ActiveState={active}\nSubState={sub}\nActiveEnterTimestamp=today\nNRestarts=0")
    return 0


def verified(unit: Path, runtime: Path) -> str:
    """What systemd's own parser says of a unit; empty if it accepts all of it. Without a folder
    for its `runtime` it would parse nothing."""
    scope = "--system" if "multi-user" in unit.read_text() else "--user"
    done = subprocess.run(
        ["systemd-analyze", scope, "--man=no", "--recursive-errors=no", "verify", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    said = (done.stdout + done.stderr).splitlines()
    if any("Failed to initialize" in line for line in said):
        raise RuntimeError("\n".join(said))
    return "\n".join(line for line in said if unit.name in line)


def _start(state: Path, unit: str) -> int:
    file = Path.home() / ".config/systemd/user" / unit
    if complaints := verified(file, state):
        print(complaints, file=sys.stderr)
        return 1
    lines = (line.partition("=") for line in file.read_text().splitlines() if "=" in line)
    settings = {key: value.replace("%%", "%") for key, _, value in lines}
    command = shlex.split(settings["ExecStart"].replace("$$", "$"))
    environ = json.loads((state / "manager.json").read_text())
    for line in Path(settings["EnvironmentFile"]).read_text().splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting:
            environ[name] = "".join(shlex.split(value))
    with (state / f"{unit}.log").open("a") as log:
        process = subprocess.Popen(
            command,
            cwd=settings["WorkingDirectory"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (state / f"{unit}.pid").write_text(str(process.pid))
    return 0


def _stop(state: Path, unit: str) -> None:
    """As `KillMode=mixed` does: SIGTERM for the first process, and in the end SIGKILL for all."""
    pid = _pid_of(state, unit)
    (state / f"{unit}.pid").unlink(missing_ok=True)
    if not pid:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _LIMIT_S
        while _is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.killpg(pid, signal.SIGKILL)


def _pid_of(state: Path, unit: str) -> int:
    """0 if it does not run."""
    file = state / f"{unit}.pid"
    pid = int(file.read_text()) if file.exists() else 0
    return pid if pid and _is_running(pid) else 0


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
