"""Tasks: read a dataset, prepare inputs, score outputs.

May import only `graph`, besides `errors`, `_util` and `paths`. Start reading in `base.py`, the
interface, then `segmentation.py`; `metrics.py` has the scores and their confidence intervals.

Third parties add a task by an entry point of the group `edgeloop.tasks`: a name, and a callable
that takes the dataset's folder and a cache folder and returns a `Task`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from edgeloop._util.values import suggestion
from edgeloop.errors import (
    BadInput,
    BadModel,
    DatasetDamaged,
    DatasetMisfit,
    DatasetUnavailable,
    LocalFileError,
    NotFound,
)
from edgeloop.tasks.base import (
    Browsable,
    CountsPixels,
    DatasetEntry,
    FitsModels,
    Illustrates,
    Illustration,
    Images,
    Interval,
    Labels,
    Output,
    Samples,
    Score,
    Scorer,
    TakesOutputs,
    Task,
    Tensors,
    Trainable,
    metric_of,
    task_for,
)
from edgeloop.tasks.dataset import FACE_CLASSES, IGNORE, boundary, load
from edgeloop.tasks.metrics import are_logits, paired_interval, score_unit, student_t
from edgeloop.tasks.results import (
    LARGEST_EXAMPLES_BYTES,
    Examples,
    IllustratedScorer,
    class_colour,
    class_colours,
    example_files,
    read_example_images,
    read_examples,
    write_examples,
    write_pr_curve,
    write_pr_points,
    write_results_csv,
    write_score_files,
)
from edgeloop.tasks.tensors import AGREEMENT, Agreement, AgreementScorer, TensorsTask

__all__ = [
    "AGREEMENT",
    "FACE_CLASSES",
    "GROUP",
    "IGNORE",
    "LARGEST_EXAMPLES_BYTES",
    "Agreement",
    "AgreementScorer",
    "Browsable",
    "CountsPixels",
    "DatasetEntry",
    "Examples",
    "FitsModels",
    "IllustratedScorer",
    "Illustrates",
    "Illustration",
    "Images",
    "Interval",
    "Labels",
    "Output",
    "Samples",
    "Score",
    "Scorer",
    "TakesOutputs",
    "Task",
    "Tensors",
    "TensorsTask",
    "Trainable",
    "are_logits",
    "boundary",
    "check_data",
    "class_colour",
    "class_colours",
    "example_files",
    "load",
    "metric_of",
    "open_task",
    "paired_interval",
    "read_example_images",
    "read_examples",
    "reading_data",
    "score_unit",
    "student_t",
    "task_for",
    "task_names",
    "write_examples",
    "write_pr_curve",
    "write_pr_points",
    "write_results_csv",
    "write_score_files",
]

GROUP = "edgeloop.tasks"
_SMALL = 32
_FEW = 2
_BUILT_IN = {
    "classification": "classification:Classification",
    "depth": "depth:Depth",
    "detection": "detection:Detection",
    "keypoints": "keypoints:Keypoints",
    "segmentation": "segmentation:Segmentation",
    "super-resolution": "super_resolution:SuperResolution",
    "tensors": "tensors:TensorsTask",
}


def open_task(name: str, dataset: Path, cache: Path) -> Task:
    """A task by its name, on a dataset. Nothing is read before it is used.

    `cache` is a folder for prepared images; it may be shared by processes and deleted at will.
    """
    ours = [EntryPoint(name, f"{__name__}.{_BUILT_IN[name]}", GROUP)] if name in _BUILT_IN else []
    for entry in (*ours, *entry_points(group=GROUP, name=name)):
        make: Callable[[Path, Path], Task] = entry.load()
        return make(dataset, cache)
    hint = suggestion(name, task_names(), "there are")
    raise BadInput(reason=f"unknown task {name!r}: {hint}")


def task_names() -> list[str]:
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


@contextmanager
def reading_data() -> Iterator[None]:
    """Around code that reads a dataset for a model: a problem of the data is not the model's fault.
    Raises DatasetUnavailable; errors about the model itself pass unchanged."""
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
