"""The task `tensors`: any inputs, any outputs, no dataset. Instead of accuracy it says how well a
model agrees with the float model."""

from __future__ import annotations

import csv
import hashlib
import math
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.files import open_regular
from edgeloop.errors import BadInput, DatasetMisfit, ModelFailed, NotFound
from edgeloop.graph.info import GraphInfo, Shape, TensorInfo, image_info
from edgeloop.graph.read import index_limits
from edgeloop.tasks.base import Images, Interval, Samples, Scorer, Tensors
from edgeloop.tasks.dataset import BROKEN_ARRAY, SUFFIX, as_rgb, load
from edgeloop.tasks.metrics import Floats, Headline, bootstrap, paired_difference

# Inputs for any model: those that the user gives, else random numbers.
#
# Latency depends on a model's graph, not on its scales, so a benchmark needs no dataset. What was
# calibrated on random inputs says so, and is never scored against labels.


Purpose = Literal["calibration", "test"]
SEED = 20_261_116
RANDOM_SAMPLES = 8
_NO_ACCURACY = "accuracy needs a dataset: --dataset FOLDER, or INPUT_DATASET in the environment"


class TensorsTask:
    """Any model fits, and none can be scored against labels: `inputs` are for calibration, and for
    a test of how well a quantized model agrees with the float one.

    `source` is a folder or a file as `--calibration` takes it; None: random numbers, the same on
    every machine. Nothing is prepared, so `cache` stays empty.
    """

    name = "tensors"
    classes: Sequence[str] = ()

    def __init__(self, source: Path | None = None, cache: Path | None = None) -> None:
        self._source = source

    def check(self) -> None:
        """Raises where no model could take what was given: it is not there, or nothing is in it."""
        if self._source is not None:
            check_given(self._source)

    def inputs(
        self, info: GraphInfo, count: int, purpose: Purpose, model: Path | None = None
    ) -> Samples:
        """Samples of all inputs: images where the model takes one image and nothing else, else
        tensors by name. Of what was given, calibration takes the first and a test the last.
        `model` is the file, which tells how large tokens may be."""
        if self._source is None:
            tensors = _random(info, min(count, max(RANDOM_SAMPLES, info.batch)), purpose, model)
            return _samples(info, tensors, "random", _random_note(info, tensors))
        tensors = given_inputs(self._source, info, count, last=purpose == "test")
        what = "images" if info.image else "inputs"
        note = f"calibrated on {_count(tensors)} {what} of {self._source.name}"
        return _samples(info, tensors, "given", note)

    def calibration(self, height: int, width: int, count: int) -> Samples:
        return self.inputs(_image_of(height, width), count, "calibration")

    def test(self, height: int, width: int, count: int) -> Samples:
        _refuse()

    def check_output(self, shape: Sequence[int]) -> None:
        """Whatever a model gives can be compared with what its float form gives."""

    def check_outputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """As `check_output`, for all outputs."""

    def scorer(self, curves: bool = True) -> Scorer:
        _refuse()

    def interval(self, counts: NDArray[Any]) -> Interval:
        return agreement_interval(counts)

    def difference(self, first: NDArray[Any], second: NDArray[Any]) -> Interval:
        """Of `AgreementScorer.counts`, both against the same float model."""
        return agreement_difference(first, second)


def _refuse() -> NoReturn:
    raise BadInput(reason=_NO_ACCURACY)


def _image_of(height: int, width: int) -> GraphInfo:
    return image_info("image", "output", (1, height, width, 3), (1, 1), "NHWC")


def _count(tensors: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(tensors.values()), ()))


def _samples(
    info: GraphInfo, tensors: Mapping[str, NDArray[Any]], origin: str, note: str
) -> Samples:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(np.ascontiguousarray(tensors[name]).data)
    labels, key = np.zeros(_count(tensors), np.uint8), digest.hexdigest()
    if info.image is not None:
        return Samples(tensors[info.input_name], labels, key, note, origin)
    nothing = np.zeros((0, 0, 0, 3), np.uint8)
    return Samples(nothing, labels, key, note, origin, tensors)


def _random_note(info: GraphInfo, tensors: Mapping[str, NDArray[Any]]) -> str:
    what = "images" if info.image else "inputs"
    remedy = "reset convert and start a runner with a dataset"
    if not info.image:
        remedy = "reset convert and start a runner with --calibration and inputs as in use"
    return (
        f"calibrated on {_count(tensors)} random {what} (seed {SEED}): good for latency, not for "
        f"accuracy; for accuracy, {remedy}"
    )


def _random(
    info: GraphInfo, count: int, purpose: Purpose, model: Path | None
) -> dict[str, NDArray[Any]]:
    """The same on every machine, so that all of them quantize a model alike."""
    dice = np.random.default_rng(SEED + (purpose == "test"))
    takes_numbers = any(np.dtype(tensor.dtype).kind in "iu" for tensor in info.inputs)
    limits = index_limits(model) if model is not None and takes_numbers else {}
    return {
        tensor.name: _random_tensor(tensor, info, count, dice, limits.get(tensor.name))
        for tensor in info.inputs
    }


def _random_tensor(
    tensor: TensorInfo, info: GraphInfo, count: int, dice: np.random.Generator, limit: int | None
) -> NDArray[Any]:
    """Pixels for images; floats from 0 to 1 for other maps, which are mostly images too, and else
    normally distributed; tokens from the whole vocabulary. Masks hide nothing."""
    if tensor.layout:
        return dice.integers(0, 256, (count, tensor.height, tensor.width, 3), np.uint8)
    shape, kind = (count, *info.sample_shape(tensor)), np.dtype(tensor.dtype)
    if kind.kind == "f":
        is_map = len(tensor.shape) >= 4
        values = dice.random(shape) if is_map else dice.standard_normal(shape)
        return values.astype(kind)
    if kind.kind == "b" or "mask" in tensor.name.lower():
        return np.ones(shape, kind)
    most = min(limit or 2, np.iinfo(kind).max)
    return dice.integers(0, most, shape).astype(kind)


# Inputs that the user gives: a folder or a file, in whatever form people keep them.
#
# An `.npz` has arrays by the names of the inputs. A folder has such archives, or a file or folder
# for each input, called like it (`mask.npy`, `mask/`). For a model with one input any names will
# do.
#
# Images are `.png` or `.jpg`, arrays (`.npy`, `.npz`) of one sample or of many, and raw files.
# Numbers of images are bytes, or floats from 0 to 1, channels first or last; all other inputs are
# given as the model takes them.


MOST_BYTES = 2 * 1024**3  # of one input's samples; what comes after is left
_LEAST_UNPACKED, _UNPACKED_SHARE = 256 << 20, 10  # of an archive, by its size on the disk
_PICTURES = (".png", ".jpg", ".jpeg")
_RAW = (".raw", ".bin")
_KNOWN = (*_PICTURES, ".npy", ".npz", *_RAW)


def given_inputs(
    source: Path, info: GraphInfo, count: int, last: bool = False
) -> dict[str, NDArray[Any]]:
    """The first samples of every input, or the last; raises BadInput that names the file."""
    files = _files_by_input(source, info)
    by_input = {
        tensor.name: _taken(_samples_in(files[tensor.name], tensor, info, count, last), count, last)
        for tensor in info.inputs
    }
    counts = {name: len(samples) for name, samples in by_input.items()}
    if not all(counts.values()):
        raise BadInput(reason=f"{source} holds no sample to calibrate on")
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{number} of {name!r}" for name, number in counts.items())
        raise BadInput(reason=f"{source} holds {said}; all inputs need equally many samples")
    return by_input


def check_given(source: Path) -> None:
    """Raises NotFound or BadInput where there is nothing to take, for whatever model."""
    if not source.is_dir():
        _files(source)
        return
    folders = [source, *(entry for entry in source.iterdir() if entry.is_dir())]
    if not any(path.suffix.lower() in _KNOWN for folder in folders for path in folder.iterdir()):
        _files(source)


def _files_by_input(source: Path, info: GraphInfo) -> dict[str, list[Path]]:
    """Files and folders called like an input come first, then archives with all inputs."""
    entries = sorted(source.iterdir()) if source.is_dir() else []
    named: dict[str, list[Path]] = {}
    for tensor in info.inputs:
        for entry in entries:
            if entry.is_dir() and _plain(entry.name) == _plain(tensor.name):
                named[tensor.name] = _files(entry)
            elif entry.suffix.lower() in _KNOWN and _plain(entry.stem) == _plain(tensor.name):
                named.setdefault(tensor.name, [entry])
    if len(named) == len(info.inputs):
        return named
    files = _files(source)
    names = {tensor.name for tensor in info.inputs}
    whole = [path for path in files if path.suffix.lower() == ".npz" and names <= _members(path)]
    if whole or len(names) == 1:
        return dict.fromkeys(names, whole or files)
    taken = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in info.inputs)
    raise DatasetMisfit(
        reason=f"{source} does not hold all inputs: the model takes {taken}; give an .npz with an "
        "array for each, or a folder with a file or a folder called like each"
    )


def _plain(name: str) -> str:
    """Exporters write `a/b:0`, which no file is called."""
    return re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_").lower()


def _files(source: Path) -> list[Path]:
    """Label images of a dataset are left out."""
    if source.is_file():
        paths = [source]
    elif source.is_dir():
        paths = sorted(path for path in source.iterdir() if not path.name.startswith("."))
    else:
        raise NotFound(reason=f"the calibration data {source} is not there: name another")
    usable = [path for path in paths if path.suffix.lower() in _KNOWN and path.is_file()]
    usable = [path for path in usable if not path.stem.endswith(SUFFIX)]
    if not usable:
        kinds = ", ".join(_KNOWN)
        raise BadInput(reason=f"{source} holds nothing to calibrate on: it takes {kinds}")
    return usable


def _taken(samples: Iterator[NDArray[Any]], count: int, last: bool) -> NDArray[Any]:
    """As many as wanted, in the order of the files."""
    pieces: list[NDArray[Any]] = []
    total = held = 0
    for piece in samples:
        missing = count - total
        pieces.append(piece[-missing:] if last else piece[:missing])
        total += len(pieces[-1])
        held += pieces[-1].nbytes
        if total >= count or held >= MOST_BYTES:
            break
    if not pieces:
        return np.zeros(0)
    return np.concatenate(pieces[::-1] if last else pieces)


def _samples_in(
    files: Sequence[Path], tensor: TensorInfo, info: GraphInfo, count: int, last: bool
) -> Iterator[NDArray[Any]]:
    """Piece by piece, the last one first where the last are wanted; of each no more than `count`,
    since a file may claim any number of samples."""
    for path in reversed(files) if last else files:
        kind = path.suffix.lower()
        if kind in _PICTURES:
            yield _picture(path, tensor)
            continue
        arrays = [_raw(path, tensor, info)] if kind in _RAW else _arrays(path, tensor.name)
        for array in reversed(arrays) if last else arrays:
            if tensor.layout:
                yield _as_images(path, _some(array, 4, count, last), tensor.height, tensor.width)
            else:
                sides = len(info.sample_shape(tensor)) + 1
                yield _as_samples(path, _some(array, sides, count, last), tensor, info)


def _some(array: NDArray[Any], sides: int, count: int, last: bool) -> NDArray[Any]:
    if array.ndim != sides:
        return array
    return array[-count:] if last else array[:count]


def _picture(path: Path, tensor: TensorInfo) -> Images:
    if not tensor.layout:
        reason = f"{path} is an image, and the input {tensor.name!r} {list(tensor.shape)} is not"
        raise DatasetMisfit(reason=reason)
    images: Images = as_rgb(load(path), tensor.height, tensor.width)[None]
    return images


def _arrays(path: Path, name: str) -> list[NDArray[Any]]:
    """Never unpickled: a file of objects is refused by NumPy itself. Of an archive the array of
    that name, or all where there is none."""
    try:
        if path.suffix.lower() == ".npy":
            with open_regular(path):
                return [np.load(path, mmap_mode="r", allow_pickle=False)]
        _check_size(path)
        with np.load(path, allow_pickle=False) as archive:
            members = [name] if name in archive.files else archive.files
            arrays = [archive[one] for one in members]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            raise ValueError("it holds a file that is no array")
        return arrays
    except (
        *BROKEN_ARRAY,
        NotImplementedError,
        RuntimeError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        raise _unreadable(path, error) from None


def _members(path: Path) -> set[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (*BROKEN_ARRAY, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None


def _check_size(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    most = min(MOST_BYTES, _LEAST_UNPACKED + _UNPACKED_SHARE * path.stat().st_size)
    if size > most:
        reason = f"{path} unpacks to {size / 1e9:.1f} GB, more than {most / 1e9:.1f} GB"
        raise BadInput(reason=f"{reason}: write its arrays as .npy files")


def _unreadable(path: Path, error: Exception) -> BadInput:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return BadInput(reason=f"{path} cannot be read as arrays ({reason})")


def _raw(path: Path, tensor: TensorInfo, info: GraphInfo) -> NDArray[Any]:
    """Any number of samples; of images one, as bytes or floats, by its size."""
    size = path.stat().st_size
    if tensor.layout:
        height, width = tensor.height, tensor.width
        values = height * width * 3
        kinds = {values: np.uint8, 4 * values: np.float32}
        if size not in kinds:
            raise DatasetMisfit(
                reason=f"{path} has {size} bytes; an image of {height} × {width} × 3 has {values}, "
                f"or {4 * values} as floats"
            )
        return np.fromfile(path, kinds[size]).reshape(height, width, 3)
    shape, kind = info.sample_shape(tensor), np.dtype(tensor.dtype)
    sample = math.prod(shape) * kind.itemsize
    if not size or size % sample:
        raise DatasetMisfit(
            reason=f"{path} has {size} bytes; a sample of {tensor.name!r} has {sample}: "
            f"{list(shape)} of {kind}"
        )
    return np.memmap(path, kind, "r").reshape(-1, *shape)


def _as_samples(
    path: Path, array: NDArray[Any], tensor: TensorInfo, info: GraphInfo
) -> NDArray[Any]:
    """(n, …) in the type that the model takes."""
    shape, kind = info.sample_shape(tensor), np.dtype(tensor.dtype)
    samples = array[None] if array.shape == shape else array
    if samples.shape[1:] != shape or samples.ndim != len(shape) + 1:
        raise DatasetMisfit(
            reason=f"{path} holds an array {list(array.shape)}; a sample of the input "
            f"{tensor.name!r} is {list(shape)}, and several have their number before that"
        )
    samples = samples[: max(1, MOST_BYTES // max(1, math.prod(shape) * kind.itemsize))]
    if samples.dtype.kind not in "fiub" or (samples.dtype.kind == "f" and kind.kind != "f"):
        reason = f"{path} holds {array.dtype}; the input {tensor.name!r} takes {kind}"
        raise DatasetMisfit(reason=reason)
    with np.errstate(over="ignore"):
        taken = samples.astype(kind)
    is_kept = np.isfinite(taken).all() if kind.kind == "f" else np.array_equal(taken, samples)
    if not is_kept:
        reason = f"{path} holds values that the input {tensor.name!r} cannot take as {kind}"
        raise DatasetMisfit(reason=reason)
    return taken


def _as_images(path: Path, array: NDArray[Any], height: int, width: int) -> Images:
    """A batch of bytes, channels last."""
    batch = array[None] if array.ndim == 3 else array
    if batch.ndim == 4 and batch.shape[1:] == (3, height, width):
        batch = batch.transpose(0, 2, 3, 1)
    if batch.shape[1:] != (height, width, 3):
        raise DatasetMisfit(
            reason=f"{path} holds an array {list(array.shape)}; the model takes images of {height} "
            f"× {width} × 3, channels first or last, one or a batch of them"
        )
    if batch.dtype == np.uint8:
        return np.ascontiguousarray(batch)
    low, high = (float(batch.min()), float(batch.max())) if batch.size else (0.0, 0.0)
    if batch.dtype.kind != "f" or not (low >= 0 and high <= 1):
        raise BadInput(
            reason=f"{path} holds {batch.dtype} from {low:g} to {high:g}; calibration takes uint8, "
            "or floats from 0 to 1"
        )
    return np.ascontiguousarray(np.rint(batch * 255).astype(np.uint8))


# How well the outputs of a model agree with those of its float form, output by output.
#
# Sums of every sample, in double precision: nothing of a batch is kept.
#
# | value | meaning | |------------------|----------------------------------------------------------
# ---------------------| | `sqnr_db` | power of the float output over the power of the error, in dB;
# at most 200 | | `cosine` | of the angle between the two outputs as vectors, over all samples | |
# `max_error` | the largest absolute difference | | `top1_agreement` | share of places where the
# largest value is the same one; of whole numbers the | | | share that is equal; NaN where an output
# has one value per place |


AGREEMENT = ("sqnr_db", "cosine", "max_error", "top1_agreement")
MOST_DB = 200.0  # equal outputs have no error at all


@dataclass(frozen=True)
class Agreement:
    """Of one output, or the worst of all: each value by itself."""

    sqnr_db: float
    cosine: float
    max_error: float
    top1_agreement: float

    def values(self) -> dict[str, float]:
        """Those that are numbers, by name."""
        numbers = {name: float(getattr(self, name)) for name in AGREEMENT}
        return {name: value for name, value in numbers.items() if not math.isnan(value)}

    def __str__(self) -> str:
        words = [f"SQNR {self.sqnr_db:.1f} dB"] if not math.isnan(self.sqnr_db) else []
        words += [f"cosine {self.cosine:.5f}"] if not math.isnan(self.cosine) else []
        words += [f"largest error {self.max_error:.3g}"]
        if not math.isnan(self.top1_agreement):
            words.append(f"top-1 agreement {100 * self.top1_agreement:.2f} %")
        return ", ".join(words)


class AgreementScorer:
    """Takes batches of the outputs of both, sample by sample the same inputs."""

    def __init__(self, info: GraphInfo) -> None:
        self.samples = 0
        self._sums: dict[str, _OutputSums] = {}
        self._axes = {tensor.name: class_axis_of(tensor, info) for tensor in info.outputs}

    def add(self, outputs: Tensors, reference: Tensors) -> None:
        self.samples += len(next(iter(reference.values()), ()))
        for name, expected in reference.items():
            answered = outputs[name].reshape(expected.shape)
            axis = self._axes[name]
            sums = self._sums.setdefault(name, _OutputSums())
            for one, other in zip(expected, answered, strict=True):
                sums.add(one, other, None if axis is None else axis - 1)

    @property
    def counts(self) -> NDArray[np.float64]:
        """(samples, outputs, sums), for intervals and paired differences."""
        return np.stack([np.array(sums.samples) for sums in self._sums.values()], axis=1)

    def outputs(self) -> dict[str, Agreement]:
        return {name: sums.agreement() for name, sums in self._sums.items()}

    def worst(self) -> Agreement:
        agreements = list(self.outputs().values())
        if not agreements:
            raise ModelFailed(reason="nothing was compared: the model gave no outputs")

        def of(name: str) -> list[float]:
            values = [float(getattr(one, name)) for one in agreements]
            return [value for value in values if not math.isnan(value)]

        return Agreement(
            min(of("sqnr_db"), default=math.nan),
            min(of("cosine"), default=math.nan),
            max(of("max_error"), default=math.nan),
            min(of("top1_agreement"), default=math.nan),
        )

    def write_csv(self, path: Path) -> None:
        """A row per value, a column per output, then `overall`: the worst."""
        columns = {**self.outputs(), "overall": self.worst()}
        if len(columns) == len(self._sums):  # an output that is itself called so
            columns = {**self.outputs(), "overall (worst)": self.worst()}
        rows = [["metric", *columns]]
        for name in AGREEMENT:
            values = [float(getattr(one, name)) for one in columns.values()]
            rows.append([name, *("" if math.isnan(value) else repr(value) for value in values)])
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def class_axis_of(tensor: TensorInfo, info: GraphInfo) -> int | None:
    """Which axis of an output has the classes: the last one of vectors and sequences, the channels
    of maps. None where there is only one value along it."""
    shape = info.sample_shape(tensor)
    if not shape:
        return None
    is_first = len(shape) >= 3 and _has_channels_first(shape, info)
    axis = 1 if is_first else len(shape)
    return axis if shape[axis - 1] > 1 else None


def _has_channels_first(shape: Shape, info: GraphInfo) -> bool:
    """As the sides of the image say, else as the image has them; without one, what there is fewest
    of are the channels."""
    image = next((tensor for tensor in info.inputs if tensor.layout), None)
    if image is None:
        return shape[-1] >= shape[0]
    sides = (image.height, image.width)
    if sides in (shape[1:3], shape[:2]):
        return shape[1:3] == sides
    return image.layout == "NCHW"


def agreement_interval(counts: NDArray[np.float64]) -> Interval:
    return bootstrap(len(counts), _worst_agreement(counts))


def agreement_difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> Interval:
    """In dB of SQNR; of outputs in whole numbers the share of equal ones."""
    return paired_difference(first, second, _worst_agreement)


def _worst_agreement(counts: NDArray[np.float64]) -> Headline:
    """Of the output that agrees least; outputs in whole numbers count only where all are."""
    is_float = counts[..., _SIGNAL].any(axis=0) | counts[..., _NOISE].any(axis=0)

    def value(weights: Floats) -> Floats:
        sums = np.einsum("rs,sok->rok", weights, counts)
        if not is_float.any():
            shares: Floats = sums[..., _SAME] / np.maximum(1, sums[..., _PLACES])
            return np.asarray(shares.min(axis=1))
        signal, noise = sums[:, is_float, _SIGNAL], sums[:, is_float, _NOISE]
        with np.errstate(divide="ignore"):
            decibels = 10.0 * (np.log10(signal) - np.log10(noise))
        decibels = np.where(noise == 0.0, MOST_DB, decibels)
        return np.asarray(np.clip(decibels, -MOST_DB, MOST_DB).min(axis=1))

    return value


_SIGNAL, _NOISE, _SAME, _PLACES = 0, 2, 4, 5


@dataclass
class _OutputSums:
    """`samples` has the same sums of each sample by itself, in the order of the fields."""

    signal: float = 0.0
    power: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    same: float = 0.0
    places: float = 0.0
    max_error: float = 0.0
    is_exact: bool = field(default=False)
    samples: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, expected: NDArray[Any], actual: NDArray[Any], axis: int | None) -> None:
        """One sample of both."""
        one = np.asarray(expected, np.float64)
        other = np.asarray(actual, np.float64)
        difference = other - one
        self.max_error = max(self.max_error, float(np.abs(difference).max(initial=0.0)))
        self.is_exact = self.is_exact or expected.dtype.kind != "f"
        if self.is_exact:
            equal = np.count_nonzero(expected == actual)
            self._include((0.0, 0.0, 0.0, 0.0, float(equal), float(expected.size)))
            return
        same = expected.argmax(axis) == actual.argmax(axis) if axis is not None else np.zeros(0)
        powers = (np.vdot(one, one), np.vdot(other, other), np.vdot(difference, difference))
        sums = (*powers, np.vdot(one, other), np.count_nonzero(same), same.size)
        self._include(tuple(float(value) for value in sums))

    def _include(self, sums: tuple[float, ...]) -> None:
        self.samples.append(sums)
        names = ("signal", "power", "noise", "product", "same", "places")
        for name, value in zip(names, sums, strict=True):
            setattr(self, name, getattr(self, name) + value)

    def agreement(self) -> Agreement:
        share = self.same / self.places if self.places else math.nan
        if self.is_exact:
            return Agreement(math.nan, math.nan, self.max_error, share)
        return Agreement(self._sqnr_db(), self._cosine(), self.max_error, share)

    def _sqnr_db(self) -> float:
        if self.noise == 0.0:
            return MOST_DB
        if self.signal == 0.0:
            return -MOST_DB
        decibels = 10.0 * (math.log10(self.signal) - math.log10(self.noise))
        return max(-MOST_DB, min(MOST_DB, decibels))

    def _cosine(self) -> float:
        length = math.sqrt(self.signal) * math.sqrt(self.power)
        if length == 0.0:
            return 1.0 if self.signal == self.power else 0.0
        return max(-1.0, min(1.0, self.product / length))
