"""What every store promises beyond its tables and its files."""

from __future__ import annotations

import pytest

from edgeloop.errors import RowChanged
from edgeloop.store import Store


class StoreContract:
    """Fixtures: `store`, an empty one, and `reopened`, the same place opened once more."""

    def test_experiments_do_not_see_each_other(self, store: Store) -> None:
        first, second = store.models("first"), store.models("second")
        first.insert("model", {"x": 1})
        record = second.insert("model", {"x": 2})
        second.delete(record)
        assert [r.values for r in first.query()] == [{"x": 1}]
        assert list(second.query()) == []

    def test_the_tables_of_a_store_do_not_see_each_other(self, store: Store) -> None:
        queues = store.queue("one"), store.queue("two")
        others = store.usage(), store.runners(), store.fleets(), store.experiment_settings()
        tables = [store.models("one"), *queues, *others]
        for number, table in enumerate(tables):
            table.insert("key", {"n": number})
        seen = [[row.values["n"] for row in table.query()] for table in tables]
        assert seen == [[number] for number in range(len(tables))]

    def test_its_clock_goes_forward_and_is_the_same_for_all(
        self, store: Store, reopened: Store
    ) -> None:
        first, second = store.now(), reopened.now()
        assert first <= second < first + 60

    def test_experiments_are_listed_by_their_names(self, store: Store) -> None:
        names = ["2024run", "Faces", "aZx2Db", "my-exp_1", "plain"]
        for name in reversed(names):
            store.models(name).insert("model", {})
        store.queue("only-a-queue").insert("hint", {})
        store.usage().insert("use", {})
        store.runners().insert("runner", {})
        store.fleets().insert("fleet", {})
        store.experiment_settings().insert("faces", {})
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

    def test_a_row_and_rows_of_another_table_change_together(self, store: Store) -> None:
        models, queue = store.models("exp"), store.queue("exp")
        record = models.insert("model", {"x": 1})
        queue.insert("old", {"n": 1})
        changed = models.update_with(record, {"x": 2}, queue, {"old": None, "new": {"n": 2}})
        assert models.get("model") == changed
        assert dict(changed.values) == {"x": 2}
        assert {row.key: row.values for row in queue.query()} == {"new": {"n": 2}}
        with pytest.raises(RowChanged):
            models.update_with(record, {"x": 3}, queue, {"new": None})
        assert models.get("model") == changed
        assert [row.key for row in queue.query()] == ["new"]

    def test_what_is_due_comes_in_order_with_the_row_it_is_about(self, store: Store) -> None:
        models, queue = store.models("exp"), store.queue("exp")
        there = models.insert("there", {"x": 1})
        for number in range(300):  # hidden ones at the top
            queue.put(f"a|1|{number:03d}", {"model": "there", "until": 20.0})
        queue.insert("a|2|x", {"model": "there", "until": 10.0})
        queue.insert("a|2|y", {"model": "gone"})
        queue.insert("a|3|z", {"model": "there", "until": 0.0})
        queue.insert("b|1|x", {"model": "there", "until": 0.0})
        due = [(r.key, read()) for r, read in queue.due(10.0, models, "a|", _rank)]
        assert due == [("a|2|x", there), ("a|2|y", None), ("a|3|z", there)]
        assert list(queue.due(10.0, models, "c|", _rank)) == []

    def test_in_a_crowd_one_of_the_best_comes_first_and_none_is_left_out(
        self, store: Store
    ) -> None:
        models, queue = store.models("exp"), store.queue("exp")
        keys = [f"a|{rank}|{number}" for rank in (1, 2) for number in range(8)]
        queue.insert_many((key, {"model": "m", "until": 0.0}) for key in keys)
        first = set()
        for _ in range(30):
            due = [row.key for row, _ in queue.due(1.0, models, "a|", _rank, crowd=12)]
            assert set(due) == set(keys)
            first.add(due[0])
        assert len(first) > 2 and first <= set(keys[:8])

    def test_what_one_writes_another_reads(self, store: Store, reopened: Store) -> None:
        mine, theirs = store.models("exp"), reopened.models("exp")
        record = mine.insert("model", {"x": 1})
        assert theirs.get("model") == record
        theirs.update(record, {"x": 2})
        with pytest.raises(RowChanged):
            mine.update(record, {"x": 3})

    def test_a_sound_store_has_nothing_wrong_and_all_its_rows_can_be_saved(
        self, store: Store
    ) -> None:
        assert not any(store.check()) and not any(store.saved_rows())
        store.models("exp").insert("model", {"x": 1})
        store.queue("exp").insert("hint", {"model": "model"})
        store.usage().insert("use", {"y": 2.5})
        assert list(store.check()) == []
        saved = {table: (row.key, dict(row.values)) for table, row in store.saved_rows()}
        assert saved == {"models/exp": ("model", {"x": 1}), "usage": ("use", {"y": 2.5})}

    def test_a_store_names_itself_in_a_line(self, store: Store) -> None:
        assert store.description
        assert "\n" not in store.description


def _rank(key: str) -> str:
    return key.split("|")[1]
