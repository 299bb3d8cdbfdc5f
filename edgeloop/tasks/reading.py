"""Whose fault it is that a dataset cannot be read: the machine's, unless it only does not fit the
model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgeloop.errors import (
    BadInput,
    BadModel,
    DatasetDamaged,
    DatasetMisfit,
    DatasetUnavailable,
    LocalFileError,
    NotFound,
)
from edgeloop.tasks.base import Task
from edgeloop.tasks.tensors import TensorsTask

_SMALL = 32
_FEW = 2


@contextmanager
def reading_data() -> Iterator[None]:
    """Around whatever reads a dataset for a model: what is wrong with the data is nothing that the
    model could be blamed for. Raises DatasetUnavailable; what is said of a model stays as it is."""
    try:
        yield
    except (BadModel, DatasetMisfit):
        raise
    except (BadInput, NotFound, LocalFileError, DatasetDamaged) as error:
        raise DatasetUnavailable(reason=str(error).rstrip(".")) from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise DatasetUnavailable(reason=f"{place}{error.strerror or error}") from error


def check_data(task: Task, with_test: bool = True) -> None:
    """Look at a dataset before any model asks for it: whether it is there, and the first and last
    images of its parts. Raises what is wrong with it."""
    if isinstance(task, TensorsTask):
        task.check()
        return
    try:
        _ = task.classes
        task.calibration(_SMALL, _SMALL, _FEW)
        if with_test:
            task.test(_SMALL, _SMALL, _FEW)
    except DatasetMisfit:
        return  # for a model of that size; others may fit
