"""`edgeloop status --csv` of 50,000 rows on the embedded store, beside reading them bare."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.tables import markdown
from edgeloop.store import SqliteLocation, open_store

ROWS = 50_000
EDGELOOP = Path(sys.executable).with_name("edgeloop")


def run() -> str:
    with TemporaryDirectory() as folder:
        store = open_store(SqliteLocation(Path(folder) / ".edgeloop"))
        store.models("default").insert_many((f"m{i:05d}", _row(i)) for i in range(ROWS))
        store.close()
        began = time.perf_counter()
        command = [str(EDGELOOP), "status", "--csv", "out.csv"]
        subprocess.run(command, cwd=folder, check=True, stderr=subprocess.DEVNULL)
        ours = time.perf_counter() - began
        lines = (Path(folder) / "out.csv").read_text().count("\n")
        assert lines == ROWS + 1, lines
        bare = _bare(Path(folder) / ".edgeloop" / "store.db")
    rows = [
        ("sqlite3 and json alone, no CSV", f"{bare:.2f}", ""),
        ("edgeloop status --csv", f"{ours:.2f}", "< 3"),
    ]
    return markdown((f"{ROWS:,} rows", "s", "goal, s"), rows)


def _bare(path: Path) -> float:
    began = time.perf_counter()
    with sqlite3.connect(path) as link:
        for (data,) in link.execute("SELECT data FROM edgeloop_rows ORDER BY key"):
            json.loads(data)
    return time.perf_counter() - began


def _row(number: int) -> dict[str, object]:
    return {
        "name": f"m{number:05d}",
        "status": "complete",
        "node": "",
        "model_date": "2026-11-15T08:58:32+00:00",
        "model_name": f"unet-{number}.onnx",
        "experiment": "default",
        "macs": 412_000_000 + number,
        "params": 270_000,
        "shape": "[1, 3, 256, 256]",
        "output_shape": "[1, 19, 256, 256]",
        "quantized": True,
        "total_inference_avg": json.dumps([0.00061, 0.00062, 0.00063, 0.00064, 0.00065]),
        "mean": 0.00063,
        "stdev": 2.5,
        "f1_onnx": 0.742,
        "f1_1k": 0.739,
        "f1_1k_f": 0.742,
        "f1_10k": 0.738,
        "content": f"{number:064x}",
        "stages": json.dumps({"convert": {"committed": ["a" * 32], "files": {"a.dlc": "b/a.dlc"}}}),
    }
