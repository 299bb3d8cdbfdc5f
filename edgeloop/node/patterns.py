"""Patterns of files that a job creates beside `outputs/`: `results`, `logs/*/best`, `**/*.ckpt`.
Needs only the standard library: nodes match them too.

A pattern is relative to the folder that the command starts in. `*`, `?` and `[a-z]` stay within one
name, `**` stands for any number of folders, and a folder means everything in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Test = Callable[[int], bool]
    Part = str | Test  # one of the names below, or whether a character may stand here


LONGEST_PATTERN = 200
MOST_PATTERNS = 50
_STAR = "[^/]*"


def check_pattern(text: str) -> str:
    """The pattern in its plain form; raises ValueError if it could lead out of the job's folder."""
    plain = text
    while plain.startswith("./"):
        plain = plain[2:].lstrip("/")
    plain = plain.rstrip("/") if plain.strip("/") else plain
    if not plain or plain == ".":
        raise ValueError(
            f"must name files below the job's folder, for example 'results', not {text!r}"
        )
    if len(plain) > LONGEST_PATTERN:
        raise ValueError(f"has more than {LONGEST_PATTERN} characters: {plain[:40]!r}…")
    if not plain.isprintable() or "\\" in plain:
        raise ValueError(f"has a backslash or an unprintable character: {text!r}")
    if plain.startswith(("/", "~")) or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", plain):
        reason = "must be relative to the folder that the command starts in"
        raise ValueError(f"{reason}, for example 'results', not {text!r}")
    if any(part in ("", ".", "..") for part in plain.split("/")):
        raise ValueError(f"may not hold '..', '.' or empty parts: {text!r}")
    return plain


class FilePatterns:
    """Several patterns as one."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(check_pattern(text) for text in patterns)
        self._wild: list[tuple[Part, ...]] = []
        tame: list[str] = []
        for text in self.patterns:
            parts = _parts(text)
            if is_wild(parts):
                self._wild += [parts, (*parts, ord("/").__eq__, ANY)]
            else:
                tame.append(_expression(text))
        joined = "|".join(tame)
        self._regex = re.compile(f"(?:{joined})(?:/.*)?", re.DOTALL) if tame else None

    def matches(self, name: str) -> bool:
        """Whether a file is one of them, or is inside a folder that is; `/` separates folders."""
        if self._regex is not None and self._regex.fullmatch(name) is not None:
            return True
        points = [ord(char) for char in name] if self._wild else []
        return any(matches(parts, points) for parts in self._wild)


def _expression(pattern: str) -> str:
    expression, parts = "", pattern.split("/")
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            expression += ".*" if is_last else "(?:[^/]+/)*"
        else:
            expression += _name(part) + ("" if is_last else "/")
    return expression


def _parts(pattern: str) -> tuple[Part, ...]:
    """The same as `_expression`, for `matches`."""
    found: list[Part] = []
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            found.append(ANY if is_last else FOLDERS)
            continue
        found += [STAR if piece == _STAR else _test(piece) for piece in _pieces(part)]
        found += [] if is_last else [ord("/").__eq__]
    return tuple(found)


def _test(piece: str) -> Test:
    regex = re.compile(piece, re.DOTALL)
    return lambda point: regex.fullmatch(chr(point)) is not None


def _name(part: str) -> str:
    return "".join(_pieces(part))


def _pieces(part: str) -> list[str]:
    """One name of a path."""
    pieces: list[str] = []
    at = 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            if pieces[-1:] != [_STAR]:  # several stars mean the same as one
                pieces.append(_STAR)
        elif char == "?":
            pieces.append("[^/]")
        elif char == "[":
            piece, at = _characters(part, at)
            pieces.append(piece)
        else:
            pieces.append(re.escape(char))
    return pieces


def _characters(part: str, at: int) -> tuple[str, int]:
    """`[abc]`, `[a-z]` or `[!abc]`; a bracket that is never closed stands for itself."""
    end = part.find("]", at + (2 if part[at : at + 1] == "!" else 1))
    if end < 0:
        return re.escape("["), at
    negated, inside = part[at] == "!", part[at:end].lstrip("!") if part[at] == "!" else part[at:end]
    safe = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside)
    try:
        re.compile(f"[{safe}]")
    except re.error:  # a range that runs backwards
        return re.escape(part[at - 1 : end + 1]), end + 1
    return f"(?!/)[{'^' if negated else ''}{safe}]", end + 1


# Patterns of paths with many wildcards, matched in linear time.
#
# As a regular expression, `*a*a*a*a*b` takes hours to find out that a name of sixty letters does
# not match. This keeps all places in the path that a pattern may have reached: none is looked at
# twice.


STAR = "*"  # any part of one name
ANY = "**"  # anything
FOLDERS = "**/"  # any number of folders


def is_wild(parts: Sequence[Part], most: int = 3) -> bool:
    """Whether a regular expression may take too long."""
    return sum(isinstance(part, str) for part in parts) > most


def matches(parts: Sequence[Part], path: Sequence[int]) -> bool:
    """`path` is bytes, or the code points of a text."""
    reached = [0]
    for part in parts:
        reached = _after(part, path, reached)
        if not reached:
            return False
    return reached[-1] == len(path)


def _after(part: Part, path: Sequence[int], reached: list[int]) -> list[int]:
    """The places after this part, in order."""
    end, slash = len(path), ord("/")
    if part == ANY:
        return list(range(reached[0], end + 1))
    if part == FOLDERS:
        behind = {at + 1 for at in range(reached[0], end) if path[at] == slash}
        return sorted(behind.union(reached))
    if isinstance(part, str):
        found: list[int] = []
        for start in reached:
            at = start
            while not found or at > found[-1]:  # what comes after an earlier place is known
                found.append(at)
                if at == end or path[at] == slash:
                    break
                at += 1
        return found
    return [at + 1 for at in reached if at < end and part(path[at])]
