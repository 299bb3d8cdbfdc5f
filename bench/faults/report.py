"""Results as Markdown: how many faults of each room were caught, and which survived."""

from __future__ import annotations

from collections.abc import Sequence

from bench.faults.catalog import Catalog, Fault
from bench.faults.trials import CAUGHT, Answer, Results
from bench.tables import markdown


def tables(catalog: Catalog, several: Sequence[Results]) -> str:
    return "\n\n".join((_rooms(catalog, several), _survivors(catalog, several)))


def _rooms(catalog: Catalog, several: Sequence[Results]) -> str:
    headings = ["room", "faults", *(f"caught, {_commit(results)}" for results in several)]
    rows = []
    for room in (*catalog.rooms, "all"):
        faults = [fault for fault in catalog.faults if room in (fault.room, "all")]
        if faults:
            rows.append([room, len(faults), *(_caught(faults, each) for each in several)])
    return markdown(headings, rows)


def _caught(faults: Sequence[Fault], results: Results) -> str:
    answers = [answer for fault in faults if (answer := results.of(fault.id))]
    count = sum(answer.outcome in CAUGHT for answer in answers)
    share = f"{count} ({100 * count / len(answers):.0f} %)" if answers else "0"
    missing = len(faults) - len(answers)
    return f"{share}, {missing} not tried" if missing else share


def _survivors(catalog: Catalog, several: Sequence[Results]) -> str:
    """What at least one tree does not catch."""
    rows = []
    for fault in catalog.faults:
        answers = [results.of(fault.id) for results in several]
        if any(answer is not None and answer.outcome == "survived" for answer in answers):
            rows.append([f"`{fault.id}`", fault.harm, *map(_said, answers)])
    if not rows:
        return "No fault survived."
    commits = [_commit(results) for results in several]
    return markdown(["survived", "what a user would suffer", *commits], rows)


def _said(answer: Answer | None) -> str:
    if answer is None:
        return "not tried"
    return f"{answer.outcome} {answer.tests} tests" if answer.outcome == "survived" else "caught"


def _commit(results: Results) -> str:
    commits = dict.fromkeys(answer.commit for answer in results.answers if answer.commit)
    return " ".join(commits) or results.file.stem
