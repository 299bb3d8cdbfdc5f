"""Images for training: decoded once by the task, kept as bytes where the training runs.

Batches are filled into buffers that stay the same, so that a captured graph can read them. Which
images are in a batch, and how each is changed, depends on the seed and the epoch only: a training
that was interrupted goes on with the very batches it would have had.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeloop.errors import BadInput
from edgeloop.tasks import Labels, Samples
from edgeloop.training.gate import Gate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from edgeloop.training.device import Machine

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
        """Put the images of `index` (which is on the set's own device) into the two buffers."""
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


class Shared:
    """What trainings in one process share: sets on a device, each loaded once however many nets
    are trained on it, and the gate to the GPU."""

    def __init__(self) -> None:
        self.gate = Gate()
        self._loaded: dict[tuple[str, int, str], ImageSet] = {}
        self._lock = Lock()

    def load(self, samples: Samples, count: int | None, machine: Machine) -> ImageSet:
        kept = min(count or len(samples), len(samples))
        key = (samples.key, kept, str(machine.device))
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = _load(samples, kept, machine)
            return self._loaded[key]


@dataclass(frozen=True)
class EpochOrder:
    """The batches of an epoch: which images, and the eight random numbers of each."""

    index: Tensor
    chance: Tensor


def order_of(seed: int, epoch: int, images: int, batch: int, steps: int) -> EpochOrder:
    import torch

    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    index = torch.randperm(images, generator=generator)[: steps * batch]
    chance = torch.rand((steps * batch, 8), generator=generator)
    return EpochOrder(index.view(steps, batch), chance.view(steps, batch, 8))


def class_weights(images: ImageSet, classes: int, ignore: int | None) -> Tensor:
    """1/√frequency, clamped, by label: 256 entries and more, those that do not count being 0."""
    import torch

    step = max(1, len(images) // _SEEN_FOR_FREQUENCY)
    labels = images.labels[::step].reshape(-1).to(torch.int64)
    counts = torch.bincount(labels, minlength=max(256, classes)).double().cpu()
    if ignore is not None:
        counts[ignore] = 0
    if counts[classes:].any():
        reason = f"the dataset has label {int(counts.nonzero().max())}, but the net has {classes}"
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
        labels = torch.from_numpy(_plain_labels(samples.labels[:count]))
    if not machine.is_gpu:
        return ImageSet(images, labels)
    free, _ = torch.cuda.mem_get_info(machine.device)
    if images.nbytes + labels.nbytes > _SHARE_OF_FREE * free:
        return ImageSet(images, labels)
    loaded = ImageSet(_uploaded(images, machine.device), _uploaded(labels, machine.device))
    torch.cuda.current_stream(machine.device).synchronize()  # other streams may use it next
    return loaded


def _plain_labels(labels: Labels) -> NDArray[Any]:
    """PyTorch can do little with uint16, the type of labels of more than 256 classes."""
    return labels if labels.dtype == np.uint8 else labels.astype(np.int32)


def _uploaded(source: Tensor, device: torch.device) -> Tensor:
    """In pieces: the file behind it may be larger than what the machine can hold twice."""
    import torch

    target = torch.empty(source.shape, dtype=source.dtype, device=device)
    rows = max(1, _PIECE // max(1, source[:1].nbytes))
    for start in range(0, len(source), rows):
        target[start : start + rows].copy_(source[start : start + rows])
    return target


def _wide(images: Tensor) -> Tensor:
    """The same bytes eight at a time, where they divide: copied that much faster."""
    import torch

    flat = images.view(len(images), -1)
    return flat.view(torch.int64) if flat.shape[1] % 8 == 0 else flat
