"""The layers of a model as one page for a browser: no scripts, no network, light and dark."""

from __future__ import annotations

import csv
from html import escape
from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .25rem .6rem; text-align: left; }
th { background: Canvas; position: sticky; top: 0; }
.number { font-variant-numeric: tabular-nums; text-align: right; }
meter { width: 8rem; }
""".strip()
_HEADINGS = ("", "layer", "operator", "inputs", "outputs", "parameters", "MACs", "share of MACs")


def write_viewer(path: Path, title: str, layers: Path) -> None:
    """From the table of layers that `write_layers` wrote."""
    with layers.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    macs = [_count(row, "macs") for row in rows]
    params = sum(_count(row, "parameters") for row in rows)
    facts = f"{len(rows)} layers, {sum(macs):,} MACs, {params:,} parameters"
    lines = [_line(number, row, sum(macs)) for number, row in enumerate(rows, start=1)]
    headings = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    page = (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n<p>{facts}</p>\n"
        f"<table><thead><tr>{headings}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody></table>"
        "</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def _line(number: int, row: dict[str, str], all_macs: int) -> str:
    texts = [str(row.get(name) or "") for name in ("name", "operator", "inputs", "outputs")]
    cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
    counts = [_count(row, name) for name in ("parameters", "macs")]
    numbers = "".join(f'<td class="number">{c:,}</td>' if c else "<td></td>" for c in counts)
    share = counts[1] / all_macs if all_macs else 0.0
    bar = f'<meter value="{share:.4f}"></meter> {100 * share:.1f} %' if share else ""
    return f'<tr><td class="number">{number}</td>{cells}{numbers}<td>{bar}</td></tr>\n'


def _count(row: dict[str, str], column: str) -> int:
    text = row.get(column) or ""
    return int(text) if text.isdecimal() else 0
