"""Has anything changed since? The cheapest honest answer of each database.

A mark is a text. Two that are equal mean that nothing was committed in between; two that differ
mean that something may have been, somewhere in the database.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import threading
from pathlib import Path

import sqlalchemy as sa

# Which transactions a reader sees. A commit that changes anything changes this, at once.
POSTGRESQL_MARK = sa.select(sa.cast(sa.func.txid_current_snapshot(), sa.Text))


class SqliteMark:
    """`PRAGMA data_version` moves with every commit of another connection, so this has one of its
    own that never writes. The file itself is looked at, too: it may have been put back from a copy,
    and a connection would go on with the old one."""

    def __init__(self, file: Path, timeout_s: float) -> None:
        self._file = file
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._link: sqlite3.Connection | None = None
        self._which = ""

    def read(self) -> str:
        """Empty where there is no file yet. Raises sqlite3.Error and OSError."""
        with self._lock:
            try:
                found = self._file.stat()
            except FileNotFoundError:
                self._drop()
                return ""
            which = f"{found.st_dev}:{found.st_ino}"
            if self._link is None or not self._which.startswith(f"{which}:"):
                self._drop()
                self._link = sqlite3.connect(
                    self._file,
                    timeout=self._timeout_s,
                    isolation_level=None,
                    check_same_thread=False,
                )
                self._which = f"{which}:{secrets.token_hex(4)}"
            try:
                version = self._link.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error:
                self._drop()
                raise
            return f"{self._which}:{version}"

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            with contextlib.suppress(sqlite3.Error):
                self._link.close()
        self._link = None
