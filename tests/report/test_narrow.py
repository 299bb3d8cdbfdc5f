"""Charts on phones: drawn for the width, named for who cannot see them, sentences as text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from edgeloop.search.results import read_search
from edgeloop.view.charts import parallel_chart, utilisation_chart
from edgeloop.view.drawing import empty_chart, to_page_part, to_page_parts
from tests.search.seen import write_seen

PHONE = 358  # pixels that a phone of 390 leaves
DAYS = [
    {"device": device, "day": f"2026-11-{day:02}", "seconds": 900 * day, "uses": 1}
    for device in ("host", "htp:snapdragon-8-gen-2")
    for day in range(4, 18)
]


def narrow_of(parts: str) -> ElementTree.Element:
    found = re.search(r'<div class="for-narrow">(.*)</div>', parts, re.S)
    assert found
    return ElementTree.fromstring(found[1])


def test_the_use_of_devices_is_drawn_for_the_width_of_a_phone() -> None:
    """Vega fits no chart that has a row per device into a width, and drew nothing at all."""
    svg = narrow_of(to_page_parts(utilisation_chart(DAYS), "u-"))
    assert float(svg.get("width", "0")) <= PHONE
    bars = [e for e in svg.iter() if (e.text or "").endswith("% of the day") and "title" in e.tag]
    assert len(bars) == len(DAYS)


def test_a_chart_without_content_is_a_paragraph_that_breaks_its_lines() -> None:
    parts = to_page_parts(empty_chart("Nothing has been <b>measured</b> yet."), "e-")
    assert parts == '<p class="faint">Nothing has been &lt;b&gt;measured&lt;/b&gt; yet.</p>'


def test_a_chart_is_called_by_its_title() -> None:
    svg = ElementTree.fromstring(to_page_part(utilisation_chart(DAYS), "u-"))
    assert svg.get("aria-label") == "Device use: time in use, as share of the day"


def test_parallel_lines_go_through_fewer_parameters_on_a_phone(tmp_path: Path) -> None:
    write_seen(tmp_path / "many", 24)
    seen = read_search(tmp_path / "many", "many")
    parts = to_page_parts(parallel_chart(seen), "p-", parallel_chart(seen, is_narrow=True))
    svg = narrow_of(parts)
    bold = [e.text for e in svg.iter() if e.tag.endswith("text") and e.get("font-weight") == "bold"]
    assert float(svg.get("width", "0")) <= PHONE
    assert "Parameters and objectives" in bold and len(bold) == 1 + 4
