"""Batches of samples: checked, prepared, cut into the runs of a model, run by several workers with
results in order, and scored as they come."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edgeloop._util.isolation import as_file, mapped
from edgeloop._util.system import show_progress
from edgeloop.errors import BadInput, ModelFailed
from edgeloop.graph.info import GraphInfo, TensorInfo
from edgeloop.tasks import (
    Images,
    Output,
    Samples,
    Score,
    Scorer,
    TakesOutputs,
    Task,
    Tensors,
    reading_data,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgeloop.platforms.base import Device, Kind

T = TypeVar("T")
BATCH = 8
AHEAD = 4
_PIECES_PER_WORKER = 4
_PIECE_BYTES = 2**20
SEED = 0


def image_batches(info: GraphInfo, *batches: Images) -> Iterator[Tensors]:
    """Images for a model that takes one, as devices take them."""
    for images in batches:
        yield {info.input_name: images}


def random_batch(info: GraphInfo, count: int, seed: int = SEED) -> Tensors:
    """Inputs for a measurement, where the values do not matter: the same for everybody."""
    dice = np.random.default_rng(seed)
    return {tensor.name: _random(tensor, info, count, dice) for tensor in info.inputs}


def _random(
    tensor: TensorInfo, info: GraphInfo, count: int, dice: np.random.Generator
) -> NDArray[Any]:
    if tensor.layout and tensor.shape[0] == info.batch:
        return dice.integers(0, 256, (count, tensor.height, tensor.width, 3), np.uint8)
    shape, kind = (count, *info.sample_shape(tensor)), np.dtype(tensor.dtype)
    if kind.kind == "f":
        return dice.random(shape, np.float32).astype(kind)
    return dice.integers(0, 2, shape).astype(kind)


def calibration_batch(info: GraphInfo, samples: Samples) -> Tensors:
    """What to calibrate a model's inputs with, by name; raises BadInput where it does not fit."""
    if not len(samples):
        raise BadInput(reason="quantization needs at least one calibration sample")
    if samples.tensors is not None:
        check_batch(samples.tensors, info)
        return samples.tensors
    image = info.image
    if image is None:
        names = ", ".join(tensor.name for tensor in info.inputs)
        reason = f"calibration has images only, and the model takes the tensors {names}"
        raise BadInput(reason=reason)
    if not is_pixels(samples.images, image):
        size = _words(samples.images.shape[1:])
        reason = f"calibration images are {size}, the model takes {image.height}×{image.width}×3"
        raise BadInput(reason=reason)
    return {image.name: samples.images}


def calibration_runs(info: GraphInfo, samples: Samples) -> Iterator[dict[str, NDArray[Any]]]:
    """What a model takes, run by run, to calibrate it with; nothing is read before its turn."""
    batch = calibration_batch(info, samples)
    for start in range(0, sample_count(batch), info.batch):
        yield model_inputs(cut(batch, start, start + info.batch), info)


def samples_as_files(samples: Samples, folder: Path) -> dict[str, Any]:
    """Where the samples lie on the disk, for another process to map; those that are only in memory
    are written to `folder`."""
    if not len(samples):
        raise BadInput(reason="quantization needs at least one calibration sample")
    if samples.tensors is None:
        if samples.images.ndim != 4 or samples.images.dtype.name != "uint8":
            raise BadInput(reason="calibration images should be uint8 with the shape (N, H, W, 3)")
        return {"images": as_file(samples.images, folder)}
    arrays = enumerate(samples.tensors.items())
    return {"tensors": {name: as_file(value, folder, f"{i}.bin") for i, (name, value) in arrays}}


def samples_from_files(described: Mapping[str, Any]) -> Samples:
    """Those of `samples_as_files`, where they lie; without labels."""
    nothing = np.zeros((0, 0, 0, 3), np.uint8)
    if described.get("images") is not None:
        return Samples(mapped(described["images"]), nothing, "calibration")
    tensors = described.get("tensors") or {}
    arrays = {name: mapped(each) for name, each in tensors.items()}
    return Samples(nothing, nothing, "calibration", tensors=arrays)


def infer_in_order(
    batches: Iterator[Tensors],
    info: GraphInfo,
    workers: int,
    infer: Callable[[Tensors], Tensors],
    batches_ahead: int = 1,
) -> Iterator[Tensors]:
    """Each batch is cut into pieces for all workers; while its results are used, the next one is
    under way. Leaving the iterator early drops what has not begun."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="infer")
    waiting: deque[tuple[Tensors, list[Future[None]]]] = deque()

    def finished() -> Tensors:
        outputs, pieces = waiting.popleft()
        for piece in pieces:
            piece.result()
        return outputs

    def work(piece: Tensors, outputs: Tensors) -> None:
        for name, array in infer(piece).items():
            outputs[name][:] = array

    def submit(piece: Tensors, outputs: Tensors) -> Future[None]:
        """Progress is shown to whom it would be shown here."""
        context = copy_context()
        return pool.submit(lambda: context.run(work, piece, outputs))

    try:
        for batch in batches:
            count = check_batch(batch, info)
            outputs = _room_for(count, info)
            length = info.batch * _runs_per_piece(count, info, workers)
            pieces = [slice(start, start + length) for start in range(0, count, length)]
            parts = [(_part(batch, piece), _part(outputs, piece)) for piece in pieces]
            waiting.append((outputs, [submit(*part) for part in parts]))
            if len(waiting) > batches_ahead:
                yield finished()
        while waiting:
            yield finished()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _room_for(count: int, info: GraphInfo) -> Tensors:
    """The outputs of a batch, for the workers to fill in: copied once, and by all of them."""
    return {
        tensor.name: np.empty((count, *info.sample_shape(tensor)), tensor.dtype)
        for tensor in info.outputs
    }


def _runs_per_piece(count: int, info: GraphInfo, workers: int) -> int:
    """Few where outputs are large: those of a piece of one run are not put together first."""
    bytes_per_run = sum(
        math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize for tensor in info.outputs
    )
    fair = count // (info.batch * workers * _PIECES_PER_WORKER)
    return max(1, min(fair, _PIECE_BYTES // max(1, bytes_per_run)))


def run_samples(
    batch: Tensors, info: GraphInfo, run: Callable[[dict[str, NDArray[Any]]], Sequence[Output]]
) -> Tensors:
    """All outputs of a batch: `run` gets what the model takes at once, by name, and gives its
    outputs in the order of `info`. A last run that is not full is filled with its last sample."""
    count = sample_count(batch)
    results: list[Tensors] = []
    for start in range(0, count, info.batch):
        outputs = run(model_inputs(cut(batch, start, start + info.batch), info))
        results.append(_samples_of(outputs, info))
    whole = joined(results)
    return whole if sample_count(whole) == count else cut(whole, 0, count)


def model_inputs(batch: Tensors, info: GraphInfo) -> dict[str, NDArray[Any]]:
    """What a model takes in one run: its own shapes and types; images as floats from 0 to 1."""
    return {tensor.name: _as_taken(batch[tensor.name], tensor, info) for tensor in info.inputs}


def _as_taken(array: NDArray[Any], tensor: TensorInfo, info: GraphInfo) -> NDArray[Any]:
    array = _filled(array, info)
    if is_pixels(array, tensor):
        array = as_input(array, tensor.layout)
    return np.ascontiguousarray(array.reshape(tensor.shape), dtype=tensor.dtype)


def filled(batch: Tensors, info: GraphInfo) -> Tensors:
    """As many samples as one run takes: what is missing is the last one again."""
    return {name: _filled(array, info) for name, array in batch.items()}


def _filled(array: NDArray[Any], info: GraphInfo) -> NDArray[Any]:
    missing = info.batch - len(array)
    if missing <= 0:
        return array
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


def _samples_of(outputs: Sequence[Output], info: GraphInfo) -> Tensors:
    if len(outputs) != len(info.outputs):
        raise ModelFailed(reason=f"it gave {len(outputs)} outputs instead of {len(info.outputs)}")
    by_name = {}
    for tensor, output in zip(info.outputs, outputs, strict=True):
        shape = info.sample_shape(tensor)
        if output.size != info.batch * math.prod(shape):
            expected_shape, output_shape = _words(tensor.shape), _words(output.shape)
            reason = f"its output {tensor.name!r} is {output_shape} instead of {expected_shape}"
            raise ModelFailed(reason=reason)
        by_name[tensor.name] = output.reshape(info.batch, *shape)
    return by_name


def sample_count(batch: Tensors) -> int:
    return len(next(iter(batch.values()), ()))


def cut(batch: Tensors, start: int, end: int) -> Tensors:
    return _part(batch, slice(start, end))


def _part(batch: Tensors, samples: slice) -> Tensors:
    return {name: array[samples] for name, array in batch.items()}


def joined(parts: Sequence[Tensors]) -> Tensors:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def is_pixels(array: NDArray[Any], tensor: TensorInfo) -> bool:
    """Whether these are images as cameras give them, for a model that takes floats."""
    sides = (tensor.height, tensor.width, 3)
    return bool(tensor.layout) and array.dtype == np.uint8 and array.shape[1:] == sides


def check_batch(batch: Tensors, info: GraphInfo) -> int:
    """How many samples it has; raises BadInput where they are not what the model takes."""
    names = [tensor.name for tensor in info.inputs]
    if set(batch) != set(names):
        reason = f"a batch has {', '.join(batch) or 'nothing'}; the model takes {', '.join(names)}"
        raise BadInput(reason=reason)
    counts = {len(array) if array.ndim else 0 for array in batch.values()}
    if len(counts) != 1 or 0 in counts:
        reason = f"the inputs of a batch have {sorted(counts)} samples; all need equally many"
        raise BadInput(reason=reason)
    for tensor in info.inputs:
        _check_array(batch[tensor.name], tensor, info)
    return counts.pop()


def _check_array(array: NDArray[Any], tensor: TensorInfo, info: GraphInfo) -> None:
    shape = info.sample_shape(tensor)
    has_images = bool(tensor.layout) and tensor.shape[0] == info.batch
    if has_images and is_pixels(array, tensor):
        return
    if array.shape[1:] != shape:
        taken = (tensor.height, tensor.width, 3) if has_images else shape
        batch_shape = _words(array.shape)
        raise BadInput(reason=f"a batch is {batch_shape}, the model takes n×{_words(taken)}")
    if not np.can_cast(array.dtype, tensor.dtype, "same_kind"):
        reason = f"the input {tensor.name!r} is {tensor.dtype}, and is given {array.dtype}"
        raise BadInput(reason=reason)


def _words(shape: Sequence[int]) -> str:
    return "×".join(str(side) for side in shape) or "one number"


def as_input(images: Images, layout: str) -> NDArray[np.float32]:
    """What a model is fed: floats from 0 to 1, in its layout."""
    moved = images.transpose(0, 3, 1, 2) if layout == "NCHW" else images
    return np.divide(np.ascontiguousarray(moved), np.float32(255), dtype=np.float32)


def run_test(
    task: Task,
    device: Device,
    model: Path,
    info: GraphInfo,
    kind: Kind,
    samples: Samples,
    scorer: Scorer | None = None,
) -> Score:
    """Inference and scoring overlap: outputs are scored while the next are computed, and no more
    than a few batches of outputs exist at any time. The default `scorer` is the task's own, with
    curves."""
    scorer = scorer or scorer_of(task)
    outputs = device.infer(model, info, kind, batches(samples, info))
    if isinstance(task, TakesOutputs):
        return score_of(outputs, samples, scorer, device.name)
    single = (batch[info.output_name] for batch in outputs)
    return score_of(single, samples, scorer, device.name)


def scorer_of(task: Task, curves: bool = True) -> Scorer:
    """It may read options and labels of the dataset."""
    with reading_data():
        return task.scorer(curves)


def score_of(
    outputs: Iterable[Output | Tensors], samples: Samples, scorer: Scorer, device: str
) -> Score:
    """Each image once and in order, or there is no score."""
    seen = 0
    for batch in ahead(outputs):
        arrays = list(batch.values()) if isinstance(batch, Mapping) else [batch]
        count = len(arrays[0])
        if not all(_has_usable_maximum(array) for array in arrays):
            reason = f"{device} gave NaN or infinite values for images {seen}–{seen + count}"
            raise ModelFailed(reason=reason)
        labels = samples.labels[seen : seen + count]
        if len(labels) == count:
            scorer.add(batch, labels)
        seen += count
    if seen != len(samples):
        raise ModelFailed(reason=f"{device} gave {seen} results for {len(samples)} images")
    with reading_data():  # a test set in which there is nothing to find, for example
        return scorer.score()


def _has_usable_maximum(array: Output) -> bool:
    """No NaN and no positive infinity, in one pass and without a copy."""
    return array.dtype.kind != "f" or bool(np.isfinite(array.max(initial=0.0)))


def batches(samples: Samples, info: GraphInfo, size: int = BATCH) -> Iterator[Tensors]:
    """As devices take them; every one but the last fills whole runs of the model."""
    step = max(1, size // info.batch) * info.batch
    arrays = samples.tensors or {info.input_name: samples.images}
    for start in range(0, len(samples), step):
        yield {name: array[start : start + step] for name, array in arrays.items()}


def ahead(outputs: Iterable[T]) -> Iterator[T]:
    """Draws from `outputs` in a thread of its own, a few items ahead of the consumer."""
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
