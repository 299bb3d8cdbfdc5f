"""The code of a job as it was when the job was submitted, stored once per content.

A snapshot is read completely before anything is sent, so what is stored under a digest is exactly
what was hashed, even if an editor saves meanwhile. Its archive always has the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shlex
import stat
import string
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from io import RawIOBase
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop._util.files import read_regular
from edgeloop._util.redact import holds_private_key
from edgeloop._util.system import O_CLOEXEC, O_NONBLOCK
from edgeloop._util.values import size_text
from edgeloop.errors import BadJob, LocalFileError
from edgeloop.jobs.secrets import LARGEST_SOURCE, SHORTEST_LITERAL, exposed_tokens
from edgeloop.node.ticket import (
    ANY,
    FOLDERS,
    MOST_CODE_BYTES,
    STAR,
    CodeDigest,
    FilePatterns,
    code_key,
    content_digest,
    is_fresh,
    is_wild,
    matches,
)
from edgeloop.store import Blobs

LIMIT_BYTES = 100_000_000
_MOST_NAMED = 5
_MOST_SEARCHED = 20_000_000  # bytes of code, for tokens: about a second
__READS = 5  # of a file that changes while it is read
_PIECE_BYTES = 1 << 20
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENXIO)  # removed since it was found


@dataclass(frozen=True)
class CodeFile:
    path: str
    executable: bool
    digest: str
    content: bytes = field(repr=False, compare=False)
    is_allowed: bool = False  # to hold secrets

    @classmethod
    def of(
        cls, path: str, content: bytes, executable: bool = False, is_allowed: bool = False
    ) -> CodeFile:
        return cls(path, executable, content_digest(content), content, is_allowed)

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
        allowed: Sequence[str] = (),
    ) -> CodeSnapshot:
        """Read the code folder, without the folders `apart` and without files that hold a private
        key or one of these `secrets`, unless these patterns allow them. Raises BadJob, naming the
        largest files, if it is over the limit. Files that are removed meanwhile are no part of
        it."""
        limit_bytes = min(limit_bytes, MOST_CODE_BYTES)
        code = CodeFolder(folder, apart, FilePatterns(allowed))
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

    def refuse_tokens(self) -> None:
        """Raises BadJob for tokens and keys in files that are not allowed to hold any. Of a large
        snapshot the smallest files are searched: sources, rather than data."""
        found: list[tuple[str, int, str]] = []
        room = _MOST_SEARCHED
        for file in sorted(self.files, key=lambda file: file.size):
            room -= min(file.size, LARGEST_SOURCE)
            if room < 0:
                break
            if not file.is_allowed:
                found += [(file.path, line, kind) for line, kind in file.tokens()]
        if not found:
            return
        (path, line, kind), *others = sorted(found)
        named = [f"{path}:{line} ({kind})" for path, line, kind in others[: _MOST_NAMED - 1]]
        more = len(others) - len(named)
        named += [f"{more} more"] if more else []
        also = f"; so do {', '.join(named)}" if named else ""
        options = " ".join(f"--allow-secrets {shlex.quote(path)}" for path in _paths(found))
        raise BadJob(
            where=f"{path}:{line}",
            reason=f"holds what looks like a secret ({kind}), and nothing was sent{also}. Pass the "
            "value with --secret and read it from the environment, exclude the file with a line in "
            f".edgeloopignore, or send it anyway: {options} (or a line '!{path}' in that file)",
        )

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
            is_executable = bool(after.st_mode & 0o100)
            return CodeFile.of(source.path, content, is_executable, source.is_allowed)
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


def _paths(found: Sequence[tuple[str, int, str]]) -> list[str]:
    return list(dict.fromkeys(path for path, _, _ in sorted(found)))[:_MOST_NAMED]


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


# Which files of a code folder are sent with a job.
#
# Three filters: what is never sent (secrets, repositories, environments, results, data, stores);
# the ignore file, by git's rules; and links, which may not lead out of the folder. The ignore file
# is the first of `.edgeloopignore`, `.amlignore` and `.gitignore` that the code folder has. Files
# of the same name in subfolders count as they do for git.
#
# What may hold secrets is left out by its name (`secret_files.txt`) or by its content, and named
# to the user who submits the job. A line such as `!tests/ca.pem` in the code folder's own
# `.edgeloopignore`, with the whole path and no wildcard, or a pattern of the job's key
# `allow_secrets`, sends such a file anyway.
#
# Git's patterns are translated to regular expressions here because a walk that prunes must know
# for each folder by itself whether it is ignored, while libraries decide for files including all
# folders above. Git compares bytes, and so does this: `?` is one byte of a name. Tests compare it
# with git.


if TYPE_CHECKING:
    from edgeloop.node.ticket import Part

    _Piece = tuple[bytes, Part]  # as a regular expression, and as a part of a path

_CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, [*range(32), 127])),
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": " \t\n\r\v\f",
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}
_SPECIAL = b"*?[\\"
_NO_SLASH = frozenset(range(256)) - {ord("/")}
_LARGEST_FILE = 1_000_000
IGNORE_FILES = (".edgeloopignore", ".amlignore", ".gitignore")

_NEVER = frozenset({".git", ".hg", ".svn", "__pycache__", ".edgeloop"})
_NEVER_AT_ROOT = frozenset({"runs", "outputs", "data/raw", "data/working"})
_SEARCHES = "searches"  # the results of searches; their configuration files may lie beside them
# A folder that holds all names of one of these is an environment, a cache, a runner's work folder,
# an embedded store, the files of a store or the results of a search, and no code.
_MARKS: tuple[set[str], ...] = (
    {"pyvenv.cfg"},
    {"conda-meta"},
    {"CACHEDIR.TAG"},
    {".edgeloop-workdir"},
    {"store.db", "blobs"},
    {"store.db", "store.db-wal"},
    {"_code", "_wrapper"},
    {"_jobs", "_records"},
    {"search.yaml", ".lock"},
)
_SECRET_FILES = Path(__file__).parents[1] / "node/secret_files.txt"


class _NeverMatches(Exception):
    """A pattern with an unclosed bracket, an unknown class or a trailing backslash."""


@dataclass(frozen=True)
class Pattern:
    """One line: what it matches (a path without a trailing slash), and what that means. `parts` say
    the same as `regex`."""

    regex: bytes
    keeps: bool
    folders_only: bool
    parts: tuple[Part, ...]


class Rules:
    """All lines of one ignore file; the last match decides."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        latest_first = list(reversed(patterns))
        self._folders = _Chain(latest_first)
        self._files = _Chain([item for item in latest_first if not item.folders_only])

    @classmethod
    def read(cls, content: bytes) -> Rules:
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        parsed = (parse_pattern(line.removesuffix(b"\r")) for line in lines)
        return cls([pattern for pattern in parsed if pattern is not None])

    def ignores(self, path: bytes, is_folder: bool) -> bool | None:
        """True: ignored; False: kept; None: no line matches. `path` is relative to the file's
        folder."""
        return (self._folders if is_folder else self._files).ignores(path)


class _Chain:
    """Alternatives in one expression: a single call tells which line matched first. One that would
    take too long as an expression stands between two of those."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        groups = groupby(patterns, key=lambda pattern: is_wild(pattern.parts))
        self._links: list[_Joined | _Wild] = []
        for wild, group in groups:
            self._links += [_Wild(one) for one in group] if wild else [_Joined(list(group))]

    def ignores(self, path: bytes) -> bool | None:
        answers = (link.ignores(path) for link in self._links)
        return next((answer for answer in answers if answer is not None), None)


class _Joined:
    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._keeps = [pattern.keeps for pattern in patterns]
        joined = b"|".join(b"(" + pattern.regex + b")" for pattern in patterns)
        self._regex = re.compile(joined, re.DOTALL)

    def ignores(self, path: bytes) -> bool | None:
        match = self._regex.fullmatch(path)
        return None if match is None else not self._keeps[(match.lastindex or 0) - 1]


class _Wild:
    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern

    def ignores(self, path: bytes) -> bool | None:
        return not self._pattern.keeps if matches(self._pattern.parts, path) else None


def parse_pattern(line: bytes) -> Pattern | None:
    """None for comments, empty lines, and patterns that match nothing."""
    if line.startswith(b"#"):
        return None
    text = _without_trailing_spaces(line)
    keeps, text = text.startswith(b"!"), text.removeprefix(b"!")
    folders_only, text = text.endswith(b"/"), text.removesuffix(b"/")
    anywhere = b"/" not in text
    text = text.removeprefix(b"/")
    if not text:
        return None
    try:
        pieces = _translate(text)
    except _NeverMatches:
        return None
    if anywhere:
        pieces = [(b"(?:.*/)?", FOLDERS), *pieces]
    regex = b"".join(regex for regex, _ in pieces)
    return Pattern(regex, keeps, folders_only, tuple(part for _, part in pieces))


def _without_trailing_spaces(line: bytes) -> bytes:
    end, position = 0, 0
    while position < len(line):
        step = 2 if line[position : position + 1] == b"\\" else 1
        if line[position : position + 1] != b" ":
            end = position + step
        position += step
    return line[:end]


def _translate(text: bytes) -> list[_Piece]:
    literal = next((at for at, byte in enumerate(text) if byte in _SPECIAL), len(text))
    parts, at = [_literal(byte) for byte in text[:literal]], literal
    while at < len(text):
        char = text[at : at + 1]
        if char == b"*":
            # Git matches the literal beginning by itself, so that stars right after it count as
            # standing at the beginning of a pattern.
            opens = at == literal or text[at - 1 : at] == b"/"
            part, at = _stars(text, at, opens)
        elif char == b"?":
            part, at = (b"[^/]", _NO_SLASH.__contains__), at + 1
        elif char == b"[":
            part, at = _bracket(text, at + 1)
        elif char == b"\\":
            if at + 1 == len(text):
                raise _NeverMatches
            part, at = _literal(text[at + 1]), at + 2
        else:
            part, at = _literal(text[at]), at + 1
        parts.append(part)
    return parts


def _literal(byte: int) -> _Piece:
    return re.escape(bytes([byte])), byte.__eq__


def _stars(text: bytes, at: int, opens: bool) -> tuple[_Piece, int]:
    after = at
    while text[after : after + 1] == b"*":
        after += 1
    rest = text[after:]
    if after - at == 1 or not opens or not (rest == b"" or rest.startswith((b"/", b"\\/"))):
        return (b"[^/]*", STAR), after
    if rest.startswith(b"/"):
        return (b"(?:.*/)?", FOLDERS), after + 1
    return (b".*", ANY), after


def _bracket(text: bytes, at: int) -> tuple[_Piece, int]:
    """A set of bytes, and where the pattern continues. A slash is in no set."""
    negated = text[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    previous: int | None = None
    first = True
    while first or text[at : at + 1] != b"]":
        first = False
        added, previous, at = _member(text, at, previous)
        members |= added
    chosen = (set(range(256)) - members if negated else members) - {ord("/")}
    if not chosen:
        raise _NeverMatches
    regex = b"[" + b"".join(re.escape(bytes([byte])) for byte in sorted(chosen)) + b"]"
    return (regex, chosen.__contains__), at + 1


def _member(text: bytes, at: int, previous: int | None) -> tuple[set[int], int | None, int]:
    """One character, range or class: its bytes, what a range may start from, and the next index."""
    byte = _byte(text, at)
    if byte == ord("-") and previous is not None and text[at + 1 : at + 2] not in (b"", b"]"):
        at += 1 + (text[at + 1 : at + 2] == b"\\")
        return set(range(previous, _byte(text, at) + 1)), None, at + 1
    if text[at : at + 2] == b"[:":
        end = text.find(b"]", at + 2)
        if end < 0:
            raise _NeverMatches
        if end > at + 2 and text[end - 1 : end] == b":":
            name = text[at + 2 : end - 1].decode("latin-1")
            if name not in _CLASSES:
                raise _NeverMatches
            return set(_CLASSES[name].encode()), None, end + 1
    if byte == ord("\\"):
        at += 1
        byte = _byte(text, at)
    return {byte}, byte, at + 1


def _byte(text: bytes, at: int) -> int:
    if at >= len(text):
        raise _NeverMatches
    return text[at]


@dataclass(frozen=True)
class SourceFile:
    """A file to send: its path inside the code, where it is, and its size when it was found.
    `is_allowed`: it is sent even if it holds a secret."""

    path: str
    source: Path
    size: int
    is_allowed: bool = False


@dataclass
class CodeFolder:
    """The files of a code folder that are sent. Folders `apart` are left out, wherever in it they
    are: a store, a state, a cache. `withheld` are the paths of what may hold secrets, known when
    all files have been listed."""

    folder: Path
    apart: Sequence[Path] = ()
    allowed: FilePatterns = field(default_factory=FilePatterns)
    withheld: list[str] = field(default_factory=list)

    def files(self) -> Iterator[SourceFile]:
        """In no particular order. Ignored folders are not entered."""
        root = self.folder.resolve()
        if not root.is_dir():
            raise LocalFileError(path=self.folder, reason="cannot be read: there is no such folder")
        kind = next((name for name in IGNORE_FILES if (root / name).is_file()), IGNORE_FILES[-1])
        apart = frozenset(path.resolve() for path in self.apart)
        named = _allowed(root) if kind == IGNORE_FILES[0] else frozenset()
        allowed = Allowed(named.union(self.allowed.patterns), self.allowed)
        yield from _Walk(root, kind, apart, allowed, self.withheld).folder(root, "", [])


def source_files(folder: Path, apart: Sequence[Path] = ()) -> Iterator[SourceFile]:
    """All files of a code folder that are sent."""
    return CodeFolder(folder, apart).files()


def is_never_sent(path: str, is_folder: bool) -> bool:
    """By name alone; `path` is relative to the code folder."""
    name = path.rpartition("/")[2].lower()
    if name in _NEVER or path in _NEVER_AT_ROOT:
        return True
    top, _, below = path.partition("/")
    is_result = is_folder or "/" in below or not name.endswith((".yaml", ".yml"))
    return top == _SEARCHES and bool(below) and is_result


def may_hold_secrets(path: str, is_folder: bool) -> bool:
    """By name alone; `path` is relative to the code folder. What is in such a folder counts too."""
    parts = path.lower().split("/")
    above = ("/".join(parts[:end]) for end in range(1, len(parts)))
    rules = _secret_names()
    is_inside = any(rules.ignores(os.fsencode(folder), True) for folder in above)
    return is_inside or rules.ignores(os.fsencode(path.lower()), is_folder) is True


@cache
def _secret_names() -> Rules:
    return Rules.read(_SECRET_FILES.read_bytes())


def _allowed(root: Path) -> frozenset[str]:
    """Paths that the ignore file names, whole, as files to send whatever they hold."""
    lines: list[str] = []
    with _readable(root / IGNORE_FILES[0]):
        lines = (root / IGNORE_FILES[0]).read_text("utf-8", errors="replace").splitlines()
    paths = [line[1:].strip().lstrip("/") for line in lines if line.startswith("!")]
    return frozenset(path for path in paths if not any(char in path for char in "*?[\\"))


@dataclass(frozen=True)
class Allowed:
    """Files that are sent whatever they hold: by their whole paths, and by patterns."""

    paths: frozenset[str]
    patterns: FilePatterns

    def __contains__(self, path: str) -> bool:
        return path in self.paths or self.patterns.matches(path)


@dataclass(frozen=True)
class _Level:
    """An ignore file, and the length of the path to its folder."""

    above: int
    rules: Rules


@dataclass(frozen=True)
class _Walk:
    root: Path
    kind: str
    apart: frozenset[Path]
    allowed: Allowed
    withheld: list[str]
    through: tuple[Path, ...] = ()  # targets of the links that led here

    def folder(self, folder: Path, path: str, levels: list[_Level]) -> Iterator[SourceFile]:
        entries: list[os.DirEntry[str]] = []
        with _readable(folder), os.scandir(folder) as scanned:
            entries.extend(scanned)
        names = {entry.name for entry in entries}
        if path and any(marks <= names for marks in _MARKS):
            return
        prefix = f"{path}/" if path else ""
        if self.kind in names and (folder / self.kind).is_file():
            with _readable(folder / self.kind):
                rules = Rules.read(read_regular(folder / self.kind, _LARGEST_FILE))
                levels = [_Level(len(os.fsencode(prefix)), rules), *levels]
        for entry in entries:
            yield from self._entry(entry, prefix + entry.name, levels)

    def _entry(
        self, entry: os.DirEntry[str], path: str, levels: list[_Level]
    ) -> Iterator[SourceFile]:
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_never_sent(path, is_folder) or _is_ignored(path, is_folder, levels):
            return
        is_allowed = path in self.allowed
        if not is_allowed and may_hold_secrets(path, is_folder):
            self.withheld.append(f"{path}/" if is_folder else path)
            if is_folder:
                yield from self._allowed_below(path)
            return
        if is_folder:
            if not self._is_apart(Path(entry.path)):
                yield from self.folder(Path(entry.path), path, levels)
        elif entry.is_symlink():
            yield from self._link(Path(entry.path), path, levels)
        elif entry.is_file(follow_symlinks=False):
            yield from _found(path, Path(entry.path), is_allowed)

    def _is_apart(self, folder: Path) -> bool:
        return any(folder.name == path.name for path in self.apart) and (
            folder.resolve() in self.apart
        )

    def _allowed_below(self, folder: str) -> Iterator[SourceFile]:
        """Of a folder that is left out, the files that are named one by one."""
        for path in sorted(self.allowed.paths):
            source = self.root / path
            is_plain = ".." not in path.split("/") and source.is_file()
            if path.startswith(f"{folder}/") and is_plain and source.resolve() == source:
                yield from _found(path, source, is_allowed=True)

    def _link(self, link: Path, path: str, levels: list[_Level]) -> Iterator[SourceFile]:
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # broken or circular
            return
        if not target.is_relative_to(self.root):
            raise BadJob(
                where=path,
                reason="this link leads out of the code folder: copy its target, or exclude "
                f"it with a line in {self.kind}",
            )
        if target in self.apart or any(folder in self.apart for folder in target.parents):
            return
        inside = target.relative_to(self.root).as_posix()
        parts = inside.split("/")
        above = ("/".join(parts[:end]) for end in range(1, len(parts)))
        if any(is_never_sent(folder, True) for folder in above):
            return  # a link does not expose what is never sent
        if is_never_sent(inside, target.is_dir()):
            return
        if may_hold_secrets(inside, target.is_dir()) and path not in self.allowed:
            self.withheld.append(path)
        elif target.is_file():
            yield from _found(path, target, path in self.allowed)
        elif target.is_dir():
            is_loop = link.parent.resolve().is_relative_to(target)
            if is_loop or target in self.through:
                return
            walk = replace(self, through=(*self.through, target))
            yield from walk.folder(link, path, levels)


def _found(path: str, source: Path, is_allowed: bool) -> list[SourceFile]:
    """One file, or none if it was removed since it was found."""
    files = []
    with _readable(source):
        files.append(SourceFile(path, source, source.lstat().st_size, is_allowed))
    return files


def _is_ignored(path: str, is_folder: bool, levels: list[_Level]) -> bool:
    name = os.fsencode(path) if levels else b""
    for level in levels:
        ignored = level.rules.ignores(name[level.above :], is_folder)
        if ignored is not None:
            return ignored
    return False


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What was removed since it was found has nothing to send."""
    try:
        yield
    except OSError as error:
        if error.errno in _GONE:
            return
        raise LocalFileError(path=path, reason=f"cannot be read: {error.strerror}") from None
