"""Code, data and outputs, where the script expects them: in the folder it is started in."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from edgeloop.data import Datasets, check_name
from edgeloop.errors import BadInput, BlobMissing
from edgeloop.jobs.ticket import Ticket, check_apart, code_key, outputs_folder
from edgeloop.jobs.wrapper.outputs import make_folder
from edgeloop.jobs.wrapper.repeat import patiently
from edgeloop.jobs.wrapper.scratch import Scratch
from edgeloop.jobs.wrapper.variables import Places
from edgeloop.store import Blobs, check_blob_key


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
