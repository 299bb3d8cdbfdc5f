"""A latency profile of a user's own board, from models measured on it and their estimates."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from tempfile import TemporaryDirectory

from edgeloop._util.files import read_regular
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.platforms import DEFAULT_PLATFORM, LatencyProfile, MeasuredModel, find_platform
from edgeloop.runner.compare import fetched
from edgeloop.workspace import Workspace

_LARGEST_FILE = 10_000_000


def calibrate_profile(workspace: Workspace, name: str, measured: Path, chip: str) -> LatencyProfile:
    """Fits and keeps it in the project; `measured` is a CSV with model and latency_ms."""
    platform = find_platform(workspace.settings.toolchain or DEFAULT_PLATFORM)
    suffix = platform.file_suffixes[0]
    with TemporaryDirectory() as folder:
        models = []
        for model, latency_ms in _read(measured).items():
            work = fetched(workspace, model, Path(folder) / model, f"*{suffix}")
            models.append(MeasuredModel(work.artefact(suffix, platform.name), latency_ms))
        source = f"{len(models)} models, {measured.name}"
        return platform.calibrate(name, chip, models, workspace.settings, source)


def _read(path: Path) -> dict[str, float]:
    try:
        text = read_regular(path, _LARGEST_FILE).decode("utf-8")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        return {row["model"]: float(row["latency_ms"]) for row in rows}
    except (KeyError, TypeError, ValueError, csv.Error):
        reason = f"{path} must have the columns model and latency_ms, with a number in each row"
        raise BadInput(reason=reason) from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
