"""Which files of a code folder travel with a job.

Three sieves, from the widest: what never travels, whatever anybody wrote (secrets, repositories,
environments, results, data); the ignore file, by git's rules; and links, which may not lead out.
The ignore file is `.edgeloopignore`, else `.amlignore`, else `.gitignore`: the first that the code
folder itself has. Files of that same name in folders below count as they do for git.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from edgeloop.errors import BadJob, LocalFileError
from edgeloop.jobs.gitpattern import Rules

IGNORE_FILES = (".edgeloopignore", ".amlignore", ".gitignore")
HEAD_BYTES = 4096  # so much of a file is searched for a private key

_NEVER = frozenset(
    {
        *(".git", ".hg", ".svn", "__pycache__", ".edgeloop"),
        *(".ssh", ".aws", ".azure", ".gnupg", ".netrc", ".pypirc", ".git-credentials", ".env"),
    }
)
_NEVER_FILES = (
    *(".env.*", "*.env", "*.pem", "*.key", "*.pfx", "*.p12", "*.jks", "*.ppk"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
)
_NEVER_BELOW = ("/.azureml/datastore.json",)  # an older project keeps its account's key there
_NEVER_AT_ROOT = frozenset({"runs", "outputs", "data/raw", "data/working"})
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
_PRIVATE_KEY = re.compile(rb"^\s*-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----", re.M)


@dataclass(frozen=True)
class Found:
    """A file that travels: its path inside the code, where it lies, and its size when seen."""

    path: str
    source: Path
    size: int


def files_that_travel(folder: Path) -> Iterator[Found]:
    """All of them, in no promised order. A folder that is left out is not even looked into."""
    root = folder.resolve()
    kind = next((name for name in IGNORE_FILES if (root / name).is_file()), IGNORE_FILES[-1])
    yield from _Walk(root, kind).folder(root, "", [])


def holds_private_key(head: bytes) -> bool:
    """Whether the beginning of a file is a private key's, whatever the file is called."""
    return b"PRIVATE KEY" in head and _PRIVATE_KEY.search(head) is not None


def never_travels(path: str, is_folder: bool) -> bool:
    """By name alone; `path` is relative to the code folder."""
    name = path.rpartition("/")[2].lower()
    if name in _NEVER or path in _NEVER_AT_ROOT or f"/{path}".endswith(_NEVER_BELOW):
        return True
    return not is_folder and any(fnmatchcase(name, pattern) for pattern in _NEVER_FILES)


@dataclass(frozen=True)
class _Level:
    """An ignore file, and how much of a path lies above it."""

    above: int
    rules: Rules


@dataclass(frozen=True)
class _Walk:
    root: Path
    kind: str
    through: tuple[Path, ...] = ()  # folders that links led to, on the way here

    def folder(self, folder: Path, path: str, levels: list[_Level]) -> Iterator[Found]:
        entries = _entries(folder)
        names = {entry.name for entry in entries}
        if path and any(mark in names for mark in _ENVIRONMENT_MARKS):
            return
        prefix = f"{path}/" if path else ""
        if self.kind in names and (folder / self.kind).is_file():
            rules = Rules.read(_content(folder / self.kind))
            levels = [_Level(len(os.fsencode(prefix)), rules), *levels]
        for entry in entries:
            yield from self._entry(entry, prefix + entry.name, levels)

    def _entry(self, entry: os.DirEntry[str], path: str, levels: list[_Level]) -> Iterator[Found]:
        is_folder = entry.is_dir(follow_symlinks=False)
        if never_travels(path, is_folder) or _left_out(path, is_folder, levels):
            return
        if is_folder:
            yield from self.folder(Path(entry.path), path, levels)
        elif entry.is_symlink():
            yield from self._link(Path(entry.path), path, levels)
        elif entry.is_file(follow_symlinks=False):
            yield Found(path, Path(entry.path), entry.stat(follow_symlinks=False).st_size)

    def _link(self, link: Path, path: str, levels: list[_Level]) -> Iterator[Found]:
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # it leads nowhere, or round in a circle
            return
        if not target.is_relative_to(self.root):
            raise BadJob(
                where=path,
                reason="this link leads out of the code folder; copy what it points to, or leave "
                f"it out with a line in {self.kind}",
            )
        inside = target.relative_to(self.root).as_posix()
        if _hidden(inside, target.is_dir()):
            return
        if target.is_file():
            yield Found(path, target, target.stat().st_size)
        elif target.is_dir() and not self._is_round(link, target):
            walk = replace(self, through=(*self.through, target))
            yield from walk.folder(link, path, levels)

    def _is_round(self, link: Path, target: Path) -> bool:
        """A link to a folder that it lies in, or that links led through already, has no end."""
        return target in self.through or link.parent.resolve().is_relative_to(target)


def _hidden(path: str, is_folder: bool) -> bool:
    """A link does not let out what its target's own name, or a folder's above it, keeps in."""
    parts = path.split("/")
    above = ("/".join(parts[:end]) for end in range(1, len(parts)))
    return any(never_travels(folder, True) for folder in above) or never_travels(path, is_folder)


def _left_out(path: str, is_folder: bool, levels: list[_Level]) -> bool:
    if not levels:
        return False
    name = os.fsencode(path)
    said = (level.rules.says(name[level.above :], is_folder) for level in levels)
    return next((word for word in said if word is not None), False)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise LocalFileError(path=folder, reason=f"cannot be read: {error.strerror}") from None


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise LocalFileError(path=file, reason=f"cannot be read: {error.strerror}") from None
