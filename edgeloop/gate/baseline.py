"""The baseline: the figures of a model that is good, in a small JSON file for the repository.

What the score was of is kept image by image (compressed), so that the next model is compared on
each image, not by two means: what is hard about an image cancels out.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeloop._util.files import parse_json, read_regular, write_atomic
from edgeloop._util.schema import Section, validated
from edgeloop._util.yaml import Origin
from edgeloop._version import __version__
from edgeloop.errors import BadInput, BadSetting, LocalFileError
from edgeloop.gate.figures import GateFigures, GateScore

FORMAT = 1
_LARGEST_FILE = 64_000_000
_LARGEST_COUNTS = 512_000_000


class BaselineScore(Section):
    """A score, with what it was made of."""

    task: str
    metric: str
    value: float
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
    runs_ms: tuple[float, ...] = Field(min_length=1, max_length=1000)
    machine: str = ""
    weight_bytes: int | None = Field(default=None, ge=0)
    peak_memory_bytes: int | None = Field(default=None, ge=0)
    ddr_bytes: int | None = Field(default=None, ge=0)
    operators: dict[str, int] = Field(default_factory=dict)
    cpu_operators: tuple[str, ...] = ()
    score: BaselineScore | None = None

    @classmethod
    def of(cls, figures: GateFigures) -> Self:
        plain = {
            name: getattr(figures, name)
            for name in cls.model_fields
            if name not in ("edgeloop_gate", "edgeloop", "score")
        }
        score = None if figures.score is None else BaselineScore.of(figures.score)
        return cls(**plain, score=score)

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
        found: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, zlib.error, EOFError, OSError) as error:
        raise BadInput(reason=f"the baseline's scores cannot be read: {error}") from None
    if found.dtype.names != like.dtype.names or found.shape[1:] != like.shape[1:]:
        reason = "the baseline's scores are from a test with other classes: write a new baseline"
        raise BadInput(reason=reason)
    if found.dtype.names and found.dtype != like.dtype:
        raise BadInput(reason="the baseline's scores are of another type: write a new baseline")
    return np.asarray(found, like.dtype)
