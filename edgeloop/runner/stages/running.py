"""Batches in, outputs out, a few at a time: what all tests of a model share."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from contextvars import copy_context
from typing import TypeVar

import numpy as np

from edgeloop._util.system import show_progress
from edgeloop.platforms import GraphInfo
from edgeloop.tasks import Output, Samples, Tensors

T = TypeVar("T")
BATCH = 8
AHEAD = 4
NOT_AVAILABLE = "n/a"  # as old tables say it where a device has no such result


def is_finite(array: Output) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array.max(initial=0.0)))


def batches(samples: Samples, info: GraphInfo, size: int = BATCH) -> Iterator[Tensors]:
    """As devices take them; every one but the last fills whole runs of the model."""
    step = max(1, size // info.batch) * info.batch
    arrays = samples.tensors or {info.input_name: samples.images}
    for start in range(0, len(samples), step):
        yield {name: array[start : start + step] for name, array in arrays.items()}


def ahead(outputs: Iterable[T]) -> Iterator[T]:
    """Draws from `outputs` in a thread of its own, a few items ahead of whoever consumes them."""
    ready: queue.Queue[T | BaseException | None] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def draw() -> None:
        last: BaseException | None = None
        try:
            for output in outputs:
                while not stopped.is_set():
                    try:
                        ready.put(output, timeout=0.2)
                        break
                    except queue.Full:
                        continue
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - carried over and raised by the consumer
            last = error
        ready.put(last)

    thread = threading.Thread(target=copy_context().run, args=(draw,), daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            show_progress()
            yield item
    finally:
        stopped.set()
