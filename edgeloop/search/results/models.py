"""The models of a search: kept when they are trained, complete for the front, and published.

`nets/<id>.onnx` is the trained model of a candidate, kept before its result is stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgeloop.architectures import Architecture, build, export_onnx
from edgeloop.search.base import Evaluator
from edgeloop.search.names import columns_of
from edgeloop.search.results.curves import LearningCurves
from edgeloop.search.results.tables import copy_atomic, publish
from edgeloop.search.study import Candidate
from edgeloop.training import HISTORY, METRICS, MODEL
from edgeloop.workspace import Workspace

MODELS = "nets"
TRAINED = "trained"
_LOOK_S = 1.0


class FoundModels:
    """Those of the search in `folder`."""

    def __init__(self, folder: Path, workspace: Workspace) -> None:
        self._folder, self._workspace = folder, workspace
        self._curves = LearningCurves(folder)
        self._is_trained = False  # whether models of the front are trained ones
        self._gpu: list[float] = []  # utilisation of the GPU in each training, from 0 to 1

    def keep(self, arch: Architecture, files: Mapping[str, Path]) -> None:
        """Copied out of the training folder before its result is stored, like its curve."""
        if HISTORY in files:
            self._curves.add(arch.id, files[HISTORY])
        if METRICS in files:
            self._note_gpu(files[METRICS])
        if MODEL in files:
            (self._folder / MODELS).mkdir(exist_ok=True)
            copy_atomic(files[MODEL], self._file(arch))

    @property
    def gpu_utilisation(self) -> float | None:
        """The mean of what trainings reported, wherever they ran; None if none did."""
        return sum(self._gpu) / len(self._gpu) if self._gpu else None

    def _note_gpu(self, metrics: Path) -> None:
        with suppress(OSError, ValueError, AttributeError):
            share = json.loads(metrics.read_text(encoding="utf-8")).get("gpu_utilisation")
            if isinstance(share, int | float) and 0 <= share <= 1:
                self._gpu.append(float(share))

    def complete(
        self,
        front: Sequence[Candidate],
        taken: Mapping[str, Any],
        training: Evaluator | None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """A result reused from another search has no model here: those of the front are copied from
        the search that this one started from (`taken` says where that is), or trained. One that
        cannot be trained is left out: its place is not taken by an untrained model."""
        for item in front:
            about = taken.get(item.earlier, {})
            model = Path(str(about.get("folder", ""))) / MODELS / f"{item.arch.id}.onnx"
            if item.earlier and model.is_file():
                self.keep(item.arch, {MODEL: model})
        self._is_trained = training is not None
        archs = {item.arch.id: item.arch for item in front}
        lacking = {i: a for i, a in archs.items() if not self._file(a).is_file()}
        if training is None or not lacking:
            return
        models = "1 model" if len(lacking) == 1 else f"{len(lacking)} models"
        tell(f"Training {models} of the front, whose results other searches had.")
        for arch in lacking.values():
            training.send(arch)
        waiting = set(lacking)
        while waiting:
            for evaluation in training.collect(_LOOK_S):
                if evaluation.arch_id not in waiting:
                    continue
                waiting.discard(evaluation.arch_id)
                self.keep(lacking[evaluation.arch_id], evaluation.files)
                if evaluation.error:
                    error = evaluation.error.rstrip(".")
                    tell(f"The model of {evaluation.arch_id} is left out: {error}.")

    def save(self, item: Candidate, target: Path) -> None:
        """Copy the trained model of a candidate; build an untrained one if the search trains
        none."""
        trained = self._file(item.arch)
        if trained.is_file():
            copy_atomic(trained, target)
        elif not self._is_trained and not target.is_file():
            project = self._workspace.settings.project
            export_onnx(build(item.arch, project=project), item.arch, target)

    def publish(self, front: Sequence[Candidate], tag: str, iteration: int) -> list[str]:
        """Trained models of the front join the status table, so that runners measure them."""
        names = []
        for item in front:
            model = self._file(item.arch)
            if model.is_file():
                columns = columns_of(item.values, item.place // iteration)
                names.append(
                    publish(self._workspace, item.arch, TRAINED, model, item.values, columns, tag)
                )
        return names

    def _file(self, arch: Architecture) -> Path:
        return self._folder / MODELS / f"{arch.id}.onnx"
