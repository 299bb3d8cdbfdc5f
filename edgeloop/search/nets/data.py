"""Training images: decoded once by the task, kept as bytes on the device, augmented there.

Batches are copied into fixed buffers, so that a captured graph can read them. Which images are in a
batch, and how each is augmented, depends only on the seed and the epoch: an interrupted training
continues with the batches it would have had.

Augmentation shifts each image by up to a sixteenth of its side (borders are repeated) and varies
the gain and offset of its colours. No mirroring: a left eye is not a right one.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from edgeloop.errors import BadInput
from edgeloop.search.nets.device import Gate, GpuUsage
from edgeloop.tasks import Samples

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from edgeloop.search.nets.device import Machine

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
    GPU, and what is known of its utilisation."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.usage = GpuUsage()
        self._loaded: dict[tuple[str, int, str], ImageSet] = {}
        self._lock = Lock()

    def load(self, samples: Samples, count: int | None, machine: Machine) -> ImageSet:
        kept = min(count or len(samples), len(samples))
        key = (samples.key, kept, str(machine.device))
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = _load(samples, kept, machine)
            return self._loaded[key]

    @property
    def image_bytes(self) -> int:
        """What the datasets take of a GPU's memory."""
        with self._lock:
            found = [each for each in self._loaded.values() if each.device.type == "cuda"]
        return sum(each.images.nbytes + each.labels.nbytes for each in found)


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
        kept = samples.labels[:count]  # PyTorch supports little on uint16
        labels = torch.from_numpy(kept if kept.dtype == np.uint8 else kept.astype(np.int32))
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
