"""Batches gathered into runs that are worth a tool's start, two of them under way at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from edgeloop.devices.batches import check_batch
from edgeloop.tasks import Images, Output
from edgeloop.toolchains import GraphInfo

_FIRST_BATCHES = (5, 4)  # results soon, and few drawn before; but every start of a tool costs


@dataclass(frozen=True)
class Group:
    """Batches that go through one run of the tool."""

    lengths: tuple[int, ...]
    images: Images


def groups(images: Iterator[Images], info: GraphInfo, most: int) -> Iterator[Group]:
    batches: list[Images] = []
    sizes = iter(_FIRST_BATCHES)
    limit = next(sizes, None)
    for batch in images:
        batches.append(check_batch(batch, info))
        count = sum(len(each) for each in batches)
        if count >= most or (limit is not None and len(batches) >= limit):
            yield _group(batches)
            batches, limit = [], next(sizes, None)
    if batches:
        yield _group(batches)


def _group(batches: list[Images]) -> Group:
    return Group(tuple(len(batch) for batch in batches), np.concatenate(batches))


def in_order(gathered: Iterator[Group], work: Callable[[Group], Output]) -> Iterator[Output]:
    pool = ThreadPoolExecutor(2, thread_name_prefix="board")
    waiting: deque[tuple[Group, Future[Output]]] = deque()
    try:
        for group in gathered:
            waiting.append((group, pool.submit(work, group)))
            if len(waiting) > 1:
                yield from _batches(*waiting.popleft())
        while waiting:
            yield from _batches(*waiting.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _batches(group: Group, future: Future[Output]) -> Iterator[Output]:
    whole, start = future.result(), 0
    for length in group.lengths:
        yield whole[start : start + length]
        start += length
