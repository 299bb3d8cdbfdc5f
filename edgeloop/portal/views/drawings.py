"""Charts as parts of a page, drawn once for the same content."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from edgeloop.portal.state import Portal
from edgeloop.report import to_page_part

if TYPE_CHECKING:
    import altair as alt


def drawn(
    portal: Portal, content: Hashable, make: Callable[[], alt.TopLevelMixin], prefix: str
) -> str:
    """`content` is all that the chart shows; while it stays, so does the drawing."""
    return portal.drawings.get((prefix, content), lambda: to_page_part(make(), prefix))
