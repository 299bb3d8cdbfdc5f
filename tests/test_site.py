"""The documentation builds as a site without a warning, and its pages fetch nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.browser import Browser

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FETCHED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"?(https?:[^\s\">]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_fetch_nothing_from_elsewhere(site: Path):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    fetched = {address for page in pages for address in FETCHED.findall(page.read_text())}
    assert not fetched


def test_the_reference_shows_signatures_and_parameters(site: Path):
    page = (site / "reference/api.html").read_text()
    for word in ("Workspace", "benchmark_only", "timeout_s", "Examples", "Returns", "NameTaken"):
        assert word in page


def test_search_works_from_disk(site: Path):
    page = (site / "index.html").as_uri()
    with Browser() as browser, browser.tab() as tab:
        tab.page.goto(page)
        tab.page.get_by_role("textbox", name="Search").press_sequentially("hypervolume")
        results = tab.page.locator(".md-search-result__item")
        results.first.wait_for()
        assert results.filter(has_text="hypervolume").count() > 0
        results.filter(has_text="Glossary").first.click()
        tab.page.wait_for_url("**/glossary.html*")
