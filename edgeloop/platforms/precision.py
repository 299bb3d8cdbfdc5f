"""How many bits each tensor of a model has: a default, and the tensors that differ from it.

A plan is a YAML file, written by `edgeloop precision` or by hand, and used as
`--precision mixed:FILE`:

    model: 3f6c…                          # sha256 of the ONNX file it was made for
    default: {activations: 8, weights: 8}
    tensors:
      conv2d_31: {bits: 16}               # the output of a layer, or an input
      conv2d_4.weight: {bits: 4}

Tensors have the names of the graph as toolchains read it: simplified, and rewritten for compilers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator

from edgeloop._util.files import sha256_of, write_atomic
from edgeloop._util.schema import Section, validated
from edgeloop._util.values import did_you_mean, suggestion
from edgeloop._util.yaml import Origin, read_document
from edgeloop.errors import BadInput, BadSetting, LocalFileError, PlanMisfit

MIXED = "mixed:"
PLAN_FILE = "precision.yaml"
"""The name of a plan among the files of a model."""
Precision = Literal["a8w8", "a8w8-per-channel", "a16w8", "fp16"]
_NAMES: tuple[Precision, ...] = ("a8w8", "a8w8-per-channel", "a16w8")
_DIGEST = 12
_HEADER = "# Bits of each tensor: use it as --precision mixed:FILE\n"


class DefaultBits(Section):
    """Bits of the tensors that a plan does not name."""

    activations: Literal[8, 16] = Field(default=8, description="Bits of activations: 8 or 16")
    weights: Literal[4, 8] = Field(default=8, description="Bits of weights: 4 or 8")


class TensorBits(Section):
    """Bits of one tensor: 8 or 16 for an activation, 4 or 8 for weights."""

    bits: Literal[4, 8, 16] = Field(description="8 or 16 for an activation, 4 or 8 for weights")


class PrecisionPlan(Section):
    """Bits of every tensor. Weights are quantized per channel, as in `a8w8-per-channel`."""

    model: str = Field(default="", description="sha256 of the ONNX file it belongs to; empty: any")
    default: DefaultBits = Field(
        default=DefaultBits(), description="Bits of the tensors that are not named"
    )
    tensors: dict[str, TensorBits] = Field(
        default_factory=dict, description="Bits of single tensors, by their names in the graph"
    )

    @field_validator("model")
    @classmethod
    def _is_digest(cls, value: str) -> str:
        if value and (len(value) != 64 or not set(value) <= set("0123456789abcdef")):
            raise ValueError("must be the sha256 of an ONNX file: 64 digits from 0 to f")
        return value

    @field_validator("tensors", mode="before")
    @classmethod
    def _are_names(cls, value: object) -> object:
        """Exporters name tensors by numbers, which YAML reads as such."""
        if isinstance(value, Mapping):
            return {str(name): bits for name, bits in value.items()}
        return value

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises BadSetting, with the line, for what is not a plan."""
        document, origin = read_document(path, BadSetting)
        return validated(cls, {} if document is None else document, origin)

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Self:
        """From `to_fields`: how a plan reaches another process."""
        return validated(cls, fields, Origin("the plan", BadSetting))

    @classmethod
    def of_bits(
        cls, bits: Mapping[str, int], model: str = "", activations: int = 8, weights: int = 8
    ) -> Self:
        """From bits by the names of tensors."""
        fields = {
            "model": model,
            "default": {"activations": activations, "weights": weights},
            "tensors": {name: {"bits": count} for name, count in bits.items()},
        }
        return cls.from_fields(fields)

    def to_fields(self) -> dict[str, object]:
        return self.model_dump()

    def text(self) -> str:
        """The file; the same plan gives the same text."""
        import yaml

        fields = self.to_fields()
        fields["tensors"] = {name: {"bits": bits} for name, bits in sorted(self.bits.items())}
        return _HEADER + str(yaml.safe_dump(fields, sort_keys=False, allow_unicode=True))

    def write(self, path: Path) -> None:
        try:
            write_atomic(path, self.text())
        except OSError as error:
            raise LocalFileError(path=path, reason=error.strerror or str(error)) from None

    @property
    def bits(self) -> dict[str, int]:
        """Of the tensors that are named."""
        return {name: tensor.bits for name, tensor in self.tensors.items()}

    @property
    def digest(self) -> str:
        """Short, and the same for plans that quantize alike."""
        default = self.default.model_dump()
        text = json.dumps([default, sorted(self.bits.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]

    @property
    def name(self) -> str:
        """What the column `precision` says: `mixed:` and the digest."""
        return f"{MIXED}{self.digest}"

    def belongs_to(self, model: Path) -> bool:
        return not self.model or self.model == sha256_of(model)

    def check_model(self, model: Path) -> None:
        """Raises BadInput where it was made for another file."""
        if not self.belongs_to(model):
            reason = (
                f"the precision file belongs to another model, not to {model.name}: make one for "
                "it with 'edgeloop precision', or remove the key 'model' from the file"
            )
            raise BadInput(reason=reason)

    def check_tensors(self, activations: Iterable[str], weights: Iterable[str]) -> None:
        """Raises PlanMisfit for tensors that a graph does not have, or not with these bits."""
        offered = {**dict.fromkeys(activations, (8, 16)), **dict.fromkeys(weights, (4, 8))}
        for name, bits in self.bits.items():
            if name not in offered:
                is_short = len(offered) < 20  # else without a list of hundreds of names
                near = (suggestion if is_short else did_you_mean)(name, offered)
                reason = f"the precision file names the tensor {name!r}, which the model has not"
                raise PlanMisfit(reason=f"{reason}: {near}" if near else f"{reason}.")
            if bits not in offered[name]:
                kind = "weights" if 4 in offered[name] else "an activation"
                allowed = " or ".join(map(str, offered[name]))
                reason = f"the precision file gives {name!r} {bits} bits, but it is {kind}: "
                raise PlanMisfit(reason=f"{reason}{allowed} are possible")


def parse_precision(text: str) -> Precision | PrecisionPlan:
    """`a8w8`, …, or `mixed:FILE`, whose plan is read. Raises BadInput."""
    if text.startswith(MIXED):
        return PrecisionPlan.read(Path(text.removeprefix(MIXED)).expanduser())
    for name in _NAMES:
        if name == text:
            return name
    names = ", ".join((*_NAMES, f"{MIXED}FILE"))
    raise BadInput(reason=f"there is no precision {text!r}: known are {names}")
