"""Patterns of paths with many wildcards, matched in linear time.

As a regular expression, `*a*a*a*a*b` takes hours to find out that a name of sixty letters does not
match. This keeps all places in the path that a pattern may have reached: none is looked at twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Test = Callable[[int], bool]
    Part = str | Test  # one of the names below, or whether a character may stand here

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
