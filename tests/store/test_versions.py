"""A store says which schema it has. What a newer version changed is refused, and what an older one
left is brought up to date, on every kind of store."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgeloop.errors import StoreDamaged, StoreTooNew, StoreTooOld
from edgeloop.operate import integrity
from edgeloop.store import Store, Table, Value, location, open_store, parse_location, upgrades
from edgeloop.store.location import (
    VERSION_KEY,
    StoreVersion,
    VersionedStore,
    raise_version,
    read_version,
    unversioned,
)
from edgeloop.store.upgrades import SCHEMA, UPGRADES, Upgrade, upgrade
from tests.conftest import StoreUnderTest

MakePlace = Callable[[str], StoreUnderTest]
NEXT = SCHEMA + 1
ODD = ("two", "1", "", -1, True, 1.5, None)


def say(store: Store, **columns: Value | None) -> None:
    """Write the row of the version as another tool, or another version, does."""
    values = {name: value for name, value in columns.items() if value is not None}
    unversioned(store).version().put(VERSION_KEY, values)


def readings(store: Store) -> dict[str, Callable[[], object]]:
    models, queue = store.models("exp"), store.queue("exp")
    return {
        "get": lambda: models.get("a"),
        "query": lambda: list(models.query()),
        "due": lambda: list(queue.due(0.0, models, "x|", str)),
        "marked": lambda: list(queue.marked("x|", "queued")),
        "prioritized": lambda: list(models.prioritized(5.0, ())),
        "drift": lambda: list(models.drift({}).changed),
        "experiments": store.experiments,
        "saved_rows": lambda: list(store.saved_rows()),
        "check": lambda: list(store.check()),
        "usage": lambda: list(store.usage().query()),
        "runners": lambda: list(store.runners().query()),
        "fleets": lambda: list(store.fleets().query()),
        "settings": lambda: list(store.experiment_settings().query()),
    }


def writings(store: Store) -> dict[str, Callable[[], object]]:
    models, queue = store.models("exp"), store.queue("exp")
    row = next(unversioned(store).models("exp").query("a"))
    return {
        "insert": lambda: models.insert("b", {}),
        "insert_many": lambda: models.insert_many([("b", {})]),
        "update": lambda: models.update(row, {"x": 2}),
        "update_with": lambda: models.update_with(row, {"x": 2}, queue, {"h": {"n": 1}}),
        "put": lambda: models.put("a", {"x": 2}),
        "delete": lambda: models.delete(row),
        "usage": lambda: store.usage().insert("u", {}),
        "runners": lambda: store.runners().insert("r", {}),
        "fleets": lambda: store.fleets().insert("f", {}),
        "settings": lambda: store.experiment_settings().put("exp", {"task": "x"}),
    }


@pytest.fixture
def filled(store: Store) -> Store:
    """With one row, and the version that the first write gave it."""
    store.models("exp").insert("a", {"x": 1})
    return store


@pytest.fixture
def again(filled: Store, place: StoreUnderTest, make_store: Callable[..., Store]) -> Store:
    """As another process opens it."""
    return make_store(place)


def test_the_first_write_says_the_schema_and_reading_says_nothing(
    place: StoreUnderTest, make_store: Callable[..., Store]
):
    unversioned(make_store(place)).version().put(VERSION_KEY, None)
    store = make_store(place)
    for read in readings(store).values():
        read()
    assert read_version(store) == StoreVersion()
    store.models("exp").insert("a", {"x": 1})
    assert read_version(store).schema == SCHEMA == max(UPGRADES)
    assert store.experiments() == ["exp"]


def test_the_version_costs_one_read_of_one_row(again: Store, monkeypatch: pytest.MonkeyPatch):
    assert isinstance(again, VersionedStore)
    plain, asked = again.unversioned, list[str]()
    real = plain.version

    def counted() -> Table:
        asked.append("version")
        return real()

    monkeypatch.setattr(plain, "version", counted)
    again.begin_writing()
    for read in readings(again).values():
        read()
    for number in range(3):
        again.models("exp").insert(f"more-{number}", {})
    assert asked == ["version"]


@pytest.mark.parametrize("schema", [NEXT, 2**62])
def test_a_store_that_only_newer_versions_understand_is_neither_read_nor_written(
    again: Store, schema: int
):
    say(again, schema=schema, edgeloop="9.9.0")
    for calls in (readings(again), writings(again)):
        for call in calls.values():
            with pytest.raises(StoreTooNew, match=r"which Edgeloop 9\.9\.0 wrote.*cannot read it"):
                call()
    rows = [(row.key, row.values) for row in unversioned(again).models("exp").query()]
    assert rows == [("a", {"x": 1})]


def test_a_store_that_newer_versions_share_for_reading_is_read_and_not_written(again: Store):
    say(again, schema=NEXT, oldest_reader=0, oldest_writer=NEXT)
    for read in readings(again).values():
        read()
    for write in writings(again).values():
        with pytest.raises(StoreTooNew, match=r"which a newer version wrote.*cannot write to it"):
            write()
    rows = [(row.key, row.values) for row in again.models("exp").query()]
    assert rows == [("a", {"x": 1})]


def test_a_store_that_newer_versions_share_wholly_stays_as_new_as_it_is(again: Store):
    said = {"schema": NEXT, "oldest_reader": 0, "oldest_writer": SCHEMA, "edgeloop": "9.9.0"}
    say(again, **said)
    again.models("exp").insert("b", {})
    assert not list(upgrade(again))
    row = again.version().get(VERSION_KEY)
    assert row is not None and row.values == said


@pytest.mark.parametrize("schema", ODD, ids=repr)
def test_a_version_that_is_none_lets_the_store_be_read_and_not_written(
    again: Store, schema: Value | None, caplog: pytest.LogCaptureFixture
):
    say(again, schema=schema, note="edited by hand")
    for read in readings(again).values():
        read()
    assert len(caplog.messages) == 1 and "instead of a whole number from 0" in caplog.text
    for write in writings(again).values():
        with pytest.raises(StoreDamaged, match="store repair"):
            write()


def test_odd_limits_count_as_the_schema_itself(again: Store):
    say(again, schema=NEXT, oldest_reader="0", oldest_writer=-3)
    assert read_version(again) == StoreVersion(NEXT, NEXT, NEXT)


def test_a_version_that_is_no_row_at_all_is_found_and_repaired(
    make_place: MakePlace, tmp_path: Path
):
    place = make_place("sqlite")
    store = place.open()
    store.models("exp").insert("a", {"name": "a", "status": "complete"})
    database = sqlite3.connect(Path(place.url.removeprefix("sqlite:")) / "store.db")
    database.execute("UPDATE edgeloop_rows SET data = '{' WHERE space = 'queue/edgeloop-store'")
    database.commit()
    database.close()
    store.close()
    store = place.open()
    assert store.models("exp").get("a") is not None
    with pytest.raises(StoreDamaged, match="it is not JSON"):
        store.models("exp").insert("b", {})
    store.close()


def test_no_number_of_a_version_is_ever_lowered_whoever_writes_it(filled: Store):
    versions = [StoreVersion(schema, schema // 2, schema // 3) for schema in range(SCHEMA, 12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda version: raise_version(unversioned(filled), version), versions[::-1]))
    assert read_version(unversioned(filled)) == versions[-1]


# A version after this one, whose rows the present one cannot share.


class Newer:
    """Registers one more step, as a newer version has; `work` is what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.work: Callable[[Store, bool], int] = lambda store, is_dry_run: 0

    def begin(self, **limits: int) -> None:
        step = Upgrade("changes everything", f"{__name__}:work_of_newer", **limits)
        steps = {**UPGRADES, NEXT: step}
        oldest = StoreVersion(NEXT, step.oldest_reader, step.oldest_writer)
        for module, name, value in (
            (upgrades, "UPGRADES", steps),
            (upgrades, "SCHEMA", NEXT),
            (location, "SCHEMA", NEXT),
            (location, "PRESENT", oldest),
            (integrity, "SCHEMA", NEXT),
            (sys.modules[__name__], "work_of_newer", self._do),
        ):
            self._monkeypatch.setattr(module, name, value)

    def end(self) -> None:
        self._monkeypatch.undo()

    def _do(self, store: Store, is_dry_run: bool) -> int:
        return self.work(store, is_dry_run)


def work_of_newer(store: Store, is_dry_run: bool) -> int:
    raise AssertionError


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Newer:
    return Newer(monkeypatch)


def test_a_step_that_others_can_live_with_is_taken_by_the_first_write(again: Store, newer: Newer):
    newer.begin()
    again.experiments()
    assert read_version(again).schema == SCHEMA, "reading changes nothing"
    again.models("exp").insert("b", {})
    assert read_version(again) == StoreVersion(NEXT, edgeloop=read_version(again).edgeloop)
    newer.end()
    again.models("exp").insert("c", {})


def test_a_step_that_shuts_others_out_is_taken_on_request_only(
    again: Store, newer: Newer, place: StoreUnderTest, make_store: Callable[..., Store]
):
    newer.begin(oldest_writer=NEXT)
    again.experiments()
    for write in writings(again).values():
        with pytest.raises(StoreTooOld, match="run 'edgeloop store upgrade'"):
            write()
    [step] = upgrade(again)
    assert (step.schema, step.changed) == (NEXT, 0)
    again.models("exp").insert("b", {})
    newer.end()
    older = make_store(place)
    assert [row.key for row in older.models("exp").query()] == ["a", "b"]
    with pytest.raises(StoreTooNew):
        older.models("exp").insert("c", {})


def test_a_dry_run_counts_and_changes_nothing(again: Store, newer: Newer):
    newer.begin(oldest_writer=NEXT)
    newer.work = lambda store, is_dry_run: 7 if is_dry_run else 0
    before = read_version(again)
    assert [step.changed for step in upgrade(again, is_dry_run=True)] == [7]
    assert read_version(again) == before


def test_an_upgrade_that_was_cut_off_keeps_others_out_and_is_continued(
    again: Store, newer: Newer, place: StoreUnderTest, make_store: Callable[..., Store]
):
    def cut_off(store: Store, is_dry_run: bool) -> int:
        store.models("exp").put("half", {"x": 2})
        raise KeyboardInterrupt

    newer.begin(oldest_writer=NEXT)
    newer.work = cut_off
    with pytest.raises(KeyboardInterrupt):
        list(upgrade(again))
    said = read_version(again)
    assert (said.schema, said.oldest_writer) == (SCHEMA, NEXT)
    newer.end()
    with pytest.raises(StoreTooNew):
        make_store(place).models("exp").insert("c", {})
    newer.begin(oldest_writer=NEXT)
    newer.work = lambda store, is_dry_run: 1
    again.models("exp").insert("c", {})
    assert read_version(again).schema == NEXT


def test_a_new_store_of_a_newer_version_shuts_this_one_out_at_once(
    newer: Newer, place: StoreUnderTest, make_store: Callable[..., Store]
):
    newer.begin(oldest_reader=NEXT, oldest_writer=NEXT)
    unversioned(make_store(place)).version().put(VERSION_KEY, None)
    make_store(place).models("exp").insert("a", {})
    newer.end()
    with pytest.raises(StoreTooNew):
        make_store(place).models("exp").get("a")


KILLED = """
import os, signal, sys
from edgeloop.models import upgrades
from edgeloop.store import location, open_store, parse_location
from edgeloop.store.upgrades import upgrade

steps, last = 0, int(sys.argv[2])
def dies(table, *names):
    for name in names:
        def call(self, *words, real=getattr(table, name), **named):
            global steps
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *words, **named)
        setattr(table, name, call)

from edgeloop.store.sql import SqlTable
dies(SqlTable, "insert", "update", "delete", "insert_many")
list(upgrade(open_store(parse_location(sys.argv[1]))))
"""


def test_an_upgrade_may_be_killed_before_any_of_its_writes_and_repeated(tmp_path: Path):
    from tests.store.older import restore_folder

    wanted = None
    for last in range(1, 20):
        folder = tmp_path / str(last)
        restore_folder("d379839", folder)
        address = f"sqlite:{folder}"
        command = [sys.executable, "-c", KILLED, address, str(last)]
        code = subprocess.run(command, check=False, timeout=60).returncode
        store = open_store(parse_location(address))
        assert read_version(store).schema == (SCHEMA if code == 0 else 0)
        list(upgrade(store))
        hints = {n: sorted(r.key for r in store.queue(n).query()) for n in store.experiments()}
        store.close()
        wanted = wanted or hints
        assert hints == wanted
        if code == 0:
            assert last > 3, "it was killed at several places before"
            return
        assert code == -signal.SIGKILL
    raise AssertionError("it never came to an end")
