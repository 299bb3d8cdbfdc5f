"""The table and the devices in a real Chromium: filter, sort, pages, columns, models side by side,
and what others change while one looks."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.peers.browser import Browser
from tests.portal.browsing import browser, site
from tests.portal.farm import NASTY, NASTY_TAG
from tests.portal.serving import Site

__all__ = ["browser", "site"]


def names(page: Page) -> list[str]:
    return [str(row.get_attribute("data-name")) for row in page.locator("#rows tr").all()]


def column(page: Page, title: str) -> list[str]:
    """A cell may have the room of several columns."""
    texts = page.evaluate(
        """title => {
          const place = [...document.querySelectorAll("thead th")].findIndex(
            (head) => head.innerText.startsWith(title));
          return [...document.querySelectorAll("#rows tr")].map((row) => {
            let left = place;
            return [...row.cells].find((cell) => (left -= cell.colSpan) < 0).innerText;
          });
        }""",
        title,
    )
    return [str(text) for text in texts]


def latencies(page: Page) -> list[float | None]:
    texts = [text.replace("est", "").strip() for text in column(page, "Latency")]
    return [float(text) if text else None for text in texts]


def test_a_phone_shows_name_latency_and_score_without_scrolling(
    browser: Browser, site: Site
) -> None:
    with browser.tab(site.at("/?text=calm-*"), size=(390, 800)) as tab:
        expect(tab.page.locator("#rows tr")).to_have_count(12)
        in_sight = tab.page.evaluate(
            """() => [...document.querySelectorAll("thead th")]
              .filter((head) => head.getBoundingClientRect().width > 0
                && head.getBoundingClientRect().right <= innerWidth)
              .map((head) => head.className.replace(" n", ""))"""
        )
        assert in_sight == ["tick", "of-name", "of-status", "of-mean", "of-f1_1k"]
        dot = tab.page.locator("#rows td.of-status:not(.has-error) .state").first
        expect(dot).to_have_text("complete")  # for those who do not see it
        assert dot.evaluate("dot => getComputedStyle(dot).fontSize") == "0px"


def test_a_filter_keeps_what_matches_and_can_be_taken_back(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/")) as tab:
        page = tab.page
        page.keyboard.press("/")
        page.keyboard.type("calm-*")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"text=calm-"))
        expect(page.locator("#rows tr")).to_have_count(12)
        assert all(name.startswith("calm-") for name in names(page))
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


def test_ticked_models_are_compared_side_by_side(browser: Browser, site: Site) -> None:
    """Ticks stay on other pages of the table, and when a row is drawn anew."""
    with browser.tab(site.at("/?text=calm-*")) as tab:
        page = tab.page
        compare = page.get_by_role("button", name="Compare")
        expect(compare).to_be_disabled()
        page.get_by_label("Compare calm-heron", exact=True).check()
        page.goto(site.at("/?text=brisk-*"))
        page.get_by_label("Compare brisk-otter", exact=True).check()
        third = page.get_by_label("Compare brisk-wren", exact=True)
        third.check()
        expect(page.locator("#live")).to_have_text("live")
        with site.workspace() as workspace:
            workspace.catalog.reset("brisk-wren")
        expect(page.locator("tr[data-name=brisk-wren]")).to_contain_text("new")
        expect(third).to_be_checked()
        third.uncheck()
        expect(compare).to_have_text("Compare 2 models")
        compare.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
        assert page.locator(".compare thead a").all_inner_texts() == ["calm-heron", "brisk-otter"]
        row = page.get_by_role("row", name="latency ms")
        expect(row.locator(".best")).to_have_count(0)  # estimates without an interval
        expect(row.locator(".pm")).to_contain_text("%")
        exact = page.get_by_role("row", name="multiply-accumulates")
        expect(exact.locator(".best")).to_have_count(1)
        expect(page.locator(".banner")).to_contain_text("different devices")
        tab.keep_picture("compare-light")
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("link", name="all models").click()
        page.get_by_role("button", name="Clear").click()
        expect(compare).to_be_disabled()


def test_columns_are_chosen_kept_and_exported(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/?text=calm-*")) as tab:
        page = tab.page
        page.get_by_text("Columns", exact=True).click()
        tab.keep_picture("columns-light")
        page.get_by_role("checkbox", name="iteration").check()
        page.get_by_role("checkbox", name="device", exact=True).uncheck()
        page.get_by_role("button", name="Show these").click()
        headings = page.locator("thead")
        expect(headings).to_contain_text("Iteration")
        expect(headings).not_to_contain_text("Device")
        with page.expect_download() as download:
            page.get_by_role("link", name="Export CSV").click()
        text = download.value.path().read_text()
        assert "iteration" in text.splitlines()[0] and len(text.splitlines()) == 13
        page.goto(site.at("/"))  # this browser remembers the choice
        expect(headings).to_contain_text("Iteration")
        page.get_by_text("Columns", exact=True).click()
        page.get_by_role("link", name="The usual ones").click()
        expect(headings).to_contain_text("Device")


def test_an_error_can_be_read_in_the_table(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/")) as tab:
        why = tab.page.locator("tr[data-name=calm-ibis] .why")
        expect(why).to_have_text(re.compile("no counterpart on the chip.$"))
        assert why.evaluate(
            "e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight"
        )


def test_a_card_of_a_device_says_what_it_does_and_what_went_wrong(
    browser: Browser, site: Site
) -> None:
    with browser.tab(site.at("/devices")) as tab:
        page = tab.page
        card = page.locator("[data-place='lab-1/adb:3f9a21']")
        for said in ("idle", "41 °C", "on lab-1", "today", "seen", "Last error"):
            expect(card).to_contain_text(said)
        expect(card.get_by_role("img", name="of today")).to_be_visible()
        card.locator("summary").click()
        expect(card.locator("p.why")).to_contain_text(f"{NASTY}: the board's tool left no profile")
        busy = page.locator("[data-place='lab-1/']").get_by_role("link", name=NASTY)
        expect(busy).to_be_visible()
        page.get_by_role("link", name="dead").click()
        expect(page.locator(".device")).to_have_count(1)
        expect(page.locator(".device")).to_contain_text("no longer answers")
