"""Pages as a browser reads them: which elements there are, and what each would fetch."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

FETCHING = ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background")


@dataclass
class Page(HTMLParser):
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def ids(self) -> list[str]:
        return [found["id"] for _, found in self.elements if "id" in found]

    @property
    def links(self) -> list[str]:
        return [found["href"] for tag, found in self.elements if tag == "a" and "href" in found]


def read(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    return page


def references(text: str) -> list[str]:
    """What lies outside the page: everything but its own parts and data in the address itself."""
    return [
        value
        for _, attributes in read(text).elements
        for name, value in attributes.items()
        if name in FETCHING and not value.startswith(("#", "data:image/png;base64,"))
    ]
