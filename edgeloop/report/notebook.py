"""Charts in a notebook: drawn here, so that nothing is fetched and any front end can show them."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.report.drawing import to_gif, to_page_part, to_png

if TYPE_CHECKING:
    import altair as alt


@dataclass(frozen=True)
class Shown:
    """What a cell ends with. Notebooks ask it for the richest form they can show."""

    forms: dict[str, str]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return dict(self.forms)

    def __repr__(self) -> str:
        return f"a chart as {', '.join(self.forms)}"


def show(chart: alt.TopLevelMixin) -> Shown:
    """As SVG in the page's own colours, light or dark, where pointing at a mark says what it is;
    as PNG for front ends that take pictures only."""
    part = to_page_part(chart, f"n{secrets.token_hex(4)}-")
    return Shown({"text/html": part, "image/png": _text(to_png(chart))})


def show_animation(frames: Sequence[alt.TopLevelMixin], scale: float = 1.0) -> Shown:
    """Frames, as of `front_frames`, as a GIF."""
    return Shown({"image/gif": _text(to_gif([to_png(frame, scale=scale) for frame in frames]))})


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
