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
_TIME_HEADINGS = ("estimate, µs", "share of time")


def write_viewer(path: Path, title: str, layers: Path) -> None:
    """From the table of layers that `write_layers` wrote."""
    with layers.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    macs = [_count(row, "macs") for row in rows]
    params = sum(_count(row, "parameters") for row in rows)
    facts = f"{len(rows)} layers, {sum(macs):,} MACs, {params:,} parameters"
    is_timed = any(row.get("time_us") for row in rows)
    if is_timed and (device := rows[0].get("timed_on")):
        facts += f"; time of layers estimated for {escape(device)}"
    lines = [_line(number, row, sum(macs), is_timed) for number, row in enumerate(rows, start=1)]
    shown = (*_HEADINGS, *_TIME_HEADINGS) if is_timed else _HEADINGS
    headings = "".join(f"<th>{heading}</th>" for heading in shown)
    page = (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n<p>{facts}</p>\n"
        f"<table><thead><tr>{headings}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody></table>"
        "</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def _line(number: int, row: dict[str, str], all_macs: int, is_timed: bool) -> str:
    texts = [str(row.get(name) or "") for name in ("name", "operator", "inputs", "outputs")]
    cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
    counts = [_count(row, name) for name in ("parameters", "macs")]
    numbers = "".join(f'<td class="number">{c:,}</td>' if c else "<td></td>" for c in counts)
    bar = _bar(counts[1] / all_macs if all_macs else 0.0)
    time = _time_cells(row) if is_timed else ""
    return f'<tr><td class="number">{number}</td>{cells}{numbers}<td>{bar}</td>{time}</tr>\n'


def _time_cells(row: dict[str, str]) -> str:
    """The more of the time a layer takes, the deeper its colour."""
    if row.get("timed_with"):
        return f"<td></td><td>with {escape(row['timed_with'])}</td>"
    share = _number(row, "share")
    style = f"background: rgb(213 94 0 / {min(0.6, 2 * share):.2f})"
    time_us = escape(f"{_number(row, 'time_us'):.1f}")
    return f'<td class="number" style="{style}">{time_us}</td><td>{_bar(share)}</td>'


def _bar(share: float) -> str:
    return f'<meter value="{share:.4f}"></meter> {100 * share:.1f} %' if share else ""


def _number(row: dict[str, str], column: str) -> float:
    try:
        return float(row.get(column) or 0)
    except ValueError:
        return 0.0


def _count(row: dict[str, str], column: str) -> int:
    text = row.get(column) or ""
    return int(text) if text.isdecimal() else 0
