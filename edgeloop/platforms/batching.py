"""Batches of images: checked, prepared, and run by several workers with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from edgeloop.errors import BadInput
from edgeloop.graph import GraphInfo
from edgeloop.tasks import Images, Output

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECES_PER_WORKER = 4


def infer_in_order(
    images: Iterator[Images],
    info: GraphInfo,
    workers: int,
    infer: Callable[[Images], Output],
    batches_ahead: int = 1,
) -> Iterator[Output]:
    """Each batch is cut into pieces for all workers; while its results are used, the next one is
    under way. Leaving the iterator early drops what has not begun."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="infer")
    waiting: deque[list[Future[Output]]] = deque()
    try:
        for batch in images:
            check_batch(batch, info)
            length = max(1, len(batch) // (workers * _PIECES_PER_WORKER))
            starts = range(0, len(batch), length)
            waiting.append([pool.submit(infer, batch[start : start + length]) for start in starts])
            if len(waiting) > batches_ahead:
                yield _joined(waiting.popleft())
        while waiting:
            yield _joined(waiting.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_batch(batch: Images, info: GraphInfo) -> Images:
    if batch.ndim != 4 or batch.shape[1:] != (info.height, info.width, 3) or not len(batch):
        size = "×".join(str(side) for side in batch.shape)
        reason = f"a batch is {size}, the model takes n×{info.height}×{info.width}×3"
        raise BadInput(reason=reason)
    return batch


def as_input(images: Images, layout: str) -> NDArray[np.float32]:
    """What a model is fed: floats from 0 to 1, in its layout."""
    floats = np.divide(images, np.float32(255), dtype=np.float32)
    if layout == "NCHW":
        floats = floats.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(floats)


def _joined(pieces: list[Future[Output]]) -> Output:
    parts = [piece.result() for piece in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
