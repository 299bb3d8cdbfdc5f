"""Read, edit, write if unchanged; again when somebody else's write came in between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from edgeloop.errors import ModelBusy, RowChanged
from edgeloop.store import Changes, Record, Table

CONFLICT_LIMIT = 100

Edit = Callable[[Record], Changes | None]


def change_row(
    table: Table, key: str, edit: Edit, known: Record | None = None
) -> tuple[Record, Record] | None:
    """The row before and after, or None when there is no such row.

    `edit` says what to write, or None for "leave it". It may be asked several times, each time
    with the row as it then is. `known` is the row as the caller last saw it: if nobody touched it
    since, that saves a read.
    """
    row = known or table.get(key)
    for attempt in range(CONFLICT_LIMIT):
        if row is None:
            return None
        changes = edit(row)
        if changes is None:
            return row, row
        try:
            return row, table.update(row, changes)
        except RowChanged:
            time.sleep(random.uniform(0, min(0.002 * 2**attempt, 0.2)))
        row = table.get(key)
    raise ModelBusy(name=key, reason="its row keeps changing")
