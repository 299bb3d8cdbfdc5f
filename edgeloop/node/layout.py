"""Code, data and outputs in the folder that the command is started in, and the variables and
placeholders that tell it where they are.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import pkgutil
import re
import shutil
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePosixPath

from edgeloop._util.files import file_lock, mark_used
from edgeloop._util.values import size_text
from edgeloop.errors import BadInput, BadName, BlobMissing
from edgeloop.node.blobs import open_from_job
from edgeloop.node.command import JOB_VARIABLE, with_retries
from edgeloop.node.datasets import Datasets
from edgeloop.node.environment import NodeEnvironment, Scratch, use_credentials
from edgeloop.node.ledger import check_name
from edgeloop.node.outputs import CreatedFiles, make_folder
from edgeloop.node.ticket import (
    CODE_DIGEST_BYTES,
    MOST_CODE_BYTES,
    CodeDigest,
    EarlierOutputs,
    Ticket,
    TicketPlace,
    check_apart,
    code_key,
    filled,
    named_place,
    outputs_folder,
)
from edgeloop.paths import DATA_ROOT
from edgeloop.store.base import Access, BlobInfo, Blobs, check_blob_key


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
    """The command as it is started."""
    words = {
        "outputs": str(folders.outputs),
        "data": str(folders.data),
        "job": ticket.id,
        "attempt": str(attempt),
    }

    def value(placeholder: str) -> str | None:
        name = named_place(placeholder, folders.inputs, folders.made)
        if name is None:
            return words.get(placeholder)
        return str((folders.inputs if placeholder.startswith("input:") else folders.made)[name])

    return [filled(word, value) for word in command]


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
    data = _data_folder(ticket, scratch)
    use_credentials(ticket.variables)
    inputs = {}
    for item in ticket.inputs:
        fetch = partial(Datasets(blobs).fetch, item.name, item.version, here.data_cache, log)
        inputs[item.name] = _linked(data, item.name, with_retries(fetch, patience_s))
    for place in ticket.sources:
        get = partial(provide, place, here.places, here.data_cache, log)
        inputs[place.name] = _linked(data, place.name, with_retries(get, patience_s))
    writes = {name: _cleared(data, name) for name in ticket.writes}
    for folder in writes.values():
        folder.mkdir()
    targets = {place.name: _target(place, data, here) for place in ticket.targets}
    return JobFolders(scratch.outputs, data, inputs, writes, targets, package)


def _data_folder(ticket: Ticket, scratch: Scratch) -> Path:
    """Where the project has it. A project with a folder of its own for data keeps its outputs
    there, too: what a script writes to it is the job's."""
    data = scratch.work
    for part in check_blob_key(ticket.data_root).split("/"):
        data = data / part
        make_folder(data)
    if ticket.data_root != DATA_ROOT:
        _linked(data, "outputs", scratch.outputs)
    return data


def _linked(data: Path, name: str, path: Path) -> Path:
    link = _cleared(data, name)
    link.symlink_to(path.absolute(), target_is_directory=path.is_dir())
    return link


def _target(place: TicketPlace, data: Path, here: NodeEnvironment) -> Path:
    direct = prepare_target(place, here.places)
    if direct is not None:
        return _linked(data, place.name, direct)
    folder = _cleared(data, place.name)
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


# `edgeloop.paths` for scripts, on nodes where Edgeloop is not installed.
#
# A folder beside the job's own holds that one module, and is last on PYTHONPATH. Site packages come
# after it, so its package first looks for an installed Edgeloop, and if there is one steps aside.


VARIABLE = "PYTHONPATH"
_PACKAGE = '''\
"""Only `edgeloop.paths`, unless Edgeloop is installed: then this is the installed package."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _installed():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    others = [place for place in sys.path if os.path.abspath(place or ".") != here]
    for finder in sys.meta_path:
        if finder is PathFinder:
            found = PathFinder.find_spec("edgeloop", others)
        else:
            found = getattr(finder, "find_spec", lambda *_: None)("edgeloop", None)
        if found is not None and found.origin and found.loader is not None:
            return found
    return None


def __getattr__(name):
    raise AttributeError(
        "edgeloop is not installed in this job's environment, which has edgeloop.paths alone: "
        "write 'edgeloop: core' into the job's file to use edgeloop.%s" % name
    )


_spec = _installed()
if _spec is not None:
    _module = sys.modules["edgeloop"] = module_from_spec(_spec)
    _spec.loader.exec_module(_module)
'''


def write_library(folder: Path) -> None:
    """The package with its one module. Raises OSError."""
    paths = pkgutil.get_data("edgeloop", "paths.py")
    package = folder / "edgeloop"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(_PACKAGE, encoding="utf-8")
    (package / "paths.py").write_bytes(paths or b"")


def with_library(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables of a command, with the package where a script finds it last."""
    places = [place for place in variables.get(VARIABLE, "").split(os.pathsep) if place]
    return {**variables, VARIABLE: os.pathsep.join([*places, str(folder)])}


# The code of a job, unpacked from its archive.
#
# The archive comes from a store that others may write to. Nothing of it is used unless all of it is
# what was submitted, and reading it never takes more memory or disk than a snapshot may have. The
# checks of Python's own `tarfile` are not relied on: those of older versions have holes.


_MOST_FILES = 200_000
_MOST_AT_ONCE = 1 << 20  # a header with a long name is smaller, and contents come in pieces
_BLOCK = 512
_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, OverflowError)


def unpack_code(archive: Path, digest: str, folder: Path) -> None:
    """Into `folder`, over what is there. Raises BadInput for anything but the snapshot of this
    digest, before the folder is touched."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".code-") as name:
        apart = Path(name)
        unpacked_digest, files = _unpacked(archive, apart)
        if unpacked_digest != digest:
            reason = "The job's code in the store is not what was submitted: submit the job again"
            raise BadInput(reason=reason)
        for file in files:
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            (apart / file).replace(target)


def _unpacked(archive: Path, folder: Path) -> tuple[str, list[str]]:
    try:
        with gzip.open(archive) as unpacked:
            plain = _Forward(unpacked)
            with tarfile.open(fileobj=plain, mode="r:") as members:  # type: ignore[call-overload]
                return _extract(members, folder)
    except (*_BROKEN, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise BadInput(reason=f"The job's code cannot be unpacked: {reason}") from None


class _Forward:
    """A file that is only read forwards, a little at a time, and not without end: a header may say
    that it has gigabytes, or that the next one lies before it."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        content = self._file.read(size)
        self._at += len(content)
        return content

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = 0) -> int:
        if whence or not self._at - _BLOCK <= position <= MOST_CODE_BYTES + (64 << 20):
            raise tarfile.ReadError("its members are not one after the other")
        self._at = self._file.seek(position)
        return self._at


def _extract(archive: tarfile.TarFile, folder: Path) -> tuple[str, list[str]]:
    """Files below `folder` and nothing else; the digest of all of them, and their names."""
    total, size = CodeDigest(), 0
    names: dict[str, None] = {}
    for member in archive:
        archive.members = []  # type: ignore[attr-defined]  # it would keep them all
        parts = member.name.split("/")
        is_plain = member.isreg() and not any(part in ("", ".", "..") for part in parts)
        if not is_plain or "\0" in member.name or member.name in names:
            raise tarfile.TarError(f"{member.name[:200]!r} is not a file below its folder")
        names[member.name] = None
        size += member.size
        if member.size < 0 or size > MOST_CODE_BYTES or len(names) > _MOST_FILES:
            raise tarfile.TarError("it is larger than any code may be")
        executable = bool(member.mode & 0o100)
        total.add(member.name, _write(archive, member, folder / member.name), executable)
        (folder / member.name).chmod(0o755 if executable else 0o644)
    return total.hexdigest(), list(names)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.TarError(f"{member.name!r} has no content")
    hasher = blake2b(digest_size=CODE_DIGEST_BYTES)
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("xb") as file:
        while True:
            piece = content.read(_MOST_AT_ONCE // 2)
            if not piece:
                return hasher.hexdigest()
            hasher.update(piece)
            file.write(piece)


# Data at URLs: provided before the command starts, and sent when it has ended.
#
# What the compute mounts or downloads itself is only linked to. The rest goes through `Blobs`.
# Inputs are kept in the node's cache under a hash of what the listing says, so that jobs of a node
# share one download until the data changes.


_FOLDER = "LocalStore"


def provide(
    place: TicketPlace, paths: Mapping[str, str], cache: Path, log: Callable[[str], None]
) -> Path:
    """The file or folder of an input on this node; `paths` are those of the compute."""
    if place.variable:
        return _served(place, paths)
    if place.make == _FOLDER:
        path = Path(place.options["folder"])
        if not path.exists():
            raise BadInput(reason=f"{place.url} is not on this machine")
        if place.mode != "download":
            return path
        if path.is_file():
            return _fetched(place, _users_folder(path.parent), path.name, cache, log)
        return _fetched(place, _users_folder(path), place.path, cache, log)
    return _fetched(place, open_from_job(place.access), place.path, cache, log)


def _users_folder(folder: Path) -> Blobs:
    """A folder that is no store, but the user's own: they may well have placed links in it."""
    return open_from_job(Access("LocalStore", {"folder": str(folder), "links": "follow"}))


def prepare_target(place: TicketPlace, paths: Mapping[str, str]) -> Path | None:
    """The folder that the command writes into directly; None: what it wrote is sent afterwards."""
    if place.variable:
        return _made(_served(place, paths), place)
    if place.make == _FOLDER and place.mode != "upload":
        return _made(Path(place.options["folder"]), place)
    return None


def deliver(place: TicketPlace, folder: Path, log: Callable[[str], None]) -> None:
    """Send what the command wrote. Files of the same name are replaced, others stay."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and folder.resolve() not in path.resolve().parents:
            log(f"{path.name} in {place.name} is a link to elsewhere, which is not followed")
        elif path.is_file():
            name = path.relative_to(folder).as_posix()
            files[check_blob_key(f"{place.path}/{name}" if place.path else name)] = path
    size = sum(path.stat().st_size for path in files.values())
    if not files:
        log(f"nothing was sent to {place.url}: the job left {place.name} empty")
        return
    open_from_job(place.access).put_many(files)
    log(f"sent {_count(len(files))}, {size_text(size)}, to {place.url}")


def _served(place: TicketPlace, paths: Mapping[str, str]) -> Path:
    path = paths.get(place.variable, "")
    if not path:
        raise BadInput(reason=f"the compute did not say where it provides {place.url}")
    return Path(path)


def _made(folder: Path, place: TicketPlace) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(reason=f"{place.url} cannot be written to: {error.strerror}") from None
    return folder


def _fetched(
    place: TicketPlace, blobs: Blobs, path: str, cache: Path, log: Callable[[str], None]
) -> Path:
    files, is_file = _listing(blobs, path)
    if not files:
        raise BadInput(reason=f"{place.url} has no files")
    digest = hashlib.blake2b(place.url.encode(), digest_size=16)
    for name, info in sorted(files.items()):
        digest.update(f"\0{name}\0{info.size}\0{info.modified.timestamp()}".encode())
    target = cache / "urls" / digest.hexdigest()
    target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(target.with_name(f"{target.name}.lock")):
        if target.is_dir():
            mark_used(target)
            log(f"{place.url} is in this node's cache")
        else:
            _download(place, blobs, files, target)
            size = size_text(sum(info.size for info in files.values()))
            log(f"fetched {_count(len(files))}, {size}, from {place.url}")
    return target / next(iter(files)) if is_file else target


def _listing(blobs: Blobs, path: str) -> tuple[dict[str, BlobInfo], bool]:
    """Files by their names below the path, or the one file that it is. Markers of folders, which
    some services keep as empty files, are left out."""
    prefix = f"{path}/" if path else ""
    listed = {
        info.key[len(prefix) :]: info
        for info in blobs.list(prefix)
        if not info.key.endswith("/") and info.key != prefix
    }
    folders = {str(folder) for name in listed for folder in PurePosixPath(name).parents}
    files = {name: info for name, info in listed.items() if info.size or name not in folders}
    if files or not path:
        return files, False
    single = [info for info in blobs.list(path) if info.key == path]
    return {path.rpartition("/")[2]: info for info in single}, True


def _download(
    place: TicketPlace, blobs: Blobs, files: Mapping[str, BlobInfo], target: Path
) -> None:
    size = sum(info.size for info in files.values())
    free = shutil.disk_usage(target.parent).free
    if free < size:
        needed = f"{size_text(size)} are needed and {size_text(free)} are free"
        raise BadInput(reason=f"{place.url} does not fit on this machine's disk: {needed}")
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        targets = {info.key: partial / check_blob_key(name) for name, info in files.items()}
    except BadName as error:
        raise BadInput(reason=f"{place.url} has a file that cannot be fetched: {error}") from None
    blobs.get_many(targets)
    for path in targets.values():
        path.chmod(0o444)
    partial.replace(target)


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"
