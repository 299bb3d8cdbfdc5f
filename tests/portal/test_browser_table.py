"""The table in a real Chromium: filter, sort, pages, and what others change while one looks."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.peers.browser import Browser
from tests.portal.browsing import Site, browser, site
from tests.portal.farm import NASTY, NASTY_TAG

__all__ = ["browser", "site"]


def names(page: Page) -> list[str]:
    return [str(row.get_attribute("data-name")) for row in page.locator("#rows tr").all()]


def column(page: Page, title: str) -> list[str]:
    heads = [head.inner_text() for head in page.locator("thead th").all()]
    place = next(number for number, head in enumerate(heads, 1) if head.startswith(title))
    return [cell.inner_text() for cell in page.locator(f"#rows td:nth-child({place})").all()]


def latencies(page: Page) -> list[float | None]:
    texts = [text.replace("est", "").strip() for text in column(page, "Latency")]
    return [float(text) if text else None for text in texts]


def test_a_filter_keeps_what_matches_and_can_be_taken_back(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/")) as tab:
        page = tab.page
        page.keyboard.press("/")
        page.keyboard.type("calm-*")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"text=calm-"))
        assert len(names(page)) == 12 and all(name.startswith("calm-") for name in names(page))
        page.get_by_role("link", name="error").click()
        expect(page.locator(".chip[aria-current]")).to_contain_text("error")
        assert names(page) == ["calm-ibis"]
        page.get_by_role("link", name="Show all").click()
        expect(page.locator("#rows tr")).to_have_count(50)


def test_a_click_on_a_heading_sorts_and_another_turns_it_round(
    browser: Browser, site: Site
) -> None:
    with browser.tab(site.at("/?size=200")) as tab:
        page = tab.page
        for direction in ("ascending", "descending"):
            page.get_by_role("link", name="latency").click()
            expect(page.locator(f"th[aria-sort={direction}]")).to_contain_text("Latency")
            found = latencies(page)
            known = [value for value in found if value is not None]
            assert known == sorted(known, reverse=direction == "descending")
            assert len(known) > 90 and found[len(known) :] == [None] * (120 - len(known))
        assert "size=200" in page.url


def test_pages_follow_each_other_and_keep_the_order(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/?sort=macs")) as tab:
        page = tab.page
        first = names(page)
        page.get_by_role("link", name="Next").click()
        expect(page.locator("#pages")).to_contain_text("51–100 of 120")
        second = names(page)
        assert "sort=macs" in page.url and len(second) == 50 and not set(first) & set(second)
        page.get_by_role("link", name="100", exact=True).click()
        expect(page.locator("#pages")).to_contain_text("1–100 of 120")
        assert names(page) == first + second


def test_what_another_process_changes_shows_by_itself(browser: Browser, site: Site) -> None:
    """Only the row that changed is drawn anew, and the page stays where it was."""
    with browser.tab(site.at("/?text=brisk-*"), size=(1200, 500)) as tab:
        page = tab.page
        expect(page.locator("#live")).to_have_text("live")
        row = page.locator("tr[data-name=brisk-newt]")
        expect(row).to_contain_text("complete")
        page.evaluate("for (const row of document.querySelectorAll('#rows tr')) row.mine = true")
        page.evaluate("scrollTo(0, 120)")
        site.edgeloop("reset", "brisk-newt", "--yes")
        expect(row).to_contain_text("new")
        expect(row).to_have_class(re.compile("is-new"))
        expect(page.locator("#said")).to_have_text("brisk-newt changed")
        kept = page.evaluate(
            "[...document.querySelectorAll('#rows tr')].filter(r => r.mine).length"
        )
        assert kept == 11  # of twelve: the others are the same elements as before
        assert page.evaluate("scrollY") == 120 and "text=brisk-" in page.url


def test_times_tick_on(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/?status=running&sort=since&descending=1")) as tab:
        time = tab.page.locator("time[data-ago]").first
        time.evaluate("element => { element.dateTime = new Date().toISOString(); }")
        expect(time).to_have_text(re.compile(r"^[12] s$"))


def test_a_table_can_be_read_without_script(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/"), script=False) as tab:
        page = tab.page
        page.get_by_label("Filter by name").fill("calm")
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("#rows tr")).to_have_count(12)
        page.get_by_role("link", name="latency").click()
        expect(page.locator("th[aria-sort]")).to_contain_text("Latency")
        known = [value for value in latencies(page) if value is not None]
        assert known == sorted(known)


def test_a_name_like_a_script_and_a_tag_with_quotes_are_mere_texts(
    browser: Browser, site: Site
) -> None:
    """Trouble (a dialog, an error, a breach of the policy) would end this test."""
    with browser.tab(site.at("/?text=alert")) as tab:
        page = tab.page
        assert names(page) == [NASTY]
        assert page.locator("#rows .tag").inner_text() == NASTY_TAG
        page.get_by_role("link", name=NASTY).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(NASTY)
        assert page.locator("main img").count() == 0
        assert page.title().startswith(NASTY)
