"""What a runner needs while it converts a model: memory at its peak, and processor time.

    python -m bench resources MODEL.onnx…

The requests in `deploy/chart/values.yaml` come from this. Memory is that of the runner and all its
processes together, with shared pages counted once; the page cache is not in it.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INTERVAL_S = 0.1


def run(*files: str) -> str:
    models = files or sys.exit("resources: name the models: python -m bench resources a.onnx")
    rows = ["| model | file | wall | processor time | peak memory |", "|---|---|---|---|---|"]
    for name in models:
        rows.append(_measured(Path(name)))
    return "\n".join(rows)


def _measured(model: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        edgeloop = [sys.executable, "-m", "edgeloop"]
        upload = [*edgeloop, "upload", str(model.absolute())]
        subprocess.run(upload, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        before, started = _processor_s(), time.monotonic()
        runner = subprocess.Popen([*edgeloop, "runner", "--drain"], cwd=folder)
        peak = 0
        while runner.poll() is None:
            peak = max(peak, sum(map(_memory, _tree(runner.pid))))
            time.sleep(INTERVAL_S)
        assert runner.returncode == 0, f"{model}: the runner failed"
    wall, busy = time.monotonic() - started, _processor_s() - before
    external = model.with_name(f"{model.name}.data")
    size = sum(file.stat().st_size for file in (model, external) if file.is_file())
    return (
        f"| {model.stem} | {size / 2**20:.0f} MiB | {wall:.0f} s | {busy:.0f} s "
        f"| {peak / 2**20:.0f} MiB |"
    )


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tree(root: int) -> set[int]:
    """A process and all below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
