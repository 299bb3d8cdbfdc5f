"""Images decoded and resized once, then memory-mapped.

A prepared set is a folder of three files: images.npy, labels.npy and set.json, which keeps the hash
of the two arrays. The folder's name is a hash of where the images are, their sizes and times, and
the shape asked for, so a changed image means a new set; the hash inside is of the bytes
themselves, so it names the same content on every machine.

A set is built under another name and renamed when whole. Of two processes that build the same one,
the second finds the name taken and uses what is there. The arrays are written as plain files, not
through a map: a full disk is then an error with a name and no bus error.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeloop._util.files import mark_used
from edgeloop._util.system import available_cpus
from edgeloop.errors import LocalFileError
from edgeloop.tasks.base import Images, Labels, Samples

BATCH = 32  # decoded images in memory at a time
LAYOUT = 1  # raised when the same images would give other arrays
_BUILDING = ".building-"
_ABANDONED_S = 24 * 3600
_DECODED_BYTES = 256 << 20  # of all images that are being decoded

Item = TypeVar("Item")


@dataclass(frozen=True)
class Preparation(Generic[Item]):
    """What a prepared set is built from. `files_of` names the files of an item."""

    root: Path
    items: Sequence[Item]
    files_of: Callable[[Item], Sequence[Path]]
    decode: Callable[[Item], tuple[Images, Labels]]
    image_shape: tuple[int, ...]
    label_shape: tuple[int, ...]
    label_type: type[np.generic] = np.uint8
    also: Sequence[str] = ()  # whatever else the arrays depend on, such as the classes

    def memory_of(self, item: Item) -> int:
        """About how much decoding it takes."""
        from edgeloop.tasks.dataset import decoded_bytes

        files = [file for file in self.files_of(item) if file.suffix != ".npy"]
        return sum(decoded_bytes(file) for file in files)

    def fingerprint(self) -> str:
        shapes = (self.image_shape, self.label_shape, np.dtype(self.label_type).name)
        parts = [str(LAYOUT), str(self.root.resolve()), repr(shapes), *self.also]
        for item in self.items:
            for file in self.files_of(item):
                try:
                    state = file.stat()
                except OSError as error:
                    raise LocalFileError(path=file, reason=error.strerror or str(error)) from None
                parts.append(f"{file.relative_to(self.root)}|{state.st_size}|{state.st_mtime_ns}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def prepared(cache: Path, recipe: Preparation[Any], note: str = "") -> Samples:
    """The prepared set, from the cache if available."""
    folder = cache / recipe.fingerprint()
    found = _open(folder, note)
    if found is None:
        _build(cache, folder, recipe)
        found = _open(folder, note)
    if found is None:
        raise LocalFileError(path=folder, reason="prepared images vanished: is it being cleaned?")
    return found


def _open(folder: Path, note: str) -> Samples | None:
    """None where there is no whole set: a machine that lost power may leave half a file."""
    try:
        key = json.loads((folder / "set.json").read_bytes())["content"]
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / "labels.npy", mmap_mode="r", allow_pickle=False)
        mark_used(folder / "set.json")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, EOFError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return Samples(images, labels, key, note)


def _build(cache: Path, folder: Path, recipe: Preparation[Any]) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(cache)
    work = cache / f"{_BUILDING}{uuid.uuid4().hex}"
    work.mkdir()
    try:
        content = _write_arrays(work, recipe)
        (work / "set.json").write_text(json.dumps({"content": content}))
        with suppress(OSError):  # taken: somebody built the same set, and theirs is as good
            work.rename(folder)
    except OSError as error:
        reason = f"images cannot be prepared there: {error.strerror or error}"
        raise LocalFileError(path=cache, reason=reason) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_arrays(work: Path, recipe: Preparation[Any]) -> str:
    """Streams the arrays to disk and returns the hash of their bytes."""
    count, digest = len(recipe.items), hashlib.sha256()
    digest.update(repr((count, recipe.image_shape, recipe.label_shape)).encode())
    with (work / "images.npy").open("wb") as images, (work / "labels.npy").open("wb") as labels:
        _write_header(images, (count, *recipe.image_shape), np.dtype(np.uint8))
        _write_header(labels, (count, *recipe.label_shape), np.dtype(recipe.label_type))
        for image, label in _decoded(recipe):
            for array, file in ((image, images), (label, labels)):
                data = np.ascontiguousarray(array).tobytes()
                digest.update(data)
                file.write(data)
    return digest.hexdigest()


def _decoded(recipe: Preparation[Any]) -> Iterator[tuple[Images, NDArray[Any]]]:
    """In order, a batch at a time: Pillow decodes and resizes outside the interpreter's lock."""
    items, room = iter(recipe.items), _Room(_DECODED_BYTES)

    def decode(item: Any) -> tuple[Images, Labels]:
        with room.taken(recipe.memory_of(item)):
            return recipe.decode(item)

    with ThreadPoolExecutor(available_cpus(), "decode") as pool:
        while batch := list(itertools.islice(items, BATCH)):
            for image, label in pool.map(decode, batch):
                yield image, np.asarray(label, dtype=recipe.label_type)


class _Room:
    """Memory for images that are being decoded: one that needs more than all of it waits until it
    is alone."""

    def __init__(self, size: int) -> None:
        self._free, self._size = size, size
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        size = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


def _write_header(file: BinaryIO, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
    head = {"descr": kind.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, head)


def _remove_abandoned(cache: Path) -> None:
    """What a killed process left, once nobody can still be at it."""
    for folder in cache.glob(f"{_BUILDING}*"):
        with suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)
