"""What every row of a table promises: values come back as they were, or are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edgeloop.errors import BadInput, RowTooLarge
from edgeloop.store import Table, Value

LARGEST_INT = 2**63 - 1
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


class RowContract:
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
        with pytest.raises(RowTooLarge, match=r"'row' is too large: 1,\d\d\d,\d\d\d bytes"):
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
