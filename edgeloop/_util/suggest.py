"""`did you mean`: the nearest of the names there are."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str], otherwise: str = "known keys are") -> str:
    """`did you mean 'epochs'?`, or all of them where none is near."""
    known = list(known)
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(known)}."
