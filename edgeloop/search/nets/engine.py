"""One training step, made as fast as the device allows.

On a CPU, and for the first steps on a GPU, a step runs eagerly. Then the whole step, from bytes to
new weights, is captured as a CUDA graph and replayed, so that hundreds of small kernels cost one
launch. Everything that varies (images, random numbers, learning rate) is copied into buffers that
the graph reads; its results (the loss, the first diverged step) stay on the device until read.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeloop.search.nets.device import Gate, Machine, plain, varied
from edgeloop.search.nets.plan import TrainingPlan

if TYPE_CHECKING:
    from edgeloop.search.nets.device import ImageSet


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross-entropy: Σ w·(−log p) / Σ w, with the weight of each pixel by its label.

    `weights` has an entry for every possible label; ignored labels have weight 0.
    """
    if not logits.is_cuda:
        truth = labels.to(torch.int64)
        truth = torch.where(weights[truth] > 0, truth, torch.full_like(truth, -100))
        return functional.cross_entropy(logits.float(), truth, weights[: logits.shape[1]])
    value: Tensor = _Loss.apply(logits, labels, weights)  # type: ignore[no-untyped-call]
    return value


class _Loss(torch.autograd.Function):
    """The same for a GPU, with half the memory traffic.

    PyTorch's version copies all logits to float32, moves channels first, and sums with a single
    thread block. Here logits keep their layout: log-probabilities are rounded to bfloat16, which
    changes the gradient by less than a percent, and sums are float32.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        classes = logits.shape[1]
        flat = logits.movedim(1, -1).reshape(-1, classes)
        truth = labels.reshape(-1, 1).to(torch.int64)
        weight = weights[truth]
        log_p = torch.log_softmax(flat, 1)
        truth = truth.clamp_(max=classes - 1)
        total = weight.sum().clamp_(min=1e-6)
        ctx.save_for_backward(log_p, truth, weight, total)
        ctx.shape = logits.shape
        return -(log_p.gather(1, truth).float() * weight).sum() / total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        log_p, truth, weight, total = ctx.saved_tensors
        ones = torch.full_like(truth, -1, dtype=log_p.dtype)
        slope = log_p.exp().scatter_add_(1, truth, ones)
        slope *= (weight * (gradient / total)).to(slope.dtype)
        count, classes, *sides = ctx.shape
        return slope.view(count, *sides, classes).movedim(-1, 1), None, None


_UNCAPTURED_STEPS = 3  # libraries choose their kernels and allocate in these
_NEVER = 2**62


class Engine:
    """A model, its optimizer, and the buffers of a step."""

    def __init__(
        self,
        net: nn.Module,
        images: ImageSet,
        weights: Tensor,
        plan: TrainingPlan,
        machine: Machine,
        gate: Gate,
    ) -> None:
        device = machine.device
        self.net = net.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self._forward: Callable[[Tensor], Tensor] = self.net
        self._is_compiled = False  # and has made a step
        self.optimizer = _optimizer(self.net, plan, machine)
        self._set, self._plan, self._machine, self._gate = images, plan, machine, gate
        self._weights = weights.to(device)
        batch = min(machine.batch, len(images))
        self._images = torch.empty(
            (batch, *images.images.shape[1:]), dtype=torch.uint8, device=device
        )
        self._labels = torch.empty(
            (batch, *images.labels.shape[1:]), dtype=images.labels.dtype, device=device
        )
        self._chance = torch.empty((batch, 8), device=device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._first_bad = torch.full((), _NEVER, dtype=torch.int64, device=device)
        self._graph: Any = None
        self._ran = 0
        if plan.compile:
            self.compile()

    def begin_at(self, step: int, loss_sum: float) -> None:
        self._step.fill_(step)
        self.loss_sum.fill_(loss_sum)

    def step(self, index: Tensor, chance: Tensor, learning_rate: float) -> None:
        """One optimizer step on the images of `index`."""
        self._gate.give_way()
        self._set.fill(index, self._images, self._labels)
        self._chance.copy_(chance)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = learning_rate
        if self._graph is not None:
            self._graph.replay()
        else:
            self._learn()
            self._ran += 1
            if self._machine.is_gpu and self._ran == _UNCAPTURED_STEPS:
                self._capture()

    def compile(self) -> None:
        """Continue with torch.compile, from the next step on, which takes half a minute. A network
        that it cannot compile is trained as before."""
        self._forward = torch.compile(self.net)
        self._graph, self._ran = None, 0

    def first_bad_step(self) -> int | None:
        """The first step with a non-finite loss, if any. Synchronizes with the device."""
        first = int(self._first_bad.item())
        return None if first == _NEVER else first

    def load(self, net: dict[str, Any], optimizer: dict[str, Any]) -> None:
        self.net.load_state_dict(net)
        self.optimizer.load_state_dict(optimizer)
        if self._machine.is_gpu:
            for group in self.optimizer.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=self._machine.device)

    def _learn(self) -> None:
        try:
            self._learn_once()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if self._forward is self.net or self._is_compiled:
                raise
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(f"trained without torch.compile, which failed: {reason}", stacklevel=2)
            self._forward = self.net
            self._learn_once()
        self._is_compiled = self._forward is not self.net

    def _learn_once(self) -> None:
        machine = self._machine
        kind = machine.activations
        if self._plan.augment:
            pixels, labels = varied(self._images, self._labels, self._chance, kind)
        else:
            pixels, labels = plain(self._images, kind), self._labels
        self.optimizer.zero_grad(set_to_none=True)
        with machine.mixed():
            logits = self._forward(pixels)
        loss = weighted_loss(logits, labels, self._weights)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        value = loss.detach()
        self.loss_sum += value
        bad = torch.where(torch.isfinite(value), _NEVER, self._step)
        torch.minimum(self._first_bad, bad, out=self._first_bad)
        self._step += 1

    def _capture(self) -> None:
        """Records the step as a graph. Capturing does not execute it."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        is_default = stream == torch.cuda.default_stream()  # which cannot be captured
        capture_stream = torch.cuda.Stream() if is_default else stream  # type: ignore[no-untyped-call]
        with self._gate.alone():
            capture_stream.wait_stream(stream)
            with torch.cuda.graph(graph, stream=capture_stream, capture_error_mode="thread_local"):
                self._learn()
            stream.wait_stream(capture_stream)
        self._graph = graph


# Measured on a GPU: images/s rise by a third after half a minute of compiling.
_COMPILE_SAVES = 0.24  # of the time
_COMPILE_S = 50.0


def compile_pays(machine: Machine, seconds_left: float) -> bool:
    """Whether torch.compile surely saves more time than it takes."""
    return machine.is_gpu and seconds_left * _COMPILE_SAVES > 2 * _COMPILE_S


def learning_rate(plan: TrainingPlan, step: int, steps: int) -> float:
    """Linear warm-up, then cosine decay: a pure function of the step."""
    rise = min(500, steps // 20)
    if step < rise:
        return plan.learning_rate * (step + 1) / (rise + 1)
    done = (step - rise) / max(1, steps - rise)
    return plan.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def _optimizer(net: nn.Module, plan: TrainingPlan, machine: Machine) -> torch.optim.AdamW:
    """No weight decay on norms and biases. A captured step reads the rate on the device."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": plan.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    if not machine.is_gpu:
        return torch.optim.AdamW(groups, lr=plan.learning_rate)
    rate = torch.tensor(plan.learning_rate, device=machine.device)
    return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=True)
