"""The curves of several jobs in one chart, in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.peers.browser import Browser
from tests.portal.browsing import browser, make_project
from tests.portal.farm import write_jobs
from tests.portal.serving import Site, portal_here

__all__ = ["browser"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with portal_here(make_project(tmp_path_factory.mktemp("jobs"))) as site:
        with site.workspace() as workspace:
            write_jobs(workspace)
        yield site


def test_ticked_jobs_are_laid_over_each_other(browser: Browser, jobs: Site) -> None:
    with browser.tab(jobs.at("/jobs")) as tab:
        page = tab.page
        page.get_by_label("Compare faces-small").check()
        page.get_by_label("Compare faces-large").check()
        # The page is asked for again every three seconds: ticks stay.
        expect(page.locator("#jobs")).to_contain_text("last known", timeout=30_000)
        expect(page.get_by_label("Compare faces-small")).to_be_checked()
        page.get_by_role("button", name="Compare curves").click()
        expect(page).to_have_url(re.compile("/curves.*faces-small.*faces-large|large.*small"))
        cards = page.locator("#charts > section")
        expect(cards).to_have_count(3)  # loss, val_iou, and lr, which one of them has
        loss = page.get_by_role("region", name="loss", exact=True)
        drawing = loss.locator(".for-wide")
        titles = drawing.locator("path title").all_text_contents()
        assert {text.partition(":")[0] for text in titles} == {"faces-small", "faces-large"}
        expect(drawing).to_contain_text("last: faces-")
        mark = drawing.locator("path:has(title)").nth(30)
        mark.hover()
        expect(page.locator("#tip")).to_have_text(
            re.compile(r"faces-(small|large): loss .* at epoch")
        )
        expect(page.locator("#compared tbody tr")).to_have_count(2)
        expect(page.locator("#compared thead")).to_contain_text("width")
        tab.keep_picture("curves-light")
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_jobs_that_are_gone_and_none_at_all(browser: Browser, jobs: Site) -> None:
    with browser.tab(jobs.at("/curves?name=gone&name=sweep-7")) as tab:
        expect(tab.page.locator(".banner")).to_contain_text("nothing to read of gone")
        expect(tab.page.locator("#charts")).to_contain_text("No curves yet")
        tab.page.goto(jobs.at("/curves"))
        expect(tab.page.locator(".empty")).to_contain_text("Choose two or more jobs")
