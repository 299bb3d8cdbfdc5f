"""Every page of the portal and the report as images, for people who review how they look.

`make screenshots` writes them with an index.html that shows all of them side by side: an empty
store, the demo, and a store of 3,000 models, each in light and dark, on a screen and on a phone.
It also writes the few pictures of the documentation, of the demo, to `docs/images`.
"""

from __future__ import annotations

import argparse
import io
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from html import escape
from pathlib import Path
from typing import get_args

from PIL import Image
from playwright.sync_api import expect

from edgeloop.graph.outline import outline_bytes
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.networks import public_outline, some_times
from tests.peers.browser import Browser, Scheme, Tab
from tests.portal.browsing import SEARCH_LINKS, make_project, portal_of
from tests.portal.farm import SHOWN, fill, write_jobs
from tests.portal.serving import Site, run_here
from tests.search.seen import write_seen

WIDTHS = (1400, 390)
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
MANY = 3000
TALLEST = 7000  # pixels: the rest of a longer page looks the same
REPORT, LOGIN = "report", "login"  # pages that no portal without a token serves
_COMPARED = "&".join(f"name={name}" for name in (SHOWN, "brisk-otter", "amber-lynx"))

COMMON = {
    "models": "/",
    "pareto": "/pareto",
    "devices": "/devices",
    "jobs": "/jobs",
    "searches": "/searches",
    "error": "/models/nobody",
    REPORT: "",
}
FULL = {
    **COMMON,
    "models-failed": "/?status=error",
    "models-no-match": "/?text=nothing-like-this",
    "model": f"/models/{SHOWN}",
    "model-network": "/models/unet",
    "model-failed": "/models/vivid-heron",
    "model-new": "/models/lucid-heron",
    "compare": f"/compare?{_COMPARED}",
    "pareto-selected": "/pareto?x_min=2&x_max=4&y_min=0.8",
    "job": "/jobs/faces-small",
    "job-failed": "/jobs/faces-large",
    "job-running": "/jobs/faces-night",
    "search": "/searches/many",
    "search-chips": "/searches/chips?chip=htp:x-elite&colour=rung",
    "search-plain": "/searches/faces",
}


@dataclass(frozen=True)
class Store:
    """What is photographed: `fill` makes its project, `options` are those of its portal."""

    pages: Mapping[str, str]
    fill: Callable[[Path], None]
    options: tuple[str, ...] = ()


def fill_all(folder: Path, count: int = MANY, candidates: int = 60) -> None:
    """Models in every state, devices, jobs, and searches of one and of six chips."""
    make_project(folder)
    fill(folder, count=count)
    with Workspace(Settings.load(folder, {})) as workspace:
        write_jobs(workspace)
        _write_network(workspace)
    write_seen(folder / "searches/many", candidates)
    write_seen(folder / "searches/chips", candidates // 2, chips=6)


def _write_network(workspace: Workspace) -> None:
    """A model whose network is known, with the times of its layers."""
    outline = public_outline("unet_segmentation")
    times = [f"layer,{name},{operator},{us},measured" for name, operator, us in some_times(outline)]
    files = {
        "unet.graph.json": outline_bytes(outline),
        "perf_results_1.csv": "\n".join(["what,name,operator,time_us,kind", *times]).encode(),
    }
    row = {"name": "unet", "status": "complete", "quantized": True, "device": "adb:3f9a21"}
    workspace.store.models(workspace.experiment).insert("unet", row)
    for name, content in files.items():
        workspace.store.blobs.put(f"{workspace.experiment}/unet/{name}", content)


STORES = {
    "empty": Store({**COMMON, LOGIN: "", "compare": "/compare"}, lambda f: None),
    "demo": Store(
        {
            **COMMON,
            "model": "",
            "compare": "",
            "search": "",
            "job": "/jobs/faces-lr-1e-2",
            "curves": "/curves?name=faces-lr-3e-2&name=faces-lr-1e-2&name=faces-lr-3e-3",
        },
        lambda folder: None,
        ("--demo",),
    ),
    "3000": Store(FULL, fill_all),
}


@dataclass(frozen=True)
class Picture:
    """Of the documentation: a page of the demo, its upper part."""

    page: str
    height: int
    width: int = WIDTHS[0]
    scheme: Scheme = "light"


PICTURES = {
    "models": Picture("models", 900),
    "pareto": Picture("pareto", 1080),
    "model": Picture("model", 1300),
    "search": Picture("search", 1250),
    "devices": Picture("devices", 1000),
    "curves": Picture("curves", 900),
    "compare": Picture("compare", 900),
    "report": Picture(REPORT, 1100),
    "phone-dark": Picture("models", 1200, WIDTHS[1], "dark"),
}
IMAGES = Path("docs/images")
LARGEST_PICTURE = 150_000


@dataclass(frozen=True)
class Shot:
    store: str
    page: str
    scheme: Scheme
    width: int

    @property
    def file(self) -> str:
        return f"{self.store}/{self.page}-{self.width}-{self.scheme}.png"


def take(
    target: Path,
    only: str = "*",
    schemes: Sequence[Scheme] = SCHEMES,
    widths: Sequence[int] = WIDTHS,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Shot]:
    """Images of the pages whose `STORE/PAGE` matches the glob `only`, and their contact sheet."""
    shots: list[Shot] = []
    chosen = {
        name: [page for page in store.pages if fnmatch(f"{name}/{page}", only)]
        for name, store in STORES.items()
    }
    with Browser() as browser, tempfile.TemporaryDirectory() as work:
        for name, pages in chosen.items():
            if not pages:
                continue
            with _portal(name, Path(work) / name) as site:
                for page in pages:
                    tell(f"{name}/{page}")
                    with _opened(browser, site, name, page) as tab:
                        shots += _shoot(tab, target, Shot(name, page, "light", 0), schemes, widths)
    (target / "index.html").write_text(contact_sheet(shots), encoding="utf-8")
    return shots


@contextmanager
def _portal(name: str, folder: Path) -> Iterator[Site]:
    folder.mkdir()
    STORES[name].fill(folder)
    with portal_of(folder, *STORES[name].options) as site:
        yield site


@contextmanager
def _opened(browser: Browser, site: Site, store: str, page: str) -> Iterator[Tab]:
    """A page that has drawn itself and is live."""
    if page == LOGIN:
        with portal_of(site.folder, asks=True) as locked:
            without_token = re.sub(r"[?#].*", "", locked.url)
            with browser.tab(without_token) as tab:
                expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")
                yield tab
        return
    address = (
        write_report(site.folder, *STORES[store].options)
        if page == REPORT
        else _address(browser, site, store, page)
    )
    with browser.tab(address) as tab:
        if page not in (REPORT, "error"):
            expect(tab.page.locator("#live")).to_have_text("live")
        yield tab
        tab.expect_failure(404)


def _address(browser: Browser, site: Site, store: str, page: str) -> str:
    """The models and the search of the demo have names of their own: pages are of the first."""
    if path := STORES[store].pages[page]:
        return site.at(path)
    if page == "search":
        with browser.tab(site.at("/searches")) as tab:
            return site.at(str(tab.page.locator(SEARCH_LINKS).first.get_attribute("href")))
    with browser.tab(site.at("/?status=complete&sort=f1_1k&descending=1")) as tab:
        rows = tab.page.locator("#rows tr").all()[:3]
        names = [str(row.get_attribute("data-name")) for row in rows]
    return site.at(f"/models/{names[0]}" if page == "model" else _comparison(names))


def _comparison(names: Sequence[str]) -> str:
    return "/compare?" + "&".join(f"name={name}" for name in names)


def write_report(folder: Path, *options: str) -> str:
    """Its address as a file."""
    run_here(folder, "report", "-o", "report.html", *options)
    return (folder / "report.html").as_uri()


def _shoot(
    tab: Tab, target: Path, like: Shot, schemes: Sequence[Scheme], widths: Sequence[int]
) -> Iterator[Shot]:
    """One load serves all: pages follow the width and the system's choice of light or dark."""
    for width in widths:
        tab.page.set_viewport_size({"width": width, "height": 900 if width > 500 else 800})
        for scheme in schemes:
            tab.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            shot = Shot(like.store, like.page, scheme, width)
            path = target / shot.file
            path.parent.mkdir(parents=True, exist_ok=True)
            tall = int(tab.page.evaluate("document.documentElement.scrollHeight"))
            clip = {"x": 0, "y": 0, "width": width, "height": min(max(tall, 600), TALLEST)}
            tab.page.screenshot(path=path, full_page=True, clip=clip)  # type: ignore[arg-type]
            yield shot


_STYLE = """
body { margin: 0; padding: 1.5rem; background: #ddd; color: #111; font: 14px/1.4 sans-serif; }
section { display: flex; flex-wrap: wrap; gap: 1rem; align-items: start; margin-bottom: 2rem; }
h2 { width: 100%; margin: 1rem 0 0; } figure { margin: 0; } figcaption { padding: .2rem 0; }
img { display: block; max-height: 40rem; object-fit: cover; object-position: top; }
"""


def contact_sheet(shots: Sequence[Shot]) -> str:
    """All images side by side, each a link to the whole one."""
    groups: dict[str, list[Shot]] = {}
    for shot in shots:
        groups.setdefault(f"{shot.store}: {shot.page}", []).append(shot)
    parts = [
        f"<section><h2>{escape(title)}</h2>{''.join(map(_figure, group))}</section>"
        for title, group in groups.items()
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Screenshots</title>'
        f"<style>{_STYLE}</style></head><body><h1>{len(shots)} screenshots</h1>"
        f"{''.join(parts)}</body></html>\n"
    )


def write_pictures(shots: Path, target: Path) -> list[Path]:
    """Those of the documentation, cut from the images of a whole run."""
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, picture in PICTURES.items():
        shot = Shot("demo", picture.page, picture.scheme, picture.width)
        with Image.open(shots / shot.file) as image:
            cut = image.convert("RGB").crop((0, 0, image.width, min(image.height, picture.height)))
        for quality in (86, 76, 66, 50):
            packed = io.BytesIO()
            cut.save(packed, "WEBP", quality=quality, method=6)
            if packed.tell() < LARGEST_PICTURE:
                break
        file = target / f"{name}.webp"
        file.write_bytes(packed.getvalue())
        written.append(file)
    return written


def _figure(shot: Shot) -> str:
    file, about = escape(shot.file), f"{shot.width} px, {shot.scheme}"
    size = f"width={shot.width * 3 // 10 if shot.width > 500 else shot.width // 2}"
    return (
        f'<figure><figcaption>{about}</figcaption><a href="{file}">'
        f'<img {size} loading="lazy" src="{file}" alt="{escape(shot.page)}, {about}"></a></figure>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make screenshots", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("screenshots"))
    parser.add_argument("--only", default="*", metavar="GLOB", help="STORE/PAGE, such as '3000/*'")
    asked = parser.parse_args()
    begun = time.monotonic()
    shots = take(asked.folder.resolve(), asked.only, tell=print)
    taken = {shot.file for shot in shots}
    if all(
        Shot("demo", one.page, one.scheme, one.width).file in taken for one in PICTURES.values()
    ):
        for file in write_pictures(asked.folder.resolve(), IMAGES):
            print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")
    print(
        f"{len(shots)} screenshots in {time.monotonic() - begun:.0f} s: {asked.folder}/index.html"
    )


if __name__ == "__main__":
    main()
