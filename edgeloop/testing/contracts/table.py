"""What every table promises: typed values, compare-and-set, ordered queries, and drift."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from edgeloop.errors import RowChanged, RowExists
from edgeloop.store import Condition, Record, Table, Value, Values
from edgeloop.testing.contracts.rows import RowContract, keys, read

THREADS = 8
BYTE_ORDER = ["B", "a", "a b", "a-b", "a_b", "ab", "é", "你"]


class TableContract(RowContract):
    """Fixture: `table`, an empty one."""

    # Inserting and reading

    def test_a_row_that_is_not_there_reads_as_none(self, table: Table) -> None:
        assert table.get("nobody") is None
        table.insert("somebody", {})
        assert table.get("nobody") is None

    def test_what_insert_returns_is_what_get_reads(self, table: Table) -> None:
        record = table.insert("row", {"x": 1})
        assert table.get("row") == record
        assert list(table.query()) == [record]

    def test_a_second_insert_is_refused_and_changes_nothing(self, table: Table) -> None:
        first = table.insert("row", {"x": 1})
        with pytest.raises(RowExists, match="row"):
            table.insert("row", {"x": 2})
        assert table.get("row") == first

    def test_keys_differ_by_case(self, table: Table) -> None:
        table.insert("Model", {"n": 1})
        table.insert("model", {"n": 2})
        assert read(table, "Model") == {"n": 1}

    def test_insert_many_leaves_existing_rows_as_they_are(self, table: Table) -> None:
        first = table.insert("b", {"x": "first"})
        table.insert_many([(key, {"x": "many"}) for key in ("a", "b", "c")])
        assert table.get("b") == first
        assert {r.key: r.values["x"] for r in table.query()} == {
            "a": "many",
            "b": "first",
            "c": "many",
        }

    def test_insert_many_of_one_key_twice_keeps_the_first(self, table: Table) -> None:
        table.insert_many([("a", {"x": 1}), ("a", {"x": 2}), ("b", {"x": 3})])
        assert {r.key: r.values["x"] for r in table.query()} == {"a": 1, "b": 3}

    def test_rows_of_a_priority_are_found_unless_finished(self, table: Table) -> None:
        given = {"none": None, "zero": 0, "five": 5, "half": 4.5, "text": " 3 ", "high": 700}
        rows = {
            key: {"status": "new"} if priority is None else {"status": "new", "priority": priority}
            for key, priority in given.items()
        }
        table.insert_many(rows.items())
        table.insert("done", {"status": "complete", "priority": 0})
        table.insert("up", {"status": "uploading", "priority": 0})
        found = {row.key for row in table.prioritized(5.0, ("complete", "uploading"))}
        assert {"zero", "half", "text"} <= found
        assert not found & {"none", "done", "up"}

    def test_due_leaves_out_what_is_hidden_and_keeps_the_order(self, table: Table) -> None:
        """More are hidden than a page holds, and what is open lies behind them too."""
        hidden = {f"do|1|{n:04d}": 2_000.5 for n in range(300)}
        others = {"do|0|a": 0.0, "done|1|b": 0.0, "do|2|b": 1_000.0, "do|2|c": 1_000.5}
        table.insert_many((key, {"until": until}) for key, until in {**hidden, **others}.items())

        def due(now: float, crowd: int = 1) -> list[str]:
            found = table.due(now, table, "do|", lambda key: key.split("|")[1], crowd)
            return [record.key for record, _ in found]

        assert due(1_000.0) == ["do|0|a", "do|2|b"]
        assert due(1_000.5) == ["do|0|a", "do|2|b", "do|2|c"]
        assert sorted(set(due(1_000.5, crowd=4))) == ["do|0|a", "do|2|b", "do|2|c"]
        assert due(3_000.0) == ["do|0|a", *hidden, "do|2|b", "do|2|c"]

    def test_marked_keeps_rows_whose_column_is_true(self, table: Table) -> None:
        rows: dict[str, Values] = {
            "do|a": {"queued": True, "n": 1},
            "do|b": {"queued": False},
            "do|c": {"n": 1},
            "do|d": {"queued": True},
            "done|e": {"queued": True},
        }
        table.insert_many(rows.items())
        assert [row.key for row in table.marked("do|", "queued")] == ["do|a", "do|d"]
        assert list(table.marked("none|", "queued")) == []

    def test_insert_many_of_nothing_does_nothing(self, table: Table) -> None:
        table.insert_many([])
        assert keys(table) == []

    def test_insert_many_takes_long_texts(self, table: Table) -> None:
        rows = [(f"row{n:02d}", {"text": f"{n}" * 60_000}) for n in range(10, 90)]
        table.insert_many(iter(rows))
        assert [(r.key, r.values) for r in table.query()] == rows

    # Compare and set

    def test_an_update_gives_the_row_a_new_version(self, table: Table) -> None:
        first = table.insert("row", {"x": 1})
        second = table.update(first, {"x": 2})
        assert second.version != first.version
        assert table.get("row") == second

    def test_an_update_that_changes_nothing_gives_a_new_version_too(self, table: Table) -> None:
        first = table.insert("row", {"x": 1})
        second = table.update(first, {})
        third = table.update(second, {"x": 1})
        assert len({first.version, second.version, third.version}) == 3
        assert table.get("row") == third

    def test_a_stale_update_is_refused_and_changes_nothing(self, table: Table) -> None:
        stale = table.insert("row", {"x": 1})
        current = table.update(stale, {"x": 2})
        with pytest.raises(RowChanged, match="row"):
            table.update(stale, {"x": 3})
        assert table.get("row") == current

    def test_a_stale_removal_of_a_column_is_refused(self, table: Table) -> None:
        stale = table.insert("row", {"x": 1})
        current = table.update(stale, {"x": 2})
        with pytest.raises(RowChanged):
            table.update(stale, {"x": None})
        assert table.get("row") == current

    def test_an_update_of_a_deleted_row_is_refused(self, table: Table) -> None:
        record = table.insert("row", {"x": 1})
        table.delete(record)
        for changes in ({"x": 2}, {"x": None}):
            with pytest.raises(RowChanged):
                table.update(record, changes)
        assert table.get("row") is None

    def test_a_row_made_anew_is_not_the_old_one(self, table: Table) -> None:
        old = table.insert("row", {"x": 1})
        table.delete(old)
        new = table.insert("row", {"x": 1})
        assert new.version != old.version
        with pytest.raises(RowChanged):
            table.update(old, {"x": 2})
        with pytest.raises(RowChanged):
            table.delete(old)
        assert table.get("row") == new

    def test_a_stale_delete_is_refused(self, table: Table) -> None:
        stale = table.insert("row", {"x": 1})
        current = table.update(stale, {"x": 2})
        with pytest.raises(RowChanged):
            table.delete(stale)
        assert table.get("row") == current

    def test_deleting_a_row_that_is_gone_is_fine(self, table: Table) -> None:
        record = table.insert("row", {})
        table.delete(record)
        table.delete(record)
        assert table.get("row") is None

    def test_none_removes_a_column_and_the_others_stay(self, table: Table) -> None:
        record = table.insert("row", {"x": 1, "y": "two", "z": 3.0})
        record = table.update(record, {"y": None})
        assert dict(record.values) == {"x": 1, "z": 3.0}
        assert read(table, "row") == {"x": 1, "z": 3.0}

    def test_none_for_a_column_that_is_not_there_is_fine(self, table: Table) -> None:
        record = table.insert("row", {"x": 1})
        table.update(record, {"nothing": None})
        assert read(table, "row") == {"x": 1}

    def test_an_update_may_add_change_and_remove_at_once(self, table: Table) -> None:
        record = table.insert("row", {"stays": 1, "changes": 1, "goes": 1})
        table.update(record, {"changes": 2, "goes": None, "comes": 3})
        assert read(table, "row") == {"stays": 1, "changes": 2, "comes": 3}

    def test_a_chain_of_updates_needs_no_reading_in_between(self, table: Table) -> None:
        record = table.insert("row", {"n": 0})
        for number in range(1, 6):
            record = table.update(record, {"n": number, f"step{number}": True})
        assert table.get("row") == record

    def test_put_writes_the_whole_row_or_removes_it(self, table: Table) -> None:
        table.put("row", {"x": 1, "y": 2})
        assert read(table, "row") == {"x": 1, "y": 2}
        table.put("row", {"y": 3})
        assert read(table, "row") == {"y": 3}
        table.put("row", None)
        assert table.get("row") is None
        table.put("row", None)

    # Many at once

    def test_eight_threads_lose_no_increment(self, table: Table) -> None:
        table.insert("counter", {"n": 0})
        each = 15

        def increment_often() -> None:
            done = 0
            while done < each:
                record = table.get("counter")
                assert record is not None
                try:
                    table.update(record, {"n": int(record.values["n"]) + 1})
                    done += 1
                except RowChanged:
                    continue

        with ThreadPoolExecutor(THREADS) as pool:
            for future in [pool.submit(increment_often) for _ in range(THREADS)]:
                future.result()
        assert read(table, "counter") == {"n": THREADS * each}

    def test_of_eight_inserts_of_one_key_one_wins(self, table: Table) -> None:
        """The table's very first row, so that making the table is raced for as well."""
        together = Barrier(THREADS)

        def insert(number: int) -> int | None:
            together.wait()
            try:
                table.insert("row", {"winner": number})
            except RowExists:
                return None
            return number

        with ThreadPoolExecutor(THREADS) as pool:
            winners = [n for n in pool.map(insert, range(THREADS)) if n is not None]
        assert len(winners) == 1
        assert read(table, "row") == {"winner": winners[0]}

    def test_of_eight_updates_of_one_version_one_wins(self, table: Table) -> None:
        record = table.insert("row", {"long": "x" * 40_000})
        together = Barrier(THREADS)

        def update(number: int) -> int | None:
            together.wait()
            try:
                table.update(record, {"winner": number, "long": None})
            except RowChanged:
                return None
            return number

        with ThreadPoolExecutor(THREADS) as pool:
            winners = [n for n in pool.map(update, range(THREADS)) if n is not None]
        assert len(winners) == 1
        assert read(table, "row") == {"winner": winners[0]}

    # Queries

    def test_rows_come_in_the_order_of_their_bytes(self, table: Table) -> None:
        for key in reversed(BYTE_ORDER):
            table.insert(key, {})
        assert keys(table) == BYTE_ORDER

    def test_a_prefix_keeps_the_keys_that_start_with_it(self, table: Table) -> None:
        table.insert_many(
            [(key, {}) for key in ("a", "a-b", "a_b", "a|1", "a|2", "ab", "b", "A|3")]
        )
        assert keys(table, "a|") == ["a|1", "a|2"]
        assert keys(table, "a") == ["a", "a-b", "a_b", "ab", "a|1", "a|2"]
        assert keys(table, "c") == []

    @pytest.mark.parametrize("prefix", ["it's", "50%", "a_", "你", "🚀", 'q"', "~"])
    def test_a_prefix_is_text_and_no_pattern(self, table: Table, prefix: str) -> None:
        wanted = [f"{prefix}1", f"{prefix}2"]
        table.insert_many([(key, {}) for key in (*wanted, "50x", "Axx", "zzz", "itss")])
        assert keys(table, prefix) == wanted

    def test_after_leaves_out_the_key_itself_and_all_before(self, table: Table) -> None:
        table.insert_many([(key, {}) for key in "abcd"])
        assert keys(table, after="b") == ["c", "d"]
        assert keys(table, after="bb") == ["c", "d"]
        assert keys(table, after="d") == []

    def test_after_and_prefix_hold_together(self, table: Table) -> None:
        table.insert_many([(key, {}) for key in ("a1", "a2", "a3", "b1")])
        assert keys(table, "a", after="a1") == ["a2", "a3"]
        assert keys(table, "b", after="a2") == ["b1"]
        assert keys(table, "a", after="b") == []

    def test_a_limit_keeps_the_first_rows(self, table: Table) -> None:
        table.insert_many([(key, {}) for key in "abcd"])
        assert keys(table, limit=2) == ["a", "b"]
        assert keys(table, limit=9) == ["a", "b", "c", "d"]
        assert keys(table, limit=0) == []

    def test_conditions_compare_texts(self, table: Table) -> None:
        rows = {"a": "ready", "b": "done", "c": "ready", "d": "it's"}
        table.insert_many([(key, {"state": state}) for key, state in rows.items()])
        table.insert("e", {"other": "ready"})
        assert keys(table, where=[Condition("state", "==", "ready")]) == ["a", "c"]
        assert keys(table, where=[Condition("state", "==", "it's")]) == ["d"]
        assert keys(table, where=[Condition("state", "==", "READY")]) == []

    def test_a_row_without_the_column_neither_equals_nor_differs(self, table: Table) -> None:
        table.insert("a", {"state": "ready"})
        table.insert("b", {"state": "done"})
        table.insert("c", {"other": "ready"})
        assert keys(table, where=[Condition("state", "!=", "ready")]) == ["b"]
        assert keys(table, where=[Condition("nowhere", "!=", "ready")]) == []
        assert keys(table, where=[Condition("nowhere", "==", "ready")]) == []

    def test_a_removed_column_is_not_found_by_a_condition(self, table: Table) -> None:
        record = table.insert("a", {"state": "ready"})
        table.update(record, {"state": None})
        assert keys(table, where=[Condition("state", "==", "ready")]) == []
        assert keys(table, where=[Condition("state", "!=", "done")]) == []

    def test_conditions_prefix_after_and_limit_hold_together(self, table: Table) -> None:
        rows = [
            (f"{group}{n}", {"s": "x" if n % 2 else "y", "t": "z"})
            for group in "ab"
            for n in range(6)
        ]
        table.insert_many(rows)
        where = [Condition("s", "==", "x"), Condition("t", "!=", "other")]
        assert keys(table, "a", after="a1", where=where) == ["a3", "a5"]
        assert keys(table, "b", where=where, limit=2) == ["b1", "b3"]

    def test_only_the_columns_asked_for_are_read(self, table: Table) -> None:
        values: dict[str, Value] = {
            "whole": 2**40,
            "float": 1e22,
            "nan": math.inf,
            "yes": True,
            "text": "é 🚀 \\u00e9",
            "long": "a🚀" * 40_000,
        }
        table.insert("a", {**values, "other": "x" * 1_000, "status": "new"})
        table.insert("b", {"status": "new"})
        table.insert("c", {"status": "old", "whole": 1})
        where = [Condition("status", "==", "new")]
        rows = list(table.query(where=where, columns=[*values, "missing"]))
        assert [(row.key, row.values) for row in rows] == [("a", values), ("b", {})]
        assert {name: type(v) for name, v in rows[0].values.items()} == {
            name: type(v) for name, v in values.items()
        }
        assert [dict(r.values) for r in table.query(columns=["whole"], limit=1)] == [
            {"whole": 2**40}
        ]
        assert [r.values for r in table.query("c", columns=[])] == [{}]

    def test_a_row_read_in_part_cannot_be_written_back(self, table: Table) -> None:
        table.insert("a", {"x": 1, "y": 2})
        [row] = table.query(columns=["x"])
        with pytest.raises(RowChanged):
            table.update(row, {"x": 3})
        with pytest.raises(RowChanged):
            table.delete(row)
        assert read(table, "a") == {"x": 1, "y": 2}

    def test_thousands_of_rows_come_whole_and_in_order(self, table: Table) -> None:
        """More than a page of any store: 1,000 rows on Azure, 5,000 in SQL."""
        names = [f"row{number:05d}" for number in range(5_100)]
        table.insert_many((name, {"odd": str(int(name[-1]) % 2)}) for name in names)
        assert keys(table) == names
        assert keys(table, "row0", limit=1_500) == names[:1_500]
        assert keys(table, after="row01234", limit=1_100) == names[1_235:2_335]
        assert keys(table, where=[Condition("odd", "==", "1")]) == names[1::2]

    def test_rows_may_be_deleted_while_they_are_listed(self, table: Table) -> None:
        table.insert_many((f"{number:04d}", {}) for number in range(1_050))
        seen = 0
        for record in table.query():
            seen += 1
            if seen % 10 == 0:
                table.delete(record)
        assert seen == 1_050
        assert len(keys(table)) == 945

    # What changed since

    def test_a_reader_without_versions_gets_every_row(self, table: Table) -> None:
        assert list(table.drift({}).changed) == []
        rows = [table.insert(key, {"n": number}) for number, key in enumerate("abc")]
        drift = table.drift({})
        assert (sorted(drift.changed, key=by_key), list(drift.gone)) == (rows, [])

    def test_only_what_is_new_or_changed_is_told(self, table: Table) -> None:
        known, mark = caught_up(table, [table.insert(key, {"n": 1}) for key in "abc"])
        record = table.get("b")
        assert record is not None
        changed = [table.update(record, {"n": 2}), table.insert("d", {"n": 1})]
        drift = table.drift(known, mark)
        assert (sorted(drift.changed, key=by_key), list(drift.gone)) == (changed, [])

    def test_nothing_is_told_twice_and_nothing_is_missed(self, table: Table) -> None:
        known, mark = caught_up(table, [table.insert("a", {"n": 0})])
        for number in range(1, 6):
            assert list(table.drift(known, mark).changed) == []
            record = table.get("a")
            assert record is not None
            table.update(record, {"n": number})
            drift = table.drift(known, mark)
            [changed] = drift.changed
            assert changed.values == {"n": number}
            known, mark = {"a": changed.version}, drift.mark

    def test_a_row_that_is_gone_is_told_without_a_mark(self, table: Table) -> None:
        known, _ = caught_up(table, [table.insert(key, {"n": 1}) for key in "abc"])
        record = table.get("b")
        assert record is not None
        table.delete(record)
        drift = table.drift(known)
        assert (list(drift.changed), list(drift.gone)) == ([], ["b"])

    def test_a_row_made_anew_counts_as_changed(self, table: Table) -> None:
        row = table.insert("a", {"n": 1})
        known, mark = caught_up(table, [row])
        table.delete(row)
        again = table.insert("a", {"n": 1})
        drift = table.drift(known, mark)
        assert (list(drift.changed), list(drift.gone)) == ([again], [])

    def test_many_changes_at_once_are_all_told(self, table: Table) -> None:
        known, mark = caught_up(table, [table.insert("a", {"n": 1})])
        table.insert_many((f"row{number:04d}", {"n": number}) for number in range(1_200))
        assert len(list(table.drift(known, mark).changed)) == 1_200
        some = {row.key: row.version for row in table.query("row0")}
        assert len(list(table.drift({**known, **some}).changed)) == 200


def by_key(record: Record) -> str:
    return record.key


def caught_up(table: Table, rows: list[Record]) -> tuple[dict[str, str], str]:
    """What one knows after all of these were told, and the mark for the next question."""
    drift = table.drift({})
    assert sorted(drift.changed, key=by_key) == rows
    return {row.key: row.version for row in rows}, drift.mark
