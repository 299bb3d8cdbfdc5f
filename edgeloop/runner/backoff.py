"""Which failures are whose, and exponential backoff after those of the infrastructure (store
unreachable, disk full, board gone), shared by all workers of a device."""

from __future__ import annotations

import threading
import time

from edgeloop.errors import (
    BadModel,
    DatasetMisfit,
    DatasetUnavailable,
    DeviceUnavailable,
    LocalFileError,
    MemoryExceeded,
    MissingExtra,
    ModelRefused,
    NoSuchPrecision,
    StoreDamaged,
    StoreError,
    WorkerFailed,
)

INFRASTRUCTURE = (
    *(StoreError, LocalFileError, WorkerFailed, MissingExtra, DeviceUnavailable, OSError),
    *(DatasetUnavailable, ImportError),
)
# This machine cannot do this model, and another one may.
FOR_OTHERS = (DatasetMisfit, MemoryExceeded, MemoryError)
# In the model itself: another attempt, here or elsewhere, would end in the same way.
HOPELESS = (BadModel, ModelRefused, NoSuchPrecision)

LONGEST_DELAY_S = 60.0
LONGEST_DEVICE_DELAY_S = 10.0  # somebody may be plugging the board in again
PATIENCE = 7
DATASET_PATIENCE = 2  # a look at it may take minutes
DEVICE_PATIENCE_S = 900.0


class Backoff:
    def __init__(self, device_patience_s: float = DEVICE_PATIENCE_S) -> None:
        self._lock = threading.Lock()
        self._device_patience_s = device_patience_s
        self._retry_at = 0.0
        self._times = 0
        self._since = 0.0
        self.delay_s = 0.0
        self.error: Exception | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the next attempt."""
        return self._retry_at - time.monotonic()

    @property
    def is_of_device(self) -> bool:
        return isinstance(self.error, DeviceUnavailable)

    @property
    def is_too_much(self) -> bool:
        """Whether a drain should report the error instead of waiting any longer."""
        with self._lock:
            if isinstance(self.error, (MissingExtra, StoreDamaged, ImportError)):
                return True
            if isinstance(self.error, DeviceUnavailable):
                return time.monotonic() - self._since > self._device_patience_s
            is_of_data = isinstance(self.error, DatasetUnavailable)
            return self._times > (DATASET_PATIENCE if is_of_data else PATIENCE)

    def add(self, error: Exception) -> float:
        """Returns how long to wait. Failures of several workers at the same time count as one."""
        with self._lock:
            now = time.monotonic()
            if self.error is None:
                self._since = now
            self.error = error
            if now >= self._retry_at:
                on_device = isinstance(error, DeviceUnavailable)
                longest = LONGEST_DEVICE_DELAY_S if on_device else LONGEST_DELAY_S
                self.delay_s = min(max(0.25, 2 * self.delay_s), longest)
                self._times += 1
                self._retry_at = now + self.delay_s
            return self._retry_at - now

    def found_nothing(self) -> None:
        """A successful look: earlier failures no longer count."""
        with self._lock:
            self._times, self.error = 0, None

    def clear(self) -> None:
        """Work was done: the next failure starts with a short delay again."""
        with self._lock:
            self._times, self.delay_s, self.error = 0, 0.0, None
