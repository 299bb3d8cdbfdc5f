"""The baseline: the figures of a model that is good, in a small JSON file for the repository.

What the score was of is kept image by image (compressed), so that the next model is compared on
each image, not by two means: what is hard about an image cancels out.
"""

from __future__ import annotations

import base64
import io
import json
import math
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from edgeloop._util.files import parse_json, read_regular, write_atomic
from edgeloop._util.schema import Section, validated
from edgeloop._util.yaml import Origin
from edgeloop._version import __version__
from edgeloop.errors import BadInput, BadSetting, LocalFileError
from edgeloop.gate.figures import GateFigures, GateScore

FORMAT = 1
_LARGEST_FILE = 64_000_000
_LARGEST_COUNTS = 512_000_000
_Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


class BaselineScore(Section):
    """A score, with what it was made of."""

    task: str
    metric: str
    value: float = Field(allow_inf_nan=False, strict=True)
    images: int = Field(ge=1)
    image_set: str
    counts: str

    @classmethod
    def of(cls, score: GateScore) -> Self:
        return cls(
            task=score.task.name,
            metric=score.metric,
            value=score.value,
            images=len(score.counts),
            image_set=score.image_set,
            counts=packed(score.counts),
        )


class Baseline(Section):
    """Versioned: `edgeloop_gate` is the version of the format."""

    edgeloop_gate: Literal[1] = 1
    edgeloop: str = __version__
    model: str
    sha256: str
    size_bytes: int = Field(ge=0)
    device: str
    compiler: str
    precision: str
    calibration: str = ""
    latency_kind: Literal["estimate", "measured"]
    latency_profile: str = ""
    raw_us: _Above0 | None = None
    missing_ops: int = Field(default=0, ge=0)
    runs_ms: tuple[_Above0, ...] = Field(min_length=1, max_length=1000)
    machine: str = ""
    weight_bytes: int | None = Field(default=None, ge=0)
    peak_memory_bytes: int | None = Field(default=None, ge=0)
    ddr_bytes: int | None = Field(default=None, ge=0)
    operators: dict[str, int] = Field(default_factory=dict)
    cpu_operators: tuple[str, ...] = ()
    score: BaselineScore | None = None

    @classmethod
    def of(cls, figures: GateFigures) -> Self:
        """Raises BadInput for figures that nothing could be compared with."""
        plain = {
            name: getattr(figures, name)
            for name in cls.model_fields
            if name not in ("edgeloop_gate", "edgeloop", "score")
        }
        try:
            score = None if figures.score is None else BaselineScore.of(figures.score)
            return cls(**plain, score=score)
        except ValidationError as error:
            name = ".".join(map(str, error.errors()[0]["loc"]))
            reason = f"its {name} is no number that a model can be compared with"
            raise BadInput(reason=f"{figures.model} cannot be a baseline: {reason}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises BadSetting, which names the file, for what is not a baseline."""
        origin = Origin(str(path), BadSetting)
        try:
            content = read_regular(path, _LARGEST_FILE)
        except FileNotFoundError:
            reason = "there is no such baseline; make one with 'edgeloop gate --write'"
            raise LocalFileError(path=path, reason=reason) from None
        except OSError as error:
            raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
        try:
            document = parse_json(content, 4 * _LARGEST_FILE)
        except ValueError as error:
            raise BadSetting(where=path, reason=f"it is not a baseline: {error}") from None
        if not isinstance(document, dict) or "edgeloop_gate" not in document:
            reason = "it is not a baseline of 'edgeloop gate --write'"
            raise BadSetting(where=path, reason=reason)
        if document["edgeloop_gate"] != FORMAT:
            reason = (
                f"it has the format {document['edgeloop_gate']!r}, and this version of Edgeloop "
                f"reads {FORMAT}: write it again with 'edgeloop gate --write'"
            )
            raise BadSetting(where=path, reason=reason)
        return validated(cls, document, origin)

    def write(self, path: Path) -> None:
        fields = self.model_dump(mode="json", exclude_none=True)
        try:
            write_atomic(path, json.dumps(fields, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            raise LocalFileError(path=path, reason=error.strerror or str(error)) from None

    @property
    def latency_ms(self) -> float:
        return float(np.median(self.runs_ms))


def packed(counts: NDArray[Any]) -> str:
    """As text; whole numbers in the smallest type that has them all."""
    if counts.dtype.kind in "iu" and counts.size:
        least = np.result_type(np.min_scalar_type(counts.min()), np.min_scalar_type(counts.max()))
        counts = counts.astype(least)
    buffer = io.BytesIO()
    np.save(buffer, counts, allow_pickle=False)
    return base64.b64encode(zlib.compress(buffer.getvalue(), 9)).decode("ascii")


def unpacked(text: str, like: NDArray[Any]) -> NDArray[Any]:
    """In the type of `like`, the counts of another model by the same task. Raises BadInput for what
    is damaged, or is not from the same task."""
    try:
        inflating = zlib.decompressobj()
        content = inflating.decompress(base64.b64decode(text, validate=True), _LARGEST_COUNTS)
        if not inflating.eof:
            raise ValueError("it is too large or cut off")
        found = _array_of(content)
    except (ValueError, zlib.error, EOFError, OSError, RecursionError, MemoryError) as error:
        raise BadInput(reason=f"the baseline's scores cannot be read: {error}") from None
    if found.dtype.names != like.dtype.names or found.shape[1:] != like.shape[1:]:
        reason = "the baseline's scores are from a test with other classes: write a new baseline"
        raise BadInput(reason=reason)
    if len(found) != len(like):
        raise BadInput(reason="the baseline's scores are of another number of images")
    if found.dtype.names and found.dtype != like.dtype:
        raise BadInput(reason="the baseline's scores are of another type: write a new baseline")
    return np.asarray(found, like.dtype)


def _array_of(content: bytes) -> NDArray[Any]:
    """What `packed` has written. Nothing is allocated for a header that claims more than follows
    it."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it has another version")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    start = file.tell()
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or not dtype.itemsize or not shape or min(shape) < 0:
        raise ValueError("it is no array of numbers")
    if size != len(content) - start:
        raise ValueError("its size is not what its header says")
    flat: NDArray[Any] = np.frombuffer(content, dtype, offset=start)
    return flat.reshape(shape, order="F" if is_fortran else "C")
