"""Pages as one file to share: complete without the portal, without what is for visitors alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import expect

from edgeloop.testing.faces import make_faces
from edgeloop.view.portal.export import static_page
from tests.peers.browser import Browser, Scheme
from tests.portal.audit import audited
from tests.portal.browsing import browser, make_project
from tests.portal.farm import NASTY, SHOWN
from tests.portal.gallery import fill_all
from tests.portal.serving import Site, portal_here

__all__ = ["browser"]

TOKEN = "sixteen-letters-or-more"
PAGES = {
    "model": f"/models/{SHOWN}",
    "network": "/models/unet",
    "compare": f"/compare?name={SHOWN}&name=brisk-heron&name={quote(NASTY)}",
    "pareto": "/pareto",
    "selected": "/pareto?x_min=2&x_max=4",
    "search": "/searches/many",
    "dataset": "/dataset",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """With changes allowed and a token: what must not get into a file."""
    folder = make_project(tmp_path_factory.mktemp("export"))
    fill_all(folder, 40, candidates=24)
    make_faces(folder / "data/working/faces", 8, 32, seed=1)
    with portal_here(folder, token=TOKEN, allow_changes=True) as found:
        with found.workspace() as workspace:
            models = workspace.store.models(workspace.experiment)
            row = models.get("brisk-heron")
            assert row is not None
            error = f"convert: {folder}/model.onnx is broken, see {Path.home()}/log"
            models.update(row, {"status": "error", "error": error})
        yield found


def saved(site: Site, page: str, folder: Path) -> Path:
    path = PAGES[page]
    address = f"{path}{'&' if '?' in path else '?'}export=1"
    headers = {"authorization": f"Bearer {TOKEN}"}
    answer = httpx.get(site.at(address), headers=headers, timeout=120)
    assert answer.status_code == 200
    assert re.match(r'attachment; filename="[\w.-]+\.html"', answer.headers["content-disposition"])
    target = folder / f"{page}.html"
    target.write_bytes(answer.content)
    return target


@pytest.mark.parametrize("page", PAGES)
def test_a_file_needs_no_portal_and_tells_nothing_of_it(
    site: Site, tmp_path: Path, page: str
) -> None:
    text = saved(site, page, tmp_path).read_text()
    for tag in ("script", "form", "button", "input", "select", "textarea", "link", "iframe"):
        assert f"<{tag}" not in text, tag
    assert not re.search(r'\s(?:href|src)="(?!#|data:)', text)
    assert not re.search(r"<[^<>]*\s(?:on\w+|data-[\w-]+)=", text)
    assert "url(/" not in text and 'url("' not in text and "/api/v1" not in text
    assert TOKEN not in text and str(site.folder) not in text and "127.0.0.1" not in text
    assert f"{Path.home()}/" not in text
    assert NASTY not in text and len(text) < 8_000_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_a_file_opens_without_a_request(
    browser: Browser, site: Site, tmp_path: Path, page: str, scheme: Scheme
) -> None:
    path = saved(site, page, tmp_path)
    with browser.tab(path.as_uri(), scheme=scheme, size=(1400, 900)) as tab:
        assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
        expect(tab.page.locator("h1")).to_be_visible()
        expect(tab.page.locator("footer")).to_contain_text("Experiment default, 20")
        images = tab.page.locator("img").evaluate_all("all => all.map((one) => one.naturalWidth)")
        if page in ("model", "dataset"):
            assert len(images) > 3
        tab.page.evaluate("for (const one of document.images) one.loading = 'eager'")
        tab.page.wait_for_function("[...document.images].every((one) => one.naturalWidth > 0)")
        if page not in ("compare", "dataset"):
            expect(tab.page.locator("svg:visible").first).to_be_visible()
        tab.keep_picture(f"export-{page}-1400-{scheme}")
        tab.page.set_viewport_size({"width": 390, "height": 900})
        assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
        tab.keep_picture(f"export-{page}-390-{scheme}")


@pytest.mark.parametrize("page", ["model", "pareto", "compare"])
def test_a_file_has_no_fault(browser: Browser, site: Site, tmp_path: Path, page: str) -> None:
    with browser.tab(saved(site, page, tmp_path).as_uri()) as tab:
        faults = audited(tab)
        tab.troubles.clear()
        assert faults == []


def test_a_selection_is_saved_by_the_button(browser: Browser, tmp_path: Path) -> None:
    folder = make_project(tmp_path / "project") if (tmp_path / "project").mkdir() is None else None
    assert folder is not None
    fill_all(folder, 40, candidates=24)
    with portal_here(folder) as site, browser.tab(site.at("/pareto")) as tab:
        page = tab.page
        page.locator("#limits input[name=x_max]").fill("3")
        page.locator("#limits input[name=x_max]").press("Enter")
        expect(page.locator("#chosen h2")).to_contain_text("selected")
        count = page.locator("#chosen tbody tr").count()
        with page.expect_download() as download:
            page.get_by_role("link", name="Save page").press("Enter")
        assert download.value.suggested_filename == "pareto.html"
        text = download.value.path().read_text()
        assert text.count("<tr") - 1 == count and f"{count} selected" in text


def test_other_pages_are_not_exported_and_strangers_get_nothing(site: Site) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    for path in ("/", "/devices", "/jobs"):
        answer = httpx.get(site.at(f"{path}?export=1"), headers=headers, timeout=60)
        assert "content-disposition" not in answer.headers
    assert httpx.get(site.at("/pareto?export=1")).status_code == 303


HOSTILE = """<!doctype html><html lang="en"><head><title>T</title><script>a</script>
<link rel="stylesheet" href="/static/base.css"></head><body onload="x()"><main>
<form action="/x"><form><input name="token" value="SECRET"></form>SECRET</form>
<p data-token="SECRET" onclick="x()" style="background: url(http://evil)">kept</p>
<a href="javascript:x()">one</a><a href="http://evil/">two</a><a href="#here">three</a>
<a href="&#106;avascript:x()">four</a><svg><a xlink:href="javascript:x()"><path d="M0 0"/></a>
<use href="http://evil#x"/><script>SECRET</script></svg>
<img src="http://evil/x.png" alt="a"><img src="/api/v1/secret" alt="&quot;><script>"><br>
<template>SECRET</template><noscript>SECRET</noscript><div hidden>SECRET<br></div>
<div data-only-here><p>SECRET<div>SECRET</div></div><section id="changes">SECRET</section>
&lt;script&gt;x&lt;/script&gt; /srv/project/x.py and /srv/projects</main></body></html>"""


def test_what_is_not_known_to_be_harmless_is_left_out() -> None:
    text = static_page(HOSTILE, "<about>", lambda address: None, [Path("/srv/project")])
    body = text.partition("<body")[2]
    assert "SECRET" not in text and "evil" not in text and "javascript" not in text
    assert "<script" not in text and "onload" not in text and "onclick" not in text
    assert "<p>kept</p>" in body and '<a href="#here">three</a>' in body
    assert "&lt;script&gt;x&lt;/script&gt;" in body and "&lt;about&gt;" in body
    assert "…/x.py and /srv/projects" in body and body.count('src="data:,"') == 2
