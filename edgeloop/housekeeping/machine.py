"""What this machine keeps and could fetch or make again: by its last use, and by its size.

Whoever uses an entry touches it first, where it has a lock while holding that. What goes is renamed
first, under that lock: others see all of it or nothing, and what a killed removal leaves behind is
found by its name. Nothing goes that was used since the oldest job began that still runs here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeloop._util.locks import is_abandoned, try_lock
from edgeloop.errors import LocalFileError
from edgeloop.housekeeping.findings import SAFETY_S, GcOptions, ReportDraft
from edgeloop.jobs import ended_jobs
from edgeloop.settings import STORE_FOLDER
from edgeloop.store import Blobs

MACHINE = "machine"
GONE = ".gone-"
_BEGUN_S = 3_600.0  # a job fetches its data before its first file is written
_KINDS = {
    "datasets": "datasets of jobs",
    "urls": "downloads of jobs",
    "packages": "packages of jobs",
    "envs": "environments",
    "wrapper": "programs of jobs",
    "estimates": "estimates of 'advise'",
    "layers": "layer times",
}
_USE_MARKS = ("set.json", ".ready")  # inside a folder, touched when it is used


@dataclass(frozen=True)
class CacheEntry:
    """A file or folder that goes as a whole. `used` is when it was last used."""

    kind: str
    path: Path
    used: float
    size: int
    lock: Path | None = None


class MachineLeftovers:
    """`cache` is this machine's cache of jobs, `project` the folder with `.edgeloop`."""

    def __init__(self, cache: Path, project: Path, blobs: Blobs, options: GcOptions) -> None:
        self._cache = cache
        self._own = project / STORE_FOLDER
        self._blobs = blobs
        self._options = options
        self._now = now = time.time()
        live = self._oldest_live_job()
        self._before = min(now - max(options.older_s, SAFETY_S), live)
        self._usable_before = min(now - SAFETY_S, live)

    def find(self, draft: ReportDraft) -> None:
        entries = [*self._of_jobs(), *self._of_runners()]
        goes = [entry for entry in entries if entry.used < self._before]
        goes += self._over_the_limit(entries, {entry.path for entry in goes})
        kinds: dict[str, list[CacheEntry]] = {}
        for entry in goes:
            kinds.setdefault(entry.kind, []).append(entry)
        for kind, found in kinds.items():
            self._add(draft, kind, found, "can be fetched or made again")
        self._add(draft, "interrupted work", list(self._abandoned()), "of processes that died")
        self._find_scratch(draft)
        self._note_rest(draft, entries, {entry.path for entry in goes})

    def _over_the_limit(
        self, entries: Sequence[CacheEntry], gone: set[Path]
    ) -> Iterator[CacheEntry]:
        limit = self._options.cache_bytes
        left = [entry for entry in entries if entry.path not in gone]
        total = sum(entry.size for entry in left)
        for entry in sorted(left, key=lambda entry: entry.used):
            if limit is None or total <= limit or entry.used >= self._usable_before:
                return
            total -= entry.size
            yield entry

    def _of_jobs(self) -> Iterator[CacheEntry]:
        for folder, kind in _KINDS.items():
            for path in _children(self._cache / folder):
                if path.suffix == ".lock" or path.name.startswith("."):
                    continue
                whole = path.name.removesuffix(".partial")  # whoever fetches it holds that lock
                lock = path.with_name(f"{whole}.lock")
                if folder == "envs":
                    lock = path.with_suffix(".lock")
                has_lock = folder in ("datasets", "urls", "envs")
                yield CacheEntry(kind, path, _used(path), _size(path), lock if has_lock else None)

    def _of_runners(self) -> Iterator[CacheEntry]:
        work = self._own / "work"
        if _is_workdir(work):
            for path in sorted((work / "files").rglob("*")):
                if path.is_file() and not path.is_symlink():
                    yield CacheEntry("files of runners", path, _used(path), _size(path))
        for folder in (work / "data", self._own / "prepared"):
            for path in _children(folder):
                if not path.name.startswith("."):
                    yield CacheEntry("prepared images", path, _used(path), _size(path))

    def _abandoned(self) -> Iterator[CacheEntry]:
        """What a removal that was killed left, and folders of stages whose process is gone."""
        folders = [self._cache / name for name in _KINDS]
        work = self._own / "work"
        for folder in (*folders, work / "data", self._own / "prepared"):
            for path in _children(folder):
                is_partial = path.name.startswith(".") and _used(path) < self._before
                if path.name.startswith(GONE) or is_partial:
                    yield CacheEntry("", path, _used(path), _size(path))
        if _is_workdir(work):
            for path in _children(work / "stages"):
                if is_abandoned(path):
                    yield CacheEntry("", path, _used(path), _size(path), path)

    def _find_scratch(self, draft: ReportDraft) -> None:
        """Folders of jobs that were killed. Their outputs may be nowhere else, so those go whose
        outputs the store has."""
        old = [
            path
            for path in (*_children(self._cache / "jobs"), *self._ranks())
            if _used(path) < self._before and not _is_locked(path / "lock")
        ]
        ended = ended_jobs(self._blobs, sorted({path.name for path in old}))
        stored = {job for job, progress in ended.items() if progress.outputs_complete}
        found = [
            CacheEntry("", path, _used(path), _size(path), path / "lock")
            for path in old
            if path.name in stored
        ]
        self._add(draft, "folders of jobs", found, "that ended; the store has their outputs")
        if left := len(old) - len(found):
            what = "1 folder of a job" if left == 1 else f"{left} folders of jobs"
            where = self._cache / "jobs"
            draft.notes.append(f"{what} below {where} stay: this store does not have their outputs")

    def _ranks(self) -> Iterator[Path]:
        for rank in _children(self._cache / "ranks"):
            yield from _children(rank)

    def _oldest_live_job(self) -> float:
        """When it began; later than now if there is none."""
        times = [self._now]
        for path in (*_children(self._cache / "jobs"), *self._ranks()):
            if _is_locked(path / "lock"):
                files = [_used(file) for file in _children(path)]
                times.append(min(files, default=0.0) - _BEGUN_S)
        return min(times)

    def _add(self, draft: ReportDraft, kind: str, found: Sequence[CacheEntry], why: str) -> None:
        names = [str(entry.path) for entry in found]
        sizes = [entry.size for entry in found]

        def remove() -> int:
            return sum(_removed(entry) for entry in found)

        draft.add(kind, MACHINE, sizes, why, remove, names)

    def _note_rest(
        self, draft: ReportDraft, entries: Sequence[CacheEntry], gone: set[Path]
    ) -> None:
        from edgeloop._util.units import size_text

        kept = sum(entry.size for entry in entries if entry.path not in gone)
        if kept and self._options.cache_bytes is None:
            draft.notes.append(
                f"caches of this machine that were used lately take {size_text(kept)}: see "
                "--keep-cache"
            )


def _is_workdir(folder: Path) -> bool:
    from edgeloop.runner import WORKDIR_MARK

    return (folder / WORKDIR_MARK).exists()


def _removed(entry: CacheEntry) -> bool:
    """False if it was used again meanwhile, or is being used now."""
    try:
        lock = None if entry.lock is None else try_lock(entry.lock)
    except LocalFileError:
        return False
    if entry.lock is not None and lock is None:
        return False
    gone = entry.path.with_name(f"{GONE}{secrets.token_hex(8)}")
    try:
        if _used(entry.path) > entry.used:
            return False
        entry.path.rename(gone)
    except OSError:
        return False
    finally:
        if lock is not None:
            os.close(lock)
    _delete(gone)
    return True


def _delete(path: Path) -> None:
    """Datasets in the cache are read-only, folders too."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _used(path: Path) -> float:
    """When it was last touched; a folder that has a mark of its own, when that was."""
    times = []
    for place in (path, *(path / name for name in _USE_MARKS)):
        with contextlib.suppress(OSError):
            times.append(place.lstat().st_mtime)
    return max(times, default=0.0)


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            return path.lstat().st_size
        return 0
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total


def _is_locked(path: Path) -> bool:
    """Whether a live process holds it; a lock that is not there is not made."""
    if not path.exists():
        return False
    try:
        lock = try_lock(path)
    except LocalFileError:
        return True
    if lock is None:
        return True
    os.close(lock)
    return False


def known_jobs(project: Path) -> Mapping[str, str]:
    """Jobs that this project has records of: their names by id."""
    from edgeloop.jobs import RUNS_FOLDER, RunRecords

    listed = RunRecords(project / RUNS_FOLDER).list()
    return {run.record.id: run.name for run in listed.runs}
