"""Colours that colour-blind people can tell apart, and how charts look on white, on dark and on a
page that may be either."""

from __future__ import annotations

from typing import Any, Literal

Theme = Literal["light", "dark", "page"]

# The palette of Okabe and Ito, without black and yellow, which vanish on one ground or the other.
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY, GREY = "#CC79A7", "#E69F00", "#56B4E9", "#888888"
OKABE_ITO = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
# Early to late: orange to blue stays apart for every kind of colour blindness, and on both grounds.
EARLY_TO_LATE = ("#E08A00", "#C25A7C", "#7A5AB5", "#1C76C4")

# Shapes as Vega takes them: hollow ones are drawn with a hole, so that legends show the hole too.
DISC = "circle"
RING = "M0,-1A1,1,0,0,1,0,1A1,1,0,0,1,0,-1ZM0,-0.55A0.55,0.55,0,0,0,0,0.55A0.55,0.55,0,0,0,0,-0.55Z"

_INK = {"light": "#1F2328", "dark": "#E6E8EB", "page": "currentColor"}
_GROUND = {"light": "#FFFFFF", "dark": "#16181D", "page": "transparent"}
_FONT = "system-ui, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"


def ink(theme: Theme) -> str:
    return _INK[theme]


def config(theme: Theme) -> dict[str, Any]:
    """Vega-Lite's configuration: lines in the ink of the ground, grids that stay behind."""
    colour = ink(theme)
    text = {"labelColor": colour, "titleColor": colour, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": _GROUND[theme],
        "font": _FONT,
        "padding": 12,
        "view": {"stroke": None},
        "axis": {
            **text,
            "titleFontWeight": "normal",
            "domainColor": colour,
            "domainOpacity": 0.5,
            "tickColor": colour,
            "tickOpacity": 0.5,
            "gridColor": colour,
            "gridOpacity": 0.12,
            "labelLimit": 220,
        },
        # Numbers stand under their ticks, and those that would touch are left out.
        "axisXQuantitative": {"labelFlush": False, "labelSeparation": 10},
        "legend": {**text, "titleFontWeight": "normal", "symbolSize": 110, "labelLimit": 220},
        "header": {**text, "labelFontWeight": "normal"},
        "title": {
            "color": colour,
            "subtitleColor": colour,
            "anchor": "start",
            "fontSize": 15,
            "subtitleFontSize": 12,
            "fontWeight": 600,
            "offset": 12,
            "subtitlePadding": 4,
        },
        "text": {"color": colour},
        "rule": {"color": colour},
        "range": {"category": list(OKABE_ITO)},
    }
