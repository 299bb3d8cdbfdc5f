"""What every table promises: typed values, compare-and-set, ordered queries, and drift."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from edgeloop.errors import BadInput, RowChanged, RowExists, RowTooLarge
from edgeloop.store import Condition, Record, Store, Table, Value

LARGEST_INT = 2**63 - 1
THREADS = 8
TEXTS = {
    "empty": "",
    "spaces": "  leading, trailing and\ttabbed  ",
    "lines": "first\nsecond\r\nthird",
    "quotes": """it's "quoted" and `ticked` and ''doubled'' \\ back""",
    "unicode": "Grüße, 你好, שלום, e\u0301",
    "emoji": "🚀👩‍🔬🇪🇺",
    "looks_like_json": '{"float": "nan"}',
    "looks_like_a_number": "0012.50",
    "looks_like_a_date": "2026-01-31T12:00:00Z",
    "control": "\x01\x1f\x7f",
}
BYTE_ORDER = ["B", "a", "a b", "a-b", "a_b", "ab", "é", "你"]
ODD_KEYS = [
    "with space",
    "a|b|c",
    "it's",
    'say "hi"',
    "50%",
    "a+b&c=d",
    "你好",
    "🚀",
    "x;y,z",
    "(1)",
    "@n",
    "%27",
]
LONG_TEXTS = {
    "31,000 letters": "a" * 31_000,
    "33,000 letters": "b" * 33_000,
    "200,000 letters": "c" * 200_000,
    "31,000 emoji": "🚀" * 31_000,
    "33,000 letters and emoji": "x🚀é" * 11_000,
    "200,000 characters and emoji": "ab🚀é你" * 40_000,
    "lines": "a line of a log\n" * 10_000,
}


def keys(table: Table, *args: Any, **options: Any) -> list[str]:
    return [record.key for record in table.query(*args, **options)]


def read(table: Table, key: str) -> dict[str, Value]:
    record = table.get(key)
    assert record is not None
    return dict(record.values)


class TableContract:
    """Fixture: `table`, an empty one."""

    # What a row holds

    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
    def test_a_text_comes_back_as_it_was(self, table: Table, text: str) -> None:
        table.insert("row", {"text": text})
        assert read(table, "row") == {"text": text}

    @pytest.mark.parametrize(
        "number",
        [0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**53 + 1, LARGEST_INT, -LARGEST_INT],
    )
    def test_a_whole_number_stays_a_whole_number(self, table: Table, number: int) -> None:
        table.insert("row", {"number": number})
        assert read(table, "row") == {"number": number}
        assert type(read(table, "row")["number"]) is int

    @pytest.mark.parametrize(
        "number", [0.0, 1.0, -1.0, 0.1, 1e22, 1e-300, 1.7976931348623157e308, 5e-324, 123456789.0]
    )
    def test_a_float_stays_a_float(self, table: Table, number: float) -> None:
        table.insert("row", {"number": number})
        assert read(table, "row") == {"number": number}
        assert type(read(table, "row")["number"]) is float

    def test_infinities_and_nan_are_kept(self, table: Table) -> None:
        table.insert("row", {"up": math.inf, "down": -math.inf, "nan": math.nan})
        values = read(table, "row")
        assert (values["up"], values["down"]) == (math.inf, -math.inf)
        assert isinstance(values["nan"], float)
        assert math.isnan(values["nan"])

    def test_truth_values_stay_truth_values(self, table: Table) -> None:
        table.insert("row", {"yes": True, "no": False})
        assert read(table, "row")["yes"] is True
        assert read(table, "row")["no"] is False

    def test_types_survive_an_update_of_another_column(self, table: Table) -> None:
        values: dict[str, Value] = {
            "i": 7,
            "wide": 2**40,
            "f": 7.0,
            "b": True,
            "t": "7",
            "inf": math.inf,
        }
        record = table.insert("row", values)
        record = table.update(record, {"other": 1})
        table.update(record, {"other": None})
        after = read(table, "row")
        assert after == values
        assert {name: type(v) for name, v in after.items()} == {
            name: type(v) for name, v in values.items()
        }

    def test_a_column_may_change_its_type(self, table: Table) -> None:
        record = table.insert("row", {"x": "one"})
        for value in (1, 1.0, True, 2**40, "two"):
            record = table.update(record, {"x": value})
            assert read(table, "row") == {"x": value}
            assert type(read(table, "row")["x"]) is type(value)

    def test_a_row_may_have_no_columns(self, table: Table) -> None:
        table.insert("row", {})
        assert read(table, "row") == {}

    def test_a_row_may_have_two_hundred_columns(self, table: Table) -> None:
        values: dict[str, Value] = {f"column_{n}": n for n in range(200)}
        table.insert("row", values)
        assert read(table, "row") == values

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_a_key_may_hold_odd_characters(self, table: Table, key: str) -> None:
        record = table.insert(key, {"n": 1})
        record = table.update(record, {"n": 2})
        assert table.get(key) == record
        assert keys(table) == [key]
        assert keys(table, key) == [key]
        table.delete(record)
        assert table.get(key) is None

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

    # Long texts and large rows

    @pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS.keys())
    def test_a_long_text_comes_back_as_it_was(self, table: Table, text: str) -> None:
        table.insert("row", {"log": text, "n": 1})
        assert read(table, "row") == {"log": text, "n": 1}
        assert [dict(record.values) for record in table.query()] == [{"log": text, "n": 1}]

    def test_a_text_may_grow_and_shrink(self, table: Table) -> None:
        record = table.insert("row", {"log": "short", "stays": 2**40})
        for length in (200_000, 70_000, 31_000, 33_000, 130_000, 0, 64_000, 5):
            record = table.update(record, {"log": "é" * length})
            assert read(table, "row") == {"log": "é" * length, "stays": 2**40}
            assert table.get("row") == record

    def test_a_long_text_may_be_removed(self, table: Table) -> None:
        record = table.insert("row", {"log": "x" * 200_000, "stays": "y" * 100_000})
        table.update(record, {"log": None})
        assert read(table, "row") == {"stays": "y" * 100_000}

    def test_a_long_text_stays_when_others_change(self, table: Table) -> None:
        record = table.insert("row", {"log": "x" * 200_000, "n": 1})
        record = table.update(record, {"n": 2})
        record = table.update(record, {"n": None, "log2": "z" * 50_000})
        assert read(table, "row") == {"log": "x" * 200_000, "log2": "z" * 50_000}

    def test_a_long_text_may_become_a_number_and_back(self, table: Table) -> None:
        record = table.insert("row", {"x": "x" * 100_000})
        record = table.update(record, {"x": 1})
        assert read(table, "row") == {"x": 1}
        table.update(record, {"x": "y" * 100_000})
        assert read(table, "row") == {"x": "y" * 100_000}

    def test_a_row_of_nearly_a_megabyte_fits(self, table: Table) -> None:
        text = "0123456789" * 90_000
        record = table.insert("row", {"log": text})
        table.update(record, {"n": 1})
        assert read(table, "row") == {"log": text, "n": 1}

    def test_a_row_of_many_middling_texts_fits_everywhere_or_nowhere(self, table: Table) -> None:
        """Azure counts two bytes a letter for texts that it holds as texts."""
        with pytest.raises(RowTooLarge):
            table.insert("row", {f"text{number}": "x" * 30_000 for number in range(20)})
        assert table.get("row") is None

    def test_a_row_over_a_megabyte_is_refused_and_not_stored(self, table: Table) -> None:
        with pytest.raises(RowTooLarge, match=r"'row' does not fit: 1,\d\d\d,\d\d\d bytes"):
            table.insert("row", {"log": "x" * 1_100_000})
        assert table.get("row") is None
        assert keys(table) == []

    def test_a_row_may_not_grow_over_a_megabyte(self, table: Table) -> None:
        record = table.insert("row", {"first": "x" * 600_000})
        with pytest.raises(RowTooLarge):
            table.update(record, {"second": "y" * 600_000})
        assert table.get("row") == record

    # What is refused

    def test_a_nul_character_is_refused(self, table: Table) -> None:
        with pytest.raises(BadInput, match="NUL"):
            table.insert("row", {"text": "a\x00b"})
        record = table.insert("row", {"text": "fine"})
        with pytest.raises(BadInput, match="NUL"):
            table.update(record, {"text": "a\x00b"})
        assert table.get("row") == record

    def test_half_a_character_is_refused(self, table: Table) -> None:
        """Such texts come from file names in no known encoding."""
        with pytest.raises(BadInput):
            table.insert("row", {"text": "half \ud83d of a rocket"})
        assert table.get("row") is None

    @pytest.mark.parametrize("number", [2**63, -(2**63), 2**64, -(10**30)])
    def test_a_number_over_64_bits_is_refused(self, table: Table, number: int) -> None:
        with pytest.raises(BadInput, match="64 bits"):
            table.insert("row", {"number": number})
        assert table.get("row") is None

    @pytest.mark.parametrize("column", ["", "with space", "1st", "a.b", "a-b", "it's", 'q"', "a\n"])
    def test_a_column_must_have_a_plain_name(self, table: Table, column: str) -> None:
        with pytest.raises(BadInput, match="column"):
            table.insert("row", {column: 1})
        record = table.insert("row", {"fine": 1})
        with pytest.raises(BadInput, match="column"):
            table.update(record, {column: 1})
        assert table.get("row") == record

    @pytest.mark.parametrize("column", ["PartitionKey", "RowKey", "Timestamp", "log__part00"])
    def test_names_that_a_store_keeps_for_itself_are_refused(
        self, table: Table, column: str
    ) -> None:
        with pytest.raises(BadInput, match="column"):
            table.insert("row", {column: "x"})
        assert table.get("row") is None

    # What changed since

    def test_whoever_knows_nothing_is_told_everything(self, table: Table) -> None:
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
            assert [row.values for row in drift.changed] == [{"n": number}]
            known, mark = {"a": drift.changed[0].version}, drift.mark

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
        assert len(table.drift(known, mark).changed) == 1_200
        some = {row.key: row.version for row in table.query("row0")}
        assert len(table.drift({**known, **some}).changed) == 200


def by_key(record: Record) -> str:
    return record.key


def caught_up(table: Table, rows: list[Record]) -> tuple[dict[str, str], str]:
    """What one knows after all of these were told, and the mark for the next question."""
    drift = table.drift({})
    assert sorted(drift.changed, key=by_key) == rows
    return {row.key: row.version for row in rows}, drift.mark


class StoreContract:
    """Fixtures: `store`, an empty one, and `reopened`, the same place opened once more."""

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

    def test_what_one_writes_another_reads(self, store: Store, reopened: Store) -> None:
        mine, theirs = store.models("exp"), reopened.models("exp")
        record = mine.insert("model", {"x": 1})
        assert theirs.get("model") == record
        theirs.update(record, {"x": 2})
        with pytest.raises(RowChanged):
            mine.update(record, {"x": 3})

    def test_a_store_names_itself_in_a_line(self, store: Store) -> None:
        assert store.description
        assert "\n" not in store.description
