"""`secrets scan`: texts that look like secrets, and the secrets of this project, wherever they are.

Files are read in pieces, archives of code too, and no file is read whole: the memory that a scan
needs does not depend on what it scans. Links are not followed, and only regular files are opened.
"""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgeloop._util.redact import find_secrets, is_placeholder, is_secret_variable
from edgeloop._util.system import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK
from edgeloop.errors import EdgeloopError, LocalFileError
from edgeloop.jobs.snapshot import may_hold_secrets
from edgeloop.settings import Settings, whole_environment
from edgeloop.store.location import AzureLocation, location_text

PIECE_BYTES = 1 << 20
OVERLAP_BYTES = 4096
MOST_UNPACKED_BYTES = 1 << 30  # of one archive: a bomb ends here
MOST_PER_FILE = 100
SHORTEST_LITERAL = 8
_CONTEXT = 32
_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules"})
_MARKS = ("pyvenv.cfg", "conda-meta")  # of environments, which have no secrets of this project
# Files of Edgeloop that have secrets in them by design; only their owner can read them.
_OWN = ("secrets.json", "ticket.json", "order.json")


@dataclass(frozen=True)
class Leak:
    """A secret where it should not be. `context` is the text before it, on its line."""

    path: str
    line: int
    kind: str
    context: str

    @property
    def sentence(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.context}***"


@dataclass(frozen=True)
class SecretScan:
    """`literals` are secrets by the names of what they are of. `everything`: files that are made
    for secrets are read too, such as `.env`."""

    literals: Mapping[str, str]
    everything: bool = False

    def path(self, path: Path) -> Iterator[Leak]:
        """A file, or all files of a folder. Raises LocalFileError if it is not there."""
        if not os.path.lexists(path):
            raise LocalFileError(path=path, reason="there is no such file or folder")
        if path.is_dir():
            for file in self._files(path):
                yield from self.file(file)
        else:
            yield from self.file(path)

    def file(self, path: Path) -> Iterator[Leak]:
        """One that cannot be read, or is gone, has nothing to find."""
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    yield from self._opened(file, str(path))

    def stream(self, file: IO[bytes], name: str) -> Iterator[Leak]:
        """Of anything that can be read once."""
        count, line, before = 0, 1, b""
        piece = file.read(PIECE_BYTES)
        while piece:
            text = before + piece
            piece = file.read(PIECE_BYTES)
            for leak in self._piece(text, name, line, len(before), is_last=not piece):
                yield leak
                count += 1
                if count >= MOST_PER_FILE:
                    return
            before = text[-OVERLAP_BYTES:]
            line += text[: len(text) - len(before)].count(b"\n")

    def processes(self) -> Iterator[Leak]:
        """The command lines of all processes that this user may see."""
        for folder in sorted(Path("/proc").glob("[0-9]*")):
            with suppress(OSError):
                content = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                yield from self._piece(content, f"process {folder.name}", 1, 0, is_last=True)

    def _files(self, folder: Path) -> Iterator[Path]:
        for place, folders, names in os.walk(folder):
            here = Path(place)
            if here != folder and any(mark in names or mark in folders for mark in _MARKS):
                folders.clear()
                continue
            relative = here.relative_to(folder).as_posix()
            prefix = "" if relative == "." else f"{relative}/"
            folders[:] = sorted(n for n in folders if self._is_wanted(f"{prefix}{n}", True))
            for name in sorted(names):
                if self._is_wanted(f"{prefix}{name}", False):
                    yield here / name

    def _is_wanted(self, path: str, is_folder: bool) -> bool:
        name = path.rpartition("/")[2]
        if is_folder and name in _SKIPPED:
            return False
        is_made_for_secrets = name in _OWN or may_hold_secrets(path, is_folder)
        return self.everything or not is_made_for_secrets

    def _opened(self, file: IO[bytes], name: str) -> Iterator[Leak]:
        head = file.read(4)
        file.seek(0)
        with suppress(tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError):
            if head[:2] == b"\x1f\x8b":
                yield from self._unpacked(_tar_members(file), name)
                return
            if head == b"PK\x03\x04":
                yield from self._unpacked(_zip_members(file), name)
                return
        file.seek(0)
        yield from self.stream(file, name)

    def _unpacked(self, members: Iterable[tuple[str, IO[bytes]]], name: str) -> Iterator[Leak]:
        room = MOST_UNPACKED_BYTES
        for inner, content in members:
            limited = _Limited(content, room)
            yield from self.stream(limited, f"{name}!{inner}")  # type: ignore[arg-type]
            room = limited.room
            if room <= 0:
                return

    def _piece(
        self, content: bytes, name: str, line: int, searched: int, is_last: bool
    ) -> Iterator[Leak]:
        """Leaks that end after the first `searched` bytes, which the piece before had, too."""
        text = content.decode("latin-1")
        spans = [(match.start, match.end, match.kind) for match in find_secrets(text)]
        spans += self._literals(text)
        spans = [span for span in spans if not is_placeholder(text[span[0] : span[1]])]
        masked = ""
        for start, end, kind in sorted(spans):
            # One that reaches the end may be only the beginning of a secret: the next piece tells.
            if end < searched or (end == len(text) and not is_last):
                continue
            begins = text.rfind("\n", max(0, start - _CONTEXT), start) + 1
            begins = begins or max(0, start - _CONTEXT)
            masked = _masked(text, begins, start, spans)
            number = line + text.count("\n", 0, start)
            yield Leak(name, number, kind, masked)

    def _literals(self, text: str) -> list[tuple[int, int, str]]:
        spans = []
        for name, value in self.literals.items():
            literal = value.encode().decode("latin-1")
            at = text.find(literal)
            while at >= 0:
                spans.append((at, at + len(literal), f"the value of {name}"))
                at = text.find(literal, at + len(literal))
        return spans


def known_secrets(settings: Settings | None) -> dict[str, str]:
    """The secrets that this machine knows, by what they are of: variables of the environment, the
    store's access, and values in the settings of computes."""
    secrets = {n: v for n, v in whole_environment().items() if is_secret_variable(n, v)}
    if settings is not None:
        with suppress(EdgeloopError):
            secrets["the store's address"] = location_text(settings.location)
        location = settings.location
        if isinstance(location, AzureLocation):
            secrets["the store's key"] = location.key or ""
            secrets["the store's signature"] = location.sas or ""
        for name in settings.computes:
            with suppress(EdgeloopError):
                config = settings.compute_settings(name)
                secrets |= {f"computes.{name}.{key}": text for key, text in _texts(config)}
    return {
        name: value
        for name, value in secrets.items()
        if len(value) >= SHORTEST_LITERAL and is_secret_variable(name, value)
    }


def _texts(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _texts(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            yield f"{prefix}{key}", value


def _masked(text: str, start: int, end: int, spans: Sequence[tuple[int, int, str]]) -> str:
    """A part of a text without other secrets in it, and without anything unprintable."""
    parts = list(text[start:end])
    for first, last, _ in spans:
        for at in range(max(first, start), min(last, end)):
            parts[at - start] = "*"
    return "".join(char if char.isprintable() else " " for char in parts).lstrip()


@dataclass
class _Limited:
    """Reads at most so many bytes."""

    content: IO[bytes]
    room: int

    def read(self, size: int) -> bytes:
        piece = self.content.read(min(size, self.room)) if self.room > 0 else b""
        self.room -= len(piece)
        return piece


def _tar_members(file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Of a tar.gz; of any other gzip, its content."""
    import gzip

    try:
        archive = tarfile.open(fileobj=file, mode="r|gz")  # noqa: SIM115 - closed below
    except tarfile.TarError:
        file.seek(0)
        with gzip.GzipFile(fileobj=file) as content:
            yield "content", content  # type: ignore[misc]
        return
    with archive:
        for member in archive:
            inner = archive.extractfile(member) if member.isfile() else None
            if inner is not None:
                yield member.name, inner


def _zip_members(file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if not info.is_dir() and not info.flag_bits & 1:  # not encrypted
                with archive.open(info) as inner:
                    yield info.filename, inner
