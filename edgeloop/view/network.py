"""The graph of a network, coloured by the cost of its layers."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from edgeloop._util.redact import redact
from edgeloop._util.values import latency_text
from edgeloop.graph.outline import (
    INPUT,
    LARGEST_OUTLINE,
    MOST_LAYERS,
    OUTLINE_SUFFIX,
    OUTPUT,
    Outline,
    OutlineLayer,
    parse_outline,
)
from edgeloop.view.charts import read_file
from edgeloop.view.drawing import drawable
from edgeloop.workspace import Workspace

# Where the boxes of a network stand: in rows from top to bottom, each below all that it reads.
#
# A connection that passes rows gets a lane through them, one for all that leave the same box. Rows
# are ordered by the middle of their neighbours, as Sugiyama's method does, and then moved as near
# to them as the others in their row allow (a weighted isotonic regression, which is exact). The
# drawing is as wide as it is told: where a row has many boxes, they are narrow.


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
        places = {item: place for place, item in enumerate(row)}
        others = _fractions(row, rows[other] if 0 <= other < len(rows) else (), near, side)
        row.sort(
            key=lambda item: (others.get(item, places[item] / max(1, len(places))), places[item])
        )


def _fractions(
    row: Sequence[_Item],
    other: Sequence[_Item],
    near: _Near,
    side: int,
) -> dict[_Item, float]:
    """Where the neighbours of each stand in the other row on average, from 0 to 1."""
    at = {item: (number + 0.5) / len(other) for number, item in enumerate(other)}
    averages = {}
    for item in row:
        neighbours = [at[one] for one in near.get(item, ((), ()))[side] if one in at]
        if neighbours:
            averages[item] = sum(neighbours) / len(neighbours)
    return averages


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
    topmost = {item: item for row in rows for item in row}
    for row in rows:
        for item in row:
            above = near.get(item, ([], []))[0]
            kin = [one for one in above if (one.row < 0) == (item.row < 0)]
            if kin and _first_below(kin[0], near) == item:
                topmost[item] = topmost[kin[0]]
    return topmost


def _first_below(item: _Item, near: _Near) -> _Item | None:
    below = [one for one in near[item][1] if (one.row < 0) == (item.row < 0)]
    return below[0] if below else None


def _column_wishes(
    columns: Mapping[_Item, _Item], near: _Near, x: Mapping[_Item, float], is_drawn: bool
) -> dict[_Item, float]:
    """In the middle of where its parts are, drawn towards the boxes of other columns that they are
    connected with; a lane towards the box that it comes from, as long as it `is_drawn` there. At
    last it should be straight only."""
    column_places: dict[_Item, list[float]] = {}
    others: dict[_Item, list[float]] = {}
    for item, column in columns.items():
        column_places.setdefault(column, []).append(x[item])
        above, below = near.get(item, ([], []))
        for one in (*above, *below) if item.row < 0 else (_Item(item.box),) * is_drawn:
            if one.row < 0 and columns[one] != column:
                others.setdefault(column, []).append(x[one])
    wishes = {}
    for column, places in column_places.items():
        wishes[column] = middle = sum(places) / len(places)
        if pull := others.get(column):
            wishes[column] = 0.7 * middle + 0.3 * sum(pull) / len(pull)
    return wishes


def _wish(item: _Item, near: _Near, x: Mapping[_Item, float], otherwise: float) -> float:
    """For the first time: below what is above."""
    above = [one for one in near.get(item, ([], []))[0] if one in x]
    boxes = [one for one in above if one.row < 0] or above
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


# Layers of a large network folded into boxes, as many as a drawing can have.
#
# Two neighbours may become one where one of them has no other successor, or the other no other
# predecessor: that never makes a cycle. The cheapest pairs are first, small ones before large ones,
# so the layers that take the time stay alone, and equal layers end in groups of about equal size.


MOST_BOXES = 100
_ALONE = 12  # the costliest layers, which are folded last
_MOST_STEPS = 300_000


@dataclass(frozen=True)
class Box:
    """One layer or several, by their places in the outline; `inputs` are places of boxes. `time_us`
    is None where none of them has a time."""

    layers: tuple[int, ...]
    inputs: tuple[int, ...]
    time_us: float | None


def fold(
    outline: Outline, times_us: Mapping[int, float], most: int = MOST_BOXES
) -> tuple[Box, ...] | None:
    """In an order in which they can run. None where so few boxes cannot be made of it."""
    graph = _Graph(outline, times_us)
    if len(outline.layers) > most:
        costliest = sorted(times_us, key=lambda place: -times_us[place])[:_ALONE]
        if not graph.fold_to(most, frozenset(costliest)) and not graph.fold_to(most, frozenset()):
            return None
    return graph.boxes()


class _Graph:
    """Boxes by their first layers' places."""

    def __init__(self, outline: Outline, times_us: Mapping[int, float]) -> None:
        places = range(len(outline.layers))
        self._times_us = times_us
        self._after: dict[int, set[int]] = {place: set() for place in places}
        self._before = {place: set(outline.layers[place].inputs) for place in places}
        for place, sources in self._before.items():
            for source in sources:
                self._after[source].add(place)
        self._layers = {place: [place] for place in places}
        self._cost = {place: times_us.get(place, 0.0) for place in places}
        self._changes = dict.fromkeys(places, 0)
        self._ends = {p for p in places if outline.layers[p].operator in (INPUT, OUTPUT)}
        self._steps = 0

    def fold_to(self, most: int, alone: frozenset[int]) -> bool:
        """Whether no more than so many boxes are left."""
        single = self._ends | alone
        heap: list[tuple[float, int, int, int, int]] = []
        for place in self._layers:
            self._push(heap, place, single, only_after=True)
        while len(self._layers) > most and heap and self._steps < _MOST_STEPS:
            _, _, version, first, second = heapq.heappop(heap)
            is_there = first in self._layers and second in self._after[first]
            if is_there and version == self._changes[first] + self._changes[second]:
                self._join(first, second)
                self._push(heap, first, single)
        return len(self._layers) <= most

    def _push(
        self,
        heap: list[tuple[float, int, int, int, int]],
        place: int,
        single: frozenset[int] | set[int],
        only_after: bool = False,
    ) -> None:
        pairs = [(place, other) for other in self._after[place]]
        pairs += [] if only_after else [(other, place) for other in self._before[place]]
        for first, second in pairs:
            self._steps += 1
            is_free = len(self._after[first]) == 1 or len(self._before[second]) == 1
            if is_free and first not in single and second not in single:
                cost = self._cost[first] + self._cost[second]
                size = len(self._layers[first]) + len(self._layers[second])
                version = self._changes[first] + self._changes[second]
                heapq.heappush(heap, (cost, size, version, first, second))

    def _join(self, first: int, second: int) -> None:
        self._layers[first] += self._layers.pop(second)
        self._cost[first] += self._cost[second]
        self._changes[first] += 1
        after, before = self._after.pop(second), self._before.pop(second) - {first}
        self._after[first] = (self._after[first] | after) - {second}
        self._before[first] |= before
        for other in after:
            self._before[other] = (self._before[other] - {second}) | {first}
        for other in before:
            self._after[other] = (self._after[other] - {second}) | {first}

    def boxes(self) -> tuple[Box, ...]:
        waiting = {place: len(sources) for place, sources in self._before.items()}
        ready = [place for place, count in waiting.items() if not count]
        heapq.heapify(ready)
        numbers: dict[int, int] = {}
        boxes: list[Box] = []
        while ready:
            place = heapq.heappop(ready)
            numbers[place] = len(boxes)
            layers = tuple(sorted(self._layers[place]))
            times = [self._times_us[layer] for layer in layers if layer in self._times_us]
            inputs = tuple(sorted(numbers[source] for source in self._before[place]))
            boxes.append(Box(layers, inputs, sum(times) if times else None))
            for other in self._after[place]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, other)
        return tuple(boxes)


# A network as SVG: boxes coloured by what their layers cost, connections between them.
#
# Colours come from the page (`.step-0` to `.step-7`, see model.css), so that one drawing serves a
# light and a dark one; the share is written on a box, too. Every box says all of itself in its
# title. The costliest can be reached by the keyboard, and lead to their lines in the table of
# layers.


ENDS = (INPUT, OUTPUT)
WIDE, NARROW = 640.0, 316.0
STEPS = 7
MOST_NAMED = 8
_SVG = "http://www.w3.org/2000/svg"
_MARGIN = 2.0
_SIZE = 12.0  # of letters
_PAD = 9.0
_SMALLEST_SHARE = 0.005  # that is written on a box


@dataclass(frozen=True)
class NamedLayer:
    """One of the costliest layers. `row` is its place in the table of layers, `box` its number in
    the drawing."""

    name: str
    operator: str
    shape: str
    time_us: float
    share: float
    step: int
    row: int
    box: int


@dataclass(frozen=True)
class Network:
    """What the drawing shows, in values: the most that one box takes, and by its side the layers
    that take most."""

    boxes: tuple[Box, ...]
    most_us: float
    named: tuple[NamedLayer, ...]


def network_of(outline: Outline, times: NetworkTimes, boxes: tuple[Box, ...]) -> Network:
    most_us = max((box.time_us or 0.0 for box in boxes), default=0.0)
    homes = {layer: number for number, box in enumerate(boxes) for layer in box.layers}
    costliest = sorted(times.times_us, key=lambda place: (-times.times_us[place], place))
    named = tuple(
        NamedLayer(
            name=_name(outline.layers[place]),
            operator=outline.layers[place].operator,
            shape=sides(outline.layers[place].shape),
            time_us=times.times_us[place],
            share=times.times_us[place] / times.total_us,
            step=step_of(times.times_us[place], most_us),
            row=times.rows[place],
            box=homes[place],
        )
        for place in costliest[:MOST_NAMED]
        if times.times_us[place] > 0
    )
    return Network(boxes, most_us, named)


def _name(layer: OutlineLayer) -> str:
    return f"{layer.operator.lower()} {layer.name}" if layer.operator in ENDS else layer.name


def step_of(time_us: float | None, most_us: float) -> int:
    """0 without a time, else 1 to STEPS in equal steps up to the costliest."""
    if time_us is None or most_us <= 0:
        return 0
    return max(1, min(STEPS, 1 + int(STEPS * time_us / most_us)))


def layer_count(outline: Outline) -> int:
    """Without the inputs and outputs of the network."""
    return sum(1 for layer in outline.layers if layer.operator not in ENDS)


def sides(shape: Sequence[int]) -> str:
    return "×".join(str(side) for side in shape)


def draw(outline: Outline, times: NetworkTimes, network: Network, width: float, prefix: str) -> str:
    """An SVG of this width for a page; ids start with `prefix`."""
    ElementTree.register_namespace("", _SVG)
    drawing = arrange(network.boxes, width - 2 * _MARGIN)
    height = drawing.height + 2 * _MARGIN
    root = ElementTree.Element(f"{{{_SVG}}}svg")
    box = f"{-_MARGIN:g} {-_MARGIN:g} {width:g} {height:g}"
    root.attrib |= {"width": f"{width:g}", "height": f"{height:g}", "viewBox": box}
    root.attrib |= {"role": "group", "aria-label": _summary(outline, network)}
    lines = _add(root, "g", "lines")
    lines.set("aria-hidden", "true")
    for connection in drawing.connections:
        _line(lines, connection, drawing.boxes)
    links = {layer.box: layer.row for layer in network.named}
    painter = _Painter(outline, times, network)
    for number, placed in enumerate(drawing.boxes):
        painter.paint(root, number, placed, links.get(number), prefix)
    return ElementTree.tostring(root, encoding="unicode")


def _summary(outline: Outline, network: Network) -> str:
    text = f"The network: {layer_count(outline)} layers in {len(network.boxes)} boxes."
    if network.named:
        first = network.named[0]
        text += f" {first.name} takes most: {latency_text(first.time_us / 1000)}."
    return drawable(text)


@dataclass(frozen=True)
class LayerDetails:
    """A layer as a panel beside the drawing shows it. `inputs` are names and shapes of the layers
    that it reads. `time_us` is None where no time is known, as `row`, its place in the table."""

    name: str
    operator: str
    shape: str
    inputs: tuple[tuple[str, str], ...]
    attributes: tuple[tuple[str, str], ...]
    time_us: float | None
    share: float
    row: int | None


def _details(outline: Outline, times: NetworkTimes, place: int) -> LayerDetails:
    layer = outline.layers[place]
    sources = [outline.layers[source] for source in layer.inputs[:MOST_INPUTS]]
    return LayerDetails(
        name=drawable(_name(layer)),
        operator=drawable(layer.operator),
        shape=sides(layer.shape),
        inputs=tuple((drawable(_name(source)), sides(source.shape)) for source in sources),
        attributes=tuple(
            (drawable(name), drawable(redact(value))) for name, value in layer.attributes
        ),
        time_us=times.times_us.get(place),
        share=times.times_us.get(place, 0.0) / (times.total_us or 1.0),
        row=times.rows.get(place),
    )


class _Painter:
    def __init__(self, outline: Outline, times: NetworkTimes, network: Network) -> None:
        self._outline = outline
        self._times = times
        self._network = network

    def paint(
        self,
        root: ElementTree.Element,
        number: int,
        placed: Placed,
        row: int | None,
        prefix: str,
    ) -> None:
        box = self._network.boxes[number]
        layers = [self._outline.layers[place] for place in box.layers]
        is_end = layers[0].operator in ENDS and len(layers) == 1
        step = step_of(box.time_us, self._network.most_us)
        kind = f"step-{step}{' end' if is_end else ''}{' many' if len(layers) > 1 else ''}"
        parent = _add(root, "a", f"box {kind}", id=f"{prefix}{number}")
        parent.set("href", f"#{prefix}{number}" if row is None else f"#layer-{row + 1}")
        left, width = placed.x - placed.width / 2, placed.width
        if len(layers) > 1:  # a second sheet below the first
            _add(parent, "path", "sheet", d=_round(left + 3, placed.y + 3, width))
        shape = _add(parent, "path", "face", d=_round(left, placed.y, width, is_end))
        _add(shape, "title").text = drawable(self._title(box))
        self._label(parent, box, left, placed)

    def _title(self, box: Box) -> str:
        """Lines are set apart by `; `, as tips.js reads them."""
        layers = [self._outline.layers[place] for place in box.layers]
        first = layers[0]
        if len(layers) == 1:
            shape = f", output {sides(first.shape)}" if first.shape else ""
            lines = [first.name or "(no name)", f"{first.operator}{shape}"]
        else:
            last = layers[-1]
            lines = [f"{len(layers)} layers", _counts(box, self._outline)]
            lines.append(f"{first.name} to {last.name}")
            if last.shape:
                lines.append(f"output {sides(last.shape)}")
        if box.time_us is not None and self._times.total_us > 0:
            share = 100 * box.time_us / self._times.total_us
            lines.append(f"{latency_text(box.time_us / 1000)}, {share:.1f} % of the time")
        elif self._times.times_us and first.operator not in ENDS:
            lines.append("no time of its own")
        return "; ".join(lines)

    def _label(self, parent: ElementTree.Element, box: Box, left: float, placed: Placed) -> None:
        layers = [self._outline.layers[place] for place in box.layers]
        first = layers[0]
        room = placed.width - 2 * _PAD
        y = placed.y + BOX_HEIGHT / 2 + 0.36 * _SIZE
        total = self._times.total_us
        share = box.time_us / total if box.time_us is not None and total > 0 else 0.0
        if share >= _SMALLEST_SHARE and room > 60:
            text = f"{100 * share:.0f} %" if share >= 0.0095 else "< 1 %"
            x = f"{left + placed.width - _PAD:.1f}"
            _add(parent, "text", "share", x=x, y=f"{y:.1f}").text = text
            room -= width_of(text) + 8
        name = first.operator if len(layers) == 1 else f"{len(layers)} layers"
        if first.operator in ENDS:
            name = first.operator.lower()
        name = shortened(name, room)
        if not name:
            return
        label = _add(parent, "text", x=f"{left + _PAD:.1f}", y=f"{y:.1f}")
        _add(label, "tspan", "operator").text = drawable(name)
        room -= 1.06 * width_of(name) + 7
        more = sides(first.shape[1:] if first.shape[:1] == (1,) else first.shape)
        if len(layers) > 1:
            more = _counts(box, self._outline)
        more = shortened(more, room)
        if len(more) > 2:
            _add(label, "tspan", "shape", dx="6").text = drawable(more)


def _counts(box: Box, outline: Outline) -> str:
    """`8 Conv, 3 Add and more`."""
    counts = Counter(outline.layers[place].operator for place in box.layers).most_common()
    text = ", ".join(f"{count} {operator}" for operator, count in counts[:4])
    return f"{text} and more" if len(counts) > 4 else text


def _line(parent: ElementTree.Element, connection: NetworkEdge, boxes: Sequence[Placed]) -> None:
    """Down through its lanes, turning only between rows. What passes rows is a skip connection."""
    start, end = boxes[connection.source], boxes[connection.target]
    x, y = start.x, start.y + BOX_HEIGHT
    parts = [f"M{x:.1f} {y:.1f}"]
    limit = max(0.0, end.width / 2 - 6)
    for lane_x, lane_y in connection.lanes:
        parts.append(_turn(x, y, lane_x, lane_y))
        x, y = lane_x, lane_y + BOX_HEIGHT
        parts.append(f"V{y:.1f}")
    to_x = end.x + max(-limit, min(limit, 0.18 * (x - end.x)))
    parts.append(_turn(x, y, to_x, end.y - 3))
    kind = "skip" if connection.lanes else "next"
    _add(parent, "path", kind, d="".join(parts))
    tip = f"M{to_x - 3:.1f} {end.y - 5:.1f}L{to_x:.1f} {end.y:.1f}L{to_x + 3:.1f} {end.y - 5:.1f}Z"
    _add(parent, "path", f"tip-of {kind}", d=tip)


def _turn(x: float, y: float, to_x: float, to_y: float) -> str:
    if abs(x - to_x) < 0.5:
        return f"L{to_x:.1f} {to_y:.1f}"
    half = min(ROW_GAP, to_y - y) * 0.6
    return f"C{x:.1f} {y + half:.1f} {to_x:.1f} {to_y - half:.1f} {to_x:.1f} {to_y:.1f}"


def _round(x: float, y: float, width: float, is_end: bool = False) -> str:
    radius = min(BOX_HEIGHT / 2 if is_end else 6.0, width / 2)
    across, down = width - 2 * radius, BOX_HEIGHT - 2 * radius
    corner = f"a{radius:.1f} {radius:.1f} 0 0 1 "
    return (
        f"M{x + radius:.1f} {y:.1f}h{across:.1f}{corner}{radius:.1f} {radius:.1f}v{down:.1f}"
        f"{corner}{-radius:.1f} {radius:.1f}h{-across:.1f}{corner}{-radius:.1f} {-radius:.1f}"
        f"v{-down:.1f}{corner}{radius:.1f} {-radius:.1f}z"
    )


_NARROW_LETTERS, _BROAD_LETTERS = frozenset("fijlrtI.,:;'|!/()[]-_ "), frozenset("mwMW@%×")


def width_of(text: str) -> float:
    """About: that of Arial, whose widths the charts' font has, and rather too much."""
    return _SIZE * sum(
        0.34 if letter in _NARROW_LETTERS else 0.88 if letter in _BROAD_LETTERS else 0.6
        for letter in text
    )


def shortened(text: str, room: float) -> str:
    """Empty where not even three letters fit."""
    if width_of(text) <= room:
        return text
    while text and width_of(text) + _SIZE > room:
        text = text[:-1]
    return f"{text}…" if len(text) > 2 else ""


def _add(
    parent: ElementTree.Element, tag: str, kind: str = "", **attributes: str
) -> ElementTree.Element:
    """`kind` is its class in the style sheet."""
    element = ElementTree.SubElement(parent, f"{{{_SVG}}}{tag}", attributes)
    if kind:
        element.set("class", kind)
    return element


_MOST_EDGES = 1_000
MOST_DETAILS = 200  # layers of one box
MOST_INPUTS = 20  # of one layer


@dataclass(frozen=True)
class PictureOfNetwork:
    """`wide` and `narrow` are SVGs, for screens and for phones; empty where a network is too large
    to be drawn, which `trouble` says then. `unmatched` layers were timed that the graph does not
    show; their time is a share of the whole. `folded` layers are in boxes with others. `outline`,
    `times` and `groups` are what it was drawn from."""

    layers: int
    boxes: int = 0
    folded: int = 0
    wide: str = ""
    narrow: str = ""
    named: tuple[NamedLayer, ...] = ()
    most_us: float = 0.0
    most_share: float = 0.0
    unmatched: int = 0
    unmatched_share: float = 0.0
    trouble: str = ""
    outline: Outline | None = None
    times: NetworkTimes | None = None
    groups: tuple[Box, ...] = ()

    def details(self, box: int) -> tuple[LayerDetails, ...]:
        """The layers of a box, at most `MOST_DETAILS`; empty if there is no such box."""
        outline, times = self.outline, self.times
        if outline is None or times is None or not 0 <= box < len(self.groups):
            return ()
        places = self.groups[box].layers[:MOST_DETAILS]
        return tuple(_details(outline, times, place) for place in places)


def outline_in_store(workspace: Workspace, model: str) -> Outline | None:
    """None if the model has no such file, or one that is too large or not what it says."""
    files = workspace.catalog.files(model)
    file = next((file for file in files if file.name.endswith(OUTLINE_SUFFIX)), None)
    content = read_file(workspace, file, LARGEST_OUTLINE)
    return parse_outline(content) if content else None


def picture_of(
    outline: Outline, layers: Sequence[tuple[str, str, float]], prefix: str
) -> PictureOfNetwork:
    """`layers` are the lines of a table: names, operators and µs."""
    if not outline.layers:
        trouble = f"It has {outline.count:,} layers, and at most {MOST_LAYERS:,} are drawn."
        return PictureOfNetwork(outline.count, trouble=trouble)
    times = match_times(outline, layers)
    boxes = fold(outline, times.times_us)
    if boxes is None or sum(len(box.inputs) for box in boxes) > _MOST_EDGES:
        trouble = (
            f"It cannot be folded into {MOST_BOXES} boxes with {_MOST_EDGES:,} connections;"
            " more are not drawn."
        )
        return PictureOfNetwork(layer_count(outline), trouble=trouble)
    network = network_of(outline, times, boxes)
    total = times.total_us or 1.0
    return PictureOfNetwork(
        layers=layer_count(outline),
        boxes=len(boxes),
        folded=sum(len(box.layers) for box in boxes if len(box.layers) > 1),
        wide=draw(outline, times, network, WIDE, prefix),
        narrow=draw(outline, times, network, NARROW, f"{prefix}n-"),
        named=network.named,
        most_us=network.most_us,
        most_share=network.most_us / total,
        unmatched=times.unmatched,
        unmatched_share=times.unmatched_us / total,
        outline=outline,
        times=times,
        groups=boxes,
    )


# Which layer of a network a measured time belongs to.
#
# Layers are named by the tool that timed them. Compilers keep the names of the graph that they were
# given, or write other letters for `/` and `.`. ONNX Runtime adds to them (`/conv/Conv_token_3`),
# names a conversion after the tensor (`/conv/Conv_output_0_QuantizeLinear`), and adds layers that
# no graph has, such as changes of layout. Times of what matches nothing are counted, not guessed.


_LONGEST_US = 1e12
_OUTPUTS = "(output)"  # what writing the outputs takes, as the estimates of layers name it
_ADDED = re.compile(r"(_token_\d+| \+\d+|_nchwc|_quant|_fused)$")
_CONVERSION = re.compile(r"_(De)?[Qq]uantizeLinear(_\d+)?$")
_OTHER_LETTERS = re.compile(r"[^0-9A-Za-z]+")


@dataclass(frozen=True)
class NetworkTimes:
    """Times by place in the outline, and what belongs to none of its layers. `rows` are the places
    in the table of layers, by place in the outline."""

    times_us: dict[int, float] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    unmatched: int = 0
    unmatched_us: float = 0.0

    @property
    def total_us(self) -> float:
        return sum(self.times_us.values()) + self.unmatched_us


def match_times(outline: Outline, layers: Sequence[tuple[str, str, float]]) -> NetworkTimes:
    """`layers` are names, operators and µs. One layer of the network may have several times: its
    own and those of its conversions."""
    names = _Names(outline)
    exact = {name for name, _, _ in layers if name in names.names}
    result = NetworkTimes()
    unmatched, unmatched_us = 0, 0.0
    for row, (name, _, told_us) in enumerate(layers):
        time_us = min(max(told_us, 0.0), _LONGEST_US) if math.isfinite(told_us) else 0.0
        place = names.place(name, exact)
        if place is None:
            unmatched, unmatched_us = unmatched + 1, unmatched_us + time_us
            continue
        result.times_us[place] = result.times_us.get(place, 0.0) + time_us
        result.rows.setdefault(place, row)
    return NetworkTimes(result.times_us, result.rows, unmatched, unmatched_us)


class _Names:
    """The layers of an outline by their names and, after these, by their tensors'."""

    def __init__(self, outline: Outline) -> None:
        self.names: dict[str, int] = {}
        self._tensors: dict[str, int] = {}
        for place, layer in enumerate(outline.layers):
            self.names.setdefault(layer.name, place)
            for tensor in layer.tensors:
                self._tensors.setdefault(tensor, place)
        self._plain = _unique(self.names.items()) | {}
        for name, place in _unique(self._tensors.items()).items():
            self._plain.setdefault(name, place)
        ends = [p for p, layer in enumerate(outline.layers) if layer.operator == OUTPUT]
        if ends:
            self.names.setdefault(_OUTPUTS, ends[0])

    def place(self, name: str, exact: set[str]) -> int | None:
        """None if it is no layer's. A name with something added is that of a layer only if no
        other line has that very name: `Transpose_token_9` beside `Transpose` is a second one."""
        if name in self.names:
            return self.names[name]
        base = _ADDED.sub("", name.removeprefix("fused "))
        if base in exact:
            return None
        for places in (self.names, self._tensors):
            if base in places:
                return places[base]
        converted = _CONVERSION.sub("", base)
        if converted != base and converted in self._tensors:
            return self._tensors[converted]
        return self._plain.get(_plain(base))


def _plain(name: str) -> str:
    return _OTHER_LETTERS.sub("_", name).strip("_").lower()


def _unique(names: Iterable[tuple[str, int]]) -> dict[str, int]:
    """By plain names, without those that several layers have."""
    by_plain: dict[str, int] = {}
    twice: set[str] = set()
    for name, place in names:
        plain = _plain(name)
        if by_plain.setdefault(plain, place) != place:
            twice.add(plain)
    return {name: place for name, place in by_plain.items() if name and name not in twice}
