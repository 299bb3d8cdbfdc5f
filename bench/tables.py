"""Markdown tables, printed in the form in which RESULTS.md keeps them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "RESULTS.md"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [" | ".join(headings), " | ".join("---" for _ in headings)]
    lines += [" | ".join(str(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def between_markers(page: str, texts: Mapping[str, str]) -> str:
    """The page with what is between `<!-- NAME -->` and `<!-- /NAME -->` replaced."""
    for name, text in texts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page, count = re.subn(
            pattern, lambda found, text=text: f"{found[1]}\n{text}\n\n{found[2]}", page, flags=re.S
        )
        if count != 1:
            raise ValueError(f"the page has {count} places marked {name!r}, not one")
    return page


def commit(tree: Path = ROOT) -> str:
    """The commit of a tree, with `-dirty` after it if files differ; 'unknown' without git."""
    # An archive unpacked inside another repository must not report that repository's commit.
    if not (tree / ".git").exists():
        return "unknown"
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return described.stdout.strip()
