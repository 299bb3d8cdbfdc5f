"""From values to markup: the templates, escaped by default, and the words and units in them."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from markupsafe import Markup, escape

from edgeloop.portal.views.shapes import StageView, Use

if TYPE_CHECKING:
    import jinja2

HERE = Path(__file__).parent
TRACK = 1000.0  # width of a timeline's bar, in its own units
_THINNEST = 4.0
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Many words for how things stand, a handful of signs: colour and shape are by class.
_CLASSES = {
    **{"new": "new", "ready": "new", "none": "new", "skipped": "canceled"},
    **{"waiting": "waiting", "queued": "waiting", "preparing": "waiting", "blocked": "waiting"},
    **{"retry": "waiting", "uploading": "running", "running": "running", "done": "complete"},
    **{"deleting": "canceled", "canceled": "canceled", "complete": "complete"},
    **{"completed": "complete", "error": "error", "failed": "error", "stalled": "error"},
    **{"candidate": "candidate", "pruned": "canceled", "screened": "canceled", "fail": "error"},
}
_STAGE_WORDS = {
    "done": "done",
    "ready": "waits for a runner",
    "retry": "failed, and will be tried again",
    "failed": "failed",
    "skipped": "not part of its plan",
    "none": "has no model file yet",
}


def environment() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": ago,
        "bars": bars,
        "bytes": in_bytes,
        "drawn": drawn,
        "iso": iso,
        "machine": lambda node: node.partition("/")[0] or node,
        "plain": lambda text: _COLOURS.sub("", text),
        "quoted": lambda text: quote(str(text), safe=""),
        "quoted_path": lambda text: quote(str(text)),
        "score": score,
        "seconds": in_seconds,
        "shell": shlex.join,
        "stage_words": stage_words,
        "stamp": stamp,
        "state_class": lambda word: _CLASSES.get(str(word).lower(), "new"),
        "short_unit": lambda unit: "M" if unit == "millions" else unit,
        "tidy": tidy,
        "whole": lambda number: "" if number is None else f"{number:g}",
    }
    return made


def drawn(svg: str) -> Markup:
    """A chart of ours: `to_page_part` wrote it with an XML writer, which escaped every text."""
    return Markup(svg)  # noqa: S704


def linked(svg: str, address: str) -> Markup:
    """The chart's points lead to the pages of their models: `address` has a `{}` for the name.

    Names in it are quoted as in an address, hence without a quote that could end the attribute.
    """
    before, _, after = str(escape(address)).partition("{}")
    pattern = re.compile(r'href="#model=([^"<>]*)"')
    told = pattern.sub(lambda found: f'href="{before}{found[1]}{after}"', svg)
    # A picture has no parts for those who do not see it; a group has.
    return drawn(told.replace(' role="img"', ' role="group" aria-label="Models as points"', 1))


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def stamp(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(moment: float) -> str:
    """As base.js says it, which goes on from here."""
    seconds = max(0.0, time.time() - moment)
    if seconds < 60:
        return f"{int(seconds)} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h"
    days = int(seconds // 86_400)
    return "1 day" if days == 1 else f"{days} days"


def in_seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02} min"


def in_bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def score(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4f}"


def tidy(text: str) -> str:
    """A number of a table as people read it; every other text as it is."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not math.isfinite(value):
        return text
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def stage_words(stage: StageView) -> str:
    """What a person would say of a stage."""
    if stage.state == "running":
        return f"running on {stage.node}"
    if stage.state == "stalled":
        return f"stalled: {stage.node} gave no sign since its lease ran out"
    if stage.state == "blocked":
        return f"comes after {' and '.join(stage.needs)}"
    return _STAGE_WORDS.get(stage.state, stage.state)


def span_of(stages: Iterable[StageView]) -> tuple[float, float] | None:
    """From the first use of a device to the last, where there is any."""
    uses = [use for stage in stages for use in stage.uses]
    if not uses:
        return None
    return min(use.start for use in uses), max(use.end for use in uses)


def bars(uses: Sequence[Use], span: tuple[float, float]) -> list[tuple[str, str]]:
    """Where each use lies in the span, and how wide; never so thin that it cannot be seen."""
    first, last = span
    scale = TRACK / max(last - first, 1e-3)
    found = []
    for use in uses:
        width = min(TRACK, max(_THINNEST, use.seconds * scale))
        left = min((use.start - first) * scale, TRACK - width)
        found.append((f"{left:.1f}", f"{width:.1f}"))
    return found
