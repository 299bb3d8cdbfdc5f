"""State in SQLite or PostgreSQL."""

from __future__ import annotations

from edgeloop.store.sql.table import SqlStore, SqlTable, open_postgresql, open_sqlite

__all__ = ["SqlStore", "SqlTable", "open_postgresql", "open_sqlite"]
