"""The code of a job as it was when the job was submitted, stored once per content.

A snapshot is read completely before anything is sent, so what is stored under a digest is exactly
what was hashed, even if an editor saves meanwhile. Its archive always has the same bytes.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import RawIOBase
from pathlib import Path

from edgeloop._util.system import O_CLOEXEC, O_NONBLOCK
from edgeloop._util.values import size_text
from edgeloop.errors import BadJob, LocalFileError
from edgeloop.jobs.ignore import CodeFolder, SourceFile
from edgeloop.jobs.secrets import (
    LARGEST_SOURCE,
    SHORTEST_LITERAL,
    exposed_tokens,
    holds_private_key,
)
from edgeloop.node.layout import MOST_CODE_BYTES, CodeDigest, content_digest
from edgeloop.node.ticket import code_key, is_fresh
from edgeloop.store import Blobs

LIMIT_BYTES = 100_000_000
_MOST_NAMED = 5
_MOST_SEARCHED = 20_000_000  # bytes of code, for tokens: about a second
__READS = 5  # of a file that changes while it is read
_PIECE_BYTES = 1 << 20
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENXIO)


@dataclass(frozen=True)
class CodeFile:
    path: str
    executable: bool
    digest: str
    content: bytes = field(repr=False, compare=False)

    @classmethod
    def of(cls, path: str, content: bytes, executable: bool = False) -> CodeFile:
        return cls(path, executable, content_digest(content), content)

    @property
    def size(self) -> int:
        return len(self.content)

    def tokens(self) -> Iterator[tuple[int, str]]:
        """Lines, and which tokens or keys they have."""
        return exposed_tokens(self.content)


@dataclass(frozen=True)
class CodeSnapshot:
    """Files sorted by path. `withheld` names what may hold secrets and is not sent."""

    files: tuple[CodeFile, ...]
    withheld: tuple[str, ...] = ()

    @classmethod
    def take(
        cls,
        folder: Path,
        limit_bytes: float = LIMIT_BYTES,
        apart: Sequence[Path] = (),
        secrets: Sequence[str] = (),
    ) -> CodeSnapshot:
        """Read the code folder, without the folders `apart` and without files that hold a private
        key or one of these `secrets`. Raises BadJob, naming the largest files, if it is over the
        limit. Files that are removed meanwhile are no part of it."""
        limit_bytes = min(limit_bytes, MOST_CODE_BYTES)
        code = CodeFolder(folder, apart)
        source = sorted(code.files(), key=lambda item: os.fsencode(item.path))
        _check_limit(folder, [(item.path, item.size) for item in source], limit_bytes)
        literals = [text.encode() for text in secrets if len(text) >= SHORTEST_LITERAL]
        files: list[CodeFile] = []
        withheld = list(code.withheld)
        room = int(limit_bytes)
        for item in source:
            file = _read(item, room + 1)
            if file is None:
                continue
            if not item.is_allowed and _holds_secret(file.content, literals):
                withheld.append(file.path)
                continue
            files.append(file)
            room -= file.size
            if room < 0:
                _check_limit(folder, [(each.path, each.size) for each in files], limit_bytes)
        return cls(tuple(files), tuple(sorted(withheld)))

    @property
    def withheld_note(self) -> str:
        """One sentence about what is not sent; empty if all is."""
        if not self.withheld:
            return ""
        listed = ", ".join(self.withheld[:_MOST_NAMED])
        more = len(self.withheld) - _MOST_NAMED
        others = f" and {more} more" if more > 0 else ""
        example = self.withheld[0].rstrip("/")
        return (
            f"without {listed}{others}, which may hold secrets (to send one anyway: a line "
            f"'!{example}' in .edgeloopignore)"
        )

    def exposed(self) -> tuple[str, ...]:
        """Where tokens stand in the code, which is sent all the same: one sentence for each of the
        first few."""
        found: list[str] = []
        room = _MOST_SEARCHED
        for file in self.files:
            room -= min(file.size, LARGEST_SOURCE)
            if room < 0:
                break
            found += [f"{file.path}:{n} looks like a secret ({k})" for n, k in file.tokens()]
        more = len(found) - _MOST_NAMED
        others = [f"{more} more of these are in the code"] if more > 0 else []
        return (*found[:_MOST_NAMED], *others)

    @cached_property
    def digest(self) -> str:
        """Over paths, contents and executable bits, and nothing else."""
        total = CodeDigest()
        for file in self.files:
            total.add(file.path, file.digest, file.executable)
        return total.hexdigest()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def __contains__(self, path: str) -> bool:
        return any(file.path == path for file in self.files)

    def ensure(self, blobs: Blobs) -> tuple[str, bool]:
        """Store it, if the same code is not stored yet: its key, and whether it had to be sent."""
        key = code_key(self.digest)
        if is_fresh(blobs, key):
            return key, False
        blobs.put(key, self.archive())
        return key, True

    def archive(self) -> bytes:
        """A tar.gz without times and owners, so that equal snapshots are equal bytes."""
        import gzip

        packed = io.BytesIO()
        with (
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=packed, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for file in self.files:
                info = tarfile.TarInfo(file.path)
                info.size = file.size
                info.mode = 0o755 if file.executable else 0o644
                tar.addfile(info, io.BytesIO(file.content))
        return packed.getvalue()


def _read(source: SourceFile, most_bytes: int) -> CodeFile | None:
    """The file as it was at one moment: read again if it changed meanwhile. None if it is gone, or
    no regular file any more."""
    for _ in range(__READS):
        try:
            descriptor = os.open(source.source, os.O_RDONLY | O_NONBLOCK | O_CLOEXEC)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                before = os.fstat(file.fileno())
                if not stat.S_ISREG(before.st_mode):
                    return None
                content = _content(file, most_bytes)
                after = os.fstat(file.fileno())
        except OSError as error:
            if error.errno in _GONE:
                return None
            reason = f"cannot be read: {error.strerror}"
            raise LocalFileError(path=source.source, reason=reason) from None
        is_whole = len(content) == min(after.st_size, most_bytes)
        if is_whole and before.st_mtime_ns == after.st_mtime_ns:
            return CodeFile.of(source.path, content, bool(after.st_mode & 0o100))
    raise LocalFileError(
        path=source.source,
        reason="keeps changing while it is read: exclude it with a line in "
        ".edgeloopignore, or stop what writes to it",
    )


def _content(file: RawIOBase, most_bytes: int) -> bytes:
    """At most so many: a file may have grown since its size was checked."""
    parts: list[bytes] = []
    while most_bytes > 0 and (part := file.read(min(most_bytes, _PIECE_BYTES))):
        parts.append(part)
        most_bytes -= len(part)
    return b"".join(parts)


def _holds_secret(content: bytes, literals: Sequence[bytes]) -> bool:
    return holds_private_key(content) or any(literal in content for literal in literals)


def _check_limit(folder: Path, sizes: Sequence[tuple[str, int]], limit_bytes: float) -> None:
    total = sum(size for _, size in sizes)
    if total <= limit_bytes:
        return
    named = ", ".join(f"{path} ({size_text(size)})" for path, size in _largest(sizes, total))
    raise BadJob(
        where=str(folder),
        reason=f"the code is {size_text(total)}, over the limit of {size_text(limit_bytes)}; the "
        f"largest are {named}. Exclude them with lines in .edgeloopignore, send data with "
        "'edgeloop data push', or raise code_limit_mb in edgeloop.yaml",
    )


def _largest(sizes: Sequence[tuple[str, int]], total: int) -> list[tuple[str, int]]:
    """The largest files, or the largest folders if a few files are not most of it."""
    files = sorted(sizes, key=lambda item: -item[1])[:_MOST_NAMED]
    if sum(size for _, size in files) * 2 >= total:
        return files
    folders: Counter[str] = Counter()
    for path, size in sizes:
        folder = path.rpartition("/")[0]
        folders[f"{folder}/" if folder else path] += size
    return folders.most_common(_MOST_NAMED)
