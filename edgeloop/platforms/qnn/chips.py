"""The chips by name: what to compile for, and where a latency estimate comes from.

Numbers (`soc`) and architectures are as other open projects list them (ExecuTorch, ggml; they
disagree on some), or inferred from the chip's family; none was tried on a board. The compiler has a
model of time for a few chips only (facts: 52, 62, 63, 72, 77, 95); another chip borrows the one of
its family (`estimate_soc`), corrected by the constants of its profile where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from edgeloop.errors import BadInput

DEFAULT_CHIP = "snapdragon-888"


@dataclass(frozen=True)
class Chip:
    """`soc` None: compiled for the architecture alone. `estimate_soc` None: no estimate,
    `nearest` then names a chip that has one."""

    name: str
    title: str
    arch: int
    soc: int | None
    estimate_soc: int | None = None
    nearest: str = ""


_CHIPS = (
    Chip("snapdragon-888", "Snapdragon 888", 68, 30, 62),
    Chip("snapdragon-8-gen-1", "Snapdragon 8 Gen 1", 69, 36, 77),
    Chip("snapdragon-8-plus-gen-1", "Snapdragon 8+ Gen 1", 69, 42, None, "snapdragon-8-gen-1"),
    Chip("snapdragon-8-gen-2", "Snapdragon 8 Gen 2", 73, 43, 77),
    Chip("snapdragon-8-gen-3", "Snapdragon 8 Gen 3", 75, 57, 77),
    Chip("snapdragon-8-elite", "Snapdragon 8 Elite", 79, 69, 72),
    Chip(
        "snapdragon-8-elite-gen-5", "Snapdragon 8 Elite Gen 5", 81, 87, None, "snapdragon-8-elite"
    ),
    Chip("snapdragon-7-gen-4", "Snapdragon 7 Gen 4", 73, None, 62),
    Chip("x-elite", "Snapdragon X Elite", 73, 60, 77),
    Chip("qcs8550", "Dragonwing QCS8550", 73, 43, 77),  # compiled as 8 Gen 2, its family
    Chip("iq-9075", "Dragonwing IQ-9075 (QCS9075)", 73, 77, 77),
    Chip("rb3-gen-2", "RB3 Gen 2 (QCS6490)", 68, None, 62),
    Chip("sa8255p", "SA8255P", 73, 52, 77),
    Chip("sa8295p", "SA8295P", 68, 39, 62),
    Chip("sa8540p", "SA8540P", 68, 62, 62),
)
CHIPS = {chip.name: chip for chip in _CHIPS}


def named_chip(chip: Chip) -> Chip:
    """The chip itself or, where it has no number, one of the same architecture that has: the
    simulator's fp16 wants a number. That chips of an architecture compute alike is assumed."""
    if chip.soc is not None:
        return chip
    return next(other for other in _CHIPS if other.arch == chip.arch and other.soc is not None)


def find_chip(name: str) -> Chip:
    """Spelling is forgiven (`Snapdragon 888`); anything else lists what there is."""
    wanted = name.strip().lower().replace(" ", "-").replace("_", "-")
    if wanted in CHIPS:
        return CHIPS[wanted]
    close = get_close_matches(wanted, CHIPS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    reason = f"there is no chip {name!r}.{hint} Known: {', '.join(CHIPS)}."
    raise BadInput(reason=reason)
