"""Checks of a page as a person meets it: contrast, keys, names, headings, widths, requests.

`audited` runs all of them in a page that is open. Colours come from computed styles, names from
Chromium's accessibility tree, and the order of the focus from pressing Tab.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import ViewportSize

from tests.peers.browser import Scheme, Tab

WIDTHS = (1920, 1400, 1024, 768, 390)
DRAWN_AT = (1400, 390)  # charts have a drawing for each of these
GROUNDS: dict[Scheme, str] = {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 19, 23)"}
MOST_KEYS = 700  # a page with more elements to reach is a fault of its own
_CHECKS = (Path(__file__).parent / "audit.js").read_text()
_NAMED = frozenset(
    {"button", "checkbox", "combobox", "DisclosureTriangle", "image", "img", "link", "listbox"}
    | {"meter", "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox"}
)


def audited(tab: Tab) -> list[str]:
    """All faults of a page, and the trouble that it made."""
    tab.page.set_viewport_size(_size(DRAWN_AT[0]))
    tab.page.locator("h1").first.wait_for(state="visible")
    tab.page.evaluate(_CHECKS)
    found = [*_evaluated(tab, "structure"), *_without_names(tab), *_keys(tab)]
    for width in WIDTHS:
        tab.page.set_viewport_size(_size(width))
        found += [f"{width} px: {fault}" for fault in _looks(tab, width)]
    return [*found, *tab.troubles]


def _looks(tab: Tab, width: int) -> Iterator[str]:
    yield from _evaluated(tab, "width")
    yield from _evaluated(tab, "overlaps")
    if width not in DRAWN_AT:
        return
    yield from _evaluated(tab, "drawings")
    for scheme in GROUNDS:
        tab.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for check in ("contrast_of_texts", "contrast_of_controls"):
            yield from (f"{scheme}: {fault}" for fault in _evaluated(tab, check))


def _keys(tab: Tab) -> Iterator[str]:
    """Presses Tab until everything should have had the focus."""
    count = int(tab.page.evaluate("audit.begin_keys()"))
    if count > MOST_KEYS:
        yield f"{count} elements to reach with Tab"
    for _ in range(min(count, MOST_KEYS) + 3):
        tab.page.keyboard.press("Tab")
    yield from _evaluated(tab, "end_keys")
    yield from _evaluated(tab, "skip_link")


def _without_names(tab: Tab) -> Iterator[str]:
    """Controls and images that a screen reader could only call by their kind."""
    session = tab.page.context.new_cdp_session(tab.page)
    try:
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    finally:
        session.detach()
    for node in nodes:
        role = node.get("role", {}).get("value", "")
        name = str(node.get("name", {}).get("value", "")).strip()
        if not node.get("ignored") and role in _NAMED and not name:
            yield f"no name: {role} {node.get('description', {}).get('value', '')}".rstrip()


def _evaluated(tab: Tab, check: str) -> list[str]:
    return [str(fault) for fault in tab.page.evaluate(f"audit.{check}()")]


def _size(width: int) -> ViewportSize:
    return {"width": width, "height": 800}
