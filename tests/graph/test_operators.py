"""The page on operators says what the lists in the code say."""

from __future__ import annotations

import re
from pathlib import Path

from edgeloop.graph import check
from edgeloop.graph.rewrites.registry import COMPILER_REWRITES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "operators.md"


def test_the_page_names_every_operator_and_every_rewrite():
    taken, rewritten, refused = re.split(r"\n## (?:Rewritten|Refused)\n", PAGE.read_text())
    words = set(re.findall(r"\w+", taken))
    kept = check.TAKEN - {"BatchNormalization"}
    assert kept <= words
    assert set(re.findall(r"(?m)^\| `([a-z0-9-]+)` \|", rewritten)) == {
        r.name for r in COMPILER_REWRITES
    }
    assert set(re.findall(r"\w+", rewritten)) >= check.REWRITTEN
    instead = check.refusal([("NonMaxSuppression", "nms"), ("NonMaxSuppression", "other")])
    assert instead == (
        "the chip's compiler does not take NonMaxSuppression (layer 'nms' and 1 more): use the "
        "model without its post-processing, with boxes and scores as outputs instead"
    )
    assert "NonMaxSuppression" in refused
