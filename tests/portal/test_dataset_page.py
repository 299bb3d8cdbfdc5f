"""The dataset page: parts, classes and images of datasets of each kind, whole and damaged."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image
from playwright.sync_api import expect

from edgeloop.models.catalog import change_settings
from edgeloop.node.datasets import Datasets
from edgeloop.testing.faces import make_faces
from tests.peers.browser import Browser
from tests.portal.audit import audited
from tests.portal.browsing import browser, make_project
from tests.portal.serving import Site, portal_here

__all__ = ["browser"]

MARKUP = "<img src=x onerror=alert(1)>"


def picture(path: Path, colour: str = "red", size: tuple[int, int] = (64, 48)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def make_classes(folder: Path) -> None:
    for name, count in ((MARKUP.replace("/", ""), 3), ("cat", 5)):
        for number in range(count):
            picture(folder / name / f"{number}.png")


def make_boxes(folder: Path) -> None:
    """Four images; a car in each, and two people in the first."""
    things = [(image, 1) for image in range(4)] + [(0, 2), (0, 2)]
    for image in range(4):
        picture(folder / f"{image}.jpg")
    content = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in range(4)],
        "categories": [{"id": 1, "name": "car"}, {"id": 2, "name": "person"}],
        "annotations": [
            {"id": n, "image_id": image, "category_id": kind, "bbox": [1, 1, 9, 9], "area": 81}
            for n, (image, kind) in enumerate(things)
        ],
    }
    (folder / "instances.json").write_text(json.dumps(content))


def make_depths(folder: Path) -> None:
    for number in range(4):
        picture(folder / f"{number}.png")
        Image.new("I;16", (64, 48), 1000).save(folder / f"{number}_depth.png")


def make_points(folder: Path) -> None:
    """Four images with a nose; in the first one a tail can be seen, too."""
    for image in range(4):
        picture(folder / f"{image}.jpg")
    points = [[5, 5, 2, 7, 7, 2 if image == 0 else 0] for image in range(4)]
    content = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in range(4)],
        "categories": [{"id": 1, "name": "dog", "keypoints": ["nose", "tail"]}],
        "annotations": [
            {
                "id": n,
                "image_id": n,
                "category_id": 1,
                "bbox": [1, 1, 9, 9],
                "area": 81,
                "keypoints": keypoints,
                "num_keypoints": 2,
            }
            for n, keypoints in enumerate(points)
        ],
    }
    (folder / "person_keypoints.json").write_text(json.dumps(content))


def site_of(folder: Path, dataset: str, task: str) -> str:
    """The settings of a project whose dataset this is."""
    text = (make_project(folder) / "edgeloop.yaml").read_text()
    (folder / "edgeloop.yaml").write_text(f"{text}dataset: {dataset}\ntask: {task}\n")
    return dataset


def page_of(site: Site, query: str = "") -> str:
    return httpx.get(site.at(f"/dataset{query}"), timeout=60).text


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The experiment names a version, and the project has its folder; one image and one label are
    damaged, one claims a size that no memory holds."""
    folder = make_project(tmp_path_factory.mktemp("faces"))
    data = folder / "data/working/faces"
    make_faces(data, 40, 64, seed=1)
    make_classes(folder / "data/working/other")
    with portal_here(folder) as site:
        with site.workspace() as workspace:
            Datasets(workspace.store.blobs).push("working/faces", data)
            change_settings(workspace.store, "default", {"dataset": "working/faces@1"})
        names = sorted(path.name for path in data.glob("*.png") if "_seg" not in path.name)
        (data / names[0]).write_bytes(b"\x89PNG\r\n\x1a\nbroken")
        (data / names[1].replace(".png", "_seg.png")).write_bytes(b"")
        (data / names[2]).write_bytes(bomb())
        yield site


def bomb() -> bytes:
    """A PNG of a few bytes that claims 60,000 × 60,000 pixels."""
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    content = bytearray(file.getvalue())
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    return bytes(content)


def test_a_segmentation_dataset_shows_parts_classes_and_images(
    browser: Browser, faces: Site
) -> None:
    with browser.tab(faces.at("/dataset"), size=(1400, 900)) as tab:
        page = tab.page
        expect(page.locator("main")).to_contain_text("working/faces@1, for segmentation")
        assert page.locator(".facts li").all_inner_texts()[:3] == [
            "40\nimages",
            "20\nfor calibration",
            "20\nfor the test",
        ]
        expect(page.locator("#classes")).to_contain_text("pixels in 39 of 40 label images")
        expect(page.get_by_role("row", name="skin")).to_contain_text("%")
        expect(page.locator("main")).to_contain_text("1 of 40 label images cannot be read")
        images = page.locator(".thumbs img")
        expect(images).to_have_count(24)
        for image in images.all():
            image.scroll_into_view_if_needed()
        page.wait_for_function(
            "[...document.querySelectorAll('.thumbs img')].every((i) => i.naturalWidth > 0)"
        )
        widths = images.evaluate_all("all => all.map((image) => image.naturalWidth)")
        assert max(widths) <= 160
        tab.keep_picture("dataset-1400-light")
        page.set_viewport_size({"width": 390, "height": 900})
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        tab.keep_picture("dataset-390-dark")


def test_the_page_has_no_fault(browser: Browser, faces: Site) -> None:
    with browser.tab(faces.at("/dataset")) as tab:
        assert audited(tab) == []


def test_only_images_of_the_page_are_served(faces: Site) -> None:
    with httpx.Client(timeout=60) as client:
        address = faces.at("/api/v1/dataset/images")
        good = client.get(f"{address}/3.jpg")
        assert good.headers["content-type"] == "image/jpeg" and len(good.content) < 20_000
        for damaged in ("0", "2"):
            drawn = Image.open(io.BytesIO(client.get(f"{address}/{damaged}.jpg").content))
            assert drawn.size == (160, 160)  # the field with a cross
        for number in ("13", "27", "40", "999999999"):  # 12 of each part are shown
            assert client.get(f"{address}/{number}.jpg").status_code == 404
        for number in ("-1", "01", "x", "..%2f..%2fetc%2fpasswd"):
            assert client.get(f"{address}/{number}.jpg").status_code in (404, 422)
        for name in ("../faces", "/etc", "working/../..", "nothing", "working/faces/.."):
            assert client.get(f"{address}/3.jpg", params={"name": name}).status_code == 404
            assert client.get(faces.at("/dataset"), params={"name": name}).status_code == 404


def test_other_datasets_of_the_project_can_be_chosen(browser: Browser, faces: Site) -> None:
    with browser.tab(faces.at("/dataset")) as tab:
        tab.page.get_by_role("link", name="working/other").click()
        expect(tab.page.locator("main")).to_contain_text("there are no images NNNNNN.png in other")
        assert str(faces.folder / "data") not in tab.page.locator("main").inner_text()


def test_a_dataset_that_is_not_here_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with portal_here(make_project(tmp_path)) as site:
        assert "names no dataset" in page_of(site)
        make_faces(tmp_path / "data/working/faces", 8, 32, seed=1)
        with site.workspace() as workspace:
            folder = tmp_path / "data/working/faces"
            Datasets(workspace.store.blobs).push("working/faces", folder)
            change_settings(workspace.store, "default", {"dataset": "working/faces@1"})
        shutil.rmtree(tmp_path / "data")
    with portal_here(tmp_path) as site:
        text = page_of(site)
        assert "working/faces@1 is not on this machine" in text
        assert "edgeloop data pull working/faces@1" in text
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    with portal_here(tmp_path) as site:
        with site.workspace() as workspace:
            Datasets(workspace.store.blobs).fetch("working/faces", 1, tmp_path / "cache")
        assert "as runners of this machine fetched it" in page_of(site)
    with portal_here(tmp_path) as site:
        with site.workspace() as workspace:
            change_settings(workspace.store, "default", {"dataset": "random"})
        assert "asks for random inputs" in page_of(site)


def test_a_classification_counts_images(browser: Browser, tmp_path: Path) -> None:
    make_classes(tmp_path / "pets")
    site_of(tmp_path, "pets", "classification")
    with portal_here(tmp_path) as site, browser.tab(site.at("/dataset")) as tab:
        rows = tab.page.locator("#classes tbody tr").all_inner_texts()
        assert [row.split("\t") for row in rows] == [[MARKUP, "3", "38 %"], ["cat", "5", "62 %"]]
        expect(tab.page.locator(".thumbs img")).to_have_count(8)
        expect(tab.page.locator(".thumbs li").first).to_contain_text("calibration · ")


def test_a_detection_counts_objects(tmp_path: Path) -> None:
    make_boxes(tmp_path / "street")
    site_of(tmp_path, "street", "detection")
    with portal_here(tmp_path) as site:
        text = page_of(site)
        assert "objects of all 4 images" in text and "person × 2" in text
        assert '<bdi>car</bdi></td><td class="n">4</td><td class="n">4</td>' in text
        assert '<bdi>person</bdi></td><td class="n">2</td><td class="n">1</td>' in text


def test_keypoints_count_points_that_are_labelled(tmp_path: Path) -> None:
    make_points(tmp_path / "dogs")
    site_of(tmp_path, "dogs", "keypoints")
    with portal_here(tmp_path) as site:
        text = page_of(site)
        assert "points of all 4 images" in text
        assert '<bdi>nose</bdi></td><td class="n">4</td><td class="n">4</td>' in text
        assert '<bdi>tail</bdi></td><td class="n">1</td><td class="n">1</td>' in text


def make_sharp(folder: Path) -> None:
    for number in range(4):
        picture(folder / f"{number}.png", size=(128, 96))


@pytest.mark.parametrize(
    ("task", "make"), [("depth", make_depths), ("super-resolution", make_sharp)]
)
def test_images_without_classes_are_shown_alone(
    tmp_path: Path, task: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "rooms")
    site_of(tmp_path, "rooms", task)
    with portal_here(tmp_path) as site:
        text = page_of(site)
        assert "rooms" in text and 'id="classes"' not in text and text.count('loading="lazy"') == 4


def test_a_task_without_images_says_so(tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    site_of(tmp_path, "inputs", "tensors")
    with portal_here(tmp_path) as site:
        assert "datasets for the task tensors hold no images to show" in page_of(site)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"images": 3}'])
def test_damaged_annotations_are_one_sentence(tmp_path: Path, content: bytes) -> None:
    make_boxes(tmp_path / "street")
    (tmp_path / "street/instances.json").write_bytes(content)
    site_of(tmp_path, "street", "detection")
    with portal_here(tmp_path) as site:
        answer = httpx.get(site.at("/dataset"), timeout=60)
        assert answer.status_code == 200 and "No images to show" in answer.text
        assert "instances.json" in answer.text and str(tmp_path / "street") not in answer.text
