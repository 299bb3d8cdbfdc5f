"""What the page of one model shows, as plain values; see shapes.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeloop.portal.shapes import FileView, Frame, Heading, Line, StageView
from edgeloop.report import PictureOfNetwork


@dataclass(frozen=True)
class Chart:
    title: str
    svg: str


@dataclass(frozen=True)
class LayerRow:
    name: str
    operator: str
    time_us: float


@dataclass(frozen=True)
class Fact:
    """A column of a row: its name, what it means, and its text."""

    column: str
    meaning: str
    text: str


@dataclass(frozen=True)
class RecoveryView:
    """What was tried to win accuracy back: a text for each heading, step by step."""

    short: str
    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ModelView:
    """`image` is a PNG of PR curves as a data: address, drawn when `scored` was tested.

    `scores` is class → metric → value, for the same stage.
    """

    frame: Frame
    name: str
    line: Line
    headings: tuple[Heading, ...]
    priority: float | None
    facts: tuple[Fact, ...]
    stages: tuple[StageView, ...]
    files: tuple[FileView, ...]
    charts: tuple[Chart, ...]
    layers: tuple[LayerRow, ...]
    layers_kind: str
    conditions: Mapping[str, str]
    scored: str
    scores: Mapping[str, Mapping[str, float]]
    image: str
    trouble: str  # a sentence, if the files could not be read
    recovery: RecoveryView | None = None
    graph: PictureOfNetwork | None = None
    graph_hint: str = ""  # why there is none, and a command that makes one
    graph_command: str = ""
