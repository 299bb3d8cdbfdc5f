"""A search in a real Chromium, and its hypervolume in every view."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.peers.browser import Browser
from tests.portal.browsing import browser, make_project
from tests.portal.serving import Site, portal_here
from tests.search.seen import write_seen

__all__ = ["browser"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = make_project(tmp_path_factory.mktemp("found"))
    write_seen(folder / "searches/many", 60)
    write_seen(folder / "searches/chips", 30, chips=6)
    with portal_here(folder) as site:
        yield site


def test_a_point_says_its_parameters_to_pointer_and_keys_and_leads_to_its_row(
    browser: Browser, found: Site
) -> None:
    with browser.tab(found.at("/searches/many")) as tab:
        page, tip = tab.page, tab.page.locator("#tip")
        points = page.locator("#scatter .for-wide a")
        expect(points).to_have_count(54)  # six failed
        points.last.hover()
        expect(tip).to_contain_text("base_channels")
        expect(tip.locator("b")).to_have_text(re.compile("id_[0-9a-f]{16}"))
        page.mouse.move(0, 0)
        expect(tip).to_be_hidden()
        points.first.focus()
        expect(tip).to_be_visible()
        name = tip.locator("b").inner_text()
        page.keyboard.press("Enter")
        expect(page.locator("tr:target")).to_contain_text(name)
        for part in ("curve", "importance", "parallel", "learning"):
            expect(page.locator(f"#{part} .for-wide svg")).to_be_visible()
        tab.keep_picture("search-many")


def test_candidates_are_sorted_by_any_value_or_parameter_without_script(
    browser: Browser, found: Site
) -> None:
    with browser.tab(found.at("/searches/many"), script=False) as tab:
        page = tab.page
        page.locator("#candidates thead a", has_text="val_iou").click()
        column = page.locator("#candidates thead th").all_inner_texts().index("val_iou") + 1
        cells = page.locator(f"#candidates tbody td:nth-child({column})").all_inner_texts()
        numbers = [float(text) for text in cells if text]
        assert numbers == sorted(numbers) and len(numbers) == 54
        page.locator("#candidates thead a", has_text="val_iou").click()
        expect(page.locator("#candidates [aria-sort=descending]")).to_have_count(1)
        page.locator("#parameters thead a", has_text="layers").first.click()
        expect(page.locator("#parameters [aria-sort]")).to_have_count(1)


def test_the_front_of_each_chip_can_be_chosen_and_the_colours_too(
    browser: Browser, found: Site
) -> None:
    with browser.tab(found.at("/searches/chips"), size=(390, 800)) as tab:
        page = tab.page
        expect(page.locator("#chips tbody tr")).to_have_count(6)
        page.locator("select[name=chip]").select_option("htp:x-elite")
        expect(page.locator("#scatter .for-narrow svg")).to_contain_text("front of x-elite")
        page.locator("select[name=colour]").select_option("rung")
        expect(page.locator("#scatter .for-narrow svg")).to_contain_text("trained for")
        expect(page.locator("#scatter .for-narrow svg")).to_contain_text("front of x-elite")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        tab.keep_picture("search-chips-narrow")
