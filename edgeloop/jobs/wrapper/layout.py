"""Code, data and outputs, where the script expects them: in the folder it is started in.

What the command is told: variables, and placeholders in its arguments.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeloop.data import Datasets, check_name
from edgeloop.errors import BadInput, BlobMissing
from edgeloop.jobs.protocol.ticket import Ticket, check_apart, code_key, outputs_folder
from edgeloop.jobs.wrapper.outputs import make_folder
from edgeloop.jobs.wrapper.processes import JOB_VARIABLE
from edgeloop.jobs.wrapper.repeat import patiently
from edgeloop.jobs.wrapper.scratch import Scratch
from edgeloop.store import Blobs, check_blob_key

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


def lay_out(
    ticket: Ticket, scratch: Scratch, blobs: Blobs, cache: Path, patience_s: float
) -> Places:
    """Everything on its place. Raises an error whose sentence is the job's reason to fail."""
    _check_names(ticket)
    patiently(lambda: _code(ticket, scratch, blobs), patience_s)
    make_folder(scratch.outputs)
    make_folder(scratch.data)
    inputs = {}
    for item in ticket.inputs:
        fetched = patiently(_fetcher(blobs, item.name, item.version, cache), patience_s)
        inputs[item.name] = _link(scratch.data, item.name, fetched)
    writes = {name: _empty(scratch.data, name) for name in ticket.writes}
    return Places(scratch.outputs, scratch.data, inputs, writes)


def bring_outputs(job: str, scratch: Scratch, blobs: Blobs) -> None:
    """What another job, or an earlier wrapper of this one, has in the store. What is here wins."""
    folder = outputs_folder(job)
    names = [info.key.removeprefix(folder) for info in blobs.list(folder)]
    missing = [name for name in names if not (scratch.outputs / check_blob_key(name)).exists()]
    blobs.get_many({folder + name: scratch.outputs / name for name in missing})


def _check_names(ticket: Ticket) -> None:
    names = [item.name for item in ticket.inputs] + list(ticket.writes)
    for name in names:
        check_name(name)
    check_apart(names)


def _code(ticket: Ticket, scratch: Scratch, blobs: Blobs) -> None:
    scratch.work.mkdir(exist_ok=True)
    if not ticket.code:
        return
    try:
        blobs.get(code_key(ticket.code), scratch.code)
    except BlobMissing:
        raise BadInput(reason="The job's code is no longer in the store") from None
    try:
        with tarfile.open(scratch.code) as archive:
            archive.extractall(scratch.work, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadInput(reason=f"The job's code cannot be unpacked: {error}") from None
    finally:
        scratch.code.unlink()


def _fetcher(blobs: Blobs, name: str, version: int, cache: Path) -> Callable[[], Path]:
    return lambda: Datasets(blobs).fetch(name, version, cache)


def _link(data: Path, name: str, target: Path) -> Path:
    place = _cleared(data, name)
    place.symlink_to(target.absolute(), target_is_directory=True)
    return place


def _empty(data: Path, name: str) -> Path:
    place = _cleared(data, name)
    place.mkdir()
    return place


def _cleared(data: Path, name: str) -> Path:
    """The code may bring a folder of that name; the dataset is what the job asked for."""
    place = data / name
    for folder in list(reversed(place.relative_to(data).parents))[1:]:
        make_folder(data / folder)
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.exists():
        shutil.rmtree(place)
    return place
