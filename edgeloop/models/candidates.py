"""Architectures in the status table: what is known of each, for every search that meets it again.

A candidate's row is named by the architecture's id. It has no model file yet, so no runner looks at
it; an upload under the same name keeps what the row says and makes it a model. Results are kept
with their conditions, so that a latency of one chip is never taken for that of another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from edgeloop.errors import RowExists
from edgeloop.models.names import check_model_name
from edgeloop.models.plan import LATENCY_COLUMNS
from edgeloop.models.row import CANDIDATE, SEARCH_NODE, change_row, runs_of
from edgeloop.store import Changes, Record, Table, Value

LATENCY = ("mean", *LATENCY_COLUMNS)
Results = Mapping[str, Mapping[str, float]]  # conditions → values


class Candidates:
    """The candidates of one experiment's table."""

    def __init__(self, models: Table, experiment: str) -> None:
        self._models = models
        self._experiment = experiment

    def results(self, arch_id: str, conditions: str) -> dict[str, float]:
        """What is known of an architecture under these conditions; empty where nothing is."""
        return dict(self.all_results(arch_id).get(conditions, {}))

    def all_results(self, arch_id: str) -> Results:
        """What is known of an architecture, by conditions."""
        row = self._models.get(arch_id)
        return _results(row) if row is not None else {}

    def note(
        self,
        arch_id: str,
        arch_json: str,
        conditions: str,
        values: Mapping[str, float],
        columns: Mapping[str, Value] | None = None,
    ) -> None:
        """Add results to a row, and make the row where there is none. `columns` are for people:
        `val_iou`, `params` and others that the table has."""
        self.note_all(arch_id, arch_json, {conditions: values}, columns)

    def note_all(
        self,
        arch_id: str,
        arch_json: str,
        results: Results,
        columns: Mapping[str, Value] | None = None,
    ) -> None:
        """As `note`, for results under several conditions."""
        check_model_name(arch_id)

        def add(row: Record) -> Changes:
            known = {key: dict(found) for key, found in _results(row).items()}
            for conditions, values in results.items():
                known.setdefault(conditions, {}).update(values)
            held = {"node": SEARCH_NODE} if row.values.get("status") == CANDIDATE else {}
            found = {"arch": arch_json, "results": json.dumps(known), **held}
            is_measured = bool(runs_of(row.values))  # an estimate never replaces a measurement
            shown = (columns or {}).items()
            return {n: v for n, v in shown if not (is_measured and n in LATENCY)} | found

        fresh: dict[str, Value] = {
            "name": arch_id,
            "status": CANDIDATE,
            "node": SEARCH_NODE,
            "experiment": self._experiment,
            "arch": arch_json,
        }
        with suppress(RowExists):
            self._models.insert(arch_id, fresh)
        change_row(self._models, arch_id, add)


def _results(row: Record) -> dict[str, dict[str, float]]:
    """What cannot be read is not known."""
    try:
        content = json.loads(str(row.values.get("results") or "{}"))
        return {
            str(key): {str(name): float(value) for name, value in values.items()}
            for key, values in content.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
