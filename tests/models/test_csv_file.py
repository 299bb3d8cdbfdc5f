"""The status table as CSV: what is written can be read back, and no spreadsheet runs it."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgeloop.errors import BadCsv
from edgeloop.models.catalog import read_csv, write_csv
from edgeloop.models.columns import COLUMNS

AWKWARD = ["=1+1", "+1", "-1", "@x", "\t", "\r", "\n", "a\rb", "a\r\nb", "'", "''", "n/a", '"', ","]
NUMBERLIKE = ["1", "-1.5", "1e5", "nan", "inf", "True", "1_000", " 7", "٣", "00", "1.0"]
CHARACTERS = some.characters(exclude_categories=["Cs"], exclude_characters="\x00")
TEXTS = some.text(CHARACTERS, min_size=1, max_size=20) | some.sampled_from(AWKWARD + NUMBERLIKE)
NUMBERS = some.integers(-(2**63) + 1, 2**63 - 1) | some.floats(allow_nan=False) | some.booleans()
TEXT_COLUMNS = [column.name for column in COLUMNS.values() if column.kind in ("text", "json")]
OTHER_COLUMNS = [name for name in COLUMNS if name not in TEXT_COLUMNS] + ["their_own", "_2"]
ROWS = some.lists(
    some.tuples(
        some.dictionaries(some.sampled_from(TEXT_COLUMNS), TEXTS, max_size=4),
        some.dictionaries(some.sampled_from(OTHER_COLUMNS), TEXTS | NUMBERS, max_size=4),
    ).map(lambda pair: {"name": "m", **pair[0], **pair[1]}),
    max_size=4,
)


def written(rows: list[dict[str, object]], columns: list[str]) -> str:
    file = io.StringIO(newline="")
    write_csv(rows, columns, file)
    return file.getvalue()


def cells_of(value: object, column: str = "error") -> str:
    return list(csv.reader(io.StringIO(written([{column: value}], ["name", column]))))[1][1]


def and_back(rows: list[dict[str, object]], columns: list[str]) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "status.csv")
        with path.open("w", newline="", encoding="utf-8") as file:
            write_csv(rows, columns, file)
        return read_csv(path)


@given(ROWS)
def test_whatever_is_written_is_read_back(rows: list[dict[str, object]]):
    columns = sorted({name for row in rows for name in row})
    back = and_back(rows, columns)
    assert back == rows
    assert [[type(v) for _, v in sorted(row.items())] for row in back] == [
        [type(v) for _, v in sorted(row.items())] for row in rows
    ]


@given(TEXTS, some.sampled_from([*TEXT_COLUMNS, *OTHER_COLUMNS]))
def test_no_text_begins_like_a_formula(text: str, column: str):
    assert not cells_of(text, column).startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "＝1", "\tx", "\rx"]
)
def test_a_formula_becomes_a_spreadsheets_text(text: str):
    assert cells_of(text) == "'" + text


@pytest.mark.parametrize(
    ("number", "cell"), [(-1, "-1"), (-1.5, "-1.5"), (3, "3"), (0.25, "0.25"), (1e-7, "1e-07")]
)
def test_numbers_stay_numbers_negative_ones_too(number: float, cell: str):
    assert cells_of(number, "mean") == cell


def test_nan_is_read_back_as_nan():
    (row,) = and_back([{"name": "m", "mean": math.nan}], ["name", "mean"])
    assert isinstance(row["mean"], float) and math.isnan(row["mean"])


def test_what_is_not_filled_is_not_there_afterwards():
    assert and_back([{"name": "m", "node": ""}], ["name", "node", "mean"]) == [{"name": "m"}]


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b'name,x\n"open', b"name\na,b,c\n"],
    ids=["not-utf-8", "open-quote", "too-many-cells"],
)
def test_a_file_that_is_no_status_table_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "status.csv"
    path.write_bytes(content)
    with pytest.raises(BadCsv, match=r"status\.csv cannot be read"):
        read_csv(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(BadCsv, match=r"status\.csv"):
        read_csv(tmp_path / "status.csv")
