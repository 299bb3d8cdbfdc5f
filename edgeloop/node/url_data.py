"""Data at URLs: provided before the command starts, and sent when it has ended.

What the compute mounts or downloads itself is only linked to. The rest goes through `Blobs`. Inputs
are kept in the node's cache under a hash of what the listing says, so that jobs of a node share one
download until the data changes.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from edgeloop._util.files import file_lock, mark_used
from edgeloop._util.values import size_text
from edgeloop.errors import BadInput, BadName
from edgeloop.node.blobs import open_from_job
from edgeloop.node.ticket import TicketPlace
from edgeloop.store.base import Access, BlobInfo, Blobs, check_blob_key

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
    found = {
        info.key[len(prefix) :]: info
        for info in blobs.list(prefix)
        if not info.key.endswith("/") and info.key != prefix
    }
    folders = {str(folder) for name in found for folder in PurePosixPath(name).parents}
    files = {name: info for name, info in found.items() if info.size or name not in folders}
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
        wanted = {info.key: partial / check_blob_key(name) for name, info in files.items()}
    except BadName as error:
        raise BadInput(reason=f"{place.url} has a file that cannot be fetched: {error}") from None
    blobs.get_many(wanted)
    for path in wanted.values():
        path.chmod(0o444)
    partial.replace(target)


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"
