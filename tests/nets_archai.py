"""A stacked hourglass as Microsoft Archai's face segmentation has it, from an ArchConfig, written
independently of the package: padding as a layer of its own, and exported as Archai does it.

`architectures/archai/arch_config.json` was drawn and written by Archai 1.0.0 from PyPI (MIT): an
`ArchParamTree` of three blocks, one or two hourglasses and 3 × 3 and 5 × 5 kernels, sampled with
`random.Random(7)` and saved with `ArchConfig.to_file`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

ARCH_CONFIG = Path(__file__).parent / "architectures" / "archai" / "arch_config.json"
SIZE = 64
CLASSES = 18


def picked(config: Any, key: str) -> list[Any]:
    """The entries of one of Archai's lists that count."""
    listed = config[key]
    return [listed["_configs"][str(index)] for index in range(listed["_repeat_times"])]


def padded(inputs: int, outputs: int, side: int, stride: int = 1) -> Iterator[nn.Module]:
    yield nn.ZeroPad2d(side // 2)
    yield nn.Conv2d(inputs, outputs, side, stride, bias=False)
    yield nn.BatchNorm2d(outputs)
    yield nn.ReLU()


def sequence(config: Any, key: str, inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    parts: list[nn.Module] = []
    for layer in picked(config, key):
        parts += padded(inputs, outputs, int(layer["op"][4]), stride)
        inputs, stride = outputs, 1
    return nn.Sequential(*parts)


class Glass(nn.Module):
    def __init__(self, config: Any, base: int) -> None:
        super().__init__()
        downs = picked(config, "downsample_blocks")
        skips, ups = picked(config, "skip_blocks"), picked(config, "upsample_blocks")
        widths = [base]
        for block in downs:
            widths.append(int(widths[-1] * block["ch_expansion_factor"]))
        self.downs = nn.ModuleList(
            sequence(block, "layers", widths[i], widths[i + 1], 2 if i else 1)
            for i, block in enumerate(downs)
        )
        self.skips = nn.ModuleList(
            sequence(block, "layers", widths[i + 1], widths[i + 1]) for i, block in enumerate(skips)
        )
        self.ups = nn.ModuleList(
            sequence(block, "layers", widths[i + 2], widths[i + 1]) for i, block in enumerate(ups)
        )
        self.doubled = nn.UpsamplingBilinear2d(scale_factor=2)
        self.end = nn.Conv2d(widths[1], base, 1)

    def forward(self, x):
        kept = []
        for index in range(len(self.skips)):
            x = self.downs[index](x)
            kept.append(self.skips[index](x))
        x = self.downs[-1](x)
        for index in reversed(range(len(self.ups))):
            x = kept[index] + self.ups[index](self.doubled(x))
        return self.end(x)


def archai_net(config: Any, classes: int = CLASSES) -> nn.Sequential:
    """Parts in the order in which the package builds them, so that weights can be compared."""
    base, stride = config["base_ch"], config["stem_stride"]
    return nn.Sequential(
        nn.Sequential(*padded(3, base, 3, stride)),
        *(Glass(glass, base) for glass in picked(config, "hourglasses")),
        nn.UpsamplingBilinear2d(scale_factor=stride),
        sequence(config, "post_upsample_layers", base, base),
        nn.Conv2d(base, classes, 1),
    )


def export_archai(path: Path, classes: int = CLASSES, size: int = SIZE) -> Path:
    """With opset 11, where Pad takes computed amounts and no shape behind it is in the file."""
    torch.manual_seed(0)
    net = archai_net(json.loads(ARCH_CONFIG.read_text()), classes)
    with torch.no_grad():
        for _ in range(2):
            net(torch.rand(2, 3, size, size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.eval(),
            (torch.rand(1, 3, size, size),),
            str(path),
            input_names=["input_0"],
            opset_version=11,
            dynamo=False,
        )
    return path
