"""A long round of the nemesis on every store: what it did, what workers saw, what broke.

`BENCH_NEMESIS_SECONDS` is how long each lasts, `BENCH_NEMESIS_STORES` which stores, with commas.
"""

from __future__ import annotations

import os
import shutil
from tempfile import mkdtemp

from bench.places import KINDS
from bench.tables import markdown
from tests.nemesis.arena import Round
from tests.nemesis.driver import Report, run_round
from tests.nemesis.faults import FAULTS, faults_of

SECONDS = float(os.environ.get("BENCH_NEMESIS_SECONDS", "600"))
STORES = os.environ.get("BENCH_NEMESIS_STORES", ",".join(KINDS)).split(",")
MODELS = 60
WORKERS = 6
LEASE_S = 1.5
PATIENCE_S = 300.0
PEOPLE = ("priority", "reset", "unlocked", "deleted", "uploaded")


def run() -> str:
    reports = {kind: _round(kind) for kind in STORES}
    return "\n\n".join((_outcomes(reports), _deeds(reports)))


def _round(kind: str) -> Report:
    """Its history is kept if something broke."""
    home = mkdtemp(prefix=f"nemesis-{kind}-")
    plan = Round(
        *(kind, home, SECONDS, MODELS),
        seed=11,
        workers=WORKERS,
        lease_s=LEASE_S,
        people_pause_s=0.15,
        patience_s=PATIENCE_S,
    )
    report = run_round(plan)
    broken = [*report.violations, *report.inversions]
    for text in broken:
        print(f"  {kind}: {text} ({home})")
    if not broken:
        shutil.rmtree(home)
    return report


def _outcomes(reports: dict[str, Report]) -> str:
    headings = (
        *("store", "fault kinds", "faults", "people's changes", "claims", "accepted"),
        *("refused as stale", "unfinished", "inversions", "orphans before gc", "after"),
        *("violations",),
    )
    rows = []
    for kind, report in reports.items():
        seen = report.seen
        people = sum(seen[name] for name in PEOPLE)
        counts = (len(report.deeds) + 1, sum(report.deeds.values()), people)
        work = (seen["claimed"] + seen["ahead"] + seen["urgent"], seen["accepted"], seen["lost"])
        left = (len(report.unfinished), len(report.inversions))
        orphans = (report.orphans_before, report.orphans_after)
        rows.append((kind, *counts, *work, *left, *orphans, len(report.violations)))
    return markdown(headings, rows)


def _deeds(reports: dict[str, Report]) -> str:
    """How often each kind of fault struck; a dash where a store cannot have it."""
    headings = ("fault", *reports)
    rows = []
    for fault in FAULTS:
        cells = [
            report.deeds[fault.name] if fault in faults_of(kind) else "–"
            for kind, report in reports.items()
        ]
        rows.append((fault.name, *cells))
    rows += [
        (f"people: {name}", *(report.seen[name] for report in reports.values())) for name in PEOPLE
    ]
    return markdown(headings, rows)
