"""`make screenshots`: a small part of it, so that it keeps working."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.portal.gallery import STORES, Shot, contact_sheet, take
from tests.report.pages import read

pytestmark = pytest.mark.server


@pytest.mark.soak
def test_a_page_is_photographed_for_a_phone_and_shown_on_the_contact_sheet(tmp_path: Path) -> None:
    told: list[str] = []
    shots = take(tmp_path, "demo/pareto", ("dark",), (390,), told.append)
    assert told == ["demo/pareto"] and shots == [Shot("demo", "pareto", "dark", 390)]
    with Image.open(tmp_path / shots[0].file) as image:
        assert image.width == 390 and image.height > 800
        corner = image.convert("RGB").getpixel((2, image.height - 2))
    assert corner == (16, 19, 23)  # the ground of a dark page
    sheet = read((tmp_path / "index.html").read_text())
    assert sheet.links == [shots[0].file]
    assert [found["src"] for tag, found in sheet.elements if tag == "img"] == sheet.links


def test_every_kind_of_page_has_its_image() -> None:
    pages = {page for store in STORES.values() for page in store.pages}
    kinds = {"models", "model", "compare", "pareto", "devices", "jobs", "job", "searches", "search"}
    assert kinds | {"login", "error", "report"} <= pages and set(STORES) == {
        "empty",
        "demo",
        "3000",
    }


def test_names_of_pages_are_escaped_on_the_contact_sheet() -> None:
    assert "<b>" not in contact_sheet([Shot("demo", "<b>", "light", 390)])
