"""What the computes take from the environment, and put into that of a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PYTHON_VARIABLE = "EDGELOOP_PYTHON"
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


def job_environment(
    additions: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """A local job sees what its submitter saw, and runs the Python of the same environment."""
    return {**environ, PYTHON_VARIABLE: str(interpreter(environ)), **additions}


def interpreter(environ: Mapping[str, str] = os.environ) -> Path:
    """The Python of the active environment, which need not be the one Edgeloop is installed in."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        found = Path(environ.get(name, "")) / "bin/python"
        if environ.get(name) and found.is_file():
            return found
    return Path(sys.executable)


def visible_gpus(environ: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """Those the submitter was left with; None where nobody has said."""
    if GPUS_VARIABLE not in environ:
        return None
    return tuple(part.strip() for part in environ[GPUS_VARIABLE].split(",") if part.strip())


def show_gpus(gpus: Sequence[str]) -> None:
    """For this process and its children: these GPUs and no others."""
    os.environ[GPUS_VARIABLE] = ",".join(gpus)
