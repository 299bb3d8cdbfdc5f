"""A long round of the nemesis on every store: what it did, what workers saw, what broke."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.places import KINDS
from bench.tables import markdown
from tests.nemesis.driver import Nemesis
from tests.peers.azurite import Azurite
from tests.peers.postgres import Postgres

SECONDS = float(os.environ.get("BENCH_NEMESIS_SECONDS", "120"))
MODELS = 300
WORKERS = 6


def run() -> str:
    headings = (
        "store",
        "kills",
        "freezes",
        "restarts",
        "accepted",
        "refused as stale",
        "violations",
    )
    return markdown(headings, [_round(kind) for kind in KINDS])


def _round(kind: str) -> tuple[object, ...]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        history = folder / "history"
        history.mkdir()
        url, restart = f"sqlite:{folder / 'store'}", None
        if kind == "postgresql":
            database = stack.enter_context(Postgres())
            url = f"{database.url}?blobs=file://{folder / 'blobs'}"
            restart = lambda: (database.kill(), database.start())  # noqa: E731
        elif kind == "azurite":
            emulator = stack.enter_context(Azurite())
            url = emulator.connection_string
            restart = lambda: (emulator.stop(), emulator.start())  # noqa: E731
        items = MODELS * 7
        nemesis = Nemesis(
            url,
            history,
            SECONDS,
            MODELS,
            seed=11,
            workers=WORKERS,
            work_s=SECONDS * WORKERS / items,  # so that there is work until the end
            restart_server=restart,
        )
        report = nemesis.run()
    for violation in report.violations:
        print(f"  {kind}: {violation}")
    deeds, seen = report.deeds, report.seen
    counts = (deeds["kill"], deeds["freeze"], deeds["server"], seen["accepted"], seen["lost"])
    return (kind, *counts, len(report.violations))
