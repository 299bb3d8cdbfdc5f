"""A profile of a user's own board, from models measured on it and the estimates of them."""

from __future__ import annotations

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

from edgeloop.errors import BadInput, LocalFileError
from edgeloop.platforms import Profile, QnnToolchain, find_chip, fit_profile, save_profile
from edgeloop.runner.compare import fetched
from edgeloop.workspace import Workspace


def calibrate_profile(workspace: Workspace, name: str, measured: Path, chip: str) -> Profile:
    """Fits and keeps it in the workspace; `measured` is a CSV with model and latency_ms."""
    target = find_chip(chip)
    if target.estimate_soc is None:
        reason = (
            f"{chip} has no estimate to calibrate; the nearest that has one is {target.nearest}"
        )
        raise BadInput(reason=reason)
    times = _read(measured)
    pairs = []
    with TemporaryDirectory() as folder, QnnToolchain() as toolchain:
        for model, latency_ms in times.items():
            work = fetched(workspace, model, Path(folder) / model, "*.quant.onnx")
            estimate = toolchain.estimate(work.quantized, target)
            pairs.append((estimate.raw_us, 1000.0 * latency_ms))
    profile = fit_profile(pairs, name, target.estimate_soc, f"{len(pairs)} models, {measured.name}")
    save_profile(workspace.settings.project / ".edgeloop" / "profiles", profile)
    return profile


def _read(path: Path) -> dict[str, float]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {row["model"]: float(row["latency_ms"]) for row in rows}
    except (KeyError, TypeError, ValueError):
        reason = f"{path} must have the columns model and latency_ms, with a number in each row"
        raise BadInput(reason=reason) from None
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror) from None
