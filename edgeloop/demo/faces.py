"""Draws a dataset of faces, for real training, quantization and F1 without a download.

The layout is that of FaceSynthetics. Each face depends on the seed and its number only, so it does
not matter how many processes draw, nor whether the work was interrupted: files appear whole or not
at all, what is there is kept, and `faces.json`, written last, says that the set is complete.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

from PIL import Image

from edgeloop._util.system import available_cpus, safe_path
from edgeloop.demo.portrait import VERSION, draw_face
from edgeloop.errors import BadInput
from edgeloop.tasks import Images

MANIFEST = "faces.json"
BEGUN = ".faces.begun.json"
MOST = 1_000_000  # numbers have six digits
SIZES = range(16, 2049)
DIFFICULTIES = {"easy": 0.0, "normal": 0.5, "hard": 1.0}
_WORTH_A_PROCESS = 500 * 128 * 128  # pixels: below, starting one takes longer than drawing
_BATCH = 16
_ENDED_EARLY = (
    "A process that draws faces ended early. In a script, make them below "
    "'if __name__ == \"__main__\":'; otherwise run this again, what is there is kept"
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FaceSet:
    """What a folder of faces holds; the same values are the same images."""

    count: int
    size: int
    seed: int
    version: int = VERSION
    difficulty: float = 0.0

    def to_json(self) -> bytes:
        """As it was written before faces had a difficulty, where they have none."""
        fields = asdict(self)
        if not self.difficulty:
            del fields["difficulty"]
        return (json.dumps(fields, indent=2) + "\n").encode()


def difficulty_of(text: str) -> float:
    """From a word or a number."""
    try:
        value = DIFFICULTIES[text] if text in DIFFICULTIES else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:  # never true of NaN
        words = ", ".join(DIFFICULTIES)
        raise BadInput(reason=f"a difficulty is {words} or a number from 0 to 1, not {text!r}")
    return value


def make_faces(
    folder: Path,
    count: int,
    size: int,
    seed: int,
    progress: Progress | None = None,
    processes: int | None = None,
    difficulty: float = 0.0,
) -> FaceSet:
    """Fills a folder with `NNNNNN.png` and `NNNNNN_seg.png`; a second call finds them there.

    `difficulty` is from 0, plain portraits, to 1: hands, hair and clothes over faces that turn
    away, in bad light before busy backgrounds. `progress` is told how many of how many are done.
    Large sets are drawn by several processes, so a script that asks for one needs the usual
    `if __name__ == "__main__":`.
    """
    wanted = FaceSet(count, size, seed, difficulty=difficulty)
    _check(wanted)
    _begin(folder, wanted)
    present = {entry.name for entry in os.scandir(folder)}
    missing = [n for n in range(count) if not {_image(n), _labels(n)} <= present]
    done = count - len(missing)
    report = progress or (lambda done, total: None)
    report(done, count)
    for finished in _draw_all(folder, wanted, missing, processes):
        done += finished
        report(done, count)
    _finish(folder, wanted)
    return wanted


def _check(wanted: FaceSet) -> None:
    if not 1 <= wanted.count <= MOST:
        raise BadInput(reason=f"from 1 to {MOST:,} faces can be made, not {wanted.count:,}")
    if wanted.size not in SIZES:
        raise BadInput(reason=f"faces are {SIZES[0]} to {SIZES[-1]} pixels wide, not {wanted.size}")
    if wanted.seed < 0:
        raise BadInput(reason=f"a seed is 0 or more, not {wanted.seed}")
    difficulty_of(str(wanted.difficulty))


def _begin(folder: Path, wanted: FaceSet) -> None:
    """Refuse a folder with anything but this set, whole or begun."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MANIFEST, BEGUN):
        if (folder / name).exists():
            _check_same(folder, name, wanted)
            return
    if any(folder.iterdir()):
        raise BadInput(
            reason=f"{folder} holds files that are no set of faces: name an empty or new folder"
        )
    _write(folder / BEGUN, wanted.to_json())


def _check_same(folder: Path, name: str, wanted: FaceSet) -> None:
    try:
        there = FaceSet(**json.loads((folder / name).read_bytes()))
    except FileNotFoundError:  # finished by another process just now
        return
    except (ValueError, TypeError) as error:
        raise BadInput(reason=f"{folder / name} is damaged: name another folder") from error
    if there != wanted:
        raise BadInput(
            reason=f"{folder} holds other faces ({_described(there)}; asked for "
            f"{_described(wanted)}): name another folder, or delete that one"
        )


def _described(faces: FaceSet) -> str:
    text = f"{faces.count} of {faces.size} px, seed {faces.seed}, version {faces.version}"
    return f"{text}, difficulty {faces.difficulty:g}" if faces.difficulty else text


def _draw_all(
    folder: Path, wanted: FaceSet, numbers: list[int], processes: int | None
) -> Iterator[int]:
    """Yields how many were done, as they are."""
    draw = partial(_draw_batch, folder, wanted)
    batches = [numbers[start : start + _BATCH] for start in range(0, len(numbers), _BATCH)]
    if processes is None:
        processes = min(available_cpus(), 1 + len(numbers) * wanted.size**2 // _WORTH_A_PROCESS)
    if processes < 2:
        yield from map(draw, batches)
        return
    with safe_path():
        pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
        drawn = pool.map(draw, batches)
    with pool:
        try:
            yield from drawn
        except BrokenProcessPool as error:
            raise BadInput(reason=_ENDED_EARLY) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _draw_batch(folder: Path, wanted: FaceSet, numbers: list[int]) -> int:
    for number in numbers:
        image, labels = draw_face(wanted.seed, number, wanted.size, wanted.difficulty)
        _save(folder / _image(number), image)
        _save(folder / _labels(number), labels)
    return len(numbers)


def _finish(folder: Path, wanted: FaceSet) -> None:
    _write(folder / MANIFEST, wanted.to_json())
    (folder / BEGUN).unlink(missing_ok=True)
    for left in folder.glob(".*.part"):  # of a run that was killed
        left.unlink(missing_ok=True)


def _save(path: Path, pixels: Images) -> None:
    """Run lengths suit filled shapes: smaller and faster than what PNG usually does."""
    data = BytesIO()
    Image.fromarray(pixels).save(data, "PNG", compress_level=1, compress_type=zlib.Z_RLE)
    _write(path, data.getvalue())


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all. A part that is gone was swept up by a process that finished the same
    set before us, so the file is there."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    with suppress(FileNotFoundError):
        part.replace(path)


def _image(number: int) -> str:
    return f"{number:06d}.png"


def _labels(number: int) -> str:
    return f"{number:06d}_seg.png"
