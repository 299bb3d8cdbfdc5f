"""The report and the front as files, opened as somebody opens them who got them by mail."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.peers.browser import Browser, Scheme
from tests.portal.browsing import browser
from tests.portal.serving import run_here
from tests.report.tables import table

__all__ = ["browser"]

COLOURS = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose table has a front, estimates, and a name that would like to be a script."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "edgeloop.yaml").touch()
    rows = table(40)
    rows[7]["name"] = "<script>alert(1)<"
    with Workspace(Settings.load(folder, {})) as workspace:
        models = workspace.store.models(workspace.experiment)
        for row in rows:
            models.insert(str(row["name"]), row)
    run_here(folder, "report", "-o", "report.html")
    run_here(folder, "pareto", "-o", "front.html")
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_shows_its_front_and_asks_nobody(
    browser: Browser,
    folder: Path,
    scheme: Scheme,
) -> None:
    with browser.tab((folder / "report.html").as_uri(), scheme) as tab:
        front = tab.page.locator("#front .for-wide svg").first
        front.wait_for(state="visible")
        box = front.bounding_box()
        assert box and box["width"] > 400 and box["height"] > 250
        assert tab.requests == [(folder / "report.html").as_uri()]
        assert (
            tab.page.evaluate(COLOURS)
            == {
                "light": "rgb(255, 255, 255)",
                "dark": "rgb(22, 24, 29)",
            }[scheme]
        )
        assert tab.page.get_by_text("<script>alert(1)<").count() > 0
        tab.keep_picture(f"report-{scheme}")


def test_a_point_of_the_report_leads_to_its_model(browser: Browser, folder: Path) -> None:
    with browser.tab((folder / "report.html").as_uri()) as tab:
        anchor = tab.page.locator("#front .for-wide svg a").last
        anchor.click()
        target = anchor.get_attribute("href") or ""
        assert tab.page.url.endswith(target) and target != "#"
        assert tab.page.locator(target).is_visible()


def test_the_front_as_a_page_draws_itself_and_asks_nobody(browser: Browser, folder: Path) -> None:
    with browser.tab((folder / "front.html").as_uri()) as tab:
        tab.page.locator("#chart svg").wait_for(state="visible")
        marks = tab.page.locator("#chart svg path[aria-roledescription=point]")
        assert marks.count() == 40
        marks.last.hover()
        tab.page.locator("#vg-tooltip-element.visible").wait_for()
        assert tab.requests == [(folder / "front.html").as_uri()]
        tab.keep_picture("front")
