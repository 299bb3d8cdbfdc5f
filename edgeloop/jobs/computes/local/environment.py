"""What the local compute takes from the environment, what this machine has, and a job's
variables."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeloop._util.system import THREAD_VARIABLES

PYTHON_VARIABLE = "EDGELOOP_PYTHON"
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NVIDIA_SMI_LIMIT_S = 20


def job_environment(
    additions: Mapping[str, str], threads: int = 0, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """A local job has the variables of its submitter, and runs the Python of the same environment.
    `threads` limits numerical libraries, unless the submitter has set their variables."""
    limits = dict.fromkeys(THREAD_VARIABLES, str(threads)) if threads else {}
    return {**limits, **environ, PYTHON_VARIABLE: str(interpreter(environ)), **additions}


def interpreter(environ: Mapping[str, str] = os.environ) -> Path:
    """The Python of the active environment, which may not be the one Edgeloop is installed in."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        python = Path(environ.get(name, "")) / "bin/python"
        if environ.get(name) and python.is_file():
            return python
    return Path(sys.executable)


def gpu_names(folder: Path, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs that the submitter may use. nvidia-smi is slow, so its answer is kept in `folder`
    until the machine restarts."""
    if GPUS_VARIABLE in environ:
        return tuple(part.strip() for part in environ[GPUS_VARIABLE].split(",") if part.strip())
    import shutil

    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    cached = folder / f"gpus.{boot}"
    try:
        count = int(cached.read_text())
    except (OSError, ValueError):
        count = _count_gpus(program)
        with contextlib.suppress(OSError):  # a full disk: it is asked again
            cached.write_text(str(count))
    return tuple(str(number) for number in range(count))


def _count_gpus(program: str) -> int:
    import subprocess

    try:
        listing = subprocess.run(  # noqa: S603
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0  # a driver that does not respond has no usable GPU
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def show_gpus(gpus: Sequence[str]) -> None:
    """Limit this process and its children to these GPUs."""
    os.environ[GPUS_VARIABLE] = ",".join(gpus)
