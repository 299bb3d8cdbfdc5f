"""The tables of every store, on real servers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeloop.errors import EdgeloopError
from edgeloop.store import Store, Table
from edgeloop.store.location import unversioned
from edgeloop.store.sql import SqlStore
from edgeloop.testing import MemoryStore
from edgeloop.testing.contracts.store import StoreContract
from edgeloop.testing.contracts.table import TableContract
from tests.conftest import StoreUnderTest

if TYPE_CHECKING:
    from tests.peers.azurite import Azurite

MakeStore = Callable[[StoreUnderTest], Store]
REFUSING = """
CREATE TRIGGER refusing BEFORE INSERT ON edgeloop_rows WHEN NEW.key = 'refused'
BEGIN SELECT RAISE(ABORT, 'refused by a test'); END
"""


class TestModels(TableContract):
    @pytest.fixture
    def table(self, store: Store) -> Table:
        return store.models("contract")


class TestInMemory(TableContract):
    """The store for tests of others' code keeps the same promises."""

    @pytest.fixture
    def table(self) -> Table:
        return MemoryStore().models("contract")


class TestTablesOfAStore(StoreContract):
    @pytest.fixture
    def reopened(self, place: StoreUnderTest, make_store: MakeStore) -> Store:
        return make_store(place)

    def test_reading_makes_no_folder(
        self, make_place: Callable[[str], StoreUnderTest], make_store: MakeStore
    ) -> None:
        place = make_place("sqlite")
        shutil.rmtree(place.url.removeprefix("sqlite:"))
        store = make_store(place)
        store.models("exp").get("model")
        list(store.models("exp").query())
        store.experiments()
        list(store.blobs.list(""))
        store.blobs.delete(["a/b"])
        assert not Path(store.description).exists()

    def test_a_store_describes_itself_without_secrets(
        self, place: StoreUnderTest, store: Store
    ) -> None:
        assert "Key" not in store.description
        assert store.description.split("//")[-1] in place.url

    def test_an_update_with_rows_of_another_table_touches_no_third_one(self, store: Store) -> None:
        for experiment in ("mine", "theirs"):
            store.queue(experiment).insert("1|a", {"model": "a"})
        row = store.models("mine").insert("a", {"n": 1})
        hints = store.queue("mine")
        row = store.models("mine").update_with(row, {"n": 2}, hints, {"1|a": None})
        assert row.values == {"n": 2} and hints.get("1|a") is None
        store.models("mine").update_with(row, {"n": 3}, hints, {"1|a": {"model": "b"}})
        found, theirs = hints.get("1|a"), store.queue("theirs").get("1|a")
        assert found is not None and found.values == {"model": "b"}
        assert theirs is not None and theirs.values == {"model": "a"}


class TestTransactionsOfSqlite:
    @pytest.fixture
    def store(self, make_place: Callable[[str], StoreUnderTest], make_store: MakeStore) -> SqlStore:
        store = unversioned(make_store(make_place("sqlite")))
        assert isinstance(store, SqlStore)
        return store

    def test_a_transaction_that_fails_half_way_changes_nothing(self, store: SqlStore) -> None:
        row = store.models("exp").insert("a", {"n": 1})
        hint = store.queue("exp").insert("1|a", {"model": "a"})
        store._database.run(lambda connection: connection.execute(REFUSING))
        rows = {"1|a": None, "refused": {"model": "a"}}
        with pytest.raises(EdgeloopError):
            store.models("exp").update_with(row, {"n": 2}, store.queue("exp"), rows)
        with pytest.raises(EdgeloopError):
            store.models("exp").insert_many([("b", {"n": 1}), ("refused", {"n": 1})])
        assert list(store.models("exp").query()) == [row]
        assert list(store.queue("exp").query()) == [hint]

    def test_what_was_reported_as_stored_is_on_the_disk(self, store: SqlStore) -> None:
        store.models("exp").insert("a", {"n": 1})
        query = "PRAGMA synchronous"
        [(level,)] = store._database.run(lambda connection: connection.execute(query).fetchall())
        assert level >= 2, "below FULL, a power cut may undo commits in write-ahead mode"


class TestDriftOfDatabases:
    """A database can say at once, and for next to nothing, that nothing happened."""

    @pytest.fixture(params=["sqlite", "postgresql"])
    def place(
        self, request: pytest.FixtureRequest, make_place: Callable[[str], StoreUnderTest]
    ) -> StoreUnderTest:
        return make_place(request.param)

    def test_a_mark_stays_while_nothing_happens(self, store: Store) -> None:
        table = store.models("exp")
        row = table.insert("a", {"n": 1})
        drift = table.drift({"a": row.version})
        assert drift.mark
        assert table.drift({"a": row.version}, drift.mark).mark == drift.mark
        # With an equal mark the versions are not even looked at.
        assert list(table.drift({}, drift.mark).changed) == []

    def test_what_others_write_and_delete_is_told_in_spite_of_the_mark(
        self, place: StoreUnderTest, make_store: MakeStore
    ) -> None:
        mine, theirs = make_store(place).models("exp"), make_store(place).models("exp")
        rows = [theirs.insert(key, {"n": 1}) for key in "ab"]
        drift = mine.drift({})
        known = {row.key: row.version for row in drift.changed}
        changed = theirs.update(rows[0], {"n": 2})
        theirs.delete(rows[1])
        after = mine.drift(known, drift.mark)
        assert (list(after.changed), list(after.gone)) == ([changed], ["b"])

    def test_a_database_put_back_from_a_copy_is_not_taken_for_the_old_one(
        self, make_place: Callable[[str], StoreUnderTest], make_store: MakeStore
    ) -> None:
        place = make_place("sqlite")
        table = make_store(place).models("exp")
        table.insert("a", {"n": 1})
        mark = table.drift({}).mark
        file = Path(place.url.removeprefix("sqlite:")) / "store.db"
        copy = file.with_name("copy.db")
        copy.write_bytes(file.read_bytes())
        copy.replace(file)
        assert table.drift({}, mark).mark != mark


def test_azure_lists_its_keys_now_and_then_so_that_deletes_are_seen(
    azurite: Azurite,
    make_place: Callable[[str], StoreUnderTest],
    make_store: MakeStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_store(make_place("azure")).models("exp")
    rows = [table.insert(key, {"n": 1}) for key in "ab"]
    known = {row.key: row.version for row in rows}
    drift = table.drift(known)
    table.delete(rows[1])
    assert list(table.drift(known, drift.mark).gone) == []
    monkeypatch.setattr("edgeloop.store.azure.LIST_EVERY_S", -1.0)
    assert list(table.drift(known, drift.mark).gone) == ["b"]
