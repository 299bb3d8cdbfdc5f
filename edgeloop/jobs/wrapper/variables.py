"""What the command is told: variables, and placeholders in its arguments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeloop.errors import BadInput
from edgeloop.jobs.ticket import Ticket
from edgeloop.jobs.wrapper.processes import JOB_VARIABLE

_PLACEHOLDER = re.compile(r"\{(?:(input|output):([^{}]+)|(outputs|data|job|attempt))\}")


@dataclass(frozen=True)
class Places:
    """Where things lie on this node; inputs and writes by their names."""

    outputs: Path
    data: Path
    inputs: Mapping[str, Path]
    writes: Mapping[str, Path]


def variables_for(ticket: Ticket, attempt: int, places: Places) -> dict[str, str]:
    """Those that the user chose, and ours, which win."""
    return {
        "PYTHONUNBUFFERED": "1",
        **ticket.variables,
        **_named("EDGELOOP_INPUT_", places.inputs),
        **_named("EDGELOOP_OUTPUT_", places.writes),
        "EDGELOOP_OUTPUT_DIR": str(places.outputs),
        "EDGELOOP_DATA_DIR": str(places.data),
        "EDGELOOP_JOB_NAME": ticket.name,
        "EDGELOOP_ATTEMPT": str(attempt),
        JOB_VARIABLE: ticket.id,
    }


def fill(command: Iterable[str], ticket: Ticket, attempt: int, places: Places) -> list[str]:
    """Braces that are no placeholder stay as they are: they may be JSON or a format."""
    known = {
        "outputs": str(places.outputs),
        "data": str(places.data),
        "job": ticket.id,
        "attempt": str(attempt),
    }

    def value(match: re.Match[str]) -> str:
        kind, name, word = match.groups()
        if word:
            return known[word]
        return str(_find(name, places.inputs if kind == "input" else places.writes, match[0]))

    return [_PLACEHOLDER.sub(value, argument) for argument in command]


def _find(name: str, there: Mapping[str, Path], placeholder: str) -> Path:
    found = [path for full, path in there.items() if full == name]
    found = found or [path for full, path in there.items() if full.rpartition("/")[2] == name]
    if len(found) == 1:
        return found[0]
    kind = "reads" if placeholder.startswith("{input:") else "writes"
    names = ", ".join(there) or "nothing"
    trouble = "could mean several" if found else "names nothing"
    raise BadInput(reason=f"{placeholder} in the command {trouble}: this job {kind} {names}")


def _named(prefix: str, places: Mapping[str, Path]) -> dict[str, str]:
    """By the whole name; by its last part too where only one dataset has it."""
    short = Counter(_variable(name.rpartition("/")[2]) for name in places)
    by_part = {
        prefix + _variable(name.rpartition("/")[2]): str(path)
        for name, path in places.items()
        if short[_variable(name.rpartition("/")[2])] == 1
    }
    return by_part | {prefix + _variable(name): str(path) for name, path in places.items()}


def _variable(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name).upper()
