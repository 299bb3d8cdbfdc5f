"""Which jobs a verb is about: a folder, a name, a prefix, a glob, `all`, `last`, a tag, a state."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from edgeloop.errors import NoSuchJob
from edgeloop.jobs.protocol.ticket import State
from edgeloop.jobs.records import Run


@dataclass(frozen=True)
class Selection:
    """Runs from the oldest to the newest, each once.

    `exact`: every one was named by itself, so nothing can have been hit by surprise; a verb that
    changes something asks first where this is False and there are several.
    """

    runs: tuple[Run, ...]
    exact: bool


def select(
    runs: Sequence[Run],
    patterns: Sequence[str],
    tag: str = "",
    states: Collection[State] = (),
    folder: Path = Path("runs"),
) -> Selection:
    """The runs that some pattern names (none: all of them) and that have the tag and a state.

    Raises NoSuchJob for a pattern that names nothing. That a tag or a state leaves none is no
    error: nothing is in that state now.
    """
    chosen: dict[str, Run] = {}
    exact = bool(patterns)
    for pattern in patterns or ("all",):
        found, named = _named(list(runs), pattern, folder)
        exact = exact and named
        chosen |= {run.name: run for run in found}
    kept = [
        run
        for run in chosen.values()
        if (not tag or tag in run.record.tags) and (not states or run.state in states)
    ]
    return Selection(tuple(sorted(kept, key=_age)), exact)


def _named(runs: list[Run], pattern: str, folder: Path) -> tuple[list[Run], bool]:
    """What one pattern names, and whether it did so exactly."""
    if pattern == "all":
        return runs, False
    if pattern == "last":
        newest = max(runs, key=_age, default=None)
        found = [newest] if newest is not None else []
    else:
        name = _without_folder(pattern, folder)
        found = [run for run in runs if run.name == name]
        if not found and name:
            matches = [run for run in runs if _matches(run.name, name)]
            if matches:
                return matches, False
    if not found:
        raise NoSuchJob(pattern=pattern, folder=folder.name, hint=_hint(runs, pattern, folder))
    return found, True


def _without_folder(pattern: str, folder: Path) -> str:
    """`runs/lr-3`, `./runs/lr-3/` and `.` inside that folder are `lr-3`; other paths are none."""
    if "/" not in pattern and pattern not in (".", ".."):
        return pattern
    path = Path(os.path.normpath(Path(pattern).absolute()))
    for base, found in ((folder.absolute(), path), (folder.resolve(), path.resolve())):
        if found.parent == base:
            return found.name
    return ""


def _matches(name: str, pattern: str) -> bool:
    if any(char in pattern for char in "*?["):
        return fnmatchcase(name, pattern)
    return name.startswith(pattern)


def _hint(runs: list[Run], pattern: str, folder: Path) -> str:
    name = _without_folder(pattern, folder) or Path(pattern).name
    near = difflib.get_close_matches(name, [run.name for run in runs], n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


def _age(run: Run) -> tuple[float, str]:
    return run.record.created.timestamp(), run.name
