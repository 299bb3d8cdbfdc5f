"""Chromium, driven by Playwright: Debian's, since Playwright's own browsers are not here.

Every page is listened to. An error in its console, a dialog, a breach of its policy, a request that
fails or goes to another host: each is trouble, and no page may have made any when it is closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Dialog, Page, Request, expect, sync_playwright

from tests.peers.process import find_program

LIMIT_MS = 60_000  # a busy machine is slow to draw
SIZE = (1360, 900)
KEEP = "EDGELOOP_SCREENSHOTS"  # a folder, where pictures of the pages are kept
Scheme = Literal["light", "dark"]

expect.set_options(timeout=LIMIT_MS)

# Told before any script of the page runs: the breaches that its policy stops.
_LISTEN = """
addEventListener('securitypolicyviolation', (event) => {
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
});
"""
# Root may not use Chromium's sandbox; there is no GPU and little shared memory in a container.
_OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@dataclass
class Tab:
    """A page, and what went wrong on it so far."""

    page: Page
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def expect_failure(self, status: int) -> None:
        """The page is meant to get this answer; Chromium calls that an error."""
        self.troubles[:] = [text for text in self.troubles if f"status of {status}" not in text]

    def keep_picture(self, name: str) -> None:
        """Kept where somebody asked for it; never compared."""
        folder = _pictures
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=folder / f"{name}.png", full_page=True)


_pictures = Path(os.environ[KEEP]).resolve() if os.environ.get(KEEP) else None


class Browser:
    """One Chromium; each `tab` has cookies and storage of its own."""

    def __enter__(self) -> Self:
        self._playwright = sync_playwright().start()
        try:
            self._chromium = self._playwright.chromium.launch(
                executable_path=find_program("chromium"), args=list(_OPTIONS)
            )
        except BaseException:
            self._playwright.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._chromium.close()
        self._playwright.stop()

    @contextmanager
    def tab(
        self,
        address: str = "",
        scheme: Scheme = "light",
        script: bool = True,
        size: tuple[int, int] = SIZE,
    ) -> Iterator[Tab]:
        """Opens `address`; in the end the page must have made no trouble."""
        context = self._chromium.new_context(
            color_scheme=scheme,
            java_script_enabled=script,
            viewport={"width": size[0], "height": size[1]},
            reduced_motion="reduce",
            accept_downloads=True,
        )
        context.set_default_timeout(LIMIT_MS)
        try:
            tab = _listened(context, address)
            if address:
                tab.page.goto(address)
            yield tab
            assert tab.troubles == [], tab.troubles
        finally:
            context.close()


def _listened(context: BrowserContext, address: str) -> Tab:
    context.add_init_script(_LISTEN)
    tab = Tab(context.new_page())
    home = urlsplit(address).netloc

    def on_request(url: str) -> None:
        tab.requests.append(url)
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != home:
            tab.troubles.append(f"request: {url}")

    def on_dialog(dialog: Dialog) -> None:
        tab.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def on_failure(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # what a page ends itself when it is left
            tab.troubles.append(f"request failed: {request.url}: {request.failure}")

    tab.page.on("request", lambda request: on_request(request.url))
    tab.page.on("requestfailed", on_failure)
    tab.page.on("dialog", on_dialog)
    tab.page.on("pageerror", lambda error: tab.troubles.append(f"error: {error}"))
    tab.page.on(
        "console",
        lambda message: (
            tab.troubles.append(f"console: {message.text}")
            if message.type in ("error", "warning")
            else None
        ),
    )
    return tab
