"""The searches of the project, from the tables that each leaves in its folder as it goes on."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from edgeloop._util.redact import redact
from edgeloop._util.yaml import NotYaml, parse_yaml
from edgeloop.errors import NotFound
from edgeloop.portal.state import Portal, frame_of
from edgeloop.portal.views.shapes import Iteration, SearchesView, SearchLine, SearchView

SEARCHES = "searches"
KEPT_CONFIG = "search.yaml"
MOST_SEARCHES = 200
MOST_CANDIDATES = 500
LARGEST_BYTES = 32 << 20
_STATE = re.compile(r"search_state_(\d+)\.csv")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Rows = Sequence[Mapping[str, str]]


def searches_view(portal: Portal, experiment: str | None = None) -> SearchesView:
    lines, damaged = [], []
    for folder in _folders(portal.workspace.settings.project):
        try:
            lines.append(_line(folder, _states(folder)))
        except (OSError, ValueError, csv.Error) as error:
            damaged.append(f"{folder.name} cannot be read: {redact(str(error))}")
    lines.sort(key=lambda line: -(line.updated or 0.0))
    return SearchesView(frame_of(portal, experiment), tuple(lines), tuple(damaged))


def search_view(portal: Portal, experiment: str | None, name: str) -> SearchView:
    known = {folder.name: folder for folder in _folders(portal.workspace.settings.project)}
    if name not in known:
        raise NotFound(reason=f"There is no search {name!r} in the folder {SEARCHES}.")
    folder = known[name]
    try:
        states, curve = _states(folder), _curve(folder)
        front, line = _table(folder / "front.csv"), _line(folder, states)
    except (OSError, ValueError, csv.Error) as error:
        raise NotFound(
            reason=f"The search {name!r} cannot be read: {redact(str(error))}."
        ) from None
    return SearchView(
        frame_of(portal, experiment),
        line,
        tuple(states[0]) if states else (),
        tuple(front),
        tuple(reversed(states[-MOST_CANDIDATES:])),
        _iterations(states, curve),
        tuple(curve),
    )


def _folders(project: Path) -> list[Path]:
    """Those that a search has begun in. Names are checked: they become parts of addresses."""
    home = project / SEARCHES
    if not home.is_dir():
        return []
    found = [f for f in home.iterdir() if _NAME.fullmatch(f.name) and (f / KEPT_CONFIG).is_file()]
    return sorted(found)[:MOST_SEARCHES]


def _line(folder: Path, states: Rows) -> SearchLine:
    document = _document(folder)
    objectives = document.get("objectives")
    curve = _curve(folder)
    last = folder / "hypervolume.csv"
    return SearchLine(
        name=folder.name,
        experiment=str(document.get("experiment") or ""),
        objectives=tuple(str(name) for name in objectives) if isinstance(objectives, dict) else (),
        counts=dict(Counter(row.get("state", "") for row in states)),
        candidates=len(states),
        iterations=len({row.get("iteration") for row in states}),
        front=sum(row.get("is_pareto") == "1" for row in states),
        hypervolume=curve[-1][1] if curve else None,
        updated=(last if last.is_file() else folder / KEPT_CONFIG).stat().st_mtime,
    )


def _document(folder: Path) -> Mapping[str, object]:
    try:
        found = parse_yaml(_text(folder / KEPT_CONFIG)).value
    except NotYaml as problem:
        raise ValueError(f"{KEPT_CONFIG} {problem}") from None
    return found if isinstance(found, dict) else {}


def _states(folder: Path) -> Rows:
    """The last of the tables: it has every candidate up to its iteration."""
    matches = ((_STATE.fullmatch(file.name), file) for file in folder.iterdir())
    numbered = [(int(match[1]), file) for match, file in matches if match]
    return _table(max(numbered)[1]) if numbered else []


def _curve(folder: Path) -> list[tuple[int, float]]:
    points = []
    for row in _table(folder / "hypervolume.csv"):
        count, volume = row.get("candidates", ""), _number(row.get("hypervolume"))
        if count.isdecimal() and volume is not None:
            points.append((int(count), volume))
    return points


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
    if not file.is_file():
        return []
    rows = csv.DictReader(_text(file).splitlines())
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
