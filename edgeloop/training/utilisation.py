"""How busy a GPU is, as its driver says: the share of time in which it ran any kernel.

The driver's own library (NVML) is asked, without a package in between. Where there is none, or it
does not know the GPU, utilisation is not known, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.training.device import Machine

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
