"""Connections of a SQL store: shared by threads, left alone by forked children."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgeloop.errors import StoreUnavailable
from edgeloop.store import Store, sql
from edgeloop.store.location import unversioned
from edgeloop.store.sql import SqlStore


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, make_place, make_store) -> Store:
    return unversioned(make_store(make_place(request.param)))


def test_a_forked_child_opens_connections_of_its_own(store: Store):
    table = store.models("exp")
    record = table.insert("a", {"n": 1})
    assert isinstance(store, SqlStore)
    pool = store._database.pool
    of_parent = list(pool._idle)
    assert of_parent
    child = os.fork()
    if child == 0:
        works = False
        try:
            found = table.get("a")
            works = found == record and table.update(record, {"n": 2}).values == {"n": 2}
            works = works and bool(pool._idle) and not any(own in of_parent for own in pool._idle)
        finally:
            os._exit(0 if works else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = table.get("a")
    assert found is not None and found.values == {"n": 2}


def test_many_threads_share_a_few_connections(store: Store):
    table = store.models("exp")
    table.insert("a", {"n": 1})
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: table.get("a"), range(400)))
    assert len(found) == 400 and all(row == found[0] for row in found)
    assert isinstance(store, SqlStore)
    assert len(store._database.pool._idle) <= sql.IDLE_CONNECTIONS


def test_a_thread_that_gets_no_connection_is_told(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sql, "BUSY_TIMEOUT_S", 0.05)
    assert isinstance(store, SqlStore)
    enough, all_in_use = threading.Event(), threading.Barrier(sql.CONNECTIONS + 1)

    def hold(connection: object) -> None:
        all_in_use.wait(30)
        enough.wait(30)

    with ThreadPoolExecutor(sql.CONNECTIONS) as pool:
        store.models("exp").insert("a", {})
        for _ in range(sql.CONNECTIONS):
            pool.submit(store._database.pool.run, hold)
        try:
            all_in_use.wait(30)
            with pytest.raises(StoreUnavailable, match="all connections are in use"):
                store.models("exp").get("a")
        finally:
            enough.set()
    assert store.models("exp").get("a") is not None


def test_an_interrupted_statement_costs_only_its_connection(store: Store):
    assert isinstance(store, SqlStore)
    store.models("exp").insert("a", {})
    used = []

    def interrupted(connection: object) -> None:
        used.append(connection)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store._database.pool.run(interrupted)
    assert used[0] not in store._database.pool._idle
    assert store.models("exp").get("a") is not None


ONE_LEFT = """
import os, resource, sys
from edgeloop.errors import StoreUnavailable
from edgeloop.store.location import parse_location
from edgeloop.store import postgres

postgres.CONNECT_TIMEOUT_S = 2
database = postgres.PostgresDatabase(parse_location(sys.argv[1]))

def said():
    try:
        database.run(lambda connection: None)
    except StoreUnavailable as error:
        return str(error)

said()  # all that is imported, is
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    os.close(held.pop())
print(said())
"""


def test_a_process_that_may_open_one_more_file_finds_the_store_unavailable():
    """A connection needs two: its socket, and what psycopg waits with."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/x?blobs=/none"
        done = subprocess.run(
            [sys.executable, "-c", ONE_LEFT, url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert "cannot be reached: Too many open files" in done.stdout, done.stderr
