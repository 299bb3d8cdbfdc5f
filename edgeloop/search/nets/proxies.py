"""Zero-cost proxies: what an untrained network tells about how well it will learn.

- `synflow`: the synaptic flow, the sum of |w · ∂R/∂w| over all weights w, where R is the sum of the
  outputs for an image of ones and weights without their signs (Tanaka et al., 2020; as a proxy in
  Abdelfattah et al., "Zero-Cost Proxies for Lightweight NAS", 2021). Its natural logarithm.
- `naswot`: the log-determinant of how alike the patterns of active ReLUs are for different images
  (Mellor et al., "Neural Architecture Search without Training", 2021).
- `grad_norm`: the norm of the gradient of the loss on one batch (Abdelfattah et al., 2021). Its
  natural logarithm.

Images and labels are noise from a fixed seed, so that a value depends on the architecture alone. A
value that a network does not have, because nothing can be back-propagated or it has no ReLU, is
left out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

_BATCH = 8
_SEED = 0


def proxies_of(
    net: nn.Module, shape: Sequence[int], classes: int, names: Sequence[str]
) -> dict[str, float]:
    """The values of these names that this network has; the network itself is not modified."""
    import torch

    _, channels, height, width = shape
    generator = torch.Generator().manual_seed(_SEED)
    images = torch.rand((_BATCH, channels, height, width), generator=generator)
    labels = torch.randint(classes, (_BATCH, height, width), generator=generator)
    values = {}
    for name in names:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)  # for a network with dropout
            try:
                value = PROXIES[name](copy.deepcopy(net), images, labels)
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
                continue
        if value is not None and math.isfinite(value):
            values[name] = value
    return values


def _synflow(net: nn.Module, images: Tensor, labels: Tensor) -> float | None:
    """In float64: the flow through many layers is too large for float32. With the statistics of an
    untrained batch norm, which change nothing."""
    import torch

    net.double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.abs_()
    flow = net(torch.ones_like(images[:1], dtype=torch.float64)).sum()
    flow.backward()
    pairs = [(p, p.grad) for p in net.parameters() if p.grad is not None]
    return _logarithm(sum(float((p.detach() * g).abs().sum()) for p, g in pairs))


def _naswot(net: nn.Module, images: Tensor, labels: Tensor) -> float | None:
    """Batch norms take the statistics of the batch, as in training."""
    import torch
    from torch import nn

    count = len(images)
    alike = torch.zeros((count, count), dtype=torch.float64)

    def add(_: nn.Module, __: object, output: Tensor) -> None:
        active = (output > 0).reshape(count, -1).float()
        alike.add_((active @ active.T + (1 - active) @ (1 - active).T).double())

    relus = [module for module in net.modules() if isinstance(module, nn.ReLU)]
    for module in relus:
        module.register_forward_hook(add)
    with torch.no_grad():
        net.train()(images)
    if not alike.any():
        return None
    return float(torch.linalg.slogdet(alike)[1])


def _grad_norm(net: nn.Module, images: Tensor, labels: Tensor) -> float | None:
    from torch.nn import functional

    logits = net.train()(images)
    truth = labels if logits.dim() == 4 else labels[:, 0, 0]
    loss = functional.cross_entropy(logits, truth)
    loss.backward()  # type: ignore[no-untyped-call]
    squares = [
        float(p.grad.double().square().sum()) for p in net.parameters() if p.grad is not None
    ]
    return _logarithm(math.sqrt(sum(squares)))


def _logarithm(value: float) -> float | None:
    return math.log(value) if value > 0 else None


PROXIES: Mapping[str, Callable[[nn.Module, Tensor, Tensor], float | None]] = {
    "synflow": _synflow,
    "naswot": _naswot,
    "grad_norm": _grad_norm,
}
