"""A damaged store: rows that cannot be read are left out and named, a file that cannot be read is
one sentence, and nothing is written over either."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from edgeloop.errors import (
    BadInput,
    EdgeloopError,
    RowDamaged,
    RowExists,
    RowTooLarge,
    StoreDamaged,
    StoreError,
)
from edgeloop.store import Condition, Store, Table, open_store, parse_location
from edgeloop.store.base import _named

if TYPE_CHECKING:
    from tests.peers.azurite import Azurite
    from tests.peers.postgres import Postgres

ODD_ROWS = {
    "not json": "{not json",
    "empty": "",
    "a list": "[1, 2]",
    "a number": "7",
    "null": "null",
    "deep": "[" * 100_000,
    "a number of 5,000 digits": '{"priority": ' + "9" * 5_000 + "}",
    "a number of 20 digits": '{"priority": ' + "9" * 20 + "}",
    "a column with a space": '{"a b": 1}',
    "half a character": '{"status": "\\ud83d"}',
}


@pytest.fixture(autouse=True)
def nothing_was_named() -> Iterator[None]:
    yield
    _named.clear()


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(parse_location(f"sqlite:{tmp_path / 'store'}"))
    yield store
    store.close()


def _fill(store: Store) -> Table:
    models = store.models("exp")
    models.insert("a", {"status": "new", "priority": 1})
    models.insert("z1", {"status": "error", "deep": True})
    store.queue("exp").insert("1|a", {"model": "a", "until": 0.0})
    return models


def _reads_the_others(store: Store, caplog: pytest.LogCaptureFixture, odd: str) -> None:
    """Every way to read a table gives the sound rows, and the odd one is named once."""
    models, queue = store.models("exp"), store.queue("exp")
    known = {"a": "old"}
    with caplog.at_level(logging.WARNING, "edgeloop.store"):
        for _ in range(2):
            assert [row.key for row in models.query()] == ["a", "z1"]
            assert [row.key for row in models.query(limit=2)] == ["a", "z1"]
            where = [Condition("status", "!=", "error")]
            assert [row.key for row in models.query(where=where)] == ["a"]
            assert [row.key for row in models.marked("z", "deep")] == ["z1"]
            assert [row.key for row in models.prioritized(5.0, ["error"])] == ["a"]
            assert {row.key for row in models.drift(known).changed} == {"a", "z1"}
            [(hint, read)] = queue.due(100.0, models, "1|", lambda key: key[:1])
            row = read()
            assert row is not None and (hint.key, row.key) == ("1|a", "a")
    named = [record.getMessage() for record in caplog.records]
    assert len(named) == 1 and repr(odd) in named[0] and "edgeloop store check" in named[0]


def _can_be_put_anew(store: Store) -> None:
    """A hint can be made again from the rows, so nobody needs to read it first."""
    queue = store.queue("exp")
    queue.put("1|odd", {"model": "a", "until": 5.0})
    row = queue.get("1|odd")
    assert row is not None and row.values == {"model": "a", "until": 5.0}
    queue.put("1|odd", None)
    assert queue.get("1|odd") is None


def _is_left_alone(store: Store, odd: str) -> None:
    models = store.models("exp")
    with pytest.raises(RowDamaged, match="cannot be read"):
        models.get(odd)
    with pytest.raises(RowExists):
        models.insert(odd, {"status": "new"})
    models.insert_many([(odd, {"status": "new"})])
    with pytest.raises(RowDamaged):
        models.get(odd)


@pytest.mark.parametrize("kind", ODD_ROWS)
def test_a_row_of_sqlite_that_cannot_be_read_is_left_out_and_left_alone(
    sqlite_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    _fill(sqlite_store)
    with sqlite3.connect(tmp_path / "store" / "store.db") as database:
        row = ("models/exp", "m", "v", ODD_ROWS[kind])
        database.execute("INSERT INTO edgeloop_rows VALUES (?, ?, ?, ?)", row)
    database.close()
    _reads_the_others(sqlite_store, caplog, "m")
    _is_left_alone(sqlite_store, "m")
    with sqlite3.connect(tmp_path / "store" / "store.db") as database:
        row = ("queue/exp", "1|odd", "v", ODD_ROWS[kind])
        database.execute("INSERT INTO edgeloop_rows VALUES (?, ?, ?, ?)", row)
    database.close()
    _can_be_put_anew(sqlite_store)


@pytest.mark.parametrize(("operator", "found"), [("==", ["z1"]), ("!=", ["a"])])
def test_a_row_without_the_column_meets_no_condition_beside_a_row_that_cannot_be_read(
    sqlite_store: Store, tmp_path: Path, operator: Literal["==", "!="], found: list[str]
) -> None:
    models = _fill(sqlite_store)
    models.insert("b", {"priority": 2})
    where = [Condition("status", operator, "error")]
    assert [row.key for row in models.query(where=where)] == found
    with sqlite3.connect(tmp_path / "store" / "store.db") as database:
        row = ("models/exp", "m", "v", ODD_ROWS["not json"])
        database.execute("INSERT INTO edgeloop_rows VALUES (?, ?, ?, ?)", row)
    database.close()
    assert [row.key for row in models.query(where=where)] == found


@pytest.mark.parametrize("cell", ["NULL", "7", "x'ff00'", "CAST(x'7b22ff22' AS TEXT)"])
def test_a_cell_of_another_type_is_a_row_that_cannot_be_read(
    sqlite_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, cell: str
) -> None:
    """What flipped bits leave: SQLite does not check types when it reads."""
    _fill(sqlite_store)
    sqlite_store.close()
    with sqlite3.connect(tmp_path / "store" / "store.db") as database:
        database.execute("CREATE TABLE t (space TEXT, key TEXT, version TEXT, data)")
        database.execute("INSERT INTO t SELECT * FROM edgeloop_rows")
        database.execute(f"INSERT INTO t VALUES ('models/exp', 'm', 'v', {cell})")
        database.execute("DROP TABLE edgeloop_rows")
        database.execute("ALTER TABLE t RENAME TO edgeloop_rows")
    database.close()
    _reads_the_others(sqlite_store, caplog, "m")
    with pytest.raises(RowDamaged):
        sqlite_store.models("exp").get("m")


@pytest.mark.parametrize("kind", ["not json", "a list", "a column with a space"])
def test_a_row_of_postgresql_that_cannot_be_read_is_left_out_and_left_alone(
    postgres: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    import psycopg

    url = postgres.url_of(postgres.make_database())
    store = open_store(parse_location(f"{url}?blobs=file://{tmp_path / 'blobs'}"))
    _fill(store)
    with psycopg.connect(url, autocommit=True) as connection:
        for row in (("models/exp", "m"), ("queue/exp", "1|odd")):
            odd = (*row, "v", ODD_ROWS[kind])
            connection.execute("INSERT INTO edgeloop_rows VALUES (%s, %s, %s, %s)", odd)
    _can_be_put_anew(store)
    _reads_the_others(store, caplog, "m")
    _is_left_alone(store, "m")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE edgeloop_rows DROP COLUMN version")
    for act in (lambda: store.models("exp").get("a"), lambda: list(store.models("exp").query())):
        with pytest.raises(StoreDamaged, match="version"):
            act()
    store.close()


def test_an_entity_of_azure_with_odd_columns_is_read_or_left_out(
    azurite: Azurite, caplog: pytest.LogCaptureFixture
) -> None:
    from datetime import UTC, datetime
    from uuid import uuid4

    from azure.data.tables import EdmType, EntityProperty, TableServiceClient, UpdateMode

    address = azurite.connection_string_of(azurite.new_account())
    store = open_store(parse_location(address))
    _fill(store)
    service = TableServiceClient.from_connection_string(address)
    table = service.get_table_client("exp")
    address_of = {"PartitionKey": "main", "RowKey": "m"}
    table.create_entity({**address_of, "text__part00": b"\xff\xfe", "status": "new"})
    _reads_the_others(store, caplog, "m")
    _is_left_alone(store, "m")
    odd: dict[str, Any] = {
        **{"when": datetime(1999, 1, 1, tzinfo=UTC), "id": uuid4(), "raw": b"\x00\xff"},
        **{"wide": EntityProperty(2**60, EdmType.INT64), "status": 7, "stages": 1.5},
    }
    table.upsert_entity({**address_of, **odd}, mode=UpdateMode.REPLACE)
    row = store.models("exp").get("m")
    assert row is not None and row.values["wide"] == 2**60 and row.values["status"] == 7
    assert all(isinstance(value, str | int | float | bool) for value in row.values.values())
    store.close()


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of several pages, with the index that runners make."""
    folder = tmp_path_factory.mktemp("sound")
    store = open_store(parse_location(f"sqlite:{folder}"))
    rows = [
        (f"model-{n:04d}", {"status": "new", "priority": n, "error": "x" * 200}) for n in range(300)
    ]
    store.models("exp").insert_many(rows)
    list(store.models("exp").prioritized(5.0, []))
    hints = [(f"1|{key}", {"model": key, "until": 0.0}) for key, _ in rows]
    store.queue("exp").insert_many(hints)
    store.close()
    return folder / "store.db"


def _use_everything(folder: Path) -> list[str]:
    """Reads and writes in every way. Only our own errors may come out."""
    said: list[str] = []
    store = open_store(parse_location(f"sqlite:{folder}"))
    models, queue = store.models("exp"), store.queue("exp")

    def change() -> None:
        row = models.get("model-0007")
        if row is not None:
            models.update_with(row, {"status": "x"}, queue, {"1|model-0007": None})

    for act in (
        store.experiments,
        lambda: list(models.query()),
        lambda: list(models.query("model-01", where=[Condition("status", "==", "new")])),
        lambda: models.get("model-0100"),
        lambda: list(models.prioritized(50.0, ["error"])),
        lambda: list(models.marked("model-", "x")),
        lambda: [read() for _, read in queue.due(1.0, models, "1|", lambda key: key)],
        lambda: models.drift({}),
        change,
        lambda: models.insert("new", {"status": "new"}),
    ):
        try:
            act()
        except EdgeloopError as error:
            said.append(str(error))
    store.close()
    return said


def test_flipped_bytes_anywhere_in_the_file_are_our_errors_or_rows_left_out(
    sound_file: Path, tmp_path: Path
) -> None:
    """Header, schema, b-tree pages and rows: whatever SQLite makes of it, a sentence comes out."""
    content = sound_file.read_bytes()
    dice = random.Random(17)
    header = [*range(0, 100, 3)]
    schema = [dice.randrange(100, 4096) for _ in range(10)]
    schema += [content.index(b"edgeloop_rows"), content.index(b"version TEXT")]
    pages = [4096 * page + at for page in range(1, len(content) // 4096, 4) for at in (0, 3, 5, 9)]
    rows = [dice.randrange(4096, len(content)) for _ in range(40)]
    folder, damaged = tmp_path / "store", 0
    for position in (*header, *schema, *pages, *rows):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        bad = bytearray(content)
        bad[position] ^= 0xFF
        (folder / "store.db").write_bytes(bad)
        said = _use_everything(folder)
        damaged += any("is damaged" in sentence for sentence in said)
        assert all(len(sentence) < 1_000 and sentence.isprintable() for sentence in said)
    assert damaged > 20  # the test looks at what it means to


BROKEN: dict[str, Callable[[Path, bytes], object]] = {
    "half of it": lambda file, content: file.write_bytes(content[: len(content) // 2]),
    "one page": lambda file, content: file.write_bytes(content[:4096]),
    "some bytes": lambda file, content: file.write_bytes(content[:50]),
    "nothing": lambda file, content: (file.write_bytes(b""), os.utime(file, (1, 1))),
    "another file": lambda file, content: file.write_bytes(b"\x7fELF" * 3_000),
    "another database": lambda file, content: _another_database(file),
    "a table of another name": lambda file, content: file.write_bytes(
        content.replace(b"edgeloop_rows", b"edgeloop_sows")
    ),
}


def _another_database(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE songs (name TEXT)")
    database.close()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_is_no_store_is_said_to_be_damaged_and_not_written_to(
    sound_file: Path, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "store.db"
    BROKEN[kind](file, sound_file.read_bytes())
    before = file.read_bytes()
    store = open_store(parse_location(f"sqlite:{tmp_path}"))
    for act in (
        lambda: list(store.models("exp").query()),
        lambda: store.models("exp").get("model-0100"),
        lambda: store.models("exp").insert("new", {"status": "new"}),
        store.experiments,
    ):
        with pytest.raises(StoreDamaged, match=r"is damaged: .* store repair"):
            act()
    store.close()
    if kind != "another database":  # which was switched to a write-ahead log
        assert file.read_bytes() == before


def test_a_schema_that_sqlite_reads_and_cannot_use_is_damage(
    sound_file: Path, tmp_path: Path
) -> None:
    content = sound_file.read_bytes().replace(b"json_extract", b"jso0_extract")
    (tmp_path / "store.db").write_bytes(content)
    store = open_store(parse_location(f"sqlite:{tmp_path}"))
    with pytest.raises(StoreDamaged, match=r"jso0_extract.* store repair"):
        store.models("exp").insert("new", {"status": "new", "priority": 1})
    store.close()


def test_a_file_in_the_place_of_the_store_is_said(tmp_path: Path) -> None:
    (tmp_path / ".edgeloop").write_text("what is this?")
    store = open_store(parse_location(f"sqlite:{tmp_path / '.edgeloop'}"))
    for act in (
        lambda: list(store.models("exp").query()),
        store.experiments,
        lambda: store.models("exp").insert("new", {"status": "new"}),
        lambda: store.blobs.put("a/b", b"x"),
    ):
        with pytest.raises(StoreError, match="a file, not a folder"):
            act()


def test_odd_columns_become_text(sqlite_store: Store, tmp_path: Path) -> None:
    _fill(sqlite_store)
    odd = {"tags": ["a", {"b": 1}], "shape": {"x": 1}, "none": None, "mean": {"float": "nan"}}
    with sqlite3.connect(tmp_path / "store" / "store.db") as database:
        row = ("models/exp", "m", "v", json.dumps(odd))
        database.execute("INSERT INTO edgeloop_rows VALUES (?, ?, ?, ?)", row)
    database.close()
    found = sqlite_store.models("exp").get("m")
    assert found is not None and found.values["tags"] == '["a", {"b": 1}]'
    assert "none" not in found.values and found.values["mean"] != found.values["mean"]


ODD_CELLS: dict[str, dict[str, str]] = {
    "a NUL": {"note": "a\x00b"},
    "a name that Azure uses": {"PartitionKey": "x", "note__part01": "y"},
    "a long text": {"note": "x" * 1_200_000},
}


def _can_be_changed(store: Store) -> None:
    """What is there already stays; what is new has to keep the rules."""
    models, row = store.models("exp"), store.models("exp").get("m")
    assert row is not None
    for changes in ({"more": "a\x00b"}, {"RowKey": "x"}, {"more__part00": "x"}):
        with pytest.raises(BadInput):
            models.update(row, changes)
    sound = models.get("a")
    assert sound is not None
    with pytest.raises(RowTooLarge):
        models.update(sound, {"note": "x" * 1_200_000})
    row = models.update_with(row, {"status": "x"}, store.queue("exp"), {"1|m": None})
    row = models.update(row, {"status": "y", "gone": None})
    again = models.get("m")
    assert again is not None and again.values == row.values and again.values["status"] == "y"
    assert any(again.values.get(name) for name in ("note", "note__part01"))
    models.delete(again)
    assert models.get("m") is None


@pytest.mark.parametrize("kind", ODD_CELLS)
def test_a_row_of_sqlite_with_a_cell_that_breaks_our_rules_can_be_changed(
    sqlite_store: Store, tmp_path: Path, kind: str
) -> None:
    _fill(sqlite_store)
    with sqlite3.connect(tmp_path / "store" / "store.db") as database:
        document = json.dumps({"status": "new", "gone": 1, **ODD_CELLS[kind]})
        row = ("models/exp", "m", "v", document)
        database.execute("INSERT INTO edgeloop_rows VALUES (?, ?, ?, ?)", row)
    database.close()
    _can_be_changed(sqlite_store)


@pytest.mark.parametrize("kind", ODD_CELLS)
def test_a_row_of_postgresql_with_a_cell_that_breaks_our_rules_can_be_changed(
    postgres: Postgres, tmp_path: Path, kind: str
) -> None:
    import psycopg

    url = postgres.url_of(postgres.make_database())
    store = open_store(parse_location(f"{url}?blobs=file://{tmp_path / 'blobs'}"))
    _fill(store)
    with psycopg.connect(url, autocommit=True) as connection:
        document = json.dumps({"status": "new", "gone": 1, "priority": 1, **ODD_CELLS[kind]})
        row = ("models/exp", "m", "v", document)
        connection.execute("INSERT INTO edgeloop_rows VALUES (%s, %s, %s, %s)", row)
    assert {row.key for row in store.models("exp").prioritized(5.0, [])} == {"a", "m"}
    _can_be_changed(store)
    store.close()


def test_an_entity_of_azure_with_a_column_that_breaks_our_rules_can_be_changed(
    azurite: Azurite,
) -> None:
    from azure.data.tables import TableServiceClient

    address = azurite.connection_string_of(azurite.new_account())
    store = open_store(parse_location(address))
    _fill(store)
    table = TableServiceClient.from_connection_string(address).get_table_client("exp")
    entity = {"PartitionKey": "main", "RowKey": "m", "status": "new", "gone": 1}
    table.create_entity({**entity, "note__part01": "y"})
    _can_be_changed(store)
    store.close()
