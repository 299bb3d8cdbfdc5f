"""Which images are for calibration and which for the test.

Files are sorted and cut once, at a place that depends on how many there are and on nothing else:
whatever counts are asked for, in whatever order, the two never share an image.

    11,000 files or more   the last 10,000 are for the test, all before them for calibration
    2,000 to 11,000        the first 1,000 are for calibration, the rest for the test
    fewer                  half and half, as 1,000 and 1,000 would be

Calibration takes the first of its part, the test takes the last of its own. Asking for more than
there is gives what there is, and a note that says so.

Training has the part for calibration, less its last tenth (at most 2,000), which is for validation:
no net ever learns from a test image or is chosen by one. Calibration meets a validation image only
where it asks for nearly all of its part.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from edgeloop.errors import BadInput

CALIBRATION = 1_000
TEST = 10_000
VALIDATION = 2_000

Item = TypeVar("Item")


def boundary(total: int) -> int:
    """The index of the first file that is for the test."""
    return max(min(CALIBRATION, total // 2), total - TEST)


def for_calibration(items: Sequence[Item], count: int, root: Path) -> tuple[Sequence[Item], str]:
    """The first `count` of the files for calibration, and a note when there are fewer."""
    _check(items, count, root)
    part = items[: boundary(len(items))]
    return part[:count], _note("calibration", count, len(part), len(items))


def for_test(items: Sequence[Item], count: int, root: Path) -> tuple[Sequence[Item], str]:
    """The last `count` of the files for the test, and a note when there are fewer."""
    _check(items, count, root)
    part = items[boundary(len(items)) :]
    return part[-count:], _note("test", count, len(part), len(items))


def for_training(items: Sequence[Item], root: Path) -> Sequence[Item]:
    """What a model may learn from."""
    _check_trainable(items, root)
    return items[: _first_for_validation(len(items))]


def for_validation(items: Sequence[Item], root: Path) -> Sequence[Item]:
    """What a model in training is watched with: neither learnt from nor tested on."""
    _check_trainable(items, root)
    return items[_first_for_validation(len(items)) : boundary(len(items))]


def _first_for_validation(total: int) -> int:
    part = boundary(total)
    return part - min(VALIDATION, max(1, part // 10))


def _check_trainable(items: Sequence[Item], root: Path) -> None:
    if boundary(len(items)) < 2:
        reason = f"{root} holds {len(items)} images: training, validation and test need at least 4"
        raise BadInput(reason=reason)


def _check(items: Sequence[Item], count: int, root: Path) -> None:
    if count < 1:
        raise BadInput(reason=f"At least 1 image is needed, not {count}")
    if len(items) < 2:
        raise BadInput(
            reason=f"{root} holds {len(items)} image: calibration and test need at least one each"
        )


def _note(purpose: str, asked: int, there: int, total: int) -> str:
    if asked <= there:
        return ""
    return (
        f"{there} {purpose} images instead of {asked}: the dataset has {total}, split in "
        "proportion so that calibration and test never overlap"
    )
