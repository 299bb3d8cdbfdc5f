"""What one does on every page but the table, in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.peers.browser import Browser
from tests.portal.audit import GROUNDS
from tests.portal.browsing import SEARCH_LINKS, browser, portal_of, site
from tests.portal.farm import NASTY, SHOWN, files
from tests.portal.pictures import examples
from tests.portal.serving import Site

__all__ = ["browser", "site"]

LOADED = (
    "[...document.querySelectorAll('#examples img')].every((i) => i.complete && i.naturalWidth)"
)
STATIC = Path(__file__).parents[2] / "edgeloop/view/portal/static"


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_the_choice_of_light_or_dark_is_kept(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/"), "light") as tab:
        page = tab.page
        page.get_by_role("button", name="Light or dark").click()
        assert ground(page) == GROUNDS["dark"]
        page.get_by_role("link", name="Devices").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Devices")
        assert ground(page) == GROUNDS["dark"]


def test_without_script_the_system_decides_on_light_or_dark(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/devices"), "dark", script=False) as tab:
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Devices")
        assert (
            tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
            == (GROUNDS["dark"])
        )


@pytest.mark.parametrize("sheet", ["base.css", "model.css"])
def test_both_ways_into_the_dark_have_the_same_colours(sheet: str) -> None:
    text = (STATIC / sheet).read_text()
    chosen = re.search(r':root\[data-theme="dark"\] \{(.*?)\}', text, re.S)
    system = re.search(r":root:not\(\[data-theme\]\) \{(.*?)\}", text, re.S)
    assert chosen and system
    assert chosen[1].split() == system[1].split()


def test_a_rectangle_over_points_filters_the_table(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/pareto")) as tab:
        page = tab.page
        chosen = page.locator("#chosen")
        expect(chosen.get_by_role("heading")).to_have_text(re.compile(r"The front, \d+ models"))
        box = page.locator("#chart .for-wide svg").bounding_box()
        assert box
        left, top = box["x"] + 0.13 * box["width"], box["y"] + 0.3 * box["height"]
        page.mouse.move(left, top)
        page.mouse.down()
        page.mouse.move(left + 60, top + 60)
        page.mouse.move(left + 0.12 * box["width"], top + 0.25 * box["height"])
        expect(page.locator(".brush")).to_be_visible()
        page.mouse.up()
        expect(chosen.get_by_role("heading")).to_have_text(re.compile(r"^[1-9]\d* selected$"))
        assert "x_min=" in page.url and page.url.startswith(site.at("/pareto"))
        picked = page.locator("#chart .for-wide a.is-picked")
        assert picked.count() == chosen.locator("tbody tr").count() > 1
        page.reload()  # the selection is in the address
        expect(picked).to_have_count(chosen.locator("tbody tr").count())
        page.keyboard.press("Escape")
        expect(chosen.get_by_role("heading")).to_have_text(re.compile("The front"))
        expect(picked).to_have_count(0)


def test_a_point_says_what_it_is_and_leads_to_its_model(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/pareto")) as tab:
        page = tab.page
        point = page.locator("#chart .for-wide a").last
        point.hover()
        tip = page.locator("#tip")
        expect(tip).to_contain_text("latency (ms)")
        name = tip.locator("b").inner_text()
        point.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)


def test_points_can_be_selected_with_keys_alone(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/pareto")) as tab:
        page = tab.page
        point = page.locator("#chart .for-wide a").first
        point.focus()
        expect(page.locator("#tip")).to_be_visible()
        page.keyboard.press("Space")
        rows = page.locator("#chosen tbody tr")
        expect(rows).to_have_count(1)
        label = point.get_attribute("aria-label") or ""
        assert label.startswith(str(rows.first.get_attribute("data-name")))


def test_limits_select_points_without_script(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/pareto"), script=False) as tab:
        page = tab.page
        page.locator("input[name=x_max]").fill("2")
        page.get_by_role("button", name="Select").click()
        expect(page.locator("#chosen h2")).to_have_text(re.compile(r"\d+ selected"))
        texts = page.locator("#chosen tbody td:nth-child(2)").all_inner_texts()
        shown = [float(text.replace("est", "").split("±")[0]) for text in texts]
        assert shown and max(shown) <= 2
        page.locator("#chosen tbody a").first.click()
        expect(page.locator("#stages")).to_be_visible()


def test_other_columns_make_another_chart(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/pareto")) as tab:
        tab.page.get_by_label("Across").select_option("macs")
        expect(tab.page.locator("#chart .for-wide svg")).to_contain_text("multiply-accumulates")
        assert "x=macs" in tab.page.url


def test_a_file_comes_as_it_is(browser: Browser, site: Site, tmp_path: Path) -> None:
    with browser.tab(site.at(f"/models/{SHOWN}")) as tab:
        with tab.page.expect_download() as download:
            tab.page.get_by_role("link", name="calm-heron.onnx").click()
        assert download.value.suggested_filename == "calm-heron.onnx"
        download.value.save_as(tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == files()["calm-heron.onnx"]


def test_a_model_shows_its_stages_layers_and_classes(browser: Browser, site: Site) -> None:
    with browser.tab(site.at(f"/models/{SHOWN}")) as tab:
        page = tab.page
        assert page.locator("ol.stages li").count() == 6
        expect(page.locator("ol.stages li").last).to_contain_text("21 min 40 s")
        expect(page.locator("#chart-1 .for-wide svg")).to_contain_text("Layer times")
        expect(page.locator("#chart-2 .for-wide svg")).to_contain_text("overall: f1 ")
        page.get_by_text("All values").click()
        expect(page.get_by_role("cell", name="[1, 3, 256, 256]")).to_be_visible()


def test_a_failed_model_says_why(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/models/vivid-heron")) as tab:
        expect(tab.page.get_by_role("alert")).to_contain_text("GridSample has no counterpart")


def test_a_portal_that_only_shows_has_nothing_to_change(browser: Browser, site: Site) -> None:
    with browser.tab(site.at(f"/models/{SHOWN}")) as tab:
        expect(tab.page.locator("footer")).to_contain_text("read-only")
        assert tab.page.locator("#changes, form[data-change]").count() == 0


def test_a_model_that_is_not_there_is_said_so(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/models/nobody")) as tab:
        expect(tab.page.locator("main")).to_contain_text("nobody")
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Not found")
        tab.expect_failure(404)


def test_the_hostile_name_stays_a_text_on_the_front(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/pareto?text=alert")) as tab:
        page = tab.page
        expect(page.locator("#chosen td.name")).to_have_text(NASTY)
        page.locator("#chart .for-wide a").first.hover()
        expect(page.locator("#tip b")).to_have_text(NASTY)


def test_the_grid_of_examples_fits_screens_and_phones(browser: Browser, site: Site) -> None:
    with browser.tab(site.at(f"/models/{SHOWN}")) as tab:
        page = tab.page
        section = page.locator("#examples")
        section.get_by_text("2 more").click()
        pictures = section.get_by_role("img")
        expect(pictures).to_have_count(4 * 5)
        for picture in pictures.all():
            picture.scroll_into_view_if_needed()
            assert len(picture.get_attribute("alt") or "") > 10
        page.wait_for_function(LOADED)
        expect(section).to_contain_text("float: f1_onnx on host")
        expect(section.get_by_role("group", name="Test image 1")).to_contain_text(
            re.compile(r"Difference \d+\.\d % of pixels")
        )
        expect(section.get_by_role("list", name="Colours of the classes")).to_contain_text("hair")
        for width in (390, 700, 1400):
            page.set_viewport_size({"width": width, "height": 900})
            boxes = [box for box in (p.bounding_box() for p in pictures.all()) if box]
            lines = {round(box["y"]) for box in boxes[:5]}
            assert len(lines) == (2 if width == 390 else 1)
            assert min(box["width"] for box in boxes) > 80
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            tab.keep_picture(f"examples-{width}")


def test_examples_appear_when_a_test_has_ended(browser: Browser, site: Site) -> None:
    model = "brisk-heron"
    with browser.tab(site.at(f"/models/{model}")) as tab:
        expect(tab.page.locator("#live")).to_have_text("live")
        expect(tab.page.locator("#examples img")).to_have_count(0)
        with site.workspace() as workspace:
            for file, content in examples("f1_onnx", 1).items():
                workspace.store.blobs.put(f"{workspace.experiment}/{model}/{file}", content)
            row = workspace.catalog.get(model)
            workspace.store.models(workspace.experiment).update(row, {"f1_onnx": 0.5})
        expect(tab.page.locator("#examples img")).to_have_count(3)
        tab.page.locator("#examples").scroll_into_view_if_needed()
        tab.page.wait_for_function(LOADED)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The results that come with the package, in a folder that has nothing."""
    with portal_of(tmp_path_factory.mktemp("demo"), "--demo") as found:
        yield found


@pytest.mark.parametrize("path", ["/", "/pareto", "/devices", "/jobs", "/searches"])
def test_the_demo_shows_every_page(browser: Browser, demo: Site, path: str) -> None:
    with browser.tab(demo.at(path)) as tab:
        expect(tab.page.locator("h1")).to_be_visible()
        expect(tab.page.locator("#live")).to_have_text("live")
        assert tab.page.locator(".empty").count() == 0, "an empty page shows nothing of the product"


def test_the_demo_has_a_search_jobs_and_devices_at_work(browser: Browser, demo: Site) -> None:
    with browser.tab(demo.at("/searches")) as tab:
        page = tab.page
        page.locator(SEARCH_LINKS).first.click()
        for part in ("scatter", "curve", "importance", "parallel", "learning"):
            expect(page.locator(f"#{part}")).to_be_visible()
        page.goto(demo.at("/jobs"))
        expect(page.locator("#jobs tbody tr")).to_have_count(4)
        page.get_by_role("link", name="faces-lr-1e-2").click()
        expect(page.locator("#numbers polyline").first).to_be_visible()
        expect(page.locator("#log")).to_contain_text("epoch")
        page.goto(demo.at("/devices"))
        chips = page.locator("#chips")
        for word in ("busy", "idle", "dead"):
            expect(chips.locator(f".state:text-is('{word}')")).to_be_visible()
        expect(page.locator("#waiting")).not_to_contain_text("Nothing waits")
        expect(page.locator("#chart")).to_be_visible()


def test_the_demo_says_nothing_of_a_store(demo: Site) -> None:
    """Its own is in memory."""
    said = (demo.folder / "portal.log").read_text()
    assert said.startswith("Portal of experiment") and "store at" not in said
