"""`make screenshots`: a small part of it, so that it keeps working."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.documented.page import ROOT
from tests.portal.gallery import (
    IMAGES,
    LARGEST_PICTURE,
    PICTURES,
    STORES,
    Shot,
    contact_sheet,
    take,
    write_pictures,
)
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


def test_pictures_of_the_documentation_are_cut_small_and_of_pages_of_the_demo(
    tmp_path: Path,
) -> None:
    noise = Image.effect_noise((1400, 2000), 90).convert("RGB")  # nothing packs worse
    for picture in PICTURES.values():
        assert picture.page in STORES["demo"].pages
        file = tmp_path / Shot("demo", picture.page, picture.scheme, picture.width).file
        file.parent.mkdir(exist_ok=True)
        noise.crop((0, 0, picture.width, 300)).save(file)
    written = write_pictures(tmp_path, tmp_path / "images")
    assert [file.stem for file in written] == list(PICTURES) and len(written) == 9
    with Image.open(written[0]) as image:
        assert image.size == (1400, 300)


def test_the_pictures_that_are_shipped_are_those_and_small() -> None:
    images = {file.name: file.stat().st_size for file in (ROOT / IMAGES).glob("*.webp")}
    assert images.keys() == {f"{name}.webp" for name in PICTURES}
    assert max(images.values()) < LARGEST_PICTURE


def test_names_of_pages_are_escaped_on_the_contact_sheet() -> None:
    assert "<b>" not in contact_sheet([Shot("demo", "<b>", "light", 390)])
