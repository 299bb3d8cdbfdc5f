"""Markdown tables, so that what is printed can be kept as it is."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [" | ".join(headings), " | ".join("---" for _ in headings)]
    lines += [" | ".join(str(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)
