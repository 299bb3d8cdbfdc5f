"""The tables of every store, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeloop.errors import RowChanged
from edgeloop.store import Store, Table
from edgeloop.testing import MemoryStore
from edgeloop.testing.contracts.table import TableContract
from tests.conftest import StoreUnderTest

if TYPE_CHECKING:
    from tests.peers.azurite import Azurite

MakeStore = Callable[[StoreUnderTest], Store]


class TestModels(TableContract):
    @pytest.fixture
    def table(self, store: Store) -> Table:
        return store.models("contract")


class TestInMemory(TableContract):
    """The store for tests of others' code keeps the same promises."""

    @pytest.fixture
    def table(self) -> Table:
        return MemoryStore().models("contract")


class TestTablesOfAStore:
    def test_experiments_do_not_see_each_other(self, store: Store) -> None:
        first, second = store.models("first"), store.models("second")
        first.insert("model", {"x": 1})
        record = second.insert("model", {"x": 2})
        second.delete(record)
        assert [r.values for r in first.query()] == [{"x": 1}]
        assert list(second.query()) == []

    def test_models_queue_and_usage_do_not_see_each_other(self, store: Store) -> None:
        tables = [store.models("one"), store.queue("one"), store.queue("two"), store.usage()]
        for number, table in enumerate(tables):
            table.insert("key", {"n": number})
        assert [[r.values["n"] for r in t.query()] for t in tables] == [[0], [1], [2], [3]]

    def test_experiments_are_listed_by_their_names(self, store: Store) -> None:
        names = ["2024run", "Faces", "aZx2Db", "my-exp_1", "plain"]
        for name in reversed(names):
            store.models(name).insert("model", {})
        store.queue("only-a-queue").insert("hint", {})
        store.usage().insert("use", {})
        assert store.experiments() == names

    def test_a_new_store_holds_nothing(self, store: Store) -> None:
        assert store.experiments() == []
        assert store.models("exp").get("model") is None
        assert list(store.models("exp").query("m")) == []
        assert list(store.queue("exp").query()) == []
        assert list(store.usage().query()) == []

    def test_reading_makes_no_experiment(self, store: Store) -> None:
        store.models("exp").get("model")
        list(store.models("exp").query())
        assert store.experiments() == []

    def test_reading_makes_no_folder(
        self, make_place: Callable[[str], StoreUnderTest], make_store: MakeStore
    ) -> None:
        place = make_place("sqlite")
        store = make_store(place)
        store.models("exp").get("model")
        list(store.models("exp").query())
        store.experiments()
        list(store.blobs.list(""))
        store.blobs.delete(["a/b"])
        assert not Path(store.description).exists()

    def test_a_table_that_is_not_there_yet_has_no_row_to_change(self, store: Store) -> None:
        record = store.models("written").insert("model", {"x": 1})
        never = store.models("never")
        with pytest.raises(RowChanged):
            never.update(record, {"x": 2})
        with pytest.raises(RowChanged):
            never.update(record, {"x": None})
        never.delete(record)
        assert never.get("model") is None

    def test_insert_many_may_be_the_first_to_write(self, store: Store) -> None:
        store.models("exp").insert_many([("a", {"x": 1}), ("b", {"x": 2})])
        assert [r.key for r in store.models("exp").query()] == ["a", "b"]

    def test_what_one_writes_another_reads(
        self, place: StoreUnderTest, make_store: MakeStore
    ) -> None:
        mine, theirs = make_store(place).models("exp"), make_store(place).models("exp")
        record = mine.insert("model", {"x": 1})
        assert theirs.get("model") == record
        theirs.update(record, {"x": 2})
        with pytest.raises(RowChanged):
            mine.update(record, {"x": 3})

    def test_a_store_describes_itself_without_secrets(
        self, place: StoreUnderTest, store: Store
    ) -> None:
        assert "Key" not in store.description
        assert store.description.split("//")[-1] in place.url


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
    monkeypatch.setattr("edgeloop.store.azure.drift.LIST_EVERY_S", -1.0)
    assert list(table.drift(known, drift.mark).gone) == ["b"]
