"""Qualcomm's Neural Processing SDK on this machine: where it is, which version, what is in it.

Versions 1.x name their folders after the compiler (`aarch64-android-clang8.0`) and keep the
libraries of the DSP in `lib/dsp`; 2.x have `aarch64-android` and `lib/hexagon-v…/unsigned`. On a
board both lie the same way, so that no other module has to know.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from edgeloop._util.files import ScratchFolder
from edgeloop._util.isolation import NO_MEMORY, CallLimits, memory_exceeded
from edgeloop._util.system import dies_with_parent
from edgeloop.errors import MissingSdk, ModelFailed, ModelRefused, WorkerFailed
from edgeloop.settings import tool_environment

HOST = "x86_64-linux-clang"
BOARD = "aarch64-android"
BOARD_TOOL = "snpe-net-run"
CONVERTERS = ("snpe-onnx-to-dlc", "snpe-dlc-quantize", "snpe-dlc-info")
HOST_TOOLS = (*CONVERTERS, "snpe-diagview")
_VERSION = re.compile(r"(?<![\d.])([12]\.\d+(?:\.\d+){0,3})(?![\d.])")
_VERSION_FILES = ("sdk.yaml", "VERSION", "VERSION.txt", "version.txt")
_NOTES = "ReleaseNotes.txt"  # names many versions; its first is believed when nothing else says it
_DSP_LIBRARIES = ("hexagon-*/unsigned/*", "dsp/*")
_READ_AT_MOST = 100_000


@dataclass(frozen=True)
class Sdk:
    """An SDK that was found. `version` is empty where nothing says it; `base` is what its tools
    get of our own environment."""

    root: Path
    version: str
    base: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def major(self) -> int:
        """1 or 2; what says nothing is taken for the newest."""
        return int(self.version.partition(".")[0]) if self.version else 2

    @property
    def writes_native_files(self) -> bool:
        """Whether a board's tool can leave outputs in the model's own types: since 2.5."""
        numbers = [int(part) for part in self.version.split(".")[:2] if part.isdecimal()]
        return not numbers or numbers >= [2, 5]

    def has(self, tool: str) -> bool:
        return os.access(self._tool(tool), os.X_OK)

    def tool(self, name: str) -> Path:
        """A program of the host; raises MissingSdk where it is not there or cannot be run."""
        path = self._tool(name)
        if not path.is_file():
            raise MissingSdk(reason=f"{self.root} has no bin/{HOST}/{name}")
        if not os.access(path, os.X_OK):
            raise MissingSdk(reason=f"{path} exists but is not executable (chmod +x)")
        return path

    def environment(self) -> dict[str, str]:
        """For the tools on the host: their programs, Python modules and libraries come first."""
        libraries = self.root / "lib" / HOST
        return {
            **self.base,
            "SNPE_ROOT": str(self.root),
            "QAIRT_SDK_ROOT": str(self.root),
            "QNN_SDK_ROOT": str(self.root),
            "PATH": _joined(self.root / "bin" / HOST, self.base.get("PATH", os.defpath)),
            "PYTHONPATH": _joined(self.root / "lib" / "python", self.base.get("PYTHONPATH", "")),
            "LD_LIBRARY_PATH": _joined(libraries, self.base.get("LD_LIBRARY_PATH", "")),
        }

    def board_files(self) -> list[tuple[str, Path]]:
        """What a board needs, by the names it gets below one folder there; sorted."""
        tool = self._board_folder("bin") / BOARD_TOOL
        libraries = [p for p in self._board_folder("lib").glob("*.so") if p.is_file()]
        by_name = {f"lib/{BOARD}/{path.name}": path for path in libraries}
        for pattern in _DSP_LIBRARIES:
            for path in (self.root / "lib").glob(pattern):
                if path.is_file():
                    by_name[path.relative_to(self.root).as_posix()] = path
        if not tool.is_file():
            raise MissingSdk(reason=f"{self.root} has no bin/{BOARD}/{BOARD_TOOL} for the board")
        if not libraries:
            raise MissingSdk(reason=f"{self.root} has no lib/{BOARD}/*.so for the board")
        return sorted({f"bin/{BOARD}/{BOARD_TOOL}": tool, **by_name}.items())

    def board_environment(self, home: str) -> dict[str, str]:
        """For the tool on the board, with those files below `home` there. PATH comes before the
        board's own; the DSP's loader wants its folders joined by semicolons."""
        folders = {name.rpartition("/")[0] for name, _ in self.board_files()}
        dsp = [f for f in sorted(folders, reverse=True) if not f.endswith(BOARD)]
        system = ("/system/lib/rfsa/adsp", "/system/vendor/lib/rfsa/adsp", "/vendor/dsp", "/dsp")
        return {
            "PATH": f"{home}/bin/{BOARD}",
            "LD_LIBRARY_PATH": f"{home}/lib/{BOARD}",
            "ADSP_LIBRARY_PATH": ";".join([*(f"{home}/{folder}" for folder in dsp), *system]),
        }

    @cached_property
    def digest(self) -> str:
        """Of the content of the board's files: another one means another folder on the board."""
        whole = hashlib.sha256(self.version.encode())
        for name, path in self.board_files():
            with path.open("rb") as file:
                whole.update(
                    f"\0{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}".encode()
                )
        return whole.hexdigest()[:32]

    def missing(self) -> list[tuple[str, str]]:
        """(what, where it should be) for each part that is not there; empty: all is well."""
        lost = [(t, f"{self.root}/bin/{HOST}/{t}") for t in HOST_TOOLS if not self.has(t)]
        if not (self._board_folder("bin") / BOARD_TOOL).is_file():
            lost.append((f"{BOARD_TOOL} for boards", f"{self.root}/bin/{BOARD}/{BOARD_TOOL}"))
        if not any(self._board_folder("lib").glob("*.so")):
            lost.append((f"{BOARD} libraries", f"{self.root}/lib/{BOARD}/*.so"))
        if not any(any((self.root / "lib").glob(pattern)) for pattern in _DSP_LIBRARIES):
            lost.append(("hexagon libraries", f"{self.root}/lib/hexagon-*/unsigned/*.so"))
        return lost

    def _tool(self, name: str) -> Path:
        """From 2.x on `snpe-dlc-quantize` is a script around `snpe-dlc-quant`; either will do."""
        folder = self.root / "bin" / HOST
        if name == "snpe-dlc-quantize" and not (folder / name).is_file():
            other = folder / "snpe-dlc-quant"
            return other if other.is_file() else folder / name
        return folder / name

    def _board_folder(self, kind: str) -> Path:
        plain = self.root / kind / BOARD
        if plain.is_dir():
            return plain
        named = sorted((self.root / kind).glob(f"{BOARD}-*"))
        return named[-1] if named else plain


def find_sdk(root: Path | str, base: Mapping[str, str] | None = None) -> Sdk:
    """The SDK in `root`, which the settings or the environment name; raises MissingSdk."""
    if not str(root):
        raise MissingSdk(reason="neither SNPE_ROOT nor QAIRT_SDK_ROOT is set")
    folder = Path(root).expanduser().absolute()
    if not folder.is_dir():
        raise MissingSdk(reason=f"there is no folder {folder}")
    if not (folder / "bin" / HOST).is_dir():
        raise MissingSdk(reason=f"{folder} has no folder bin/{HOST}, so it is not this SDK")
    texts = [_beginning(folder / name) for name in _VERSION_FILES]
    texts += [folder.name, folder.resolve().name, _beginning(folder / _NOTES)]
    version = next((match[1] for text in texts if (match := _VERSION.search(text))), "")
    return Sdk(folder, version, tool_environment() if base is None else dict(base))


def _beginning(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_READ_AT_MOST)


def _joined(first: Path, rest: str) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else str(first)


# One run of one of the SDK's programs: with a time limit, and with a reason when it fails.
#
# The tools are Python scripts that start others, so a run gets a process group of its own that ends
# as a whole. What they print goes to a file: nothing waits for a pipe that a grandchild holds open.


_READ_OUTPUT_AT_MOST = 16 << 20
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

    `place` is its current folder, where tools drop files; a temporary one by default."""
    command = [str(sdk.tool(name)), *arguments]
    with _scratch() as scratch:
        printed = scratch / "printed"
        with printed.open("wb") as file:
            environment = {**sdk.environment(), "TMPDIR": str(scratch)}
            code = _run(command, environment, place or scratch, file.fileno(), limit_s)
        with printed.open("rb") as file:
            text = _COLOURS.sub("", file.read(_READ_OUTPUT_AT_MOST).decode(errors="replace"))
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
    command: list[str], environment: Mapping[str, str], folder: Path, output: int, limit_s: float
) -> int:
    name = Path(command[0]).name
    try:
        child = subprocess.Popen(  # noqa: S603
            command,
            cwd=folder,
            env=environment,
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
