"""What `snpe-dlc-info` prints of a DLC: counts, the table of its layers, how outputs are coded.

Its text is for people and changed over the versions, so each part is looked for on its own and may
be missing; nothing here fails a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloop.graph import DLC_OUTPUT, CountedLayer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENCODINGS_SUFFIX = ".encodings.json"
_NUMBER = r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
_COUNT = _NUMBER + r"\s*([kKMGTB]?)"
_FACTORS = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_PARAMETERS = re.compile(r"Total parameters:\s*" + _COUNT)
_MACS = re.compile(r"Total MACs per inference:\s*" + _COUNT)
_LAYER_PARAMETERS = re.compile(r"param count:\s*" + _COUNT)
_LAYER_MACS = re.compile(r"MACs per inference:\s*" + _COUNT)
_CODED = re.compile(
    rf"bitwidth\s*:?\s*(\d+).*?(?:scale|delta)\s*:?\s*{_NUMBER}.*?offset\s*:?\s*{_NUMBER}"
)


@dataclass(frozen=True)
class Encoding:
    """How a quantized tensor is read: value = (number + offset) × scale."""

    scale: float
    offset: float
    bits: int

    def dequantize(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        import numpy as np

        values: NDArray[np.float32] = numbers.astype(np.float32)
        values += np.float32(self.offset)
        values *= np.float32(self.scale)
        return values


@dataclass(frozen=True)
class DlcInfo:
    """None, or empty, where the text does not say it. Counts over 1,000 are rounded by the tool."""

    params: float | None
    macs: float | None
    layers: tuple[CountedLayer, ...]
    output: Encoding | None


def read_info(text: str, output: str = DLC_OUTPUT) -> DlcInfo:
    return DlcInfo(
        _count(_PARAMETERS.search(text)),
        _count(_MACS.search(text)),
        tuple(_layers(text)),
        _encoding(text, output),
    )


def write_encoding(path: Path, encoding: Encoding) -> None:
    path.write_text(json.dumps(asdict(encoding)) + "\n", encoding="utf-8")


def output_encoding(model: Path) -> Encoding | None:
    """Of a `.quant.dlc`, from the file that conversion laid beside it; None: outputs should be
    asked for as floats."""
    stem = model.name.removesuffix(".dlc").removesuffix(".quant")
    try:
        fields = json.loads((model.with_name(stem + ENCODINGS_SUFFIX)).read_text(encoding="utf-8"))
        return Encoding(float(fields["scale"]), float(fields["offset"]), int(fields["bits"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _layers(text: str) -> Iterator[CountedLayer]:
    """Rows of the table; a layer goes on over lines that have no number of their own."""
    columns: dict[str, int] = {}
    entry: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().split("|")[1:-1]]
        if not cells:
            continue
        names = [cell.lower() for cell in cells]
        if "id" in names and "type" in names:
            columns = {name: index for index, name in enumerate(names)}
            continue
        if not columns or len(cells) != len(columns):
            continue
        if cells[columns["id"]].isdigit():
            if entry:
                yield _layer(entry, columns)
            entry = []
        if entry or cells[columns["id"]].isdigit():
            entry.append(cells)
    if entry:
        yield _layer(entry, columns)


def _layer(entry: list[list[str]], columns: dict[str, int]) -> CountedLayer:
    name = columns.get("name", columns.get("op name", columns.get("layer name", columns["type"])))
    said = " ".join(" ".join(cells) for cells in entry)
    shapes = tuple(
        tuple(int(side) for side in re.findall(r"\d+", cells[columns["out dims"]]))
        for cells in entry
        if "out dims" in columns and cells[columns["out dims"]]
    )
    return CountedLayer(
        name=entry[0][name],
        operator=entry[0][columns["type"]],
        inputs=(),
        outputs=shapes,
        parameters=int(_count(_LAYER_PARAMETERS.search(said)) or 0),
        macs=int(_count(_LAYER_MACS.search(said)) or 0),
    )


def _encoding(text: str, output: str) -> Encoding | None:
    for line in text.splitlines():
        if re.search(rf"(?<![\w/.]){re.escape(output)}(?![\w/.]).*(?:encoding|bitwidth)", line):
            match = _CODED.search(line)
            if match and float(match[2]) > 0:
                offset = float(match[3])
                return Encoding(float(match[2]), -abs(offset), int(match[1]))
    return None


def _count(match: re.Match[str] | None) -> float | None:
    return None if match is None else float(match[1]) * _FACTORS[match[2]]
