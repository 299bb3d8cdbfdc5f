"""What the files of a model add to its row: layers, scores of classes, PR curves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgeloop.errors import BlobMissing
from edgeloop.models import ModelFile
from edgeloop.report.model_charts import Curve, Layers, read_curves, read_layers, read_scores
from edgeloop.workspace import Workspace

LARGEST_BYTES = 1_000_000
LARGEST_PICTURE_BYTES = 200_000
STAGES = ("f1_10k", "f1_1k", "f1_onnx", "f1_1k_f")  # the first that is there is shown
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Evidence:
    """Empty where a model has no such file, or one too large to be shown. The picture of the PR
    curves is there only where their points are not, as of models that were tested long ago."""

    layers: Layers | None = None
    stage: str = ""
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pr_picture: bytes = b""
    curves: Mapping[str, Curve] = field(default_factory=dict)


def evidence_of(workspace: Workspace, model: str) -> Evidence:
    """Reads a model's latest `perf_results`, and results and PR curves of its best test."""
    files = {file.name: file for file in workspace.catalog.files(model)}
    runs = sorted((name for name in files if _run(name) >= 0), key=_run)
    stage = next((s for s in STAGES if f"test_results_{s}.csv" in files), "")
    perf = _text(workspace, files.get(runs[-1])) if runs else ""
    curves = read_curves(_text(workspace, files.get(f"pr_curve_{stage}.csv")))
    png = None if curves else files.get(f"pr_curve_{stage}.png")
    picture = _read(workspace, png, LARGEST_PICTURE_BYTES)
    return Evidence(
        read_layers(perf) if perf else None,
        stage,
        read_scores(_text(workspace, files.get(f"test_results_{stage}.csv"))),
        picture if picture.startswith(_PNG) else b"",
        curves,
    )


def _run(name: str) -> int:
    found = re.fullmatch(r"perf_results_?(\d*)\.csv", name)
    return int(found[1] or 0) if found else -1


def _text(workspace: Workspace, file: ModelFile | None) -> str:
    return _read(workspace, file, LARGEST_BYTES).decode(errors="replace")


def _read(workspace: Workspace, file: ModelFile | None, most: int) -> bytes:
    """A file that went away since it was listed is as one that never was."""
    if file is None or file.size > most:
        return b""
    try:
        return workspace.store.blobs.read(file.key)
    except BlobMissing:
        return b""
