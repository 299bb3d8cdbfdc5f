"""Inputs that somebody gives: a folder or a file, in whatever form people keep them.

An `.npz` has arrays by the names of the inputs. A folder has such archives, or a file or folder
for each input, called like it (`mask.npy`, `mask/`). For a model with one input any names will do.

Images are `.png` or `.jpg`, arrays (`.npy`, `.npz`) of one sample or of many, and raw files.
Numbers of images are bytes, or floats from 0 to 1, channels first or last; all other inputs are
given as the model takes them.
"""

from __future__ import annotations

import math
import re
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.files import open_regular
from edgeloop.errors import BadInput, DatasetMisfit, NotFound
from edgeloop.graph import GraphInfo, TensorInfo
from edgeloop.tasks.base import Images

MOST_BYTES = 2 * 1024**3  # of one input's samples; what comes after is left
_LEAST_UNPACKED, _UNPACKED_SHARE = 256 << 20, 10  # of an archive, by its size on the disk
# What NumPy raises for a header that is none, with those of the parser it uses.
_BROKEN = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, OverflowError, MemoryError),
    *(SyntaxError, RecursionError, tokenize.TokenError),
)
_PICTURES = (".png", ".jpg", ".jpeg")
_RAW = (".raw", ".bin")
_KNOWN = (*_PICTURES, ".npy", ".npz", *_RAW)


def given_inputs(
    source: Path, info: GraphInfo, count: int, last: bool = False
) -> dict[str, NDArray[Any]]:
    """The first samples of every input, or the last; raises BadInput that names the file."""
    files = _files_by_input(source, info)
    found = {
        tensor.name: _taken(_samples_in(files[tensor.name], tensor, info, count, last), count, last)
        for tensor in info.inputs
    }
    counts = {name: len(samples) for name, samples in found.items()}
    if not all(counts.values()):
        raise BadInput(reason=f"{source} holds no sample to calibrate on")
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{number} of {name!r}" for name, number in counts.items())
        raise BadInput(reason=f"{source} holds {said}; all inputs need equally many samples")
    return found


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
    from edgeloop.tasks.dataset import SUFFIX

    if source.is_file():
        paths = [source]
    elif source.is_dir():
        paths = sorted(path for path in source.iterdir() if not path.name.startswith("."))
    else:
        raise NotFound(reason=f"the calibration data {source} is not there: name another")
    known = [path for path in paths if path.suffix.lower() in _KNOWN and path.is_file()]
    known = [path for path in known if not path.stem.endswith(SUFFIX)]
    if not known:
        kinds = ", ".join(_KNOWN)
        raise BadInput(reason=f"{source} holds nothing to calibrate on: it takes {kinds}")
    return known


def _taken(samples: Iterator[NDArray[Any]], count: int, last: bool) -> NDArray[Any]:
    """As many as wanted, in the order of the files."""
    pieces: list[NDArray[Any]] = []
    total = held = 0
    for piece in samples:
        wanted = count - total
        pieces.append(piece[-wanted:] if last else piece[:wanted])
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
    from edgeloop.tasks.dataset import as_rgb, load

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
            wanted = [name] if name in archive.files else archive.files
            arrays = [archive[one] for one in wanted]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            raise ValueError("it holds a file that is no array")
        return arrays
    except (*_BROKEN, NotImplementedError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None


def _members(path: Path) -> set[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (*_BROKEN, zipfile.BadZipFile) as error:
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
