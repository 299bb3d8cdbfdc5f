"""What this machine has, where its settings do not say."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from edgeloop.jobs.computes.settings import visible_gpus

_NVIDIA_SMI_LIMIT_S = 20


def cpu_count() -> float:
    return float(os.cpu_count() or 1)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gpu_names(folder: Path) -> tuple[str, ...]:
    """The GPUs the submitter may use, by number. NVIDIA's program is slow, so what it said is
    kept until the machine starts anew."""
    said = visible_gpus()
    if said is not None:
        return said
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    kept = folder / f"gpus.{_boot()}"
    try:
        count = int(kept.read_text())
    except (OSError, ValueError):
        count = _count_gpus(program)
        kept.write_text(str(count))
    return tuple(str(number) for number in range(count))


def _count_gpus(program: str) -> int:
    try:
        answer = subprocess.run(  # noqa: S603
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0  # a driver that does not answer has no GPU to give
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
