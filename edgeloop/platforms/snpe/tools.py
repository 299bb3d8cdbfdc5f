"""One run of one of the SDK's programs: with a time limit, and with a reason when it fails.

The tools are Python scripts that start others, so a run gets a process group of its own that ends
as a whole. What they print goes to a file: nothing waits for a pipe that a grandchild holds open.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from edgeloop._util.locks import ScratchFolder
from edgeloop._util.system import dies_with_parent
from edgeloop.errors import MissingSdk, ModelFailed, ModelRefused, WorkerFailed
from edgeloop.isolation import NO_MEMORY, CallLimits, memory_exceeded
from edgeloop.platforms.snpe.sdk import Sdk

_READ_AT_MOST = 16 << 20
_LONGEST_REASON = 300
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STAMP = re.compile(r"^\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]?\s*(?:-\s*)?(?:\d+\s*-\s*)?")
_NOISE = re.compile(r"^\W*(warning|info|debug|verbose)\b|^[-=|+\s]*$|^Traceback|^\s+File ", re.I)
_FAILURE = re.compile(r"error|exception|fail|cannot|not supported|unsupported|invalid", re.I)
# The SDK itself does not work here: nothing that a model could be blamed for.
_BROKEN = re.compile(
    r"(ModuleNotFoundError|ImportError|error while loading shared libraries|No module named"
    r"|bad interpreter).*"
)
_FULL = "No space left on device"


def run_tool(
    sdk: Sdk,
    name: str,
    arguments: Sequence[str],
    limit_s: float,
    said: Sequence[str] = (),
    place: Path | None = None,
) -> str:
    """What the tool printed, both streams. Raises ModelFailed with its own reason when it ends
    with another code than 0, says none of `said`, or does not end within the limit.

    `place` is the folder that it stands in, where tools drop files; else one that goes."""
    command = [str(sdk.tool(name)), *arguments]
    with _scratch() as scratch:
        printed = scratch / "printed"
        with printed.open("wb") as file:
            code = _run(command, sdk, place or scratch, scratch, file.fileno(), limit_s, name)
        with printed.open("rb") as file:
            text = _COLOURS.sub("", file.read(_READ_AT_MOST).decode(errors="replace"))
    if code == 0 and (not said or any(sentence in text for sentence in said)):
        return text
    if _FULL in text:
        raise WorkerFailed(reason=f"{name} found the disk full ({place or tempfile.gettempdir()})")
    if code == -signal.SIGKILL or NO_MEMORY.search(text):
        raise memory_exceeded(name)
    broken = _BROKEN.search(text)
    if broken:
        raise MissingSdk(reason=f"{name} does not work here: {broken[0][:_LONGEST_REASON]}")
    reason = _reason(text)
    if code == 0:
        reason = f"did not say {said[0]!r}" + (f", but: {reason}" if reason else "")
    elif code < 0:
        signals = {number.value: number.name for number in signal.Signals}
        died_of = signals.get(-code, f"signal {-code}")
        reason = f"crashed with {died_of}" + (f": {reason}" if reason else "")
    kind = ModelFailed if code < 0 else ModelRefused
    raise kind(reason=f"{name}: {reason or f'ended with code {code} and no reason'}")


@contextmanager
def _scratch() -> Iterator[Path]:
    try:
        folder = ScratchFolder(Path(tempfile.gettempdir()), "edgeloop-tool-")
    except OSError as error:
        raise WorkerFailed(reason=f"{tempfile.gettempdir()}: {error.strerror}") from None
    try:
        yield folder.path
    finally:
        folder.close()


def _run(
    command: list[str],
    sdk: Sdk,
    folder: Path,
    temporary: Path,
    output: int,
    limit_s: float,
    name: str,
) -> int:
    try:
        child = subprocess.Popen(  # noqa: S603
            command,
            cwd=folder,
            env={**sdk.environment(), "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with_parent(),  # noqa: PLW1509 - it only calls the kernel
        )
    except OSError as error:
        raise MissingSdk(reason=f"{name} cannot be started: {error.strerror or error}") from None
    limit = CallLimits(name, limit_s, child.pid)
    try:
        while (pause_s := limit.pause_s()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(timeout=pause_s)
        reason = f"{name} did not end within {limit_s:g} s and was stopped"
        if limit.time.is_unfair:
            raise WorkerFailed(reason=f"{reason}: this machine is too busy")
        raise ModelFailed(reason=reason)
    finally:
        _end_group(child)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Also what the tool left running behind it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        raise WorkerFailed(reason=f"a tool (process {child.pid}) cannot be ended") from None


def _reason(text: str) -> str:
    """The last line that names a failure, else the last one that says anything."""
    lines = [_STAMP.sub("", line.strip()) for line in text.splitlines()]
    telling = [line for line in lines if line and not _NOISE.search(line)]
    failures = [line for line in telling if _FAILURE.search(line)]
    chosen = (failures or telling)[-1:]
    return " ".join(chosen[0].split())[:_LONGEST_REASON] if chosen else ""
