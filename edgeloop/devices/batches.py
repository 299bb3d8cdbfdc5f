"""Work on batches by several hands at once, with results in the order of the batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from edgeloop.errors import BadInput
from edgeloop.tasks import Images, Output
from edgeloop.toolchains import GraphInfo

_PIECES_A_HAND = 4


def in_order(
    images: Iterator[Images],
    info: GraphInfo,
    hands: int,
    work: Callable[[Images], Output],
    batches_ahead: int = 1,
) -> Iterator[Output]:
    """Each batch is cut into pieces for all hands; while its results are used, the next one is
    under way. Leaving the iterator early drops what has not begun."""
    pool = ThreadPoolExecutor(hands, thread_name_prefix="infer")
    waiting: deque[list[Future[Output]]] = deque()
    try:
        for batch in images:
            waiting.append([pool.submit(work, piece) for piece in _pieces(batch, info, hands)])
            if len(waiting) > batches_ahead:
                yield _whole(waiting.popleft())
        while waiting:
            yield _whole(waiting.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_batch(batch: Images, info: GraphInfo) -> Images:
    if batch.ndim != 4 or batch.shape[1:] != (info.height, info.width, 3) or not len(batch):
        size = "×".join(str(side) for side in batch.shape)
        reason = f"a batch is {size}, the model takes n×{info.height}×{info.width}×3"
        raise BadInput(reason=reason)
    return batch


def _pieces(batch: Images, info: GraphInfo, hands: int) -> list[Images]:
    check_batch(batch, info)
    length = max(1, len(batch) // (hands * _PIECES_A_HAND))
    return [batch[start : start + length] for start in range(0, len(batch), length)]


def _whole(pieces: list[Future[Output]]) -> Output:
    parts = [piece.result() for piece in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
