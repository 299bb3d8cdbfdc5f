"""The eight everyday exports: what people have when they first try Edgeloop, as tiny nets.

Each is exported by PyTorch once a session, in milliseconds, and written with its weights inside
or in `NAME.onnx.data` beside it, as PyTorch's default exporter does.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import onnx
import pytest
import torch
from onnx import ModelProto
from torch import Tensor, nn

from tests.nets_torch import SmallUNet, settle

SIZE, CLASSES = 64, 19


@dataclass(frozen=True)
class Everyday:
    """One way to export a net; `shapes` are the inputs as they are once nothing is free."""

    net: str = "segmentation"
    classes: int = CLASSES
    batch: int = 1
    half: bool = False
    free: Mapping[int, str] = field(default_factory=dict)
    opset: int = 18

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.batch, 3, SIZE, SIZE)

    @property
    def needs_shape(self) -> bool:
        """Whether more than the batch is free: then `--shape` has to say it."""
        return bool(set(self.free) - {0})

    @property
    def outputs(self) -> Mapping[str, tuple[int, ...]]:
        if self.net == "classifier":
            return {"logits": (self.batch, self.classes)}
        logits = {"logits": (self.batch, self.classes, SIZE, SIZE)}
        if self.net == "two_outputs":
            return {**logits, "edges": (self.batch, 1, SIZE // 2, SIZE // 2)}
        return logits


EVERYDAY: Mapping[str, Everyday] = {
    "plain": Everyday(),
    "dynamic_batch": Everyday(free={0: "batch"}, opset=17),
    "dynamic_size": Everyday(free={0: "batch", 2: "height", 3: "width"}),
    "fp16": Everyday(half=True),
    "two_outputs": Everyday("two_outputs"),
    "two_classes": Everyday(classes=2, opset=13),
    "classifier": Everyday("classifier", classes=10),
    "batch_4": Everyday(batch=4),
}


class TwoOutputs(nn.Module):
    """Classes at full size, and edges at half of it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = SmallUNet(classes=classes)
        self.edges = nn.Conv2d(3, 1, 3, stride=2, padding=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(image), torch.sigmoid(self.edges(image))


def classifier(classes: int) -> nn.Module:
    def layer(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
        convolution = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False)
        return convolution, nn.BatchNorm2d(outputs), nn.ReLU()

    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layer(3, 8), *layer(8, 16), *pooled, nn.Linear(16, classes))


def export_everyday(name: str, folder: Path, external: bool = False) -> Path:
    """`folder/NAME.onnx`, and `NAME.onnx.data` if its weights are to be beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    if not external:
        path.write_bytes(exported(name))
        return path
    onnx.save_model(
        model_of(name),
        str(path),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=f"{name}.onnx.data",
        size_threshold=0,
    )
    return path


def model_of(name: str) -> ModelProto:
    return onnx.load_model_from_string(exported(name))


@cache
def exported(name: str) -> bytes:
    export = EVERYDAY[name]
    nets = {"two_outputs": TwoOutputs, "classifier": classifier}
    make = nets.get(export.net, lambda classes: SmallUNet(classes=classes))
    torch.manual_seed(0)
    net = settle(make(export.classes), SIZE)
    image = torch.rand(export.shape)
    if export.half:
        net, image = net.half(), image.half()
    free = {key: dict(export.free) for key in ("image", "logits")} if export.free else None
    target = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (image,),
            target,
            dynamo=False,
            opset_version=export.opset,
            input_names=["image"],
            output_names=list(export.outputs),
            dynamic_axes=free,
        )
    return target.getvalue()


@pytest.fixture(params=[f"{n}{e}" for n in EVERYDAY for e in ("", "+data")])
def everyday(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Everyday, Path]:
    """Each of the eight, in both forms."""
    name, _, external = request.param.partition("+")
    return EVERYDAY[name], export_everyday(name, tmp_path / "exports", bool(external))
