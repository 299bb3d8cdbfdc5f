"""16 processes, 1,000 items, each claimed and committed; beside a plain SKIP LOCKED loop.

Both warm up on a few items of their own first: a runner lives for days.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psycopg

from bench.places import KINDS, place
from bench.tables import markdown
from edgeloop.models.leases import Leases, Outcome
from edgeloop.models.plan import Plan, Stage
from edgeloop.store import open_store, parse_location

PROCESSES = 16
WARM_UP = 5
ROUNDS = 5
ITEMS = 1_000
PLAN = Plan((Stage("work", "any", lambda row: 1, fills=("result",)),))
_SPAWN = multiprocessing.get_context("spawn")


def run() -> str:
    """Where there is a reference, the two take turns, and the medians are compared."""
    rows = []
    for kind in KINDS:
        ours, plain, twice, lost = [], [], 0, 0
        for _ in range(ROUNDS):
            with place(kind) as address:
                if kind == "postgresql":
                    plain.append(_plain(address))
                rate, more_twice, more_lost = _leases(address)
            ours.append(rate)
            twice, lost = twice + more_twice, lost + more_lost
        row = [kind, f"{median(ours):.0f}", "", "", "", twice, lost]
        if plain:
            row[2:5] = [f"{median(plain):.0f}", f"{median(ours) / median(plain):.2f}", "≥ 0.4"]
        rows.append(row)
    rates = ("leases, items/s", "SKIP LOCKED, items/s")
    return markdown(("store", *rates, "ratio", "goal", "twice", "lost"), rows)


def _leases(address: str) -> tuple[float, int, int]:
    store = open_store(parse_location(address))
    for experiment, count in (("warm-up", PROCESSES * WARM_UP), ("bench", ITEMS)):
        names = [f"m{number:05d}" for number in range(count)]
        models = store.models(experiment)
        models.insert_many((name, {"name": name, "status": "new"}) for name in names)
        Leases(models, store.queue(experiment), PLAN).sweep()
    seconds, done = _crew(_lease_worker, address)
    written = [row.values.get("result") for row in models.query()]
    store.close()
    twice = sum(count - 1 for count in Counter(done).values())
    return ITEMS / seconds, twice, written.count(None)


def _lease_worker(address: str, ready: Barrier, report: str) -> None:
    store = open_store(parse_location(address))
    warm_up, leases = (
        Leases(store.models(experiment), store.queue(experiment), PLAN)
        for experiment in ("warm-up", "bench")
    )
    for _ in range(WARM_UP):
        if lease := warm_up.claim(["any"], "bench"):
            warm_up.commit(lease, Outcome({"result": lease.token}))
    done = []
    ready.wait()
    began = time.monotonic()
    while lease := leases.claim(["any"], "bench"):
        leases.commit(lease, Outcome({"result": lease.token}))
        done.append(lease.model)
        ended = time.monotonic()
    Path(report).write_text(json.dumps([began, ended if done else began, done]))


def _plain(address: str) -> float:
    """The simplest queue there is on PostgreSQL: one table, one row an item, two transactions."""
    url = address.partition("?")[0]
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("CREATE TABLE items (id int PRIMARY KEY, state text, owner text, result text)")
        link.execute("CREATE INDEX waiting ON items (id) WHERE state = 'new'")
        count = ITEMS + PROCESSES * WARM_UP
        link.execute(f"INSERT INTO items SELECT n, 'new' FROM generate_series(1, {count}) n")
    seconds, done = _crew(_plain_worker, url)
    assert len(set(done)) == len(done) == ITEMS
    return ITEMS / seconds


def _plain_worker(url: str, ready: Barrier, report: str) -> None:
    claim = """UPDATE items SET state = 'held', owner = %s WHERE id = (
        SELECT id FROM items WHERE state = 'new' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING id"""
    finish = "UPDATE items SET state = 'done', result = %s WHERE id = %s"
    done = []
    with psycopg.connect(url, autocommit=True) as link:
        for _ in range(WARM_UP):
            (item,) = link.execute(claim, ("bench",)).fetchone()
            link.execute(finish, ("token", item))
        ready.wait()
        began = time.monotonic()
        while row := link.execute(claim, ("bench",)).fetchone():
            link.execute(finish, ("token", row[0]))
            done.append(row[0])
            ended = time.monotonic()
    Path(report).write_text(json.dumps([began, ended if done else began, done]))


def _crew(target: object, address: str) -> tuple[float, list[object]]:
    """From the common start to the last item's end, as the workers' own clocks say."""
    ready = _SPAWN.Barrier(PROCESSES)
    with TemporaryDirectory() as folder:
        reports = [Path(folder) / str(number) for number in range(PROCESSES)]
        crew = [_SPAWN.Process(target=target, args=(address, ready, str(r))) for r in reports]
        for worker in crew:
            worker.start()
        for worker in crew:
            worker.join()
        stories = [json.loads(report.read_text()) for report in reports]
    began, ended = min(s[0] for s in stories), max(s[1] for s in stories)
    return ended - began, [item for story in stories for item in story[2]]
