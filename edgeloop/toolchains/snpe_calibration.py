"""Calibration images as the quantizer reads them: a raw float file each, and a list of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from edgeloop.errors import BadInput, LocalFileError
from edgeloop.tasks import Samples
from edgeloop.toolchains.base import GraphInfo
from edgeloop.toolchains.quantize import as_input

LARGEST_BYTES = 2 << 30
_KEPT_FREE = 1 << 30


def write_calibration(
    samples: Samples, info: GraphInfo, folder: Path, largest: int = LARGEST_BYTES
) -> tuple[Path, int, str]:
    """The list, how many images it has, and a note where not all of them fit below `largest`
    bytes: then every n-th is taken. Written one at a time: memory does not grow with them.

    A line of the list is cut at spaces, so it has plain names: the tool must stand in `folder`."""
    images = samples.images
    if not len(images):
        raise BadInput(reason="quantization needs at least one calibration image")
    if images.shape[1:] != (info.height, info.width, 3):
        size = "×".join(str(side) for side in images.shape[1:])
        reason = f"calibration images are {size}, the model takes {info.height}×{info.width}×3"
        raise BadInput(reason=reason)
    each = 4 * info.height * info.width * 3
    step = -(-len(images) * each // largest)
    chosen = range(0, len(images), step)
    _check_space(folder, each * len(chosen))
    listed = folder / "calibration.txt"
    with listed.open("w", encoding="utf-8") as file:
        for index in chosen:
            path = folder / f"{index:06d}.raw"
            as_input(images[index : index + 1], "NHWC").tofile(path)  # DLC models take NHWC
            file.write(f"{path.name}\n")
    note = f"calibrated on {len(chosen)} of {len(images)} images, to save disk space"
    return listed, len(chosen), note if step > 1 else ""


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + _KEPT_FREE:
        reason = (
            f"{free / 1e9:.1f} GB are free, and calibration needs {(needed + _KEPT_FREE) / 1e9:.1f}"
        )
        raise LocalFileError(path=folder, reason=reason)
