"""No page and no program claims more of an estimate than data supports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHOWN = (".md", ".py", ".jinja", ".html", ".js", ".yaml", ".yml", ".ipynb", ".toml")
FLAT_BARS = re.compile(
    r"(?<!within )(?:±|\+/-|&plusmn;)\s?20\s?%|est\w* ±|margin of error|margin_percent"
)
OLD_ROWS = {  # the column of rows that older versions wrote: kept, and shown as no error bar
    "edgeloop/models/columns.py",
    "edgeloop/models/plan.py",
    "docs/reference/rows.md",
}
DEFAULTS = re.compile(r"htp:snapdragon-888|default[^\n]{0,20}snapdragon-888")


def shown_files() -> Iterator[tuple[str, str]]:
    places = [ROOT / "README.md", *(ROOT / name for name in ("docs", "edgeloop", "examples"))]
    places += [ROOT / "deploy", ROOT / "scripts"]
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for file in files:
            if file.suffix in SHOWN and file.is_file():
                yield file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")


def found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}: {match[0]}" for name, text in shown_files() for match in pattern.finditer(text)
    ]


def test_no_page_prints_an_error_bar_that_no_data_supports():
    assert [line for line in found(FLAT_BARS) if line.partition(":")[0] not in OLD_ROWS] == []


def test_examples_and_pages_use_a_calibrated_chip():
    """`snapdragon-888` is a board's chip on some pages; as an estimate it is not calibrated."""
    assert found(DEFAULTS) == []


@pytest.mark.parametrize(
    "claim",
    ["0.61 ms ± 20 % on", "±20%", "est ± 3", "a margin of error", "`latency_margin_percent`"],
)
def test_such_a_claim_would_be_found(claim: str):
    assert FLAT_BARS.search(claim)


def test_shares_of_networks_within_a_distance_are_no_error_bars():
    assert not FLAT_BARS.search("69 % of them within ±20 % of the published latency")
