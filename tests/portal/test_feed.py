"""The rows in memory follow the store, on every kind of it, also through times when it is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from edgeloop.errors import StoreUnavailable
from edgeloop.models.plan import default_plan
from edgeloop.store import Drift, Record, Store, Table
from edgeloop.testing import MemoryStore
from edgeloop.view.portal import feed as feed_module
from edgeloop.view.portal.feed import NAMED, Feed, Row, read_row
from tests.jobs.waiting import eventually

PLAN = default_plan()


def read(record: Record) -> Row:
    return read_row(record, PLAN, 15.0, 3)


class Away(Table):
    """A table that is away when it is told to be; it counts what is asked of it."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.is_away = False
        self.asked = 0

    def drift(self, known: dict[str, str], mark: str = "") -> Drift:  # type: ignore[override]
        self.asked += 1
        if self.is_away:
            raise StoreUnavailable(store="postgresql://me:s3cr3t@there/db", reason="nobody there")
        return self.table.drift(known, mark)

    get = insert = update = delete = query = None  # type: ignore[assignment]


@pytest.fixture
def start() -> Iterator[Callable[[Table], Feed]]:
    started: list[Feed] = []

    def make(table: Table) -> Feed:
        started.append(Feed(table, read).start())
        return started[-1]

    yield make
    for feed in started:
        feed.stop()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "PAUSE_S", 0.02)
    monkeypatch.setattr(feed_module, "REST", 0.0)


def names(feed: Feed) -> list[str]:
    return list(feed.snapshot.rows)


def test_rows_come_change_and_go_without_anybody_asking(
    store: Store, start: Callable[[Table], Feed], quick: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("edgeloop.store.azure.LIST_EVERY_S", 0.2)
    table = store.models("exp")
    feed = start(table)
    assert feed.wait(30.0).is_loaded
    row = table.insert("b", {"status": "new"})
    table.insert("a", {"status": "new"})
    eventually(lambda: names(feed) == ["a", "b"])
    row = table.update(row, {"status": "complete"})
    eventually(lambda: feed.snapshot.rows["b"].word == "complete")
    table.delete(row)
    eventually(lambda: names(feed) == ["a"])


def test_a_snapshot_that_somebody_holds_does_not_change(
    start: Callable[[Table], Feed], quick: None
):
    table = MemoryStore().models("exp")
    row = table.insert("a", {"status": "new"})
    feed = start(table)
    held = feed.wait(30.0)
    table.update(row, {"status": "complete"})
    eventually(lambda: feed.snapshot is not held)
    assert held.rows["a"].word == "new"
    assert feed.snapshot.generation > held.generation


def test_while_the_store_is_away_the_rows_stay_and_say_so(
    start: Callable[[Table], Feed], quick: None
):
    table = Away(MemoryStore().models("exp"))
    row = table.table.insert("a", {"status": "new"})
    feed = start(table)
    assert feed.wait(30.0).problem == ""
    read_at = feed.read_at
    table.is_away = True
    eventually(lambda: feed.snapshot.problem)
    assert "nobody there" in feed.snapshot.problem
    assert "s3cr3t" not in feed.snapshot.problem
    assert names(feed) == ["a"]
    assert feed.read_at is not None and read_at is not None and feed.read_at >= read_at
    table.table.update(row, {"status": "complete"})
    table.is_away = False
    eventually(lambda: feed.snapshot.problem == "" and feed.snapshot.rows["a"].word == "complete")


def test_a_store_that_stays_away_is_asked_less_and_less(
    start: Callable[[Table], Feed], quick: None, monkeypatch: pytest.MonkeyPatch
):
    pauses: list[float] = []
    table = Away(MemoryStore().models("exp"))
    table.is_away = True
    feed = Feed(table, read)

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 8:
            feed._stopping.set()
        return True

    monkeypatch.setattr(feed._wake, "wait", wait)
    feed._run()
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 32 * pauses[0]
    assert not feed.snapshot.is_loaded


def test_whoever_was_away_for_a_while_is_told_what_was_missed():
    table = MemoryStore().models("exp")
    rows = {name: table.insert(name, {"n": 0}) for name in "abc"}
    feed = Feed(table, read)
    feed.refresh()
    seen = feed.snapshot.generation
    rows["a"] = table.update(rows["a"], {"n": 1})
    feed.refresh()
    table.update(rows["a"], {"n": 2})
    table.delete(rows["b"])
    table.insert("d", {"n": 0})
    feed.refresh()
    change = feed.since(seen)
    assert (change.changed, change.gone, change.is_all) == ({"a", "d"}, {"b"}, False)
    assert feed.since(feed.snapshot.generation).changed == frozenset()


def test_what_is_too_much_to_name_or_too_long_ago_is_all(monkeypatch: pytest.MonkeyPatch):
    table = MemoryStore().models("exp")
    feed = Feed(table, read)
    feed.refresh()
    seen = feed.snapshot.generation
    for number in range(NAMED + 1):
        table.insert(f"row{number}", {})
    feed.refresh()
    assert feed.since(seen).is_all
    assert feed.since(-1).is_all
    assert feed.since(10**9).is_all


def test_an_unchanged_store_makes_no_new_generation():
    table = MemoryStore().models("exp")
    table.insert("a", {})
    feed = Feed(table, read)
    feed.refresh()
    before = feed.snapshot
    feed.refresh()
    assert feed.snapshot is before


@pytest.mark.parametrize(
    "stages",
    [
        "no json",
        "[]",
        '{"f1_1k": 3}',
        '{"f1_1k": {"token": "t", "expires": "soon"}}',
        '{"f1_1k": {"files": [1]}}',
    ],
)
def test_a_row_full_of_nonsense_hides_no_other(stages: str):
    table = MemoryStore().models("exp")
    table.insert("good", {"status": "new"})
    table.insert(
        "odd", {"status": "waiting", "stages": stages, "tags": '{"a": 1}', "priority": "x"}
    )
    feed = Feed(table, read)
    feed.refresh()
    assert set(feed.snapshot.rows) == {"good", "odd"}
    assert feed.snapshot.rows["odd"].tags == ()


def test_what_is_long_is_not_kept_in_memory():
    table = MemoryStore().models("exp")
    table.insert("a", {"arch": "x" * 9_000, "results": "y" * 9_000, "notes": "z" * 90_000})
    feed = Feed(table, read)
    feed.refresh()
    values = feed.snapshot.rows["a"].values
    assert set(values) == {"notes"}
    assert len(str(values["notes"])) < 3_000
