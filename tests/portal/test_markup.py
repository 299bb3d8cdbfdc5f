"""Words, units and addresses in pages."""

from __future__ import annotations

import time

import pytest

from edgeloop._util.values import size_text
from edgeloop.view.portal.pages import (
    ago,
    bars,
    environment,
    in_seconds,
    linked,
    page_numbers,
    table_query,
    tidy,
)
from edgeloop.view.portal.shapes import TableQuery, UsePeriod


def test_texts_are_escaped_wherever_a_template_puts_them() -> None:
    template = environment().from_string("<b title='{{ text }}'>{{ text }}</b>{{ text | drawn }}")
    shown = template.render(text="<i>'")
    assert shown == "<b title='&lt;i&gt;&#39;'>&lt;i&gt;&#39;</b><i>'"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.5, "59 s"), (61, "1 min"), (7300, "2 h"), (9e4, "1 day"), (2e5, "2 days")],
)
def test_times_are_told_roughly(seconds: float, text: str) -> None:
    assert ago(time.time() - seconds) == text


def test_a_time_to_come_is_now() -> None:
    assert ago(time.time() + 50) == "0 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.05, "50 ms"), (2.34, "2.3 s"), (95, "1 min 35 s"), (7290, "2 h 01 min")],
)
def test_durations_have_units(seconds: float, text: str) -> None:
    assert in_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (31_000, "31.0 kB"), (5.2e9, "5.2 GB")]
)
def test_sizes_have_units(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("0.464869379460983", "0.4649"), ("30763.0", "30763"), ("id_7", "id_7"), ("nan", "nan")],
)
def test_numbers_of_a_search_are_short(text: str, shown: str) -> None:
    assert tidy(text) == shown


def test_points_of_a_chart_lead_to_their_models_and_nowhere_else() -> None:
    svg = '<svg role="img"><a href="#model=%22%3Eb">x</a><a href="#other">y</a></svg>'
    shown = linked(svg, "/models/{}?experiment=a&b")
    assert 'href="/models/%22%3Eb?experiment=a&amp;b"' in shown and 'href="#other"' in shown


@pytest.mark.parametrize(
    ("page", "pages", "numbers"),
    [
        (1, 1, [1]),
        (1, 9, [1, 2, 3, 0, 9]),
        (5, 9, [1, 0, 3, 4, 5, 6, 7, 0, 9]),
        (9, 9, [1, 0, 7, 8, 9]),
    ],
)
def test_pages_far_away_are_left_out(page: int, pages: int, numbers: list[int]) -> None:
    assert page_numbers(page, pages) == numbers


def test_nonsense_in_an_address_is_passed_over() -> None:
    asked = {"page": "x", "size": "7", "descending": "maybe", "sort": "", "nobody": "1"}
    assert table_query(asked) == TableQuery()
    assert table_query({"page": "1e300", "size": "100"}).page == 1_000_000


def test_short_uses_can_still_be_seen() -> None:
    uses = [UsePeriod("d", "m", "s", 0.0, 0.001), UsePeriod("d", "m", "s", 99.0, 100.0)]
    assert bars(uses, (0.0, 100.0)) == [("0.0", "4.0"), ("990.0", "10.0")]
