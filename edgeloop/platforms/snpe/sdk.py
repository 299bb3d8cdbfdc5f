"""Qualcomm's Neural Processing SDK on this machine: where it is, which version, what is in it.

Versions 1.x name their folders after the compiler (`aarch64-android-clang8.0`) and keep the
libraries of the DSP in `lib/dsp`; 2.x have `aarch64-android` and `lib/hexagon-v…/unsigned`. On a
board both lie the same way, so that nobody else has to know.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from edgeloop.errors import MissingSdk
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
        found = {f"lib/{BOARD}/{path.name}": path for path in libraries}
        for pattern in _DSP_LIBRARIES:
            for path in (self.root / "lib").glob(pattern):
                if path.is_file():
                    found[path.relative_to(self.root).as_posix()] = path
        if not tool.is_file():
            raise MissingSdk(reason=f"{self.root} has no bin/{BOARD}/{BOARD_TOOL} for the board")
        if not libraries:
            raise MissingSdk(reason=f"{self.root} has no lib/{BOARD}/*.so for the board")
        return sorted({f"bin/{BOARD}/{BOARD_TOOL}": tool, **found}.items())

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
    version = next((found[1] for text in texts if (found := _VERSION.search(text))), "")
    return Sdk(folder, version, tool_environment() if base is None else dict(base))


def _beginning(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_READ_AT_MOST)


def _joined(first: Path, rest: str) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else str(first)
