"""A page of the portal as one HTML file to share: styles, fonts and images inside, without scripts,
forms, links to the portal, or anything that only a visitor of it needs.

The page is the same one, taken apart by its tags: what is not known to be harmless alone is left
out. Elements marked `data-only-here` are for visitors. The file's own content security policy
forbids scripts and requests, as that of a report does.
"""

from __future__ import annotations

import base64
import re
import tempfile
from collections.abc import Callable, Iterable
from html import escape
from html.parser import HTMLParser
from pathlib import Path

from edgeloop.view.drawing import font_faces

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
MOST_IMAGES_BYTES = 20 << 20
_STATIC = Path(__file__).parent / "static"
_SHEETS = ("base.css", "parts.css", "model.css")
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}")
# Links to pages are texts in a file, and a chart has the place of the forms beside it.
_OF_FILES = "a:not([href]) { color: inherit; } .columns.side { grid-template-columns: none; }"
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})
_LEFT_OUT = frozenset({"button", "dialog", "form", "iframe", "input", "noscript", "object"})
_LEFT_OUT |= {"script", "select", "textarea", "template", "base", "embed"}
_LEFT_OUT_IDS = frozenset({"changes", "refused", "said", "tip", "upload"})
_LEFT_OUT_CLASSES = frozenset({"bar", "foot"})
_ADDRESSES = frozenset({"action", "formaction", "ping", "srcset", "style", "target", "download"})
_HERE = "…"  # in place of a folder of this machine

Read = Callable[[str], "tuple[bytes, str] | None"]


def static_page(page: str, about: str, read_image: Read, folders: Iterable[Path] = ()) -> str:
    """`about` is the last line of the page, `read_image` returns content and type of an image by
    its address. The `folders` of this machine are not named."""
    writer = _Writer(about, read_image, _masked(folders))
    writer.feed(page)
    writer.close()
    return "".join(writer.parts)


def _masked(folders: Iterable[Path]) -> re.Pattern[str]:
    here = {str(folder.absolute()) for folder in (*folders, Path(tempfile.gettempdir()))}
    here |= {str(Path.cwd()), str(Path("~").expanduser())}
    texts = sorted((escape(text) for text in here if len(text) > 1), key=len, reverse=True)
    return re.compile(f"(?:{'|'.join(map(re.escape, texts))})(?=[/\\s'\"&:;,.)]|$)")


class _Writer(HTMLParser):
    """Writes what stays. Entities stay as they are, attributes are escaped anew."""

    def __init__(self, about: str, read_image: Read, folders: re.Pattern[str]) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self._about, self._read_image, self._folders = about, read_image, folders
        self._skipped: list[str] = []  # open elements inside the one that is left out
        self._left = MOST_IMAGES_BYTES

    def handle_decl(self, decl: str) -> None:
        self.parts.append(f"<!{decl}>")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            self._skipped += [] if tag in _VOID else [tag]
        elif _is_left_out(tag, dict(attrs)):
            self._skipped = [] if tag in _VOID else [tag]
        elif tag not in ("link", "meta"):
            self.parts.append(self._started(tag, attrs))
            if tag == "head":
                self.parts.append(_head())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._skipped and not _is_left_out(tag, dict(attrs)) and tag not in ("link", "meta"):
            self.parts.append(f"{self._started(tag, attrs)[:-1]}/>")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            if tag in self._skipped:  # with what was never closed inside it
                last = len(self._skipped) - 1 - self._skipped[::-1].index(tag)
                del self._skipped[last:]
            return
        if tag == "body":
            about = escape(self._about)
            self.parts.append(f'<footer class="foot"><span>{about}</span></footer>')
        self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self._write(data)

    def handle_entityref(self, name: str) -> None:
        self._write(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._write(f"&#{name};")

    def _write(self, text: str) -> None:
        if not self._skipped:
            self.parts.append(self._folders.sub(_HERE, text))

    def _started(self, tag: str, attrs: list[tuple[str, str | None]]) -> str:
        kept = [tag]
        for name, value in attrs:
            shown = self._kept(tag, name, value or "")
            if shown is not None:
                kept.append(f'{name}="{self._folders.sub(_HERE, escape(shown))}"')
        return f"<{' '.join(kept)}>"

    def _kept(self, tag: str, name: str, value: str) -> str | None:
        """The value of an attribute, None for one that is left out."""
        if name.startswith(("on", "data-")) or name in _ADDRESSES:
            return None
        if name in ("href", "xlink:href"):
            return value if value.startswith("#") else None
        if name == "src":
            return self._inline(value) if tag == "img" else None
        return value

    def _inline(self, address: str) -> str:
        if address.startswith("data:image/"):
            return address
        image = self._read_image(address)
        if image is None or len(image[0]) > self._left:
            return "data:,"
        self._left -= len(image[0])
        return f"data:{image[1]};base64,{base64.b64encode(image[0]).decode()}"


def _is_left_out(tag: str, attributes: dict[str, str | None]) -> bool:
    return (
        tag in _LEFT_OUT
        or "hidden" in attributes
        or "data-only-here" in attributes
        or attributes.get("id") in _LEFT_OUT_IDS
        or bool(_LEFT_OUT_CLASSES & {*(attributes.get("class") or "").split()})
    )


def _head() -> str:
    sheets = "".join((_STATIC / name).read_text(encoding="utf-8") for name in _SHEETS)
    style = f"{font_faces()}\n{_FONT_FACE.sub('', sheets)}\n{_OF_FILES}"
    return (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{style}</style>"
    )
