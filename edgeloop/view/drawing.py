"""Charts as files (PNG, SVG, HTML), as parts of a page, in notebooks, and as animations.

vl-convert renders them without a browser and without a network.
"""

from __future__ import annotations

import base64
import io
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree

from edgeloop._util.files import write_atomic
from edgeloop.errors import BadInput, LocalFileError, MissingExtra
from edgeloop.view.style import SENTENCE, Theme, config, for_narrow

if TYPE_CHECKING:
    from types import ModuleType

    import altair as alt


SCALE = 2.0  # PNG pixels a point, for sharp text
FRAME_MS, LAST_FRAME_MS = 700, 2500
# Vega compiles the expressions of a chart, hence unsafe-eval; nothing may be fetched.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "script-src 'unsafe-inline' 'unsafe-eval'"
)
_SVG = "http://www.w3.org/2000/svg"
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINK = "{http://www.w3.org/1999/xlink}href"
_DROPPED = ("class", "pointer-events", "role", "aria-roledescription", "aria-hidden")


FONTS = Path(__file__).parent / "fonts"
FONT_FILES = {"normal": "regular.woff2", "bold": "bold.woff2"}


@cache
def _converter() -> ModuleType:
    """Lays texts out with the font that pages and files carry, whatever a machine has."""
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra(what="Drawing charts", extra="portal") from None
    vl_convert.register_font_directory(str(FONTS))
    return vl_convert


@cache
def font_faces() -> str:
    """The font of charts as CSS without addresses, for pages and files that stand alone."""
    face = "@font-face{{font-family:'Edgeloop Sans';font-weight:{};src:url({}) format('woff2')}}"
    return "".join(
        face.format(weight, f"data:font/woff2;base64,{_text((FONTS / name).read_bytes())}")
        for weight, name in FONT_FILES.items()
    )


def spec_of(chart: alt.TopLevelMixin, theme: Theme = "light") -> dict[str, Any]:
    """The Vega-Lite specification."""
    return {**_drawable(chart.to_dict()), "config": config(theme)}


def drawable(text: str) -> str:
    """Without characters that XML does not allow, such as control characters: the converter does
    not raise on them, it ends the whole process."""
    return _NO_XML.sub("\ufffd", text)


def _drawable(part: Any) -> Any:
    if isinstance(part, str):
        return drawable(part)
    if isinstance(part, dict):
        return {name: _drawable(value) for name, value in part.items()}
    return [_drawable(value) for value in part] if isinstance(part, list) else part


def to_png(chart: alt.TopLevelMixin, theme: Theme = "light", scale: float = SCALE) -> bytes:
    return bytes(_converter().vegalite_to_png(spec_of(chart, theme), scale=scale))


def to_svg(chart: alt.TopLevelMixin, theme: Theme = "light") -> str:
    """A file that looks the same everywhere: it carries its font."""
    begin, end, rest = _svg(spec_of(chart, theme)).partition(">")
    return f"{begin}{end}<defs><style>{font_faces()}</style></defs>{rest}"


def _svg(spec: dict[str, Any]) -> str:
    return str(_converter().vegalite_to_svg(spec))


def to_html(chart: alt.TopLevelMixin, title: str, theme: Theme = "light") -> str:
    """A page with tooltips. It includes Vega, and a content security policy forbids any request.

    Nothing in the data can end the script element: JSON may write `<` as `\\u003c`.
    """
    spec = json.dumps(spec_of(chart, theme)).replace("<", "\\u003c")
    script = _converter().javascript_bundle().replace("</script", "<\\/script")
    background = config(theme)["background"]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title>"
        f"<style>{font_faces()}body{{margin:1rem;background:{background}}}</style></head>"
        f'<body><div id="chart"></div>\n<script type="module">\n{script}\n'
        f"vegaEmbed('#chart', {spec}, {{actions: false, renderer: 'svg'}});\n"
        "</script></body></html>\n"
    )


def to_page_parts(
    chart: alt.TopLevelMixin, prefix: str, narrow: alt.TopLevelMixin | None = None
) -> str:
    """A chart twice, drawn for screens and for phones, or with `narrow` another one there: CSS
    shows `.for-wide` or `.for-narrow`. Scaled down, its texts could not be read. A chart that only
    says why it is empty becomes a paragraph, which breaks its lines as any other."""
    if sentence := _sentence(chart):
        return f'<p class="faint">{escape(drawable(sentence))}</p>'
    wide = to_page_part(chart, prefix)
    other = to_page_part(narrow or chart, f"{prefix}n-", is_narrow=True)
    return f'<div class="for-wide">{wide}</div><div class="for-narrow">{other}</div>'


def to_page_part(chart: alt.TopLevelMixin, prefix: str, is_narrow: bool = False) -> str:
    """An SVG for embedding in a page: it uses the text colour and the font of the page, its ids
    start with `prefix`, its links stay in the page, and its marks have tooltips."""
    ElementTree.register_namespace("", _SVG)
    spec = spec_of(chart, "page")
    drawn = _svg(for_narrow(spec) if is_narrow else spec)
    root = ElementTree.fromstring(drawn)  # noqa: S314 - rendered above, not foreign
    for element in root.iter():
        _embed(element, prefix)
    root.set("role", "img")
    root.set("aria-label", _label(spec))
    return ElementTree.tostring(root, encoding="unicode")


def _sentence(chart: alt.TopLevelMixin) -> str:
    noted = chart.to_dict().get("usermeta")
    return str(noted.get(SENTENCE, "")) if isinstance(noted, dict) else ""


def _label(spec: dict[str, Any]) -> str:
    """The title of a chart and what stands below it, for those who do not see it."""
    title = spec.get("title")
    parts = [title.get("text"), title.get("subtitle")] if isinstance(title, dict) else [title]
    texts = [" ".join(part) if isinstance(part, list) else str(part) for part in parts if part]
    return ": ".join(texts) or str(spec.get("usermeta", {}).get(SENTENCE, "")) or "Chart"


def write_chart(chart: alt.TopLevelMixin, path: Path, title: str, theme: Theme = "light") -> None:
    """The format follows from the suffix: .png, .svg or .html."""
    makers: dict[str, Callable[[], bytes]] = {
        ".png": lambda: to_png(chart, theme),
        ".svg": lambda: to_svg(chart, theme).encode(),
        ".html": lambda: to_html(chart, title, theme).encode(),
    }
    make = makers.get(path.suffix.lower())
    if make is None:
        known = ", ".join(makers)
        raise BadInput(reason=f"{path}: a chart can be written to {known}")
    write_whole(path, make())


def to_gif(frames: Sequence[bytes]) -> bytes:
    """PNG frames as an animation that repeats and pauses on its last frame."""
    from PIL import Image

    if not frames:
        raise BadInput(reason="an animation needs at least one frame")
    images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    width, height = (max(image.size[side] for image in images) for side in (0, 1))
    background = cast("tuple[int, int, int]", images[0].getpixel((0, 0)))
    whole = [Image.new("RGB", (width, height), background) for _ in images]
    for canvas, image in zip(whole, images, strict=True):
        canvas.paste(image)
    durations = [FRAME_MS] * (len(whole) - 1) + [LAST_FRAME_MS]
    target = io.BytesIO()
    whole[0].save(target, "GIF", save_all=True, append_images=whole[1:], duration=durations, loop=0)
    return target.getvalue()


def write_whole(path: Path, content: bytes) -> None:
    """The file appears whole or not at all."""
    if path.is_dir():
        raise LocalFileError(path=path, reason="is a folder; name a file")
    try:
        write_atomic(path, content)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None


def _embed(element: ElementTree.Element, prefix: str) -> None:
    for name in _DROPPED:
        element.attrib.pop(name, None)
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.set(name, prefix + value)
        elif name == _LINK:  # HTML does not know the prefix `xlink`
            del element.attrib[name]
            if place := value.partition("#")[2]:  # some marks of a chart may have no link
                element.set("href", f"#{place}")
        elif value.startswith("url(#"):
            element.set(name, value.replace("url(#", f"url(#{prefix}", 1))
    label = element.attrib.get("aria-label", "")
    if element.tag == f"{{{_SVG}}}path" and label:
        title = ElementTree.SubElement(element, f"{{{_SVG}}}title")
        title.text = label
        del element.attrib["aria-label"]


@dataclass(frozen=True)
class Shown:
    """The value of a notebook cell, in several formats of which the notebook shows the best."""

    forms: dict[str, str]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return dict(self.forms)

    def __repr__(self) -> str:
        return f"a chart as {', '.join(self.forms)}"


def show(chart: alt.TopLevelMixin) -> Shown:
    """As SVG with tooltips in the colours of the page, light or dark; as PNG for front ends that
    show images only."""
    part = to_page_part(chart, f"n{secrets.token_hex(4)}-")
    style = f"<style>{font_faces()}</style>"
    return Shown({"text/html": style + part, "image/png": _text(to_png(chart))})


def show_animation(frames: Sequence[alt.TopLevelMixin], scale: float = 1.0) -> Shown:
    """Frames, for example of `front_frames`, as a GIF."""
    return Shown({"image/gif": _text(to_gif([to_png(frame, scale=scale) for frame in frames]))})


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
