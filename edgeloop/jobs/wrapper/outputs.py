"""Files of outputs/ into the store: while the command runs, and the rest when it has ended.

A file is copied once it was left alone from one look to the next. One that keeps growing, as a
log of metrics does, is copied meanwhile as well, as long as what the store has is its beginning:
so a checkpoint that is being written over never replaces the good one before it.

The files below a folder as a command left them: links, loops and odd things included.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edgeloop.errors import BadName, LocalFileError
from edgeloop.jobs.protocol.ticket import outputs_folder
from edgeloop.jobs.wrapper.repeat import STORE_TROUBLE
from edgeloop.store import Blobs, check_blob_key


@dataclass(frozen=True)
class Look:
    """How a file looked; two equal looks mean that nobody wrote in between."""

    size: int
    modified_ns: int
    inode: int

    @classmethod
    def at(cls, path: Path) -> Look:
        return cls.of(path.stat())

    @classmethod
    def of(cls, status: os.stat_result) -> Look:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def files_below(
    folder: Path, fence: Path, say: Callable[[str], None]
) -> Iterator[tuple[str, Look]]:
    """Plain files by their names below `folder`. A link is followed where it stays in `fence`."""
    if not _inside(folder, fence):
        if folder.is_symlink():  # else it is not there: deleted, or never made
            say(f"{folder.name}/ was replaced by a link to elsewhere, which is not followed")
        return
    yield from _walk(folder, "", fence.resolve(), say, ())


def _walk(
    folder: Path, prefix: str, fence: Path, say: Callable[[str], None], above: tuple[int, ...]
) -> Iterator[tuple[str, Look]]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        name, path = prefix + entry.name, folder / entry.name
        try:
            if entry.is_symlink() and not _inside(path, fence):
                say(f"outputs/{ascii(name)[1:-1]} is a link to elsewhere, which is not followed")
                continue
            status = entry.stat()
        except OSError:
            continue  # gone, or a link to nothing
        if stat.S_ISREG(status.st_mode):
            yield name, Look.of(status)
        elif stat.S_ISDIR(status.st_mode) and status.st_ino not in above:
            yield from _walk(path, f"{name}/", fence, say, (*above, status.st_ino))


def _inside(path: Path, fence: Path) -> bool:
    try:
        return path.resolve(strict=True).is_relative_to(fence.resolve())
    except (OSError, RuntimeError):
        return False


GROWING_LIMIT_BYTES = 64 << 20
_ALWAYS_BYTES = 1 << 20
_GROWTH = 1.125  # a larger file is sent again when it has grown by so much, not for every line
_IN_MEMORY_BYTES = 4 << 20  # times the number of threads below
_THREADS = 12


@dataclass(frozen=True)
class Sent:
    """What of a file is in the store: how it looked then, and a hash of what went."""

    look: Look
    digest: bytes  # empty for files too large to be looked at as growing


class OutputCopier:
    """Knows what of a folder is in the store. `copy` and `finish` are for one thread at a time."""

    def __init__(self, outputs: Path, blobs: Blobs, job: str, say: Callable[[str], None]) -> None:
        self._outputs = outputs
        self._blobs = blobs
        self._prefix = outputs_folder(job)
        self._say = say  # says a sentence once
        self._sent: dict[str, Sent] = {}
        self._seen: dict[str, Look] = {}
        self._copying = threading.Lock()
        self.refused: set[str] = set()  # names that the store cannot hold
        self.trouble: Exception | None = None  # the last that a copy met

    def copy(self) -> None:
        """One look; raises the store's trouble after all files had their turn."""
        with self._copying:
            looks = self._look()
            calm = {n for n, look in looks.items() if self._seen.get(n) == look}
            self._seen = looks
            changed = self._changed(looks)
            self._send(self._put, [name for name in changed if name in calm], looks)
            for name in changed:
                if name not in calm and looks[name].size <= GROWING_LIMIT_BYTES:
                    self._attempt(self._put_growing, name, looks[name])
            if self.trouble is not None:
                raise self.trouble

    def finish(self) -> set[str]:
        """Copy all that is not in the store as it is now; returns what did not get there."""
        with self._copying:
            looks = self._look()
            self._send(self._put, self._changed(looks), looks)
            return set(self._changed(looks)) | self.refused

    def remove_deleted(self) -> None:
        """Files that the command made and removed again are no results."""
        names = set(self._look())
        stored = [info.key for info in self._blobs.list(self._prefix)]
        self._blobs.delete([key for key in stored if key.removeprefix(self._prefix) not in names])

    def _look(self) -> dict[str, Look]:
        self.trouble = None
        looks = {}
        for name, look in files_below(self._outputs, self._outputs.parent, self._say):
            try:
                check_blob_key(self._prefix + name)
            except BadName as error:
                self.refused.add(ascii(name))
                self._say(f"outputs/ has a file that the store cannot hold: {error}")
                continue
            looks[name] = look
        return looks

    def _changed(self, looks: dict[str, Look]) -> list[str]:
        known = self._sent
        return [n for n, look in looks.items() if n not in known or known[n].look != look]

    def _send(
        self, put: Callable[[str, Look], None], names: Iterable[str], looks: dict[str, Look]
    ) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            for name in names:
                pool.submit(self._attempt, put, name, looks[name])

    def _attempt(self, put: Callable[[str, Look], None], name: str, look: Look) -> None:
        try:
            put(name, look)
        except (*STORE_TROUBLE, LocalFileError) as error:
            self.trouble = error
        except FileNotFoundError:
            pass  # removed between the look and the copy: the next look tells
        except OSError as error:
            self._say(f"outputs/{name} cannot be read: {error.strerror}")

    def _put(self, name: str, look: Look) -> None:
        """A small file goes as one reading of it, so what arrives was never half of two states; a
        large one that changes on its way counts as not sent."""
        path = self._outputs / name
        if look.size <= _IN_MEMORY_BYTES:
            content = path.read_bytes()
            if Look.at(path) != look:
                return
            self._blobs.put(self._prefix + name, content)
            self._sent[name] = Sent(look, _digest(content))
            return
        digest = _digest_of(path) if look.size <= GROWING_LIMIT_BYTES else b""
        self._blobs.put(self._prefix + name, path)
        if Look.at(path) == look:
            self._sent[name] = Sent(look, digest)
        else:
            self._sent.pop(name, None)
            self._say(f"outputs/{name} changed while it was copied; it will be copied again")

    def _put_growing(self, name: str, look: Look) -> None:
        before = self._sent.get(name)
        enough = _GROWTH * before.look.size if before else 0
        if enough > _ALWAYS_BYTES and look.size < enough:
            return
        with (self._outputs / name).open("rb") as file:
            content = file.read(look.size)
        if before is not None:
            start = content[: before.look.size]
            if len(start) < before.look.size or _digest(start) != before.digest:
                return
        elif self._is_stored(name):
            return
        self._blobs.put(self._prefix + name, content)
        whole = len(content) == look.size and Look.at(self._outputs / name) == look
        sent = look if whole else Look(len(content), -1, look.inode)
        self._sent[name] = Sent(sent, _digest(content))

    def _is_stored(self, name: str) -> bool:
        """A wrapper of this job that ended early, or a copy torn on its way, may have left one."""
        return self._blobs.size(self._prefix + name) is not None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _digest_of(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


def make_folder(path: Path) -> None:
    """A folder for outputs that is there and is no link, whatever the code brought along."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        os.unlink(path)  # noqa: PTH108
    path.mkdir(parents=True, exist_ok=True)
