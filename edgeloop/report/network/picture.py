"""A network as SVG: boxes coloured by what their layers cost, connections between them.

Colours come from the page (`.step-0` to `.step-7`, see model.css), so that one drawing serves a
light and a dark one; the share is written on a box, too. Every box says all of itself in its
title. The costliest can be reached by the keyboard, and lead to their lines in the table of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from edgeloop._util.units import latency_text
from edgeloop.graph import INPUT, OUTPUT, Outline, OutlineLayer
from edgeloop.report.drawing import drawable
from edgeloop.report.network.costs import NetworkTimes
from edgeloop.report.network.folding import Box
from edgeloop.report.network.layout import BOX_HEIGHT, ROW_GAP, NetworkEdge, Placed, arrange

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
    lines = _add(root, "g", **{"class": "lines", "aria-hidden": "true"})
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
        about = {"id": f"{prefix}{number}", "class": f"box {kind}"}
        if row is not None:
            parent = _add(root, "a", **about, href=f"#layer-{row + 1}")
        else:
            parent = _add(root, "g", **about)
        left, width = placed.x - placed.width / 2, placed.width
        if len(layers) > 1:  # a second sheet below the first
            _add(parent, "path", **{"class": "sheet"}, d=_round(left + 3, placed.y + 3, width))
        shape = _add(parent, "path", **{"class": "face"}, d=_round(left, placed.y, width, is_end))
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
            _add(parent, "text", **{"class": "share"}, x=x, y=f"{y:.1f}").text = text
            room -= width_of(text) + 8
        name = first.operator if len(layers) == 1 else f"{len(layers)} layers"
        if first.operator in ENDS:
            name = first.operator.lower()
        name = shortened(name, room)
        if not name:
            return
        label = _add(parent, "text", x=f"{left + _PAD:.1f}", y=f"{y:.1f}")
        _add(label, "tspan", **{"class": "operator"}).text = drawable(name)
        room -= 1.06 * width_of(name) + 7
        more = sides(first.shape[1:] if first.shape[:1] == (1,) else first.shape)
        if len(layers) > 1:
            more = _counts(box, self._outline)
        more = shortened(more, room)
        if len(more) > 2:
            _add(label, "tspan", **{"class": "shape"}, dx="6").text = drawable(more)


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
    _add(parent, "path", **{"class": kind}, d="".join(parts))
    tip = f"M{to_x - 3:.1f} {end.y - 5:.1f}L{to_x:.1f} {end.y:.1f}L{to_x + 3:.1f} {end.y - 5:.1f}Z"
    _add(parent, "path", **{"class": f"tip-of {kind}"}, d=tip)


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


def _add(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, f"{{{_SVG}}}{tag}", attributes)
