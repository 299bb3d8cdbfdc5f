"""SQLite: one file in write-ahead mode, so that readers go on while one process writes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from edgeloop._util.files import make_folder
from edgeloop.errors import (
    EdgeloopError,
    RowExists,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from edgeloop.node.files import NOT_A_FOLDER
from edgeloop.store.location import SqliteLocation
from edgeloop.store.sql import (
    BUSY_TIMEOUT_S,
    INHERITED,
    Action,
    Database,
    EncodedRow,
    NoSchema,
    OddDocument,
    Result,
    Rows,
)

_INTEGRITY = "PRAGMA integrity_check(20)"
_OTHERS = "SELECT 1 FROM sqlite_master LIMIT 1"
_OURS = "SELECT 1 FROM sqlite_master WHERE name = 'edgeloop_rows'"
DAMAGED = (11, 18, 24, 26)  # corrupt, too big, of another format, no database
NO_ROOM = (8, 10, 13, 14)  # read-only, I/O error, full, cannot be opened
SHORT_READ = 522  # the file ends before it should
WRONG = 1  # a statement or the schema; the statements are ours, and right
NEW_S = 10.0  # so long a file may be empty: somebody is about to write to it
ALONE_S = 1.0


class OddText(Exception):
    """A text in the file is not UTF-8."""


class SqliteDatabase(Database):
    """The file `store.db` of a folder; both are created by the first write.

    Where there is no room for the files that SQLite keeps beside it, or the folder is read-only, it
    is opened without them, so that a full disk can be looked at and cleared.
    """

    dialect = "sqlite"
    parameter = r":\1"
    errors = (sqlite3.Error, UnicodeDecodeError)  # the latter: an error that quotes odd bytes

    def __init__(self, location: SqliteLocation) -> None:
        super().__init__(str(location))
        self._file = location.folder / "store.db"
        self._mark = _Mark(self._file)
        self._takes_any_text = False

    def connect(self) -> sqlite3.Connection:
        connection = _connected(self._file)
        if self._takes_any_text:
            connection.text_factory = _any_text
        return connection

    def read(self, query: str, values: Mapping[str, object], clauses: str = "") -> Rows:
        if not self._is_there():
            return []
        try:
            return super().read(query, values, clauses)
        except OddText:
            self._takes_any_text = True
            self.pool.close()
            return super().read(query, values, clauses)

    def run_with_schema(self, action: Action[Result]) -> Result:
        try:
            if not self._is_there():
                make_folder(self._file.parent)
            return super().run_with_schema(action)
        except OSError as error:
            raise self._explain_file(str(error.strerror)) from None

    def create_schema(self, connection: sqlite3.Connection) -> None:
        connection.execute(self.text("create_table"))

    def insert_missing(self, space: str, rows: Sequence[EncodedRow]) -> None:
        parameters = [_parameters(space, row) for row in rows]

        def insert(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.executemany(self.text("insert_missing"), parameters)

        self.run_with_schema(insert)

    def update_with(
        self,
        values: Mapping[str, object],
        other_space: str,
        put: Sequence[EncodedRow],
        removed_keys: Sequence[str],
    ) -> bool:
        def change(connection: sqlite3.Connection) -> bool:
            with _transaction(connection):
                if connection.execute(self.text("update"), values).rowcount != 1:
                    return False
                for key in removed_keys:
                    connection.execute(self.text("remove"), {"space": other_space, "key": key})
                for row in put:
                    connection.execute(self.text("put"), _parameters(other_space, row))
                return True

        return self.run_with_schema(change)

    def mark(self) -> str:
        try:
            return self._mark.read()
        except self.errors as error:
            raise self.explain(error) from None
        except OSError as error:
            raise self._explain_file(str(error.strerror)) from None

    def column(self, name: str) -> str:
        return f"json_extract(data, '$.{name}')"

    def array(self, values: Sequence[str]) -> str:
        return json.dumps(values)

    def explain(self, error: Exception) -> Exception:
        text = str(error).strip().partition("\n")[0]
        if isinstance(error, UnicodeDecodeError):
            return self._damaged("its store.db cannot be read (its schema is no text)")
        code = getattr(error, "sqlite_errorcode", 0)
        if "no such table" in text:
            return NoSchema()
        if "malformed JSON" in text:
            return OddDocument()
        if "decode to UTF-8" in text:
            return OddText()
        if isinstance(error, sqlite3.IntegrityError):
            return RowExists(key="")
        is_wrong = code == WRONG and "no such function: json" not in text  # SQLite may lack them
        if is_wrong or code & 0xFF in DAMAGED or code == SHORT_READ:
            return self._damaged(f"its store.db cannot be read ({text})")
        return self._explain_file(text)

    def close(self) -> None:
        self._mark.close()
        super().close()

    def check(self) -> Iterator[str]:
        """By SQLite itself. Each line says what is wrong with one page, row or index."""
        if not self._is_there():
            return
        found = self.run(lambda connection: connection.execute(_INTEGRITY).fetchall())
        for (line,) in found:
            if line != "ok":
                yield f"store.db: {line}"

    def saved_rows(self) -> Iterator[Sequence[Any]]:

        return iter(salvaged(self._file)) if self._is_there() else iter(())

    def check_begun(self) -> None:
        others = self.run(lambda connection: connection.execute(_OTHERS).fetchall())
        if others and self.run(lambda connection: connection.execute(_OURS).fetchall()) == []:
            raise self._damaged("store.db has no table 'edgeloop_rows'")

    def _is_there(self) -> bool:
        """Whether there is a database. Raises if something else is in its place."""
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            raise StoreError(store=self.description, reason=NOT_A_FOLDER) from None
        if not stat.S_ISREG(status.st_mode):
            reason = "its store.db is not a file: move that away, or name another store"
            raise StoreError(store=self.description, reason=reason)
        if not status.st_size and abs(time.time() - status.st_mtime) > NEW_S:
            raise self._damaged("its store.db is empty: it was cut off")
        return True

    def _damaged(self, reason: str) -> StoreDamaged:
        return StoreDamaged(store=self.description, reason=reason)

    def _explain_file(self, reason: str) -> EdgeloopError:
        text, store = reason.lower(), self.description
        # SQLite calls it an I/O error when there is no room for the memory its readers share.
        is_full = "disk i/o error" in text and _free_bytes(Path(store)) < 64 * 1024
        if is_full or any(word in text for word in ("full", "no space", "quota")):
            return StoreFull(store=store, reason="no space left on the device")
        if any(word in text for word in ("readonly", "read-only", "permission")):
            return StoreRefused(store=store, reason="the folder is read-only")
        if "unable to open" in text:
            return StoreRefused(store=store, reason="its database cannot be opened")
        if "locked" in text:
            reason = f"another process kept it locked for {BUSY_TIMEOUT_S} s"
            return StoreUnavailable(store=store, reason=reason)
        return StoreError(store=store, reason=reason)


class _Mark:
    """`PRAGMA data_version` changes with every commit of another connection, so this has one of
    its own that never writes. The file is looked at as well: it may have been restored from a
    copy, and an open connection would continue with the old one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity = ""
        self._process = os.getpid()

    def read(self) -> str:
        """Empty if there is no file yet. Raises sqlite3.Error and OSError."""
        with self._lock:
            try:
                status = self._file.stat()
            except FileNotFoundError:
                self._drop()
                return ""
            identity = f"{status.st_dev}:{status.st_ino}"
            if self._process != os.getpid():  # forked: the connection is the parent's
                INHERITED.append(self._connection)
                self._connection, self._process = None, os.getpid()
            if self._connection is None or not self._identity.startswith(f"{identity}:"):
                self._drop()
                self._connection = _open(self._file)
                self._identity = f"{identity}:{os.urandom(4).hex()}"
            try:
                version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            except Exception:
                self._drop()
                raise
            return f"{self._identity}:{version}"

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None


def _connected(file: Path) -> sqlite3.Connection:
    try:
        return _begun(_open(file), _switch_to_wal)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in NO_ROOM:
            raise
        with contextlib.suppress(sqlite3.Error):
            return _begun(_open(file, timeout=ALONE_S), _stay_alone)
        wal = file.with_name(f"{file.name}-wal")
        if not wal.exists() or not wal.stat().st_size:  # else there is more than the file says
            with contextlib.suppress(sqlite3.Error):
                return _begun(_open(f"file:{quote(str(file))}?immutable=1"), _look)
        raise


def _begun(
    connection: sqlite3.Connection, begin: Callable[[sqlite3.Connection], None]
) -> sqlite3.Connection:
    try:
        begin(connection)  # first: any other statement opens the files beside the database
        connection.execute("PRAGMA synchronous=FULL")
    except Exception:
        connection.close()
        raise
    return connection


def _stay_alone(connection: sqlite3.Connection) -> None:
    """What readers share is then kept in memory. It fails while another process has the file."""
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    _look(connection)


def _look(connection: sqlite3.Connection) -> None:
    connection.execute(_OTHERS).fetchall()


def _any_text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _free_bytes(folder: Path) -> int:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def _open(file: Path | str, timeout: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    return sqlite3.connect(
        file,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        uri=isinstance(file, str),
    )


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Two processes that switch a new file at once get 'locked' without SQLite's usual waiting, so
    the waiting is done here."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # the first error is the one to report
            connection.execute("ROLLBACK")
        raise


def _parameters(space: str, row: EncodedRow) -> dict[str, str]:
    key, version, document = row
    return {"space": space, "key": key, "version": version, "data": document}


# Rows out of a damaged SQLite file, from a copy of it: the file itself is not touched.
#
# First by SQLite, range by range: what it cannot read is left out, down to single rows. Where it
# cannot even open the file, or finds nothing in it, the pages are read without it, by the file
# format: https://www.sqlite.org/fileformat2.html. That also finds rows of pages that are no longer
# in use, so it comes last.


Cells = tuple[Any, Any, Any, Any]  # space, key, version, document

_ALL = "SELECT space, key, version, data FROM edgeloop_rows NOT INDEXED WHERE rowid BETWEEN ? AND ?"
_LAST = "SELECT max(rowid) FROM edgeloop_rows"
_LARGEST_ROW = 8_000_000  # bytes; ours have a million at most
_MOST_ROWS = 50_000_000
_MOST_FAILURES, _MOST_IN_VAIN = 100_000, 2_000
_LEAF = 0x0D  # the type of a page that holds rows
_TABLES = re.compile(r"models/.+|usage", re.DOTALL)


def salvaged(file: Path) -> Sequence[Cells]:
    with tempfile.TemporaryDirectory(prefix="edgeloop-salvage-") as folder:
        copy = Path(folder) / file.name
        for ending in ("", "-wal"):
            source = file.with_name(file.name + ending)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(source, copy.with_name(copy.name + ending))
        return _by_sqlite(copy) or _by_pages(file)


def _by_sqlite(file: Path) -> list[Cells]:
    found: list[Cells] = []
    connection = sqlite3.connect(file)
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        last = _last_row(connection, file.stat().st_size)
        for cells in _in_range(connection, 1, last):
            found.append(cells)
    except (sqlite3.Error, UnicodeDecodeError):
        return found
    else:
        return found
    finally:
        connection.close()


def _last_row(connection: sqlite3.Connection, size: int) -> int:
    """Where a page on the way to the last row is lost: as many as the file could hold, at most."""
    with contextlib.suppress(sqlite3.Error):
        last = connection.execute(_LAST).fetchone()[0]
        if isinstance(last, int) and last < _MOST_ROWS:
            return last
    return min(size // 16, _MOST_ROWS)


def _in_range(connection: sqlite3.Connection, first: int, last: int) -> Iterator[Cells]:
    """Halves a range that cannot be read, until what is lost are single rows. Raises where nothing
    can be read at all."""
    pending = [(first, last)] if first <= last else []
    failures, has_rows = 0, False
    while pending:
        first, last = pending.pop()
        if failures > (_MOST_FAILURES if has_rows else _MOST_IN_VAIN):
            raise sqlite3.DatabaseError("too much of it is lost")
        try:
            rows = connection.execute(_ALL, (first, last)).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if "no such table" in str(error) or "not a database" in str(error):
                raise
            failures += 1
            if first < last:
                middle = (first + last) // 2
                pending += [(middle + 1, last), (first, middle)]
            continue
        has_rows = has_rows or bool(rows)
        yield from rows


def _by_pages(file: Path) -> list[Cells]:
    content = file.read_bytes()
    size = _page_size(content)
    found: dict[tuple[str, str], Cells] = {}
    for number in range(len(content) // size):
        start = number * size
        for cells in _rows_of_page(content, start, start + (100 if number == 0 else 0), size):
            found[cells[0], cells[1]] = cells
    return list(found.values())


def _page_size(content: bytes) -> int:
    """As the header says, if that can be true."""
    said = int.from_bytes(content[16:18], "big")
    said = 65_536 if said == 1 else said
    return said if 512 <= said <= 65_536 and said & (said - 1) == 0 else 4_096


def _rows_of_page(content: bytes, start: int, header: int, size: int) -> Iterator[Cells]:
    if content[header] != _LEAF:
        return
    count = int.from_bytes(content[header + 3 : header + 5], "big")
    for number in range(min(count, size // 2)):
        at = header + 8 + 2 * number
        place = int.from_bytes(content[at : at + 2], "big")
        with contextlib.suppress(IndexError, ValueError, struct.error):
            cells = _row(_payload(content, start + place, size))
            if cells is not None:
                yield cells


def _payload(content: bytes, at: int, size: int) -> bytes:
    """The bytes of a row. Long ones continue on other pages, each of which names the next."""
    length, at = _number(content, at)
    _, at = _number(content, at)  # the row's id
    if length > _LARGEST_ROW:
        raise ValueError
    most = size - 35
    if length <= most:
        return content[at : at + length]
    least = (size - 12) * 32 // 255 - 23
    local = least + (length - least) % (size - 4)
    local = local if local <= most else least
    parts, missing = [content[at : at + local]], length - local
    page = int.from_bytes(content[at + local : at + local + 4], "big")
    while missing > 0 and 0 < page <= len(content) // size:
        start = (page - 1) * size
        parts.append(content[start + 4 : start + 4 + min(missing, size - 4)])
        missing -= size - 4
        page = int.from_bytes(content[start : start + 4], "big")
    return b"".join(parts)


def _row(payload: bytes) -> Cells | None:
    """The four texts of a row of ours; None if it is something else."""
    end, at = _number(payload, 0)
    kinds: list[int] = []
    while at < end and len(kinds) < 5:
        kind, at = _number(payload, at)
        kinds.append(kind)
    if len(kinds) != 4 or any(kind < 13 or kind % 2 == 0 for kind in kinds):
        return None
    texts, at = [], end
    for kind in kinds:
        length = (kind - 13) // 2
        texts.append(payload[at : at + length].decode(errors="surrogateescape"))
        at += length
    if at > len(payload) or not _TABLES.fullmatch(texts[0]):
        return None
    return texts[0], texts[1], texts[2], texts[3]


def _number(content: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for index in range(8):
        byte = content[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | content[at + 8], at + 9
