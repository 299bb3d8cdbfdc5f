"""The table: filtered, sorted and paged, from memory."""

from __future__ import annotations

import fnmatch
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgeloop.errors import NoSuchModel
from edgeloop.models.columns import (
    LATENCY,
    SCORE_COLUMNS,
    Column,
    ScoreMeaning,
    attention_rank,
    column_in_unit,
    column_named,
    column_of,
    is_estimate,
    is_lower_bound,
    latency_interval,
    latency_notes,
    mean_latency_ms,
    natural_key,
    ran_on,
    score_meaning,
    shown_scores,
    visible_columns,
)
from edgeloop.store import Values
from edgeloop.view.measures import measure_of, quality_column
from edgeloop.view.portal.feed import Row, TableSnapshot, seconds_of
from edgeloop.view.portal.shapes import (
    PAGE_SIZES,
    Choices,
    Heading,
    Line,
    ParetoQuery,
    TableQuery,
    TableView,
    Work,
)
from edgeloop.view.portal.state import Portal, frame_of

NUMBERS = (LATENCY, "macs", *SCORE_COLUMNS)
OF_WORK = ("since", "node")
_NEVER = frozenset({"name", "status", "error"})  # name and status are always there, with the error
MOST_CHOICES = 200


def table_view(
    portal: Portal, experiment: str | None = None, query: TableQuery | None = None
) -> TableView:
    query = query or TableQuery()
    size = query.size if query.size in PAGE_SIZES else PAGE_SIZES[0]
    query = replace(query, page=max(1, query.page), size=size)
    snapshot = portal.rows(experiment)
    frame = frame_of(portal, experiment)
    rows = matching(portal, snapshot, frame.experiment, query)
    pages = max(1, math.ceil(len(rows) / query.size))
    query = replace(query, page=min(query.page, pages))
    first = (query.page - 1) * query.size
    now = time.time()
    counts, choices = summary_of(portal, snapshot, frame.experiment)
    columns, metric = columns_of(portal, snapshot, frame.experiment)
    offered = offered_columns(portal, snapshot, frame.experiment)
    asked = {column_named(column) for column in query.columns}
    chosen = tuple(name for name in offered if name in asked)
    columns = chosen or (*OF_WORK, *columns, "device")
    units = units_of(portal, snapshot, frame.experiment, columns)
    return TableView(
        frame=frame,
        query=query,
        headings=headings(columns, metric, offered, units),
        lines=tuple(line_of(row, now, columns, units) for row in rows[first : first + query.size]),
        counts=counts,
        matching=len(rows),
        total=len(snapshot.rows),
        pages=pages,
        choices=choices,
        offered=headings(tuple(offered), metric, offered)[2:],
    )


def line_view(portal: Portal, experiment: str | None, name: str) -> Line:
    """One model as the table shows it."""
    row = portal.rows(experiment).rows.get(name)
    if row is None:
        shown = experiment or portal.workspace.experiment
        raise NoSuchModel(pattern=name, experiment=shown)
    return line_of(row, time.time())


def columns_of(
    portal: Portal, snapshot: TableSnapshot, experiment: str
) -> tuple[Sequence[str], ScoreMeaning]:
    """The columns with numbers that its rows have, and what scores are; once per generation."""
    key = ("numbers", experiment, snapshot.generation, id(snapshot.rows))

    def make() -> tuple[Sequence[str], ScoreMeaning]:
        rows = [row.values for row in snapshot.rows.values()]
        return in_reading_order(rows), score_meaning(rows)

    return portal.cache.get(key, make)


def in_reading_order(rows: Sequence[Values]) -> tuple[str, ...]:
    """Latency and the score that people compare first: a phone shows no more."""
    quality = quality_column(rows)
    scores = shown_scores(rows)
    first = [quality] if quality in scores else [quality, *scores[:1]]
    return (LATENCY, *dict.fromkeys([*first, "macs", *scores]))


def units_of(
    portal: Portal, snapshot: TableSnapshot, experiment: str, columns: Sequence[str]
) -> Mapping[str, Column]:
    """Each column in the one unit that suits all models, on whichever page of the table."""
    key = ("units", experiment, snapshot.generation, id(snapshot.rows), tuple(columns))

    def make() -> Mapping[str, Column]:
        rows = [row.values for row in snapshot.rows.values()]
        return {column: column_in_unit(column, rows) for column in columns}

    return portal.cache.get(key, make)


def offered_columns(portal: Portal, snapshot: TableSnapshot, experiment: str) -> Mapping[str, bool]:
    """Every column that some row has and a table can show, and whether it holds numbers; once per
    generation. Rows of one kind have the same columns, so one of each kind is looked at."""
    key = ("offered", experiment, snapshot.generation, id(snapshot.rows))

    def make() -> Mapping[str, bool]:
        kinds = {tuple(row.values): row.values for row in snapshot.rows.values()}
        present = visible_columns(kinds.values())
        shown = [name for name in present if name not in _NEVER and column_of(name).kind != "json"]
        every = dict.fromkeys((*OF_WORK, LATENCY, *shown))
        return {name: any(_is_number(values, name) for values in kinds.values()) for name in every}

    return portal.cache.get(key, make)


def headings(
    columns: Sequence[str] = (*OF_WORK, *NUMBERS, "device"),
    metric: str | ScoreMeaning = "f1",
    are_numbers: Mapping[str, bool] | None = None,
    units: Mapping[str, Column] | None = None,
) -> tuple[Heading, ...]:
    """Name and status come first. Columns that `are_numbers` says nothing of hold numbers, unless
    they are always texts. `units` are the columns that are shown in another unit than their own."""
    numeric = are_numbers or {}
    measures = [measure_of(column, metric) for column in columns]
    if units:
        measures = [units[m.name] if m.unit == "ms" and m.name in units else m for m in measures]
    return (
        Heading("name", "name", "", False),
        Heading("status", "status", "", False),
        *(
            Heading(m.name, _title(m), m.unit, numeric.get(m.name, True) and m.kind != "text")
            for m in measures
        ),
    )


def _is_number(values: Values, column: str) -> bool:
    measure = measure_of(column)
    return measure.kind != "text" and not math.isnan(measure.of(values))


def _title(measure: Column) -> str:
    """Without the unit, which stands beside it."""
    is_shown = measure.group == "score" or measure.suffix
    return measure.short or (measure.heading if is_shown else measure.name)


def line_of(
    row: Row,
    now: float,
    columns: Sequence[str] = (*OF_WORK, *NUMBERS, "device"),
    units: Mapping[str, Column] | None = None,
) -> Line:
    measures = {**{column: measure_of(column) for column in columns}, **(units or {})}
    return Line(
        name=row.name,
        status=row.text("status"),
        word=row.word,
        cells=(row.name, row.text("status"), *(cell_text(row, measures[c]) for c in columns)),
        is_estimate=is_estimate(row.values),
        is_lower_bound=is_lower_bound(row.values),
        interval=latency_interval(row.values),
        latency_note=latency_notes(row.values),
        error=row.text("error"),
        tags=row.tags,
        device=row.text("device"),
        since=seconds_of(row.text("since")),
        work=work_of(row, now),
        waiting=row.waiting(now),
    )


def work_of(row: Row, now: float) -> tuple[Work, ...]:
    return tuple(
        Work(held.stage, held.node, held.since, held.expires, held.expires < now)
        for held in row.held
    )


def matching(
    portal: Portal, snapshot: TableSnapshot, experiment: str, query: TableQuery
) -> Sequence[Row]:
    """All rows of a query, sorted; its pages share the work. Whether a stage waits depends on the
    time, too: leases expire."""
    whole = replace(query, page=1, size=PAGE_SIZES[0], columns=())
    moment = int(time.time() // 2) if query.stage else 0
    key = ("table", experiment, snapshot.generation, id(snapshot.rows), whole, moment)
    return portal.cache.get(key, lambda: _sorted(_kept(snapshot.rows.values(), query), query))


def filtered(rows: Iterable[Row], query: ParetoQuery) -> list[Row]:
    """Those that a front compares. Its device is chosen later: an architecture may have the numbers
    of one in several rows."""
    return _kept(rows, TableQuery(query.text, query.status, query.tag))


def summary_of(
    portal: Portal, snapshot: TableSnapshot, experiment: str
) -> tuple[Mapping[str, int], Choices]:
    """Counts by status and the choices of the filters, once per generation."""
    key = ("summary", experiment, snapshot.generation, id(snapshot.rows))
    return portal.cache.get(key, lambda: _summary(snapshot.rows.values(), portal))


def _summary(rows: Iterable[Row], portal: Portal) -> tuple[Mapping[str, int], Choices]:
    words: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    stages = {stage.name for stage in portal.workspace.plan.stages}
    for row in rows:
        stages.update(work.stage for work in row.left)
        words[row.word] += 1
        if row.tags:
            tags.update(row.tags)
        if device := row.values.get("device"):
            devices[str(device)] += 1
        if row.held:
            nodes.update(held.node for held in row.held)
        elif node := row.values.get("node"):
            nodes[str(node)] += 1
    return dict(sorted(words.items())), Choices(
        tuple(sorted(words)),
        _most(tags),
        tuple(portal.workspace.plan.in_order(stages)[:MOST_CHOICES]),
        _most(devices),
        _most(nodes),
    )


def _most(counter: Counter[str]) -> tuple[str, ...]:
    return tuple(name for name, _ in counter.most_common(MOST_CHOICES))


def _kept(rows: Iterable[Row], query: TableQuery) -> list[Row]:
    tests: list[Callable[[Row], bool]] = []
    if query.status:
        tests.append(lambda row: row.word == query.status)
    if query.tag:
        tests.append(lambda row: query.tag in row.tags)
    if query.device:
        tests.append(lambda row: ran_on(row.values, query.device))
    if query.node:
        tests.append(
            lambda row: (
                row.values.get("node") == query.node
                or any(held.node == query.node for held in row.held)
            )
        )
    if query.stage:
        now = time.time()
        tests.append(
            lambda row: (
                any(held.stage == query.stage for held in row.held)
                or query.stage in row.waiting(now)
            )
        )
    if query.text:
        tests.append(_text_test(query.text))
    return [row for row in rows if all(test(row) for test in tests)] if tests else list(rows)


def _text_test(text: str) -> Callable[[Row], bool]:
    if any(char in text for char in "*?["):
        pattern = re.compile(fnmatch.translate(text))
        return lambda row: pattern.match(row.name) is not None
    folded = text.casefold()

    def has(row: Row) -> bool:
        return (
            folded in row.name.casefold()
            or any(folded in tag.casefold() for tag in row.tags)
            or folded in row.text("error").casefold()
        )

    return has


def _sorted(rows: list[Row], query: TableQuery) -> list[Row]:
    """Rows without a value always come last; equal ones by name, in which the feed is sorted."""
    if query.sort == "name":
        return rows[::-1] if query.descending else rows
    if not query.sort:
        return sorted(rows, key=lambda row: attention_rank(row.word))
    keys: list[Any] = [_sort_key(row, query.sort) for row in rows]
    kinds = (str, float) if query.descending else (float, str)
    present = [place for kind in kinds for place in _places_of(kind, keys, query.descending)]
    missing = [row for row, key in zip(rows, keys, strict=True) if key is None]
    return [rows[place] for place in present] + missing


def _places_of(kind: type, keys: Sequence[Any], is_descending: bool) -> list[int]:
    places = [place for place, key in enumerate(keys) if isinstance(key, kind)]
    return sorted(places, key=keys.__getitem__, reverse=is_descending)


def _sort_key(row: Row, column: str) -> float | str | None:
    """Numbers before texts; a text that is a number counts as one."""
    if column == "node" and row.held:
        return row.held[0].node
    value = measure_of(column).of(row.values)
    if not math.isnan(value):
        return float(value)
    text = row.text(column)
    return natural_key(text) if text and text != "nan" else None


def cell_text(row: Row, measure: Column) -> str:
    """A number in the unit of its heading, or a text, which may be shortened."""
    column = measure.name
    if measure.kind == "text":
        return row.text(column)
    if column == LATENCY and is_lower_bound(row.values):
        factor = measure.factor / measure_of(LATENCY).factor
        return f"≥ {measure.text(factor * mean_latency_ms(row.values))}"
    if text := measure.text(measure.of(row.values)):
        return text
    value = row.values.get(column)
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)
