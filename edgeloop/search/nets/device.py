"""Where a training runs and in which precision, and how trainings share a GPU.

While one thread captures a CUDA graph, CUDA refuses much of what other threads of the process do,
which breaks both. So every training enters a gate shared with the others, and yields at each step
to one that wants to be alone. A training captures once, so waits are rare.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Lock
from typing import TYPE_CHECKING

import numpy as np

from edgeloop._util.system import variables_with
from edgeloop.errors import BadInput, OutOfMemory
from edgeloop.search.nets.plan import BATCH_ON_CPU, BATCH_ON_GPU, TrainingPlan
from edgeloop.tasks import Samples

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from edgeloop.search.nets.export import ExportProcesses


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


# How busy a GPU is, as its driver says: the share of time in which it ran any kernel.
#
# The driver's own library (NVML) is asked, without a package in between. Where there is none, or it
# does not know the GPU, utilisation is not known, and nothing else changes.


Reader = Callable[[], float | None]

_LIBRARY = "libnvidia-ml.so.1"
_SAMPLE_S = 1.0
_RECENT = 10  # samples


class GpuUsage:
    """Samples of a GPU's utilisation while trainings run, from 0 to 1."""

    def __init__(self, read: Reader | None = None, sample_s: float = _SAMPLE_S) -> None:
        self._read, self._sample_s = read, sample_s
        self._lock = threading.Lock()
        self._watchers = 0
        self._stop = threading.Event()
        self._sum, self._count = 0.0, 0
        self._recent: deque[float] = deque(maxlen=_RECENT)

    @contextlib.contextmanager
    def watched(self, machine: Machine) -> Iterator[Callable[[], float | None]]:
        """Samples while the block runs; yields the mean since the block began."""
        with self._lock:
            if self._read is None and machine.is_gpu:
                self._read = nvml_reader(machine)
            before = self._sum, self._count
            self._watchers += 1
            if self._watchers == 1 and self._read is not None:
                self._stop = threading.Event()
                arguments = (self._read, self._stop)
                threading.Thread(target=self._sample, args=arguments, daemon=True).start()
        try:
            yield lambda: self._mean_since(*before)
        finally:
            with self._lock:
                self._watchers -= 1
                if not self._watchers:
                    self._stop.set()

    def mean(self) -> float | None:
        """Over all the time in which anything was trained."""
        return self._mean_since(0.0, 0)

    def recent(self) -> float | None:
        """Over the last seconds; None until there are enough of them."""
        with self._lock:
            if len(self._recent) < _RECENT:
                return None
            return sum(self._recent) / len(self._recent)

    def forget_recent(self) -> None:
        """What was seen so far says nothing about what comes."""
        with self._lock:
            self._recent.clear()

    def _mean_since(self, earlier_sum: float, earlier_count: int) -> float | None:
        with self._lock:
            count = self._count - earlier_count
            return (self._sum - earlier_sum) / count if count else None

    def _sample(self, read: Reader, stop: threading.Event) -> None:
        while not stop.wait(self._sample_s):
            value = read()
            if value is None:
                return
            with self._lock:
                self._sum, self._count = self._sum + value, self._count + 1
                self._recent.append(value)


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def nvml_reader(machine: Machine) -> Reader | None:
    """Reads the utilisation of this GPU; None where that is not possible."""
    import torch

    try:
        uuid = torch.cuda.get_device_properties(machine.device).uuid
        library = ctypes.CDLL(_LIBRARY)
        handle = ctypes.c_void_p()
        name = ctypes.c_char_p(f"GPU-{uuid}".encode())
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
            return None
    except (OSError, AttributeError, RuntimeError, ValueError):  # no such library, or an old one
        return None

    def read() -> float | None:
        rates = _Rates()
        if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)):
            return None  # an error code
        return float(rates.gpu) / 100

    return read


# Training images: decoded once by the task, kept as bytes on the device, augmented there.
#
# Batches are copied into fixed buffers, so that a captured graph can read them. Which images are
# in a batch, and how each is augmented, depends only on the seed and the epoch: an interrupted
# training continues with the batches it would have had.
#
# Augmentation shifts each image by up to a sixteenth of its side (borders are repeated) and
# varies the gain and offset of its colours. No mirroring: a left eye is not a right one.


_SHARE_OF_FREE = 0.6  # of a GPU's memory, for images: the rest is for activations
_PIECE = 256 << 20
_SEEN_FOR_FREQUENCY = 1_000
_LIGHTEST, _HEAVIEST = 1.0, 20.0
_FREQUENCY_FLOOR = 1e-6


@dataclass(frozen=True)
class ImageSet:
    """Images (n, height, width, 3) and labels as bytes, on the device or in the host's memory."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def fill(self, index: Tensor, images: Tensor, labels: Tensor) -> None:
        """Copies the images of `index`, a tensor on the set's device, into the two buffers."""
        import torch

        if self.images.device == images.device:
            torch.index_select(_wide(self.images), 0, index, out=_wide(images))
            torch.index_select(self.labels, 0, index, out=labels)
        else:
            images.copy_(self.images[index].pin_memory(), non_blocking=True)
            labels.copy_(self.labels[index].pin_memory(), non_blocking=True)

    @property
    def device(self) -> torch.device:
        return self.images.device


class SharedData:
    """What trainings in one process share: datasets, each loaded once per device, the gate to the
    GPU, what is known of its utilisation, and where models are exported, if not in this process.
    `is_alone`: there is only one training."""

    def __init__(self, is_alone: bool = False) -> None:
        self.is_alone = is_alone
        self.exports: ExportProcesses | None = None
        self.gate = Gate()
        self.usage = GpuUsage()
        self._loaded: dict[tuple[str, int, str], ImageSet] = {}
        self._lock = Lock()

    def load(self, samples: Samples, count: int | None, machine: Machine) -> ImageSet:
        size = min(count or len(samples), len(samples))
        key = (samples.key, size, str(machine.device))
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = _load(samples, size, machine)
            return self._loaded[key]

    @property
    def image_bytes(self) -> int:
        """What the datasets take of a GPU's memory."""
        with self._lock:
            on_gpu = [each for each in self._loaded.values() if each.device.type == "cuda"]
        return sum(each.images.nbytes + each.labels.nbytes for each in on_gpu)


@dataclass(frozen=True)
class EpochOrder:
    """The batches of an epoch: image indices, and eight random numbers per image."""

    index: Tensor
    chance: Tensor


def order_of(seed: int, epoch: int, images: int, batch: int, steps: int) -> EpochOrder:
    import torch

    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    index = torch.randperm(images, generator=generator)[: steps * batch]
    chance = torch.rand((steps * batch, 8), generator=generator)
    return EpochOrder(index.view(steps, batch), chance.view(steps, batch, 8))


def class_weights(
    images: ImageSet, classes: int, ignore: int | None, labels_known: int | None = None
) -> Tensor:
    """1/√frequency per label, clamped; at least 256 entries, 0 for ignored labels.

    `labels_known` is how many classes the dataset has; those that the model lacks are ignored.
    """
    import torch

    step = max(1, len(images) // _SEEN_FOR_FREQUENCY)
    labels = images.labels[::step].reshape(-1).to(torch.int64)
    counts = torch.bincount(labels, minlength=max(256, classes)).double().cpu()
    if ignore is not None:
        counts[ignore] = 0
    counts[classes : labels_known or classes] = 0
    if counts[classes:].any():
        reason = f"the dataset has label {int(counts.nonzero().max())}, but the model has {classes}"
        raise BadInput(reason=f"{reason} classes")
    share = counts / counts.sum().clamp(min=1)
    weights = (1 / (share + _FREQUENCY_FLOOR).sqrt()).clamp(_LIGHTEST, _HEAVIEST)
    weights[classes:] = 0
    return weights.float()


def _load(samples: Samples, count: int, machine: Machine) -> ImageSet:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arrays are maps of files, and are only read
        images = torch.from_numpy(samples.images[:count])
        label_array = samples.labels[:count]  # PyTorch supports little on uint16
        labels = torch.from_numpy(
            label_array if label_array.dtype == np.uint8 else label_array.astype(np.int32)
        )
    if not machine.is_gpu:
        return ImageSet(images, labels)
    free, _ = torch.cuda.mem_get_info(machine.device)
    if images.nbytes + labels.nbytes > _SHARE_OF_FREE * free:
        return ImageSet(images, labels)
    loaded = ImageSet(_uploaded(images, machine.device), _uploaded(labels, machine.device))
    torch.cuda.current_stream(machine.device).synchronize()  # other streams may use it next
    return loaded


def _uploaded(source: Tensor, device: torch.device) -> Tensor:
    """In pieces: the memory-mapped file may be larger than half of the memory."""
    import torch

    target = torch.empty(source.shape, dtype=source.dtype, device=device)
    rows = max(1, _PIECE // max(1, source[:1].nbytes))
    for start in range(0, len(source), rows):
        target[start : start + rows].copy_(source[start : start + rows])
    return target


def _wide(images: Tensor) -> Tensor:
    """Viewed as int64 if the size allows: copies are that much faster."""
    import torch

    flat = images.view(len(images), -1)
    return flat.view(torch.int64) if flat.shape[1] % 8 == 0 else flat


_FARTHEST = 1 / 16
_GAIN = 0.2
_OFFSET = 0.1


def plain(images: Tensor, kind: torch.dtype) -> Tensor:
    """(n, 3, height, width) in [0, 1], channels last in memory: no extra copy."""
    return images.permute(0, 3, 1, 2).to(kind).mul_(1 / 255)


def varied(
    images: Tensor, labels: Tensor, chance: Tensor, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`chance` is (n, 8) in [0, 1): two for the shift, three for gains, three for offsets."""
    import torch

    count, height, width, _ = images.shape
    device = images.device
    moves = (chance[:, :2] * 2 - 1) * _FARTHEST
    rows = _moved(moves[:, 0], height, device)[:, :, None]
    columns = _moved(moves[:, 1], width, device)[:, None, :]
    numbers = torch.arange(count, device=device)[:, None, None]
    images = images[numbers, rows, columns]
    if labels.dim() == 3:
        labels = labels[numbers, rows, columns]
    gains = (1 + (chance[:, 2:5] * 2 - 1) * _GAIN) / 255
    offsets = (chance[:, 5:8] * 2 - 1) * _OFFSET
    floats = torch.addcmul(
        offsets[:, None, None, :].to(kind), images.to(kind), gains[:, None, None, :].to(kind)
    )
    return floats.permute(0, 3, 1, 2), labels


def _moved(moves: Tensor, side: int, device: torch.device) -> Tensor:
    import torch

    shift = (moves * side).round().to(torch.int64)
    return (torch.arange(side, device=device) + shift[:, None]).clamp_(0, side - 1)
