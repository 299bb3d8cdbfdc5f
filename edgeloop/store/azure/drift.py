"""What changed in an Azure table, without fetching all of it.

The service stamps every row it writes with its own time, so most of the time only rows since the
newest known stamp are asked for. A row that is gone leaves no stamp: every so often keys and
versions alone are listed. The mark is the newest stamp, and when that list was last made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from edgeloop.store.base import Drift, Record

LIST_EVERY_S = 15.0
OVERLAP = timedelta(seconds=10)  # servers of a partition may disagree by this much
MANY = 200
_BETWEEN = "|"

Query = Callable[[str, Mapping[str, Any], list[str] | None], Iterator[Any]]
AsRecords = Callable[[Iterable[Any]], Iterable[Record]]  # those that can be read
Get = Callable[[str], Record | None]


def drift_of(
    query: Query,
    get: Get,
    as_records: AsRecords,
    known: Mapping[str, str],
    mark: str,
    clock: Callable[[], float] = time.monotonic,
) -> Drift:
    stamp, between, listed = mark.partition(_BETWEEN)
    newest, listed_at = (datetime.fromisoformat(stamp), float(listed)) if between else (None, 0.0)
    if newest is None or clock() - listed_at > LIST_EVERY_S:
        return _by_listing(query, get, as_records, known, clock())
    since = {"since": newest - OVERLAP}
    found = list(query("Timestamp ge @since", since, None))
    changed = [row for row in as_records(found) if known.get(row.key) != row.version]
    return Drift(changed, (), _mark(_newest(found, newest), listed_at))


def _by_listing(
    query: Query, get: Get, as_records: AsRecords, known: Mapping[str, str], now: float
) -> Drift:
    listed = list(query("", {}, ["PartitionKey", "RowKey", "Timestamp"]))
    versions = {entity["RowKey"]: str(entity.metadata["etag"]) for entity in listed}
    changed = {key for key, version in versions.items() if known.get(key) != version}
    if len(changed) > MANY:
        rows = [row for row in as_records(query("", {}, None)) if row.key in changed]
    else:
        rows = [row for row in map(get, changed) if row is not None]
    gone = [key for key in known if key not in versions]
    return Drift(rows, gone, _mark(_newest(listed, None), now))


def _newest(entities: Iterable[Any], known: datetime | None) -> datetime | None:
    stamps = [entity.metadata["timestamp"] for entity in entities]
    return max([*(stamp for stamp in stamps if stamp), *([known] if known else [])], default=None)


def _mark(newest: datetime | None, listed_at: float) -> str:
    return "" if newest is None else f"{newest.isoformat()}{_BETWEEN}{listed_at}"
