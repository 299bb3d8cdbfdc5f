"""The graph on the page of a model, in a real Chromium: seen, pointed at, reached by keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from edgeloop.graph.outline import LARGEST_OUTLINE, Outline, OutlineLayer, outline_bytes
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.networks import chain, public_outline, some_times
from tests.peers.browser import Browser, Scheme
from tests.portal.browsing import browser, make_project
from tests.portal.serving import Site, portal_here

__all__ = ["browser"]

SCRIPT = "</title></svg><script>alert(1)</script><img src=x onerror=alert(2)>"
LARGE = ("nasnet", "densenet121", "swin_base")
DEPLOYED = {"net.qcs8550.bin": "context binary, for qcs8550", "net.onnx": "float"}


def hostile() -> Outline:
    attributes = (("<b>", SCRIPT), ("password", "password=hunter2-hunter2"), ("\x00", "\x1b[1m"))
    layers = [
        OutlineLayer(name=SCRIPT, operator=SCRIPT[:100], tensors=(SCRIPT,), attributes=attributes)
    ]
    layers.append(OutlineLayer(name="; ; ", operator="\x00\x1b", inputs=(0,)))
    return Outline(count=2, layers=tuple(layers))


def broken() -> dict[str, bytes]:
    return {
        "empty": b"",
        "cycle": b'{"format":1,"count":1,"layers":[{"name":"a","operator":"b","inputs":[0]}]}',
        "large": b" " * (LARGEST_OUTLINE + 1),
        "deep": b"[" * 500_000,
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = make_project(tmp_path_factory.mktemp("graphs"))
    outlines = {"five": chain(5), "hostile": hostile()}
    outlines |= {name: public_outline(name) for name in ("unet_segmentation", *LARGE)}
    with Workspace(Settings.load(folder, {})) as workspace:
        models, put = workspace.store.models(workspace.experiment), workspace.store.blobs.put
        graphs = {name: outline_bytes(outline) for name, outline in outlines.items()}
        for name, graph in (graphs | broken() | {"old": b""}).items():
            models.insert(name, {"name": name, "status": "complete", "quantized": True})
            files = {"perf_results_1.csv": _table(outlines.get(name, chain(3))), "notes.txt": b""}
            files |= {} if name == "old" else {"net.graph.json": graph}
            files |= dict.fromkeys(DEPLOYED, b"x") if name in ("five", "old", "cycle") else {}
            if name == "old":
                files |= {f"perf_results_{run}.csv": _table(chain(3)) for run in range(2, 9)}
            for file, content in files.items():
                put(f"{workspace.experiment}/{name}/{file}", content)
    with portal_here(folder) as found:
        yield found


def _table(outline: Outline) -> bytes:
    lines = [f'layer,"{name}",{op},{us},measured' for name, op, us in some_times(outline)]
    lines.append("layer,Transpose_token_1,Transpose,5,measured")
    kept = [line for line in lines if "\x00" not in line]
    return "\n".join(["what,name,operator,time_us,kind", *kept]).encode()


@pytest.mark.parametrize("name", ["five", "unet_segmentation", "nasnet", "densenet121"])
def test_a_network_fits_the_page(browser: Browser, site: Site, name: str) -> None:
    shown_as: tuple[tuple[int, Scheme], ...] = ((1400, "light"), (390, "dark"))
    with browser.tab(site.at(f"/models/{name}")) as tab:
        frame = tab.page.locator("#network .map")
        for width, scheme in shown_as:
            tab.page.set_viewport_size({"width": width, "height": 900})
            tab.page.emulate_media(color_scheme=scheme)
            expect(frame.locator("svg:visible")).to_have_count(1)
            sizes = tab.page.evaluate(
                """() => {
                  const frame = document.querySelector('#network .map');
                  return [document.documentElement.scrollWidth, innerWidth, frame.scrollWidth,
                          frame.clientWidth, frame.clientHeight, frame.scrollHeight];
                }"""
            )
            whole, window, inner, outer, shown, height = sizes
            assert whole <= window == width and inner <= outer and shown <= 642
            assert (height > shown) == (name != "five")
            texts = frame.locator("svg:visible text").evaluate_all(
                """texts => texts.filter((text) => {
                  const box = text.parentNode.querySelector('.face').getBBox();
                  const own = text.getBBox();
                  return own.x < box.x || own.x + own.width > box.x + box.width;
                }).map((text) => text.textContent)"""
            )
            assert texts == [], "written over the edge of a box"
            tab.keep_picture(f"graph-{name}-{width}-{scheme}")


def test_pointer_and_focus_say_what_a_layer_is(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/models/five")) as tab:
        page, tip = tab.page, tab.page.locator("#tip")
        page.locator("#network .for-wide .box").nth(0).hover()
        expect(tip).to_contain_text("Input, output 1×3×8×8")
        page.locator("#network .for-wide a").nth(1).focus()
        expect(tip).to_contain_text(re.compile(r"/\d/Conv.*output 1×8×8×8.*µs, .* % of the time"))
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()


def test_a_layer_is_opened_by_click_and_by_enter(browser: Browser, site: Site) -> None:
    """Name, operator, what it reads, output, attributes and time; Escape leads back to the box."""
    with browser.tab(site.at("/models/unet_segmentation"), size=(1400, 900)) as tab:
        page, panel = tab.page, tab.page.locator("#layer")
        expect(panel).to_be_hidden()
        box = page.locator("#network .for-wide a", has_text="Conv").first
        box.focus()
        page.keyboard.press("Enter")
        expect(panel).to_contain_text("kernel_shape")
        expect(panel).to_contain_text("3, 3")
        expect(panel).to_contain_text(re.compile(r"Reads\s*input \S+"))
        expect(panel).to_contain_text(re.compile(r"Output\s*1×\d+×"))
        expect(panel).to_contain_text("under 0.1 % of the time")
        expect(panel.locator("h3")).to_be_focused()
        expect(page.locator("#network .for-wide .is-open")).to_have_count(1)
        tab.keep_picture("graph-layer-1400-light")
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
        expect(box).to_be_focused()
        page.locator("#network .for-wide a", has_text="Input").click()
        expect(panel.locator("h3")).to_have_text(re.compile("^input "))
        panel.get_by_role("button", name="Close").click()
        expect(panel).to_be_hidden()
        page.locator(".costliest a").first.click()
        panel.get_by_role("link", name="in the table of layers").click()
        expect(page.locator("tr:target")).to_be_visible()  # the table opens for it


def test_a_box_of_several_layers_lists_them(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/models/densenet121"), scheme="dark", size=(390, 900)) as tab:
        page, panel = tab.page, tab.page.locator("#layer")
        page.locator("#network .for-narrow a.many").first.click()
        expect(panel.locator("h3")).to_have_text(re.compile(r"^\d+ layers$"))
        first = panel.locator("details").first
        first.locator("summary").click()
        expect(first).to_contain_text("Output")
        expect(panel).to_be_in_viewport()
        tab.keep_picture("graph-layers-390-dark")
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_an_open_layer_stays_when_the_page_is_brought_up_to_date(
    browser: Browser, site: Site
) -> None:
    with browser.tab(site.at("/models/five")) as tab:
        tab.page.locator("#network .for-wide a").nth(1).click()
        expect(tab.page.locator("#layer h3")).to_have_text("/1/Conv")
        expect(tab.page.locator("#layer")).not_to_contain_text("kernel_shape")  # an older file
        with site.workspace() as workspace:
            workspace.catalog.annotate("five", ["new-tag"], "")
        expect(tab.page.locator("#head")).to_contain_text("new-tag")
        expect(tab.page.locator("#layer h3")).to_have_text("/1/Conv")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("five?box=1", 200),
        ("five?box=5", 404),
        ("five?box=-1", 404),
        ("five?box=x", 404),
        ("five?box=99999999999999999999", 404),
        ("five", 404),
        ("cycle?box=0", 404),
        ("nowhere?box=0", 404),
        ("..%2f..%2fetc?box=0", 404),
    ],
)
def test_only_boxes_of_a_graph_are_answered(
    browser: Browser, site: Site, path: str, status: int
) -> None:
    with browser.tab(site.at("/devices")) as tab:
        answer = tab.page.request.get(site.at(f"/parts/network/{path}"))
        assert answer.status == status


def test_the_costliest_layers_are_named_and_lead_to_their_boxes(
    browser: Browser, site: Site
) -> None:
    with browser.tab(site.at("/models/unet_segmentation"), size=(1400, 900)) as tab:
        page = tab.page
        lines = page.locator(".costliest li")
        expect(lines).to_have_count(8)
        top = page.evaluate("scrollY")
        lines.nth(0).locator("a").hover()
        shown = page.locator("#network .for-wide .is-shown")
        expect(shown).to_have_count(1)
        expect(shown).to_be_in_viewport()
        assert page.evaluate("scrollY") == top, "only the frame is scrolled"
        shares = [float(text.split()[0]) for text in lines.locator(".n").all_inner_texts()]
        assert shares == sorted(shares, reverse=True)
        expect(page.locator("#network")).to_contain_text("in 1 layer that the graph does not show")


def test_a_network_that_is_too_large_says_so(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/models/swin_base"), size=(390, 900)) as tab:
        expect(tab.page.locator("#network")).to_contain_text("at most 5,000 are drawn")


def test_names_in_a_graph_are_never_markup(browser: Browser, site: Site) -> None:
    """A dialog or an error in the console would be trouble."""
    with browser.tab(site.at("/models/hostile"), size=(390, 900)) as tab:
        boxes = tab.page.locator("#network .for-narrow .box")
        expect(boxes).to_have_count(2)
        assert tab.page.locator("#network img, #network script").count() == 0
        boxes.nth(0).hover()
        expect(tab.page.locator("#tip")).to_contain_text("<script>alert(1)</script>")
        boxes.nth(0).click()
        panel = tab.page.locator("#layer")
        expect(panel).to_contain_text("<img src=x onerror=alert(2)>")
        assert panel.locator("img, script, b").count() == 0
        assert "hunter2" not in panel.inner_text()


@pytest.mark.parametrize("name", [*broken(), "old"])
def test_a_model_without_a_usable_graph_has_the_rest_of_its_page(
    browser: Browser, site: Site, name: str
) -> None:
    with browser.tab(site.at(f"/models/{name}")) as tab:
        expect(tab.page.locator("#layers")).to_have_count(1)
        expect(tab.page.locator("#network .map")).to_have_count(0)
        has_model = name in ("old", "cycle")  # what has no ONNX file cannot be converted again
        hint = tab.page.get_by_text(f"edgeloop reset {name} --stage convert")
        expect(hint).to_have_count(1 if has_model else 0)


def test_files_to_deploy_are_first_and_say_what_they_are(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/models/five")) as tab:
        lines = tab.page.locator("#files .filelist").first.locator("li")
        found = {line.locator("a").inner_text(): line.inner_text() for line in lines.all()}
        assert list(found) == list(DEPLOYED)
        assert all(about in found[name] for name, about in DEPLOYED.items())
        rest = tab.page.locator("#files-others")
        expect(rest.get_by_text("net.graph.json")).to_be_hidden()
        rest.locator("summary").click()
        expect(rest.get_by_text("net.graph.json")).to_be_visible()
        answer = tab.page.request.get(site.at("/api/v1/models/five")).json()
        assert [file["name"] for file in answer["files"]] == [
            *(*DEPLOYED, "perf_results_1.csv", "net.graph.json", "notes.txt")
        ]
        assert answer["files"][0]["group"] == "deploy"


def test_many_results_are_folded_behind_what_is_deployed(browser: Browser, site: Site) -> None:
    with browser.tab(site.at("/models/old")) as tab:
        results = tab.page.locator("#files-results")
        expect(results.get_by_text("perf_results_8.csv")).to_be_hidden()
        results.get_by_text("8 files with results").click()
        expect(results.get_by_text("perf_results_8.csv")).to_be_visible()


def test_labels_can_be_read_on_every_colour(browser: Browser, site: Site) -> None:
    """AA: a ratio of 4.5 for every text on its box, in both schemes."""
    schemes: tuple[Scheme, ...] = ("light", "dark")
    with browser.tab(site.at("/models/unet_segmentation")) as tab:
        for scheme in schemes:
            tab.page.emulate_media(color_scheme=scheme)
            ratios = tab.page.evaluate(
                """() => {
                  const light = (colour) => {
                    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
                    const line = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
                    const [r, g, b] = parts.map(line);
                    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
                  };
                  const found = {};
                  const box = document.querySelector('#network .for-wide .box:not(.end)');
                  for (let step = 0; step <= 7; step += 1) {
                    box.setAttribute('class', `box step-${step}`);
                    const face = light(getComputedStyle(box.querySelector('.face')).fill);
                    for (const text of box.querySelectorAll('text, tspan')) {
                      const ink = light(getComputedStyle(text).fill);
                      const [low, high] = [face, ink].sort((a, b) => a - b);
                      found[`${step} ${text.getAttribute('class') ?? 'text'}`] =
                        (high + 0.05) / (low + 0.05);
                    }
                  }
                  return found;
                }"""
            )
            assert len(ratios) >= 16
            assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
