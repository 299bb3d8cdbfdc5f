"""Reads a history and the table it led to, and says what should not have been possible."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable

from edgeloop.models import Plan, records_of
from edgeloop.store import Values
from tests.nemesis.history import Event


def results_of(row: Values, stage: str) -> list[str]:
    """The tokens whose results a row holds. Workers write their token as the result itself."""
    if stage == "benchmark":
        return [
            f"{int(mark):012x}" for mark in json.loads(str(row.get("total_inference_avg", "[]")))
        ]
    column = "shape" if stage == "convert" else stage
    return [str(row[column])] if column in row else []


def violations(plan: Plan, rows: Iterable[Values], history: Iterable[Event]) -> list[str]:
    """Empty when every (model, stage) reached one end, nothing stale got in, nothing was lost."""
    events: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in history:
        events[event.model, event.stage].append(event)
    found = []
    for row in rows:
        found += _of_row(plan, row)
        for stage in plan.stages:
            mine = events[str(row["name"]), stage.name]
            found += _of_stage(f"{row['name']} {stage.name}", results_of(row, stage.name), mine)
    return found


def _of_row(plan: Plan, row: Values) -> list[str]:
    found = []
    if row.get("status") != "complete":
        found.append(f"{row['name']} ended as {row.get('status')!r}, not complete")
    if any(record.is_held for record in records_of(row).values()) or row.get("node"):
        found.append(f"{row['name']} is still held by {row.get('node')!r}")
    for stage in plan.stages:
        if len(results_of(row, stage.name)) != stage.runs:
            found.append(
                f"{row['name']} {stage.name} has {len(results_of(row, stage.name))} results"
            )
    return found


def _of_stage(where: str, results: list[str], events: list[Event]) -> list[str]:
    by_kind: dict[str, set[str]] = defaultdict(set)
    for event in events:
        by_kind[event.kind].add(event.token[:12])
    kept = Counter(results)
    found = [f"{where}: {token} was recorded twice" for token, count in kept.items() if count > 1]
    found += [f"{where}: {t} was accepted and then lost" for t in by_kind["accepted"] - kept.keys()]
    refused = by_kind["lost"] | by_kind["failed"] | by_kind["released"]
    found += [f"{where}: {t} was refused, and yet is there" for t in refused & kept.keys()]
    found += [f"{where}: {t} is nobody's result" for t in kept.keys() - by_kind["commit"]]
    return found + _stale(where, kept.keys() & by_kind["accepted"], events)


def _stale(where: str, accepted: set[str], events: list[Event]) -> list[str]:
    """An accepted result is stale when, between its claim and its commit, another claim began and
    was won: from then on the first token was no longer in the row."""
    claims = {event.token[:12]: event for event in events if event.kind == "claimed"}
    commits = {event.token[:12]: event for event in events if event.kind == "commit"}
    return [
        f"{where}: {token} was accepted after {other} had taken over"
        for token in accepted
        for other, claim in claims.items()
        if token in claims
        and other != token
        and claim.began > claims[token].ended
        and claim.ended < commits[token].began
    ]
