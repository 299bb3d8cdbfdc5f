"""How a network is built and what goes into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
Normalisation = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Recipe:
    """`inputs` are sizes by name, or one image's height and width. `chosen` takes the outputs that
    the published graph has from what the network gives."""

    build: Callable[[], nn.Module]
    inputs: Mapping[str, tuple[int, ...]] | tuple[int, int] = (224, 224)
    normalisation: Normalisation | None = None
    chosen: Callable[[Any], Any] | None = None
    channels: int = 3
    whole_numbers: Mapping[str, int] = field(default_factory=dict)  # inputs below a limit

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        return Deployed(self.build().eval(), self.normalisation, self.chosen).eval()

    def tensors(self) -> dict[str, Tensor]:
        torch.manual_seed(0)
        if isinstance(self.inputs, tuple):
            return {"image": torch.rand(1, self.channels, *self.inputs)}
        return {
            name: torch.randint(self.whole_numbers[name], shape)
            if name in self.whole_numbers
            else torch.rand(shape)
            for name, shape in self.inputs.items()
        }


class Deployed(nn.Module):
    """A network with its normalisation in front and only its published outputs behind."""

    def __init__(
        self,
        network: nn.Module,
        normalisation: Normalisation | None,
        chosen: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__()
        self.network, self.chosen = network, chosen
        self.is_normalised = normalisation is not None
        if normalisation is not None:
            for name, values in zip(("mean", "deviation"), normalisation, strict=True):
                self.register_buffer(name, torch.tensor(values).reshape(1, -1, 1, 1))

    def forward(self, *inputs: Tensor) -> Any:
        if self.is_normalised:
            inputs = ((inputs[0] - self.mean) / self.deviation, *inputs[1:])
        outputs = self.network(*inputs)
        return self.chosen(outputs) if self.chosen else outputs


class Doubled(nn.Module):
    """A network that is given 2 · image - 1, as two steps."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Any:
        return self.network(image * 2 - 1)
