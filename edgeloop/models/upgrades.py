"""The steps that bring the rows of an older store to the present schema; `store/upgrades.py` says
when each is taken."""

from __future__ import annotations

import contextlib

from edgeloop.errors import RowDamaged
from edgeloop.models.plan import default_plan
from edgeloop.models.queue import FINISHED, Hint, Queue
from edgeloop.store import Condition, Record, Store

MARGIN_S = 15.0  # as in the settings; a hint that shows too early is hidden again when it is met


def rewrite_hints(store: Store, is_dry_run: bool) -> int:
    """Replace hints whose keys or stages are not those of this version. Where no hint was ever
    written, as in an account of Archai, there is nothing to replace."""
    names = [name for name in store.experiments() if any(store.queue(name).query(limit=1))]
    return sum(_rewrite(store, name, is_dry_run) for name in names)


def _rewrite(store: Store, experiment: str, is_dry_run: bool) -> int:
    models, beside = store.models(experiment), store.queue(experiment)
    queue = Queue(beside, default_plan(), MARGIN_S)
    present = {row.key: row for row in beside.query()}
    unfinished = models.query(where=[Condition("status", "!=", status) for status in FINISHED])
    due = dict(queue.wanted(unfinished))
    stale = [row for key, row in present.items() if "stage" in row.values and key not in due]
    missing = due.keys() - present.keys()
    if not is_dry_run:
        for hint in stale:
            with contextlib.suppress(RowDamaged):
                model = models.get(_name(hint))
                queue.repair(_name(hint), None if model is None else model.values, _hint(hint))
        beside.insert_many((key, due[key]) for key in sorted(missing))
    return len(stale) + len(missing)


def _name(hint: Record) -> str:
    return str(hint.values.get("model"))


def _hint(record: Record) -> Hint:
    return Hint(record, lambda: None)
