"""What the compiler says of every network: `python -m bench latency compile --jobs N [NAME…]`.

Rows are written to estimates.csv as they come; a network that has an estimate in a format is
left out, unless it is named. `--formats w8a8,float` takes some formats only, and
`--limit S` ends a network that takes longer (600 seconds without it).
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from bench.latency.catalog import ESTIMATES, FORMATS, PUBLISHED, SKELETONS, known_networks
from bench.latency.worker import COUNTS, TIMES
from edgeloop.platforms.qnn.latency import FEATURES

SOCS = (62, 72, 77)
KEY = ("network", "format", "soc")
COLUMNS = (
    *("network", "family", "kind", "format", "soc"),
    *(*TIMES, *COUNTS, *FEATURES),
    *("doubt", "error"),
)
Row = dict[str, Any]


def run(*options: str) -> str:
    given = _parsed(options)
    rows = read_estimates(given.estimates)
    wanted = sorted(_wanted(given, rows), key=_size_of(given.archive))
    with ThreadPoolExecutor(given.jobs) as pool:
        tasks = [
            pool.submit(estimates, given.archive, name, form, given.limit) for name, form in wanted
        ]
        for done in as_completed(tasks):
            found = done.result()
            rows.update((tuple(str(row[c]) for c in KEY), row) for row in found)
            write_estimates(rows.values(), given.estimates)
            print(*(_line(row) for row in found), sep="\n", flush=True)
    refused = sum(bool(row.get("error")) for row in rows.values())
    networks = {row["network"] for row in rows.values() if not row.get("error")}
    return f"{len(rows)} rows, {refused} of them without an estimate; {len(networks)} networks"


def estimates(archive: Path, name: str, form: str, limit_s: float = 600) -> list[Row]:
    """A row per chip; with the reason where there is no estimate."""
    command = [sys.executable, "-m", "bench.latency.worker", str(archive), name, form]
    command += map(str, SOCS)
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit_s)
        lines, errors = done.stdout.splitlines(), done.stderr.strip().splitlines()
        code = done.returncode
    except subprocess.TimeoutExpired:
        lines, errors, code = [], [f"Error: took longer than {limit_s:.0f} s"], 0
    found = {row["soc"]: row for row in map(json.loads, lines)}
    about = known_networks()[name]
    shared = {"network": name, "family": about.family, "kind": about.kind, "format": form}
    shared["doubt"] = about.doubt_of(form)
    named = [line for line in errors if "rror" in line] or [f"the process ended with {code}"]
    reason = f"the compiler crashed: signal {-code}" if code < 0 else named[-1].strip()[:200]
    return [{**shared, **found.get(soc, {"soc": soc, "error": reason})} for soc in SOCS]


def read_estimates(path: Path = ESTIMATES) -> dict[tuple[str, ...], Row]:
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row[column] for column in KEY): row for row in csv.DictReader(file)}


def write_estimates(rows: Iterable[Row], path: Path = ESTIMATES) -> None:
    """Sorted, and all at once: a run that is ended leaves a whole file."""
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for row in sorted(rows, key=lambda row: (row["network"], row["format"], int(row["soc"]))):
            writer.writerow({name: _short(value) for name, value in row.items()})
    partial.replace(path)


def published_formats() -> dict[str, set[str]]:
    """Formats of every network that has figures."""
    formats: dict[str, set[str]] = {}
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            formats.setdefault(row["network"], set()).add(row["format"])
    return formats


def _parsed(options: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench latency compile")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--archive", type=Path, default=SKELETONS)
    parser.add_argument("--estimates", type=Path, default=ESTIMATES)
    return parser.parse_args(list(options))


def _wanted(given: argparse.Namespace, rows: dict[tuple[str, ...], Row]) -> Iterator[Any]:
    published = published_formats()
    with zipfile.ZipFile(given.archive) as packed:
        built = {Path(name).stem for name in packed.namelist()}
    for name in given.names or [name for name in known_networks() if name in built]:
        for form in given.formats.split(","):
            known = [rows.get((name, form, str(soc)), {"error": "missing"}) for soc in SOCS]
            is_done = not any(row.get("error") for row in known)
            if form in published.get(name, ()) and (given.names or not is_done):
                yield name, form


def _size_of(archive: Path) -> Any:
    """Formats one after the other, small networks first."""
    with zipfile.ZipFile(archive) as packed:
        sizes = {Path(entry.filename).stem: entry.file_size for entry in packed.infolist()}
    return lambda task: (FORMATS.index(task[1]), sizes.get(task[0], 0))


def _line(row: Row) -> str:
    said = row.get("error") or f"{float(row['raw_us']):.0f} µs, {row['missing_ops']} without cost"
    return f"{row['network']} {row['format']} {row['soc']}: {said}"


def _short(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
