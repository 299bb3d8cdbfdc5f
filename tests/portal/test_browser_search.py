"""A search in a real Chromium, and its hypervolume in every view."""

from __future__ import annotations

import csv
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.peers.browser import Browser
from tests.portal.browsing import Site, browser, make_project, portal_of
from tests.search.seen import write_seen

__all__ = ["browser"]

SEARCH = {
    "search": {"name": "real", "space": "small-classifier", "size": 32, "budget": 12},
    "objectives": {"params": {"goal": "min"}, "macs": {"goal": "min"}},
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = make_project(tmp_path_factory.mktemp("found"))
    write_seen(folder / "searches/many", 60)
    write_seen(folder / "searches/chips", 30, chips=6)
    write_seen(folder / "searches/running", 25, is_running=True)
    write_seen(folder / "searches/early", 5, is_running=True)
    (folder / "real.yaml").write_text(json.dumps(SEARCH))
    with portal_of(folder) as site:
        yield site


def test_a_point_says_its_parameters_to_pointer_and_keys_and_leads_to_its_row(
    browser: Browser, found: Site
) -> None:
    with browser.tab(found.at("/searches/many")) as tab:
        page, tip = tab.page, tab.page.locator("#tip")
        points = page.locator("#scatter a")
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
            expect(page.locator(f"#{part} svg")).to_be_visible()
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
        expect(page.locator("#scatter svg")).to_contain_text("front of x-elite")
        page.locator("select[name=colour]").select_option("rung")
        expect(page.locator("#scatter svg")).to_contain_text("trained for")
        expect(page.locator("#scatter svg")).to_contain_text("front of x-elite")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        tab.keep_picture("search-chips-narrow")


def test_the_hypervolume_is_one_number_in_every_view(found: Site) -> None:
    assert "(reference: params " in found.edgeloop("search", "real.yaml")
    for name in ("real", "many", "chips", "running"):
        with (found.folder / f"searches/{name}/hypervolume.csv").open() as file:
            last = float(list(csv.DictReader(file))[-1]["hypervolume"])
        assert 0 < last < 1
        [told] = json.loads(found.edgeloop("searches", name, "--json"))
        with urllib.request.urlopen(found.at(f"/api/v1/searches/{name}")) as answer:
            shown = json.load(answer)
        assert told["hypervolume"] == last == shown["search"]["hypervolume"]
        assert f"→ {last:.3f} (reference: " in found.edgeloop("searches", name).replace("\n  ", " ")
        found.edgeloop("report", "--search", name, "-o", f"{name}.html")
        page = Path(found.folder, f"{name}.html").read_text()
        assert f'<th>hypervolume</th><td class="v">{last:.3f}</td>' in page
        assert shown["search"]["reference"] in page, "stated in both"
    resumed = json.loads(found.edgeloop("search", "real", "--resume", "--json"))
    [told] = json.loads(found.edgeloop("searches", "real", "--json"))
    assert max(row["hypervolume"] for row in resumed) == told["hypervolume"]
    [early] = json.loads(found.edgeloop("searches", "early", "--json"))
    assert early["hypervolume"] is None and early["reference"] is None
