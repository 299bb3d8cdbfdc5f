"""Where the boxes of a network stand: in rows from top to bottom, each below all that it reads.

A connection that passes rows gets a lane through them, one for all that leave the same box. Rows
are ordered by the middle of their neighbours, as Sugiyama's method does, and then moved as near to
them as the others in their row allow (a weighted isotonic regression, which is exact). The drawing
is as wide as it is told: where a row has many boxes, they are narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeloop.report.network.folding import Box

BOX_HEIGHT, ROW_GAP = 28.0, 20.0
_WIDEST, _BOX_GAP, _LANE = 236.0, 14.0, 15.0
_SWEEPS, _MOVES = 8, 24
_LANE_WEIGHT, _BOX_WEIGHT = 2.0, 1.0


@dataclass(frozen=True)
class Placed:
    """The middle of the top of a box, and its width."""

    x: float
    y: float
    width: float


@dataclass(frozen=True)
class NetworkEdge:
    """From a box to another, by way of lanes: the middle of each row that it passes."""

    source: int
    target: int
    lanes: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Drawing:
    width: float
    height: float
    boxes: tuple[Placed, ...]
    connections: tuple[NetworkEdge, ...]


@dataclass(frozen=True)
class _Item:
    """A box in its row (`row` is -1), or the lane of a box in one row."""

    box: int
    row: int = -1


def arrange(boxes: Sequence[Box], width: float) -> Drawing:
    ranks = _ranks(boxes)
    rows, links = _items(boxes, ranks)
    widths = {item: size for row in rows for item, size in _widths(row, width).items()}
    near = _neighbours(links)
    for sweep in range(_SWEEPS):
        _order(rows, near, is_down=sweep % 2 == 0)
    x = _centred(_positions(rows, near, widths, width), widths, width)
    step = BOX_HEIGHT + ROW_GAP
    placed = tuple(
        Placed(x[_Item(number)], ranks[number] * step, widths[_Item(number)])
        for number in range(len(boxes))
    )
    connections = []
    for target, box in enumerate(boxes):
        for source in box.inputs:
            passed = range(ranks[source] + 1, ranks[target])
            lanes = tuple((x[_Item(source, row)], row * step) for row in passed)
            connections.append(NetworkEdge(source, target, lanes))
    return Drawing(width, len(rows) * step - ROW_GAP, placed, tuple(connections))


def _ranks(boxes: Sequence[Box]) -> list[int]:
    """As far down as the longest way to it; what reads nothing stands right above its reader."""
    ranks: list[int] = []
    for box in boxes:
        ranks.append(1 + max((ranks[source] for source in box.inputs), default=-1))
    for number, box in enumerate(boxes):
        readers = [ranks[other] for other, reader in enumerate(boxes) if number in reader.inputs]
        if not box.inputs and readers:
            ranks[number] = min(readers) - 1
    return ranks


_Links = list[tuple[_Item, _Item]]
_Near = Mapping[_Item, tuple[list[_Item], list[_Item]]]  # those above, those below


def _items(boxes: Sequence[Box], ranks: Sequence[int]) -> tuple[list[list[_Item]], _Links]:
    """What stands in each row, and what is connected between neighbouring rows."""
    rows: list[list[_Item]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    farthest = list(ranks)
    for target, box in enumerate(boxes):
        for source in box.inputs:
            farthest[source] = max(farthest[source], ranks[target])
    links: _Links = []
    for number in range(len(boxes)):
        item = _Item(number)
        rows[ranks[number]].append(item)
        for row in range(ranks[number] + 1, farthest[number]):
            lane = _Item(number, row)
            rows[row].append(lane)
            links.append((item, lane))
            item = lane
    for target, box in enumerate(boxes):
        for source in box.inputs:
            row = ranks[target] - 1
            links.append((_Item(source, row if row > ranks[source] else -1), _Item(target)))
    return rows, links


def _neighbours(links: _Links) -> _Near:
    """Those above and those below."""
    near: dict[_Item, tuple[list[_Item], list[_Item]]] = {}
    for upper, lower in links:
        near.setdefault(upper, ([], []))[1].append(lower)
        near.setdefault(lower, ([], []))[0].append(upper)
    return near


def _order(
    rows: list[list[_Item]],
    near: _Near,
    is_down: bool,
) -> None:
    side, step = (0, -1) if is_down else (1, 1)
    for number in range(len(rows)) if is_down else reversed(range(len(rows))):
        row, other = rows[number], number + step
        own = {item: place for place, item in enumerate(row)}
        others = _fractions(row, rows[other] if 0 <= other < len(rows) else (), near, side)
        row.sort(key=lambda item: (others.get(item, own[item] / max(1, len(own))), own[item]))


def _fractions(
    row: Sequence[_Item],
    other: Sequence[_Item],
    near: _Near,
    side: int,
) -> dict[_Item, float]:
    """Where the neighbours of each stand in the other row on average, from 0 to 1."""
    at = {item: (number + 0.5) / len(other) for number, item in enumerate(other)}
    found = {}
    for item in row:
        known = [at[one] for one in near.get(item, ((), ()))[side] if one in at]
        if known:
            found[item] = sum(known) / len(known)
    return found


def _widths(row: Sequence[_Item], width: float) -> dict[_Item, float]:
    boxes = sum(1 for item in row if item.row < 0)
    lanes = len(row) - boxes
    lane = min(_LANE, 0.5 * width / max(1, lanes))
    room = (width - lanes * lane) / max(1, boxes) - (_BOX_GAP if len(row) > 1 else 0)
    return {item: lane if item.row >= 0 else max(4.0, min(_WIDEST, room)) for item in row}


def _positions(
    rows: list[list[_Item]],
    near: _Near,
    widths: Mapping[_Item, float],
    width: float,
) -> dict[_Item, float]:
    x: dict[_Item, float] = {}
    columns = _columns(rows, near)
    wishes: dict[_Item, float] = {}
    for sweep in range(_MOVES):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wished = [
                wishes[columns[item]] if wishes else _wish(item, near, x, width / 2) for item in row
            ]
            x.update(zip(row, _spread(row, wished, widths, width), strict=True))
        wishes = _column_wishes(columns, near, x, is_drawn=sweep < _MOVES / 2)
    return _straightened(x, columns)


def _straightened(x: Mapping[_Item, float], columns: Mapping[_Item, _Item]) -> dict[_Item, float]:
    """Columns that are almost straight become so; the gaps between boxes have room for that."""
    parts: dict[_Item, list[float]] = {}
    for item, column in columns.items():
        parts.setdefault(column, []).append(x[item])
    almost = {
        column: (min(places) + max(places)) / 2
        for column, places in parts.items()
        if max(places) - min(places) < _BOX_GAP / 2
    }
    return {item: almost.get(columns[item], place) for item, place in x.items()}


def _centred(
    x: Mapping[_Item, float], widths: Mapping[_Item, float], width: float
) -> dict[_Item, float]:
    left = min((place - widths[item] / 2 for item, place in x.items()), default=0.0)
    right = max((place + widths[item] / 2 for item, place in x.items()), default=width)
    return {item: place + (width - left - right) / 2 for item, place in x.items()}


def _columns(rows: list[list[_Item]], near: _Near) -> dict[_Item, _Item]:
    """What should stand exactly below each other: a lane in all its rows, and a box with the first
    of those that it leads to, if it is also the first that leads there. Each by its topmost."""
    found = {item: item for row in rows for item in row}
    for row in rows:
        for item in row:
            above = near.get(item, ([], []))[0]
            kin = [one for one in above if (one.row < 0) == (item.row < 0)]
            if kin and _first_below(kin[0], near) == item:
                found[item] = found[kin[0]]
    return found


def _first_below(item: _Item, near: _Near) -> _Item | None:
    below = [one for one in near[item][1] if (one.row < 0) == (item.row < 0)]
    return below[0] if below else None


def _column_wishes(
    columns: Mapping[_Item, _Item], near: _Near, x: Mapping[_Item, float], is_drawn: bool
) -> dict[_Item, float]:
    """In the middle of where its parts are, drawn towards the boxes of other columns that they are
    connected with; a lane towards the box that it comes from, as long as it `is_drawn` there. At
    last it should be straight only."""
    own: dict[_Item, list[float]] = {}
    others: dict[_Item, list[float]] = {}
    for item, column in columns.items():
        own.setdefault(column, []).append(x[item])
        above, below = near.get(item, ([], []))
        for one in (*above, *below) if item.row < 0 else (_Item(item.box),) * is_drawn:
            if one.row < 0 and columns[one] != column:
                others.setdefault(column, []).append(x[one])
    found = {}
    for column, places in own.items():
        found[column] = middle = sum(places) / len(places)
        if pull := others.get(column):
            found[column] = 0.7 * middle + 0.3 * sum(pull) / len(pull)
    return found


def _wish(item: _Item, near: _Near, x: Mapping[_Item, float], otherwise: float) -> float:
    """For the first time: below what is above."""
    known = [one for one in near.get(item, ([], []))[0] if one in x]
    boxes = [one for one in known if one.row < 0] or known
    return sum(x[one] for one in boxes) / len(boxes) if boxes else otherwise


def _spread(
    row: Sequence[_Item],
    wished: Sequence[float],
    widths: Mapping[_Item, float],
    width: float,
) -> list[float]:
    """As near as possible to what is wished, in this order, apart, and inside the drawing."""
    offsets, edge = [], 0.0
    for item in row:
        gap = _BOX_GAP / 2 if item.row < 0 and len(row) > 1 else 0.0
        half = widths[item] / 2 + gap
        offsets.append(edge + half)
        edge += 2 * half
    free = max(0.0, width - edge)
    pools: list[list[float]] = []  # sum of weighted wishes, weight, count
    for item, wish, offset in zip(row, wished, offsets, strict=True):
        weight = _BOX_WEIGHT if item.row < 0 else _LANE_WEIGHT
        pools.append([weight * (wish - offset), weight, 1])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            last = pools.pop()
            pools[-1] = [one + two for one, two in zip(pools[-1], last, strict=True)]
    shifts = [p[0] / p[1] for p in pools for _ in range(int(p[2]))]
    return [o + min(max(s, 0.0), free) for o, s in zip(offsets, shifts, strict=True)]
