"""Where a training runs and in which precision, and how trainings share a GPU.

While one thread captures a CUDA graph, CUDA refuses much of what other threads of the process do,
which breaks both. So every training enters a gate shared with the others, and yields at each step
to one that wants to be alone. A training captures once, so waits are rare.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING

from edgeloop._util.system import variables_with
from edgeloop.errors import BadInput, OutOfMemory
from edgeloop.training.plan import BATCH_ON_CPU, BATCH_ON_GPU, TrainingPlan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Machine:
    """A device, its activation type, and its default batch size."""

    device: torch.device
    activations: torch.dtype
    batch: int

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def title(self) -> str:
        import torch

        return torch.cuda.get_device_name(self.device) if self.is_gpu else "this CPU"

    @contextlib.contextmanager
    def mixed(self) -> Iterator[None]:
        """Autocast to bfloat16 if chosen; sums and weights stay float32."""
        import torch

        if self.activations is torch.float32:
            yield
            return
        with torch.autocast(self.device.type, dtype=self.activations):
            yield


def machine_for(plan: TrainingPlan) -> Machine:
    import torch

    has_gpu = torch.cuda.is_available()
    if plan.device == "cuda" and not has_gpu:
        raise BadInput(reason="PyTorch finds no usable GPU: choose --device cpu")
    use_gpu = has_gpu and plan.device != "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if use_gpu else torch.device("cpu")
    usual = BATCH_ON_GPU if use_gpu else BATCH_ON_CPU
    return Machine(device, _activations(plan, use_gpu), plan.batch or usual)


_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


def usable_cards(plan: TrainingPlan) -> list[str]:
    """The GPUs that this plan can use, as CUDA_VISIBLE_DEVICES names them. PyTorch, which takes
    seconds to load, is only asked on a machine with a driver."""
    if plan.device == "cpu" or not any(Path(name).exists() for name in _DRIVERS):
        return []
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = variables_with().get("CUDA_VISIBLE_DEVICES", "").split(",")
    chosen = [name.strip() for name in named if name.strip()]
    return chosen[:count] if chosen else [str(index) for index in range(count)]


@contextlib.contextmanager
def tuned(machine: Machine, threads: int) -> Iterator[None]:
    """Two processes with one thread each are far faster than one process with two."""
    import torch

    before = torch.get_num_threads(), torch.backends.cudnn.benchmark
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = machine.is_gpu
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.benchmark = before[1]


@contextlib.contextmanager
def memory_watched(arch: str, machine: Machine, batch: int) -> Iterator[None]:
    """Translates the GPU's and the host's out-of-memory errors."""
    import torch

    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(arch=arch, device=machine.title, batch=batch) from error
    except RuntimeError as error:
        if "allocate memory" in str(error) or "out of memory" in str(error).lower():
            raise OutOfMemory(arch=arch, device=machine.title, batch=batch) from error
        raise


def _activations(plan: TrainingPlan, use_gpu: bool) -> torch.dtype:
    import torch

    if plan.precision != "auto":
        return torch.float32 if plan.precision == "float32" else torch.bfloat16
    if use_gpu:
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if _cpu_has_bfloat16() else torch.float32


def _cpu_has_bfloat16() -> bool:
    """Without the instructions, bfloat16 is emulated and slower than float32."""
    import torch

    check = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(check()) if check is not None else False


class Gate:
    """A lock that threads share, and that one of them may hold alone for a while."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self._want_alone = 0
        self._is_alone = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Exclusive use by a thread inside: waits until all others have yielded."""
        with self._changed:
            self._want_alone += 1
            self._inside -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_alone and not self._inside)
            self._want_alone -= 1
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._inside += 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """For long work of a thread inside that does not use the GPU."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    def give_way(self) -> None:
        """Called often by threads inside, at a point where they can wait."""
        if self._want_alone:
            self._leave()
            self._enter()

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone and not self._want_alone)
            self._inside += 1

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
