"""The searches of the project, from the tables that each keeps in its folder; and those that ran
as jobs, once their results were fetched.

`candidates.csv` grows while a search runs: its last line may be incomplete, and who is on the front
is worked out here. Folders of older versions have `search_state_<n>.csv` and `front.csv` instead.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgeloop._util.redact import redact
from edgeloop._util.yaml import NotYaml, parse_yaml
from edgeloop.errors import NotFound
from edgeloop.pareto import non_dominated
from edgeloop.portal.shapes import Iteration, SearchesView, SearchLine, SearchView
from edgeloop.portal.state import Portal, frame_of
from edgeloop.search import found_searches

CANDIDATES = "candidates.csv"
KEPT_CONFIG = "search.yaml"
MOST_SEARCHES = 200
MOST_CANDIDATES = 500
LARGEST_BYTES = 32 << 20
_STATE = re.compile(r"search_state_(\d+)\.csv")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Rows = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class _Tables:
    document: Mapping[str, object]
    candidates: Rows
    front: Rows
    curve: Sequence[tuple[int, float]]

    @property
    def objectives(self) -> Mapping[str, object]:
        found = self.document.get("objectives")
        return found if isinstance(found, dict) else {}


def searches_view(portal: Portal, experiment: str | None = None) -> SearchesView:
    lines, damaged = [], []
    for name, folder in _folders(portal.workspace.settings.project).items():
        try:
            lines.append(_line(name, folder, _read(folder)))
        except (OSError, ValueError, csv.Error) as error:
            damaged.append(f"{name} cannot be read: {redact(str(error))}")
    lines.sort(key=lambda line: -(line.updated or 0.0))
    return SearchesView(frame_of(portal, experiment), tuple(lines), tuple(damaged))


def search_view(portal: Portal, experiment: str | None, name: str) -> SearchView:
    known = _folders(portal.workspace.settings.project)
    if name not in known:
        raise NotFound(reason=f"There is no search {name!r} in this project.")
    try:
        tables = _read(known[name])
        line = _line(name, known[name], tables)
    except (OSError, ValueError, csv.Error) as error:
        raise NotFound(
            reason=f"The search {name!r} cannot be read: {redact(str(error))}."
        ) from None
    rows = tables.candidates
    return SearchView(
        frame_of(portal, experiment),
        line,
        tuple(rows[0]) if rows else (),
        tuple(tables.front),
        tuple(reversed(rows[-MOST_CANDIDATES:])),
        _iterations(rows, tables.curve),
        tuple(tables.curve),
    )


def _folders(project: Path) -> dict[str, Path]:
    """Folders of searches, by name. Names are checked: they become parts of addresses."""
    found = {name: f for name, f in found_searches(project).items() if _NAME.fullmatch(name)}
    return dict(sorted(found.items())[:MOST_SEARCHES])


def _line(name: str, folder: Path, tables: _Tables) -> SearchLine:
    rows, curve = tables.candidates, tables.curve
    last = folder / "hypervolume.csv"
    return SearchLine(
        name=name,
        experiment=str(tables.document.get("experiment") or ""),
        objectives=tuple(map(str, tables.objectives)),
        counts=dict(Counter(row.get("state", "") for row in rows)),
        candidates=len(rows),
        iterations=len({row.get("iteration") for row in rows}),
        front=sum(row.get("is_pareto") == "1" for row in rows),
        hypervolume=curve[-1][1] if curve else None,
        updated=(last if last.is_file() else folder / KEPT_CONFIG).stat().st_mtime,
    )


def _read(folder: Path) -> _Tables:
    try:
        document = parse_yaml(_text(folder / KEPT_CONFIG)).value
    except NotYaml as error:
        raise ValueError(f"{KEPT_CONFIG} {error}") from None
    curve = []
    for row in _table(folder / "hypervolume.csv"):
        count, volume = row.get("candidates", ""), _number(row.get("hypervolume"))
        if count.isdecimal() and volume is not None:
            curve.append((int(count), volume))
    tables = _Tables(document if isinstance(document, dict) else {}, (), (), curve)
    if (folder / CANDIDATES).is_file():
        rows, front = _with_front(_table(folder / CANDIDATES), tables.objectives)
        return replace(tables, candidates=rows, front=front)
    matches = ((_STATE.fullmatch(file.name), file) for file in folder.iterdir())
    numbered = [(int(match[1]), file) for match, file in matches if match]
    rows = _table(max(numbered)[1]) if numbered else []  # the last one has all candidates
    return replace(tables, candidates=rows, front=_table(folder / "front.csv"))


def _with_front(rows: Rows, objectives: Mapping[str, object]) -> tuple[Rows, Rows]:
    """The rows with a column `is_pareto`, and those on the front, best first."""
    signs = {
        str(name): -1.0 if isinstance(options, dict) and options.get("goal") == "max" else 1.0
        for name, options in objectives.items()
    }
    points = [
        [sign * (_number(row.get(name)) or 0.0) for name, sign in signs.items()]
        if row.get("state") == "complete"
        and all(_number(row.get(name)) is not None for name in signs)
        else [math.nan] * len(signs)
        for row in rows
    ]
    is_front = non_dominated(points) if signs else [False] * len(rows)
    marked: list[Mapping[str, str]] = []
    for row, stays in zip(rows, is_front, strict=True):
        values = dict(row)
        reason = values.pop("reason", "")
        marked.append({**values, "is_pareto": str(int(stays)), "reason": reason})
    front = [place for place, stays in enumerate(is_front) if stays]
    return marked, [marked[place] for place in sorted(front, key=lambda place: points[place])]


def _iterations(states: Rows, curve: Iterable[tuple[int, float]]) -> tuple[Iteration, ...]:
    volumes = dict(curve)
    by_number: dict[int, list[Mapping[str, str]]] = {}
    for row in states:
        text = row.get("iteration", "")
        by_number.setdefault(int(text) if text.isdecimal() else 0, []).append(row)
    found, until = [], 0
    for number, rows in sorted(by_number.items()):
        until += len(rows)
        states_of = Counter(row.get("state") for row in rows)
        found.append(
            Iteration(
                number,
                len(rows),
                states_of["complete"],
                states_of["failed"],
                states_of["screened"],
                volumes.get(until),
            )
        )
    return tuple(found)


def _table(file: Path) -> list[dict[str, str]]:
    """Complete lines only: a search may be about to write the rest of the last one."""
    if not file.is_file():
        return []
    rows = csv.DictReader(_text(file).rpartition("\n")[0].splitlines())
    return [{str(key): redact(str(value or "")) for key, value in row.items()} for row in rows]


def _text(file: Path) -> str:
    if file.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{file.name} is larger than {LARGEST_BYTES >> 20} MB")
    return file.read_text(encoding="utf-8", errors="replace")


def _number(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if math.isfinite(found) else None
