"""What a runner takes of its machine, shared with other runners: a folder of files, and CPUs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from edgeloop._util.files import ScratchFolder, file_lock, own_folder, sha256_of, try_lock
from edgeloop._util.system import (
    announced_cpus,
    available_cpus,
    bind_to_cpus,
    can_bind,
    cgroup_cpus,
    is_container,
    show_progress,
    usable_cpus,
)
from edgeloop.errors import BadInput, BlobMissing, FilesAway, LocalFileError
from edgeloop.models.files import ModelFile
from edgeloop.models.leases import Lease
from edgeloop.settings import state_folder
from edgeloop.store import Blobs, check_blob_key
from edgeloop.workspace import Workspace

# The working folder: a cache of model files, and a clean folder for each stage.
#
# Everything lies below one folder that the runner created and marked; it touches nothing else.
# Cached files serve the next stage of the same model; the oldest are evicted above a size limit.
# They are kept by content and hashed at every use, so a model never gets the file of another one,
# nor one that was damaged on its way or on this disk.


MARK = ".edgeloop-workdir"
DEFAULT_CAP_BYTES = 20 * 10**9
TRIES = 10
LISTINGS = 3
COUNTED_SHARE = 0.05  # of the limit: after so much was added, files are counted again
KEPT_SHARE = 0.9  # so that a full cache is not counted at every stage
_CHUNK = 1 << 20


class WorkFolder:
    def __init__(self, root: Path, cap_bytes: int = DEFAULT_CAP_BYTES) -> None:
        self._root = root
        self._cap_bytes = cap_bytes
        self._counting = threading.Lock()  # workers share the folder
        self._total, self._added = 0, cap_bytes  # nothing is known yet
        self._claim_root()

    @property
    def cache(self) -> Path:
        """For prepared datasets, which are keyed by content and shared by all stages."""
        return self._root / "data"

    def fetch(
        self, blobs: Blobs, files: Mapping[str, ModelFile], folder: Path, store: str = ""
    ) -> dict[str, Path]:
        """Places the files in `folder` under their plain names, using the cache. `store` tells
        stores apart. What arrives is hashed on its way: raises FileDamaged where it is not what the
        row names."""
        places = {name: self._place(file, store) for name, file in files.items()}
        cached = {name: _kept(place, files[name].sha256) for name, place in places.items()}
        self._download(blobs, [(files[n], places[n]) for n, path in cached.items() if path is None])
        fetched = {}
        for name, file in files.items():
            target = folder / check_blob_key(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            for _ in range(TRIES):
                path = cached[name] or _kept(places[name], file.sha256)
                if path is not None and _copied(path, target):
                    break
                cached[name] = None  # changed on this disk, or another process made room
                self._download(blobs, [(file, places[name])])
            else:
                reason = "its folder of files keeps changing: choose another --workdir"
                raise LocalFileError(path=places[name], reason=reason)
            fetched[name] = target
        self._shrink()
        return fetched

    def _place(self, file: ModelFile, store: str) -> Path:
        """The folder for files whose content their rows say, or for one version of a file that no
        row does, by its store and key. A file in it is named by its own hash."""
        if file.sha256:
            return self._root / "files" / file.sha256[:2]
        facts = (store, file.key, file.size, file.modified.isoformat(), file.version)
        name = hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()
        return self._root / "files" / f"of-{name[:2]}" / name

    def _download(self, blobs: Blobs, missing: Sequence[tuple[ModelFile, Path]]) -> None:
        """Into their places, once they are what they should be. What arrived damaged is asked for
        once more, since a connection or a disk may be to blame."""
        for is_last in (False, True):
            fresh = {place / f".{secrets.token_hex(8)}.new": file for file, place in missing}
            try:
                blobs.get_many({file.key: path for path, file in fresh.items()})
                missing = [
                    (file, path.parent)
                    for path, file in fresh.items()
                    if not self._keep(file, path)
                ]
            except LocalFileError as error:  # the names of these files are new every time
                raise LocalFileError(path=self._root, reason=error.fields["reason"]) from None
            finally:
                for path in fresh:
                    path.unlink(missing_ok=True)
            if not missing:
                return
            if is_last:
                raise missing[0][0].damaged()

    def _keep(self, file: ModelFile, path: Path) -> bool:
        sha256 = sha256_of(path)
        if file.sha256 and sha256 != file.sha256:
            return False
        size = path.stat().st_size
        path.replace(path.with_name(sha256))
        with self._counting:
            self._added += size
        return True

    @contextlib.contextmanager
    def stage_folder(self) -> Iterator[Path]:
        """A temporary folder for one stage, always removed."""
        stages = self._root / "stages"
        scratch = None
        try:
            scratch = ScratchFolder(stages)
            yield scratch.path
        except OSError as error:
            reason = error.strerror or str(error)
            raise LocalFileError(path=error.filename or stages, reason=reason) from None
        finally:
            if scratch is not None:
                scratch.close()

    def _claim_root(self) -> None:
        """Refuses a folder with content that is not ours."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not (self._root / MARK).exists():
                if any(self._root.iterdir()):
                    reason = (
                        "it is not empty and was not made by Edgeloop; choose another --workdir"
                    )
                    raise LocalFileError(path=self._root, reason=reason)
                (self._root / MARK).touch()
        except OSError as error:
            reason = f"{error.strerror}: choose another folder with --workdir or EDGELOOP_WORKDIR"
            raise LocalFileError(path=self._root, reason=reason) from None

    def _shrink(self) -> None:
        """Above the limit the least recently used files are deleted, to well below it. Files are
        counted when enough has been added, by this process or, as far as it can know, by others of
        the same folder."""
        with self._counting:
            is_above = self._total + self._added > self._cap_bytes
            if not is_above and self._added <= self._cap_bytes * COUNTED_SHARE:
                return
            facts = sorted(_facts(self._root / "files"))
            total = sum(size for _, size, _ in facts)
            if total > self._cap_bytes:
                for _, size, path in facts:
                    if total <= self._cap_bytes * KEPT_SHARE:
                        break
                    with contextlib.suppress(OSError):
                        Path(path).unlink()
                    total -= size
            self._total, self._added = total, 0


def _facts(folder: Path | str) -> Iterator[tuple[float, int, str]]:
    """When each file below a folder was last used, its size, and its path."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                yield from _facts(entry.path)
            else:
                facts = entry.stat(follow_symlinks=False)
                yield facts.st_mtime, facts.st_size, entry.path


def _kept(place: Path, sha256: str) -> Path | None:
    """The cached file of this content or, if that is not said, of this version; None: not here."""
    if sha256:
        return place / sha256 if (place / sha256).exists() else None
    try:
        return next((path for path in place.iterdir() if not path.name.startswith(".")), None)
    except OSError:
        return None


def fetch_files(
    work_folder: WorkFolder, workspace: Workspace, lease: Lease, folder: Path
) -> dict[str, Path]:
    """The model's files, in this folder. One that is gone when it is fetched may be a result that
    got its plain name meanwhile, so files are listed again."""
    store = workspace.store
    for left in reversed(range(LISTINGS)):
        files = stored_files(workspace, lease)
        try:
            return work_folder.fetch(store.blobs, files, folder, store.description)
        except BlobMissing:
            if not left:
                raise
    raise AssertionError


def stored_files(workspace: Workspace, lease: Lease) -> dict[str, ModelFile]:
    """The model's files, by name. Raises FilesAway where the store has no file at all of an
    experiment that has models: most likely the folder of its files is not mounted here."""
    files = {file.name: file for file in workspace.catalog.files(lease.model)}
    uploaded = str(lease.row.values.get("model_name") or "")
    if files and (not uploaded or uploaded in files):
        return files
    blobs, experiment = workspace.store.blobs, workspace.experiment
    if uploaded:
        blobs.size(f"{experiment}/{lease.model}/{uploaded}")  # raises if it is a link
    places = (experiment, lease.model)
    is_there = blobs.is_there() and any(any(blobs.list(f"{place}/")) for place in places)
    if not is_there:
        reason = (
            f"it has models in {experiment!r} and not one of their files: the folder or container "
            "of its files is another one, or not mounted on this machine"
        )
        raise FilesAway(store=workspace.store.description, reason=reason)
    what = f"its file {uploaded}" if uploaded else "its ONNX file"
    reason = f"{what} is no longer in the store: delete {lease.model} and upload it again"
    raise BadInput(reason=reason)


def _copied(path: Path, target: Path) -> bool:
    """Copies a file of the cache, and says there that it was used. False if it is gone, or if it is
    no longer what its name says: then it is removed. Not a link: onnx refuses external data with
    several names, and tools may write to it."""
    digest = hashlib.sha256()
    try:
        os.utime(path)
        with path.open("rb") as source, target.open("wb") as copy:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                copy.write(chunk)
    except FileNotFoundError:
        return False
    if digest.hexdigest() == path.name:
        return True
    path.unlink(missing_ok=True)
    return False


# Which CPUs of a machine belong to which runner: a lock file per CPU, which the system releases
# when its runner dies. They lie in the user's own folder for state, by the machine's name, since
# several machines may share that folder.
#
# A runner with `--cpus N` holds N of them for as long as it lives, and quantizes whenever it wants.
# A runner without quantizes when no other of its kind does, on the CPUs that are not reserved.


LOOK_AGAIN_S = 0.1
YIELD_S = 1.0  # to a runner that waits for CPUs: it looks several times in that time


class NoCpusError(Exception):
    """The runner was told to stop, or its patience was over, before CPUs were free."""


class CpuPool:
    """The CPUs that this process may use, shared with the other runners of the same user.

    In a container CPUs are counted and not chosen: other containers, whose locks cannot be seen,
    would all choose the same ones. Outside Linux they cannot be chosen.
    """

    def __init__(self, folder: Path | None = None, may_bind: bool | None = None) -> None:
        self._folder = folder or _lock_folder()
        usable, limit = usable_cpus(), cgroup_cpus()
        if may_bind is None:
            has_all = limit is None or limit >= len(usable)
            may_bind = can_bind() and has_all and not is_container()
        self._may_bind = may_bind
        self._numbers = usable if may_bind else usable[: available_cpus()]
        self._is_reserved = False

    @contextlib.contextmanager
    def reserve(
        self,
        count: int,
        stopping: threading.Event,
        note: Callable[[str], None],
        patience_s: float | None = None,
    ) -> Iterator[None]:
        """Hold `count` CPUs; this process and those it starts use them alone. While others hold
        them it waits, and says so; raises NoCpusError when told to stop, or after `patience_s`."""
        if count > (have := len(self._numbers)):
            raise BadInput(reason=f"--cpus {count} is more than the {have} this process may use")
        with ExitStack() as held:
            numbers = self._wait_for(count, held, stopping, note, patience_s)
            held.enter_context(announced_cpus(count, for_libraries=not self._may_bind))
            if self._may_bind:
                held.callback(bind_to_cpus, usable_cpus())
                bind_to_cpus(numbers)
            self._is_reserved = True
            held.callback(setattr, self, "_is_reserved", False)
            yield

    @contextlib.contextmanager
    def turn(self, stopping: threading.Event) -> Iterator[None]:
        """Around one quantization, which takes all CPUs that it can get and much memory. Raises
        NoCpusError when told to stop before its turn comes."""
        if self._is_reserved:
            yield
            return
        with ExitStack() as held:
            while not self._hold("quantize.lock", held):
                _pause(stopping, LOOK_AGAIN_S)
            self._yield_to_reservations(stopping)
            numbers = self._wait_for(0, held, stopping, lambda _: None, None)
            if self._may_bind and len(numbers) < len(self._numbers):
                held.callback(bind_to_cpus, self._numbers)
                bind_to_cpus(numbers)
            yield

    def _wait_for(
        self,
        count: int,
        held: ExitStack,
        stopping: threading.Event,
        note: Callable[[str], None],
        patience_s: float | None,
    ) -> list[int]:
        """The numbers of the CPUs that `held` now holds: `count`, or all free ones where that is 0,
        one at least."""
        began = time.monotonic()
        if numbers := self._take(count, held):
            return numbers
        note(self._who_holds(count))
        with ExitStack() as waiting:
            if count:
                self._hold("waiting.lock", waiting, shared=True)
            while not (numbers := self._take(count, held)):
                if patience_s is not None and time.monotonic() - began > patience_s:
                    raise NoCpusError
                _pause(stopping, LOOK_AGAIN_S)
        return numbers

    def _yield_to_reservations(self, stopping: threading.Event) -> None:
        """Between two quantizations of this runner, one that waits for CPUs gets its chance."""
        with ExitStack() as held:
            if not self._hold("waiting.lock", held):  # another runner waits and holds it
                _pause(stopping, YIELD_S)

    def _take(self, count: int, held: ExitStack) -> list[int]:
        """All or none: no two runners wait for each other with half of what they need."""
        with file_lock(self._file("cpus.lock")):
            locks = {n: try_lock(self._file(f"cpu-{n}.lock")) for n in self._numbers}
            free = {number: lock for number, lock in locks.items() if lock is not None}
            taken = list(free)[: count or None]
            if len(taken) < max(1, count):
                taken = []
            for number, lock in free.items():
                if number in taken:
                    held.callback(os.close, lock)
                    os.truncate(lock, 0)
                    os.pwrite(lock, str(os.getpid()).encode(), 0)
                else:
                    os.close(lock)
        return taken

    def _who_holds(self, count: int) -> str:
        holders = set()
        for number in self._numbers:
            with ExitStack() as free, contextlib.suppress(OSError):
                if not self._hold(f"cpu-{number}.lock", free):
                    holders.add(self._file(f"cpu-{number}.lock").read_text())
        named = ", ".join(sorted(filter(None, holders))) or "another one"
        have = len(self._numbers)
        return (
            f"Waiting for {count} of {have} CPUs: other runners have reserved them (process "
            f"{named})."
        )

    def _hold(self, name: str, held: ExitStack, shared: bool = False) -> bool:
        lock = try_lock(self._file(name), shared)
        if lock is not None:
            held.callback(os.close, lock)
        return lock is not None

    def _file(self, name: str) -> Path:
        return own_folder(self._folder) / name


def _lock_folder() -> Path:
    """A home may be read-only, in a container mostly."""
    name = re.sub(r"[^\w.-]", "_", socket.gethostname()) or "machine"
    try:
        return own_folder(state_folder() / "cpus" / name)
    except LocalFileError:
        user = os.getuid() if hasattr(os, "getuid") else "user"
        return own_folder(Path(tempfile.gettempdir()) / f"edgeloop-{user}")


def _pause(stopping: threading.Event, seconds: float) -> None:
    show_progress()
    if stopping.wait(seconds):
        raise NoCpusError
