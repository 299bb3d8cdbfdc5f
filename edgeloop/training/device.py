"""Where a training runs, and with which numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeloop.errors import BadInput, OutOfMemory
from edgeloop.training.plan import BATCH_ON_CPU, BATCH_ON_GPU, TrainingPlan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Machine:
    """A device, the type of its activations, and the batch that suits it."""

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
        """Convolutions in bfloat16 where that was chosen; sums and weights stay float32."""
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
        raise BadInput(reason="There is no GPU that PyTorch can use here: choose --device cpu")
    use_gpu = has_gpu and plan.device != "cpu"
    device = torch.device("cuda", torch.cuda.current_device()) if use_gpu else torch.device("cpu")
    usual = BATCH_ON_GPU if use_gpu else BATCH_ON_CPU
    return Machine(device, _activations(plan, use_gpu), plan.batch or usual)


@contextlib.contextmanager
def tuned(machine: Machine, threads: int) -> Iterator[None]:
    """One thread a process: two processes of one thread each are far faster than one of two."""
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
    """PyTorch has an error of its own for a GPU, and a plain one for the machine's memory."""
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
