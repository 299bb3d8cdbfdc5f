"""Code, data and outputs in the folder that the command is started in, and the variables and
placeholders that tell it where they are."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgeloop._util.files import mark_used
from edgeloop.data import Datasets, check_name
from edgeloop.errors import BadInput, BlobMissing
from edgeloop.jobs.protocol.code import unpack_code
from edgeloop.jobs.protocol.ticket import (
    EarlierOutputs,
    Ticket,
    TicketPlace,
    check_apart,
    code_key,
    outputs_folder,
)
from edgeloop.jobs.wrapper.command import JOB_VARIABLE
from edgeloop.jobs.wrapper.environment import NodeEnvironment, use_credentials
from edgeloop.jobs.wrapper.events import with_retries
from edgeloop.jobs.wrapper.outputs import CreatedFiles, make_folder
from edgeloop.jobs.wrapper.remote import prepare_target, provide
from edgeloop.jobs.wrapper.scratch import Scratch
from edgeloop.store import Blobs, check_blob_key

_PLACEHOLDER = re.compile(r"\{(?:(input|output):([^{}]+)|(outputs|data|job|attempt))\}")


@dataclass(frozen=True)
class JobFolders:
    """The folders of a job on this node; inputs and writes by their names."""

    outputs: Path
    data: Path
    inputs: Mapping[str, Path]
    writes: Mapping[str, Path]
    targets: Mapping[str, Path]  # for data at URLs
    package: Path | None = None  # Edgeloop itself

    @property
    def made(self) -> Mapping[str, Path]:
        return {**self.writes, **self.targets}


def variables_for(ticket: Ticket, attempt: int, folders: JobFolders) -> dict[str, str]:
    """The user's variables and ours, which take precedence."""
    return {
        "PYTHONUNBUFFERED": "1",
        **ticket.variables,
        **_named("EDGELOOP_INPUT_", folders.inputs),
        **_named("EDGELOOP_OUTPUT_", folders.made),
        "EDGELOOP_OUTPUT_DIR": str(folders.outputs),
        "EDGELOOP_DATA_DIR": str(folders.data),
        "EDGELOOP_JOB_NAME": ticket.name,
        "EDGELOOP_ATTEMPT": str(attempt),
        JOB_VARIABLE: ticket.id,
    }


def fill(command: Iterable[str], ticket: Ticket, attempt: int, folders: JobFolders) -> list[str]:
    """Other braces stay as they are: they may be JSON or a format."""
    known = {
        "outputs": str(folders.outputs),
        "data": str(folders.data),
        "job": ticket.id,
        "attempt": str(attempt),
    }

    def value(match: re.Match[str]) -> str:
        kind, name, word = match.groups()
        if word:
            return known[word]
        return str(_find(name, folders.inputs if kind == "input" else folders.made, match[0]))

    return [_PLACEHOLDER.sub(value, argument) for argument in command]


def _find(name: str, known: Mapping[str, Path], placeholder: str) -> Path:
    found = [path for full, path in known.items() if full == name]
    found = found or [path for full, path in known.items() if full.rpartition("/")[2] == name]
    if len(found) == 1:
        return found[0]
    kind = "reads" if placeholder.startswith("{input:") else "writes"
    names = ", ".join(known) or "nothing"
    problem = "could mean several" if found else "names nothing"
    raise BadInput(reason=f"{placeholder} in the command {problem}: this job {kind} {names}")


def _named(prefix: str, folders: Mapping[str, Path]) -> dict[str, str]:
    """By the full name, and by its last part if only one dataset has it."""
    short = Counter(_variable(name.rpartition("/")[2]) for name in folders)
    by_part = {
        prefix + _variable(name.rpartition("/")[2]): str(path)
        for name, path in folders.items()
        if short[_variable(name.rpartition("/")[2])] == 1
    }
    return {**by_part, **{prefix + _variable(name): str(path) for name, path in folders.items()}}


def _variable(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def lay_out(
    ticket: Ticket,
    scratch: Scratch,
    blobs: Blobs,
    here: NodeEnvironment,
    log: Callable[[str], None],
    patience_s: float,
) -> JobFolders:
    """Create all folders of a job. The message of an error becomes the job's reason to fail."""
    remote = [place.name for place in (*ticket.sources, *ticket.targets)]
    names = [*(item.name for item in ticket.inputs), *ticket.writes]
    for name in names:
        check_name(name)
    check_apart([*names, *remote])
    with_retries(lambda: _code(ticket, scratch, blobs), patience_s)
    package = with_retries(lambda: _package(ticket, scratch, blobs, here.data_cache), patience_s)
    make_folder(scratch.outputs)
    make_folder(scratch.data)
    use_credentials(ticket.variables)
    inputs = {}
    for item in ticket.inputs:
        fetch = partial(Datasets(blobs).fetch, item.name, item.version, here.data_cache, log)
        inputs[item.name] = _linked(scratch.data, item.name, with_retries(fetch, patience_s))
    for place in ticket.sources:
        get = partial(provide, place, here.places, here.data_cache, log)
        inputs[place.name] = _linked(scratch.data, place.name, with_retries(get, patience_s))
    writes = {name: _cleared(scratch.data, name) for name in ticket.writes}
    for folder in writes.values():
        folder.mkdir()
    targets = {place.name: _target(place, scratch, here) for place in ticket.targets}
    return JobFolders(scratch.outputs, scratch.data, inputs, writes, targets, package)


def _linked(data: Path, name: str, path: Path) -> Path:
    link = _cleared(data, name)
    link.symlink_to(path.absolute(), target_is_directory=path.is_dir())
    return link


def _target(place: TicketPlace, scratch: Scratch, here: NodeEnvironment) -> Path:
    direct = prepare_target(place, here.places)
    if direct is not None:
        return _linked(scratch.data, place.name, direct)
    folder = _cleared(scratch.data, place.name)
    folder.mkdir()
    return folder


def fetch_outputs(
    source: EarlierOutputs, scratch: Scratch, created: CreatedFiles, blobs: Blobs
) -> None:
    """Fetch the stored outputs of another job, or of an earlier wrapper of this one: each to where
    the command would write it. Local files take precedence."""
    folder = outputs_folder(source.job) + (f"{source.folder}/" if source.folder else "")
    into = f"{source.into}/" if source.into else ""
    names = [info.key[len(folder) :] for info in blobs.list(folder)]
    here = {name: check_blob_key(into + name) for name in names}
    places = {
        name: (scratch.work if created.is_wanted(target) else scratch.outputs) / target
        for name, target in here.items()
    }
    blobs.get_many({folder + name: path for name, path in places.items() if not path.exists()})


def _code(ticket: Ticket, scratch: Scratch, blobs: Blobs) -> None:
    scratch.work.mkdir(exist_ok=True)
    if ticket.code:
        _unpack(ticket.code, scratch, blobs, scratch.work)


def _package(ticket: Ticket, scratch: Scratch, blobs: Blobs, cache: Path) -> Path | None:
    """Edgeloop's own files, unpacked once per node: a folder with this name is complete."""
    if not ticket.package:
        return None
    target = cache / "packages" / check_blob_key(ticket.package)
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
            _unpack(ticket.package, scratch, blobs, Path(folder, "package"))
            with contextlib.suppress(OSError):  # another job was faster
                Path(folder, "package").rename(target)
    mark_used(target)
    return target


def _unpack(digest: str, scratch: Scratch, blobs: Blobs, target: Path) -> None:
    try:
        blobs.get(code_key(digest), scratch.code)
    except BlobMissing:
        raise BadInput(reason="The job's code is no longer in the store") from None
    try:
        unpack_code(scratch.code, digest, target)
    finally:
        scratch.code.unlink()


def _cleared(data: Path, name: str) -> Path:
    """The path of a dataset, removed if the code has a folder of that name."""
    path = data / name
    for folder in list(reversed(path.relative_to(data).parents))[1:]:
        make_folder(data / folder)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
    return path
