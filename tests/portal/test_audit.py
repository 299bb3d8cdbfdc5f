"""Every page in a real Chromium: contrast, keys, names, headings, requests, and no width at which
it must be scrolled sideways. And that each of these checks finds what it is there for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.peers.browser import Browser
from tests.portal.audit import GROUNDS, audited
from tests.portal.browsing import browser
from tests.portal.conftest import TOKEN
from tests.portal.farm import SHOWN
from tests.portal.gallery import COMMON, FULL, REPORT, fill_all, write_report
from tests.portal.serving import Site, portal_here

__all__ = ["browser"]

# Of pages that differ in their data alone, one.
HEADINGS = {
    **{"models": "Models", "models-no-match": "Models", "compare": "Compare"},
    **{"model": SHOWN, "model-network": "unet", "model-failed": "vivid-heron"},
    **{"pareto": "Pareto front", "pareto-selected": "Pareto front", "devices": "Devices"},
    **{"jobs": "Jobs", "job": "faces-small", "job-failed": "faces-large"},
    **{"job-running": "faces-night", "searches": "Searches", "search": "many"},
    **{"search-chips": "chips", "error": "Not found"},
}
LEFT_OUT = {"models-failed", "model-new", "search-plain"}


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Models in every state, devices, jobs and searches."""
    folder = tmp_path_factory.mktemp("busy")
    fill_all(folder, 40, candidates=24)
    with portal_here(folder, allow_changes=True) as site:
        yield site


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with portal_here(tmp_path_factory.mktemp("empty")) as site:
        yield site


def faults_of(browser: Browser, address: str, status: int = 200, heading: str = "") -> list[str]:
    """What is wrong with a page. One with a `heading` is the portal's own, in its colours."""
    with browser.tab(address) as tab:
        found = audited(tab)
        if heading:
            expect(tab.page.get_by_role("heading", level=1)).to_have_text(heading)
            for scheme, ground in GROUNDS.items():  # the page follows while it is open
                tab.page.emulate_media(color_scheme=scheme)
                expect(tab.page.locator("body")).to_have_css("background-color", ground)
        if heading and status == 200:
            expect(tab.page.locator("#live")).to_have_text("live")
        tab.troubles.clear()  # they are among the faults
    return [fault for fault in found if status == 200 or f"status of {status}" not in fault]


@pytest.mark.parametrize("page", HEADINGS)
def test_a_page_has_no_fault(browser: Browser, busy: Site, page: str) -> None:
    status = 404 if page == "error" else 200
    assert faults_of(browser, busy.at(FULL[page]), status, HEADINGS[page]) == []


def test_a_report_has_no_fault(browser: Browser, busy: Site) -> None:
    assert faults_of(browser, write_report(busy.folder)) == []


def test_every_kind_of_page_is_looked_at() -> None:
    assert {*HEADINGS, REPORT} == set(FULL) - LEFT_OUT


@pytest.mark.parametrize("page", sorted({*COMMON, "compare"} - {"error"}))
def test_an_empty_page_has_no_fault(browser: Browser, empty: Site, page: str) -> None:
    path = {**COMMON, "compare": "/compare"}[page]
    address = write_report(empty.folder) if page == REPORT else empty.at(path)
    assert faults_of(browser, address) == []


def test_the_form_that_asks_for_a_token_has_no_fault(browser: Browser, tmp_path: Path) -> None:
    with portal_here(tmp_path, token=TOKEN) as site:
        assert faults_of(browser, site.url) == []
        assert faults_of(browser, site.at("/login?wrong=1"), status=401) == []


GOOD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>T</title><style>
body { background: #fff; color: #222; } .pale { color: #767676; } a { color: #00609a; }
.skip { position: absolute; left: 0; top: -50px; } .skip:focus { top: 0; }
input { border: 1px solid #777; } .wide { overflow-x: auto; } .away { position: absolute; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #eee; } .pale { color: #aaa; }
a { color: #6cc0f5; } :root { color-scheme: dark; } }
</style></head><body><a class="skip" href="#main">Skip</a><nav><a href="#a">A</a></nav>
<main id="main"><h1>One</h1><p class="pale">grey</p><h2>Two</h2>
<label>Name <input type="text"></label><button>Go</button>PLANT</main></body></html>"""

# Each is found in one page that has them all; the colours were worked out by hand.
PLANTED = {
    "contrast 4.48 of text, not 4.5: p#p1": "<p id=p1 style='color: #777; background: #fff'>x</p>",
    "contrast 2.62 of text, not 4.5: p#p2": "<div style='background: #fff'>"
    "<div style='opacity: .4'><p id=p2 style='color: #111'>x</p></div></div>",
    "light: contrast 2.27 of text, not 4.5: p#p3": "<div style='background: rgb(0 0 0 / 80%)'>"
    "<p id=p3 style='color: #000; background: rgb(255 255 255 / 10%)'>x</p></div>",
    "contrast 2.85 of text, not 3: p#p4": "<p id=p4 style='color: #999; background: #fff; "
    "font-size: 24px'>x</p>",
    "contrast 1.00 of text, not 4.5: text#p5": "<svg role=img aria-label=x width=99 height=30>"
    "<rect width=99 height=30 fill='#222'/><text id=p5 y=20 fill='#222'>hidden</text></svg>",
    "dark: contrast 1.19 of text, not 4.5: p#p6": "<p id=p6 style='color: #222'>x</p>",
    "contrast 3.54 of placeholder, not 4.5: input#p7": "<input type=text aria-label=x id=p7 "
    "placeholder=x><style>#p7 { background: #fff } #p7::placeholder { color: #888 }</style>",
    "contrast 1.61 of an edge, not 3: input#p8": "<p style='background: #fff'><input type=text "
    "aria-label=x id=p8 style='border-color: #ccc; background: #fff'></p>",
    "contrast 1.61 of ::before: p#p9": "<p id=p9>x</p><style>#p9 { color: #444; background: #fff }"
    "#p9::before { content: '!'; color: #ccc }</style>",
    "one cannot see that it has the focus: button#k1": "<button id=k1 style='outline: none'>x"
    "</button>",
    "of the focus, not 3: a#k2": "<a href='#x' id=k2>x</a><style>#k2:focus-visible "
    "{ outline: 2px solid #8884 }</style>",
    "jumps the queue by its tabindex: button#k3": "<button id=k3 tabindex=3>x</button>",
    "scrolls, but not by keys: div#k4": "<div id=k4 tabindex=-1 style='overflow-x: auto; "
    "width: 50px'><p style='width: 90px'>x</p></div>",
    "no name: button": "<button><svg width=9 height=9 aria-hidden=true></svg></button>",
    "no name: image": "<svg role=img width=9 height=9></svg>",
    "no name: textbox": "<input type=text>",
    "no alt: img#n1": "<img id=n1 src='data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA='>",
    "a level of headings is left out: h4#n2": "<h4 id=n2>four</h4>",
    "the page has not one h1": "<h1>again</h1>",
    "ids that are there twice: n3": "<p id=n3>x</p><p id=n3>x</p>",
    "390 px: the page is 500 wide": "<div style='width: 500px; margin-left: -8px'>wide</div>",
    "cut off: a#w1": "<nav style='width: 60px; overflow-x: auto; white-space: nowrap'>"
    "<a href='#b' id=w1>much too long for it</a></nav>",
    "a drawing is wider than its box: svg#w2": "<div tabindex=0 style='overflow-x: auto; "
    "width: 300px'><svg id=w2 role=img aria-label=x width=900 height=9></svg></div>",
    "out of its drawing: text#d1": "<svg role=img aria-label=x width=50 height=30 overflow=visible>"
    "<text id=d1 y=20 fill=currentColor>out of the drawing</text></svg>",
    "over each other: text#d2": "<svg role=img aria-label=x width=200 height=30><text id=d2 y=20 "
    "fill=currentColor>one text</text><text y=22 x=9 fill=currentColor>another</text></svg>",
    "px: text#d3": "<svg role=img aria-label=x width=200 height=30><text id=d3 y=20 "
    "fill=currentColor font-size=6>tiny letters</text></svg>",
    "over its drawing: p#d4": "<figure><svg role=img aria-label=x width=200 height=30></svg>"
    "<p id=d4 style='margin-top: -20px'>label</p></figure>",
    "console: planted": "<script>console.error('planted')</script>",
    "request failed": "<img alt=x src='/gone'>",
}


def test_every_planted_fault_is_found(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(GOOD.replace("PLANT", "\n".join(PLANTED.values())))
    found = faults_of(browser, path.as_uri())
    missed = [fault for fault in PLANTED if not any(fault in line for line in found)]
    assert missed == [], found


def test_a_good_page_has_no_fault(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(GOOD.replace("PLANT", ""))
    assert faults_of(browser, path.as_uri()) == []


def test_a_trap_for_the_focus_and_a_page_without_language_title_and_skip_link_are_found(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    trap = "<input type=text aria-label=x onkeydown='return event.key !== `Tab`'><button>Z</button>"
    page = GOOD.replace(' lang="en"', "").replace("<title>T</title>", "").replace("PLANT", trap)
    path.write_text(page.replace('href="#main"', 'href="#none"').replace("main", "div"))
    found = "\n".join(faults_of(browser, path.as_uri()))
    said = ("no language", "no title", "no skip link", "not one main", 'not reach button "Z"')
    assert [fault for fault in said if fault not in found] == [], found
