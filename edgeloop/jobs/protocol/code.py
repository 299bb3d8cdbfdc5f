"""The code of a job as an archive: what its digest covers, and how a node unpacks it.

The archive comes from a store that others may write to. Nothing of it is used unless all of it is
what was submitted, and reading it never takes more memory or disk than a snapshot may have. The
checks of Python's own `tarfile` are not relied on: those of older versions have holes.
"""

from __future__ import annotations

import gzip
import tarfile
import tempfile
import zlib
from hashlib import blake2b
from pathlib import Path

from edgeloop.errors import BadInput

MOST_CODE_BYTES = 2 << 30
_MOST_FILES = 200_000
_MOST_AT_ONCE = 1 << 20  # a header with a long name is smaller, and contents come in pieces
_BLOCK = 512
_DIGEST_BYTES = 20
_FORMAT = b"edgeloop code 1\n"  # part of every digest: another layout is another digest
_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, OverflowError)


def content_digest(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


class CodeDigest:
    """Over the paths, contents and executable bits of files, in order, and nothing else."""

    def __init__(self) -> None:
        self._total = blake2b(_FORMAT, digest_size=_DIGEST_BYTES)

    def add(self, path: str, digest: str, executable: bool) -> None:
        line = f"{digest} {'x' if executable else '-'} {path}\0"
        self._total.update(line.encode(errors="surrogateescape"))

    def hexdigest(self) -> str:
        return self._total.hexdigest()


def unpack_code(archive: Path, digest: str, folder: Path) -> None:
    """Into `folder`, over what is there. Raises BadInput for anything but the snapshot of this
    digest, before the folder is touched."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".code-") as name:
        apart = Path(name)
        found, files = _unpacked(archive, apart)
        if found != digest:
            reason = "The job's code in the store is not what was submitted: submit the job again"
            raise BadInput(reason=reason)
        for file in files:
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            (apart / file).replace(target)


def _unpacked(archive: Path, folder: Path) -> tuple[str, list[str]]:
    try:
        with gzip.open(archive) as unpacked:
            plain = _Forward(unpacked)
            with tarfile.open(fileobj=plain, mode="r:") as members:  # type: ignore[call-overload]
                return _extract(members, folder)
    except (*_BROKEN, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise BadInput(reason=f"The job's code cannot be unpacked: {reason}") from None


class _Forward:
    """A file that is only read forwards, a little at a time, and not without end: a header may say
    that it has gigabytes, or that the next one lies before it."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        content = self._file.read(size)
        self._at += len(content)
        return content

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = 0) -> int:
        if whence or not self._at - _BLOCK <= position <= MOST_CODE_BYTES + (64 << 20):
            raise tarfile.ReadError("its members are not one after the other")
        self._at = self._file.seek(position)
        return self._at


def _extract(archive: tarfile.TarFile, folder: Path) -> tuple[str, list[str]]:
    """Files below `folder` and nothing else; the digest of all of them, and their names."""
    total, size = CodeDigest(), 0
    names: dict[str, None] = {}
    for member in archive:
        archive.members = []  # type: ignore[attr-defined]  # it would keep them all
        parts = member.name.split("/")
        is_plain = member.isreg() and not any(part in ("", ".", "..") for part in parts)
        if not is_plain or "\0" in member.name or member.name in names:
            raise tarfile.TarError(f"{member.name[:200]!r} is not a file below its folder")
        names[member.name] = None
        size += member.size
        if member.size < 0 or size > MOST_CODE_BYTES or len(names) > _MOST_FILES:
            raise tarfile.TarError("it is larger than any code may be")
        executable = bool(member.mode & 0o100)
        total.add(member.name, _write(archive, member, folder / member.name), executable)
        (folder / member.name).chmod(0o755 if executable else 0o644)
    return total.hexdigest(), list(names)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.TarError(f"{member.name!r} has no content")
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("xb") as file:
        while True:
            piece = content.read(_MOST_AT_ONCE // 2)
            if not piece:
                return hasher.hexdigest()
            hasher.update(piece)
            file.write(piece)
