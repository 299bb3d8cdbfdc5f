"""Files of outputs/, and others that the job asked for, into the store: while the command runs,
and the rest when it has ended.

A file is copied once it is unchanged from one scan to the next. One that keeps growing, such as a
log of metrics, is also copied meanwhile, as long as what the store has is its beginning: so a
checkpoint that is being overwritten never replaces the good one before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import json
import os
import pkgutil
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from edgeloop._util.files import write_atomic
from edgeloop._util.redact import KnownSecrets
from edgeloop._util.retry import delays
from edgeloop._util.system import start_time
from edgeloop._util.values import size_text
from edgeloop.errors import (
    BadInput,
    BadName,
    BlobMissing,
    EdgeloopError,
    LocalFileError,
    StoreRefused,
)
from edgeloop.node import command
from edgeloop.node.command import STORE_ERRORS, with_retries
from edgeloop.node.environment import JobLog, JobSecrets, LogCopier, Scratch
from edgeloop.node.ticket import (
    FINAL_STATES,
    CreatedFile,
    FilePatterns,
    JobFiles,
    JobProgress,
    State,
    kept_folder,
    outputs_folder,
    state_key,
)
from edgeloop.store.base import Blobs, check_blob_key, json_safe

GROWING_LIMIT_BYTES = 64 << 20
_ALWAYS_BYTES = 1 << 20
_GROWTH = 1.125  # a larger file is sent again after it has grown by this much, not every line
_IN_MEMORY_BYTES = 4 << 20  # times the number of threads below
_THREADS = 12
_MOST_LISTED = 20
_MOST_GONE = 200  # are listed by name in the job's state, and more of them in its log
_MOST_SCANNED = 1_000_000
_MOST_KEPT = 20_000
_DIGEST_BYTES = 16
# Of what a command creates outside outputs/, caches and the like are nobody's results: folders of
# these names, and those that hold all names of one of these sets: environments, caches, records of
# jobs that it submitted.
_CACHES = frozenset({"__pycache__", ".cache", ".edgeloop", ".git", ".hg", ".svn", "node_modules"})
_CACHE_MARKS: tuple[set[str], ...] = (
    {"pyvenv.cfg"},
    {"conda-meta"},
    {"CACHEDIR.TAG"},
    {".edgeloop-workdir"},
    {"job.json", "state.json"},
)


@dataclass(frozen=True)
class FileState:
    """Metadata of a file; two equal ones mean that the file was not written in between."""

    size: int
    modified_ns: int
    inode: int

    @classmethod
    def at(cls, path: Path) -> FileState:
        return cls.of(path.stat())

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def files_below(
    folder: Path,
    boundary: Path,
    log: Callable[[str], None],
    label: str = "outputs/",
    skips: Callable[[str], bool] = lambda _: False,
    skips_folder: Callable[[Collection[str]], bool] = lambda _: False,
) -> Iterator[tuple[str, FileState]]:
    """Regular files by their names below `folder`. A link is followed if it stays in `boundary`.
    What `skips` accepts is neither returned nor entered, nor are folders of whose content
    `skips_folder` accepts the names. `label` is the folder's name in the log.
    """
    if not _inside(folder, boundary):
        if folder.is_symlink():  # else it does not exist
            log(f"{folder.name}/ was replaced by a link to elsewhere, which is not followed")
        return
    walk = _OutputWalk(boundary.resolve(), log, label, skips, skips_folder)
    yield from walk.files(folder, "", ())


@dataclass(frozen=True)
class _OutputWalk:
    boundary: Path
    log: Callable[[str], None]
    label: str
    skips: Callable[[str], bool]
    skips_folder: Callable[[Collection[str]], bool]

    def files(
        self, folder: Path, prefix: str, above: tuple[int, ...]
    ) -> Iterator[tuple[str, FileState]]:
        try:
            with os.scandir(folder) as entries:
                by_name = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            return
        if prefix and self.skips_folder({entry.name for entry in by_name}):
            return
        for entry in by_name:
            name, path = prefix + entry.name, folder / entry.name
            if self.skips(name):
                continue
            try:
                if entry.is_symlink() and not _inside(path, self.boundary):
                    shown = f"{self.label}{ascii(name)[1:-1]}"
                    self.log(f"{shown} is a link to elsewhere, which is not followed")
                    continue
                status = entry.stat()
            except OSError:
                continue  # gone, or a broken link
            if stat.S_ISREG(status.st_mode):
                yield name, FileState.of(status)
            elif stat.S_ISDIR(status.st_mode) and status.st_ino not in above:
                yield from self.files(path, f"{name}/", (*above, status.st_ino))


def _inside(path: Path, boundary: Path) -> bool:
    try:
        inner, outer = path.resolve(strict=True), boundary.resolve()
    except (OSError, RuntimeError):
        return False
    return inner == outer or outer in inner.parents


class CreatedFiles:
    """Files that the command created or changed outside outputs/. What was there before is written
    beside the job's folder, so that it is known after a kill too."""

    def __init__(self, work: Path, record: Path) -> None:
        self._work = work
        self._record = record
        self._before: dict[str, list[int]] | None = None
        self._skipped: frozenset[str] = frozenset()
        self._patterns = FilePatterns()
        self.kept_bytes = 0  # most that is kept of what nothing asked for

    def remember(self, patterns: Iterable[str], skipped: Iterable[str], kept_bytes: int) -> None:
        """Before the command starts. `skipped` are folders that have a place of their own, such as
        datasets."""
        self.recall()  # a wrapper that is started again finds the files of the one before it
        self._skipped, self._patterns = frozenset(skipped), FilePatterns(patterns)
        self.kept_bytes = kept_bytes
        if self._before is None:
            self._before = {name: _numbers(state) for name, state in self._files()}
        content = {
            "patterns": self._patterns.patterns,
            "skipped": sorted(self._skipped),
            "kept_bytes": kept_bytes,
            "files": self._before,
        }
        write_atomic(self._record, json.dumps(content))

    def recall(self) -> None:
        """What an earlier wrapper of this job wrote, if there was one."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(self._record.read_text())
            self._patterns = FilePatterns(content["patterns"])
            self._skipped, self._before = frozenset(content["skipped"]), content["files"]
            self.kept_bytes = content["kept_bytes"]

    def wanted(self) -> Iterator[tuple[str, FileState]]:
        """Those that the job asked for."""
        if self._patterns.patterns:
            new = self._new(self._files())
            yield from ((name, state) for name, state in new if self._patterns.matches(name))

    def others(self) -> Iterator[tuple[str, FileState]]:
        """Those that it did not ask for, without caches and environments."""
        files = files_below(
            self._work,
            self._work,
            lambda _: None,
            label="",
            skips=lambda name: self._skips(name) or name.rpartition("/")[2] in _CACHES,
            skips_folder=lambda names: any(marks <= set(names) for marks in _CACHE_MARKS),
        )
        new = self._new(files)
        yield from ((name, state) for name, state in new if not self._patterns.matches(name))

    def is_wanted(self, name: str) -> bool:
        return self._patterns.matches(name)

    def gone(self, kept: Mapping[str, FileState]) -> dict[str, FileState]:
        """Those that are neither collected nor kept."""
        return {name: state for name, state in self.others() if name not in kept}

    def _new(self, files: Iterator[tuple[str, FileState]]) -> Iterator[tuple[str, FileState]]:
        before = self._before
        if before is None:  # the job ended before its command could start
            return
        for name, state in itertools.islice(files, _MOST_SCANNED):
            if before.get(name) != _numbers(state):
                yield name, state

    def _files(self) -> Iterator[tuple[str, FileState]]:
        return files_below(self._work, self._work, lambda _: None, "", self._skips)

    def _skips(self, name: str) -> bool:
        return name in self._skipped or name.rpartition("/")[2] == "__pycache__"


def file_summary(
    collected: Mapping[str, FileState],
    kept: Mapping[str, FileState],
    gone: Mapping[str, FileState],
) -> JobFiles:
    """What is in the store, and what is not."""
    return JobFiles(
        collected=len(collected),
        collected_bytes=_total(collected),
        left=len(gone),
        left_bytes=_total(gone),
        largest=_largest(gone, _MOST_GONE),
        kept=len(kept),
        kept_bytes=_total(kept),
        largest_kept=_largest(kept, _MOST_LISTED),
    )


def _total(files: Mapping[str, FileState]) -> int:
    return sum(state.size for state in files.values())


def _largest(files: Mapping[str, FileState], most: int) -> tuple[CreatedFile, ...]:
    largest = heapq.nlargest(most, files.items(), key=lambda item: item[1].size)
    return tuple(CreatedFile(name, state.size) for name, state in largest)


def may_be_secret(name: str) -> bool:
    """By the name alone, as for the files of code."""
    return _secret_names().matches(name.lower())


@lru_cache(maxsize=None)
def _secret_names() -> FilePatterns:
    """The list is written as git's patterns: one without a slash inside it is a name anywhere."""
    content = pkgutil.get_data("edgeloop.node", "secret_files.txt") or b""
    lines = [line.strip() for line in content.decode().splitlines()]
    patterns = [line.rstrip("/") for line in lines if line and not line.startswith("#")]
    return FilePatterns(text if "/" in text else f"**/{text}" for text in patterns)


def _numbers(state: FileState) -> list[int]:
    return [state.size, state.modified_ns, state.inode]


@dataclass(frozen=True)
class StoredFile:
    """What of a file is in the store: its state then, and a hash of the content."""

    state: FileState
    digest: bytes  # empty for files too large to be sent while they grow


class OutputCopier:
    """Knows what of a folder is in the store. `copy` and `finish` are for one thread at a time."""

    def __init__(
        self,
        outputs: Path,
        created: CreatedFiles,
        blobs: Blobs,
        job: str,
        log: Callable[[str], None],
    ) -> None:
        self._outputs = outputs
        self._created = created
        self._blobs = blobs
        self._prefix = outputs_folder(job)
        self._log = log  # writes a sentence once
        self._paths: dict[str, Path] = {}  # of the last scan
        self._sent: dict[str, StoredFile] = {}
        self._last_scan: dict[str, FileState] = {}
        self._copying = threading.Lock()
        self.refused: set[str] = set()  # names that the store cannot hold
        self.error: Exception | None = None  # of the last copy

    def copy(self) -> None:
        """One scan; raises the store's error after all files were tried."""
        with self._copying:
            states = self._scan()
            unchanged = {n for n, state in states.items() if self._last_scan.get(n) == state}
            self._last_scan = states
            changed = self._changed(states)
            self._send(self._put, [name for name in changed if name in unchanged], states)
            for name in changed:
                if name not in unchanged and states[name].size <= GROWING_LIMIT_BYTES:
                    self._attempt(self._put_growing, name, states[name])
            if self.error is not None:
                raise self.error

    def finish(self) -> set[str]:
        """Copy everything that is not stored in its current state; returns what could not be."""
        with self._copying:
            states = self._scan()
            self._send(self._put, self._changed(states), states)
            return set(self._changed(states)) | self.refused

    def remove_deleted(self) -> None:
        """Delete stored files that the command has removed again."""
        names = set(self._scan())
        stored = [info.key for info in self._blobs.list(self._prefix)]
        gone = [key for key in stored if key[len(self._prefix) :] not in names]
        self._blobs.delete(gone)

    def collected(self) -> dict[str, FileState]:
        """What belongs into the store, by its name there."""
        with self._copying:
            return self._scan()

    def _scan(self) -> dict[str, FileState]:
        """A file that was asked for has the name that it has in the job's folder; one of the same
        name in outputs/ comes first."""
        self.error = None
        states: dict[str, FileState] = {}
        inside = files_below(self._outputs, self._outputs.parent, self._log)
        self._add(states, inside, self._outputs, "outputs/")
        self._add(states, self._created.wanted(), self._outputs.parent, "")
        return states

    def _add(
        self,
        states: dict[str, FileState],
        files: Iterable[tuple[str, FileState]],
        folder: Path,
        label: str,
    ) -> None:
        for name, state in files:
            if name in states:
                self._log(f"{name} is not collected, because outputs/{name} exists as well")
                continue
            try:
                check_blob_key(self._prefix + name)
            except BadName as error:
                self.refused.add(ascii(name))
                self._log(f"{label or 'the job'} has a file that the store cannot hold: {error}")
                continue
            states[name] = state
            self._paths[name] = folder / name

    def _changed(self, states: dict[str, FileState]) -> list[str]:
        sent = self._sent
        return [n for n, state in states.items() if n not in sent or sent[n].state != state]

    def _send(
        self,
        put: Callable[[str, FileState], None],
        names: Iterable[str],
        states: dict[str, FileState],
    ) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            for name in names:
                pool.submit(self._attempt, put, name, states[name])

    def _attempt(self, put: Callable[[str, FileState], None], name: str, state: FileState) -> None:
        try:
            put(name, state)
        except (*STORE_ERRORS, LocalFileError) as error:
            self.error = error
        except FileNotFoundError:
            pass  # removed between the scan and the copy: the next scan tells
        except OSError as error:
            self._log(f"{self._shown(name)} cannot be read: {error.strerror}")

    def _put(self, name: str, state: FileState) -> None:
        """A small file is read at once, so that it is never stored half old and half new; a large
        one that changes while it is sent counts as not stored."""
        path = self._paths[name]
        if state.size <= _IN_MEMORY_BYTES:
            content = path.read_bytes()
            if FileState.at(path) != state:
                return
            self._blobs.put(self._prefix + name, content)
            self._sent[name] = StoredFile(state, _digest(content))
            return
        digest = b""
        if state.size <= GROWING_LIMIT_BYTES:
            hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            with path.open("rb", buffering=0) as file:
                for chunk in iter(lambda: file.read(_ALWAYS_BYTES), b""):
                    hasher.update(chunk)
            digest = hasher.digest()
        self._blobs.put(self._prefix + name, path)
        if FileState.at(path) == state:
            self._sent[name] = StoredFile(state, digest)
        else:
            self._sent.pop(name, None)
            shown = self._shown(name)
            self._log(f"{shown} changed while it was copied; it will be copied again")

    def _put_growing(self, name: str, state: FileState) -> None:
        before = self._sent.get(name)
        enough = _GROWTH * before.state.size if before else 0
        if enough > _ALWAYS_BYTES and state.size < enough:
            return
        with self._paths[name].open("rb") as file:
            content = file.read(state.size)
        if before is not None:
            start = content[: before.state.size]
            if len(start) < before.state.size or _digest(start) != before.digest:
                return
        elif self._blobs.size(self._prefix + name) is not None:
            return  # left by an earlier wrapper of this job, or by an interrupted copy
        self._blobs.put(self._prefix + name, content)
        whole = len(content) == state.size and FileState.at(self._paths[name]) == state
        sent = state if whole else FileState(len(content), -1, state.inode)
        self._sent[name] = StoredFile(sent, _digest(content))

    def _shown(self, name: str) -> str:
        return self._paths[name].relative_to(self._outputs.parent).as_posix()


class KeptFiles(OutputCopier):
    """Files that the command created elsewhere, and that nothing asked for: the store has them for
    a while, in a folder of their own. The smallest come first, up to a limit of all together."""

    def __init__(
        self,
        outputs: Path,
        created: CreatedFiles,
        blobs: Blobs,
        job: str,
        log: Callable[[str], None],
    ) -> None:
        super().__init__(outputs, created, blobs, job, log)
        self._prefix = kept_folder(job)
        self._chosen: set[str] = set()

    def why_not(self, name: str) -> str:
        """Why a file is not kept."""
        if may_be_secret(name):
            return "its name is that of a secret"
        if name in self._chosen or ascii(name) in self.refused:
            return "it could not be stored"
        return f"the limit is {size_text(self._created.kept_bytes)}"

    def remove_deleted(self) -> None:
        """Delete what the command has removed again, and what was within the limit before."""
        names = set(self._scan())
        gone = [name for name in self._sent if name not in names]
        self._blobs.delete([self._prefix + name for name in gone])
        for name in gone:
            del self._sent[name]

    def collected(self) -> dict[str, FileState]:
        """What is in the store as it is here."""
        states = super().collected()
        changed = set(self._changed(states))
        return {name: state for name, state in states.items() if name not in changed}

    def _scan(self) -> dict[str, FileState]:
        self.error = None
        files: dict[str, FileState] = {}
        others = ((n, state) for n, state in self._created.others() if not may_be_secret(n))
        self._add(files, others, self._outputs.parent, "")
        room, states = self._created.kept_bytes, {}
        smallest_first = sorted(files.items(), key=lambda item: (item[1].size, item[0]))
        for name, state in smallest_first[:_MOST_KEPT]:
            room -= state.size
            if room < 0:
                break
            states[name] = state
        self._chosen = set(states)
        return states


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def make_folder(path: Path) -> None:
    """Ensure a real folder, even if the code has a link or a file of that name."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        os.unlink(path)  # noqa: PTH108
    path.mkdir(parents=True, exist_ok=True)


# The end of a job: outputs, log and state into the store, in this order, then the scratch folder is
# removed. The state comes last because it is a promise: who reads `completed` finds every file.
#
# `recover` does the same for a job whose supervisor died, from the folder it left.


FAILED = 1
KILLED = 137
CANCELED = 143
_TAIL_BYTES = 256 * 1024
_MOST_REFUSALS = 3  # of some file by a store that accepts everything else
_DELAY_S = 1.0
_MOST_NAMES = 10
_MOST_LOGGED = 1_000
_DYING_S = 3.0  # a killed process closes its pipes before its lock is released


class StateWriter:
    """Holds the progress and writes it, with secrets masked; `put` is called by one thread at a
    time."""

    def __init__(
        self,
        blobs: Blobs,
        job: str,
        progress: JobProgress,
        secrets: JobSecrets,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._blobs = blobs
        self._job = job
        self._progress = progress
        self._secrets = secrets
        self._clock = clock
        self._changing = threading.Lock()

    @property
    def progress(self) -> JobProgress:
        return self._progress

    def change(self, **changes: Any) -> bool:
        """Whether it made a difference."""
        with self._changing:
            before = self._progress
            self._progress = replace(before, **changes)
            return self._progress != before

    def put(self) -> None:
        with self._changing:
            self._progress = replace(self._progress, heartbeat=self._clock())
            progress = self._progress
        masked = _without_secrets(progress, self._secrets.known())
        self._blobs.put(state_key(self._job), masked.to_json())


def _without_secrets(progress: JobProgress, secrets: KnownSecrets) -> JobProgress:
    """What the script or a program that it started may have written."""

    def masked(files: Iterable[CreatedFile]) -> tuple[CreatedFile, ...]:
        return tuple(replace(file, name=secrets.mask(file.name)) for file in files)

    created = progress.files
    return replace(
        progress,
        reason=secrets.mask(progress.reason),
        metrics=secrets.mask_all(progress.metrics),
        files=replace(
            created, largest=masked(created.largest), largest_kept=masked(created.largest_kept)
        ),
    )


def stored_progress(blobs: Blobs, job: str) -> JobProgress | None:
    with contextlib.suppress(BlobMissing, BadInput):
        return JobProgress.from_json(blobs.read_document(state_key(job)))
    return None


def latest_metrics(file: Path) -> Mapping[str, object]:
    """The last complete line that is a JSON object."""
    try:
        if not file.is_file():
            return {}
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read(_TAIL_BYTES).split(b"\n")[:-1]
    except OSError:
        return {}
    return next((values for line in reversed(lines) if (values := _object(line))), {})


def _object(line: bytes) -> dict[str, object]:
    try:
        value = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {
        name: json_safe(item) if isinstance(item, float) else item for name, item in value.items()
    }


@dataclass(frozen=True)
class JobOutcome:
    """How the job ended; `code` is the exit code for the compute."""

    state: State
    code: int
    reason: str = ""
    exit_code: int | None = None  # the command's own, if it ran
    published: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class JobFinisher:
    """All that is needed to finish a job, for its supervisor and for `recover`."""

    scratch: Scratch
    node: str
    log: JobLog
    log_copier: LogCopier
    outputs: OutputCopier
    kept: KeptFiles
    created: CreatedFiles
    state: StateWriter
    patience_s: float

    def finish(self, outcome: JobOutcome) -> int:
        """The final exit code. The scratch folder is kept if not all of it could be stored."""
        full = self.scratch.full_disk()
        if full and outcome.state == "failed":
            outcome = replace(outcome, reason=f"{full} on {self.node}; {outcome.reason}")
        missing = self._copy_all(self.outputs)
        if not missing:  # else all stays on the node
            self._keep()
        self.scratch.release_reserve()
        if full:
            self.log.write(full)
        if missing:
            outcome = self._incomplete(outcome, missing)
        elif outcome.state == "completed":
            self._try(self.outputs.remove_deleted)
        self._list_files()
        self.log.write(f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state)
        if self._report(outcome, complete=not missing) and not missing:
            shutil.rmtree(self.scratch.folder, ignore_errors=True)
        return outcome.code

    def _keep(self) -> None:
        """Whatever happens here, the results are complete: it never fails the job."""
        missing = self._copy_all(self.kept)
        if missing and self.kept.error is not None:
            self.log.write(f"files outside outputs/ could not be kept: {self.kept.error}")
        with contextlib.suppress(*STORE_ERRORS, EdgeloopError):
            self.kept.remove_deleted()

    def _list_files(self) -> None:
        """In the log and the state, because the job's folder is removed."""
        collected, kept = self.outputs.collected(), self.kept.collected()
        gone = self.created.gone(kept)
        files = file_summary(collected, kept, gone)
        self.state.change(files=files)
        if files.collected:
            count = "1 file" if files.collected == 1 else f"{files.collected} files"
            names = ", ".join(ascii(name)[1:-1] for name in sorted(collected)[:_MOST_NAMES])
            more = ", …" if files.collected > _MOST_NAMES else ""
            self.log.write(f"{count} collected, {size_text(files.collected_bytes)}: {names}{more}")
        if note := files.note(_MOST_NAMES):
            self.log.write(note)
        for name, state in itertools.islice(sorted(gone.items()), _MOST_LOGGED):
            shown = f"{ascii(name)[1:-1]} ({size_text(state.size)})"
            self.log.write(f"not kept, because {self.kept.why_not(name)}: {shown}")

    def _incomplete(self, outcome: JobOutcome, missing: set[str]) -> JobOutcome:
        """Results that cannot be fetched are a failure; single files that no store could hold are
        only reported."""
        many = f"{len(missing)} files of outputs/ ({sorted(missing)[0]}, …)"
        what = many if len(missing) > 1 else f"outputs/{next(iter(missing))}"
        why = f" ({self.outputs.error})" if self.outputs.error else ""
        loss = f"{what} could not be stored{why}: see {self.scratch.outputs} on {self.node}"
        reason = f"{outcome.reason}; {loss}" if outcome.reason else loss
        if outcome.state == "completed" and not self._state_is_stored():
            return replace(outcome, state="failed", code=FAILED, reason=reason)
        return replace(outcome, reason=reason)

    def _copy_all(self, copier: OutputCopier) -> set[str]:
        """What could not be copied. A file that fails while everything else works is given up."""
        deadline = time.monotonic() + self.patience_s
        refusals = 0
        for delay in delays(_DELAY_S, 15 * _DELAY_S):
            missing = copier.finish()
            if copier.error is None:
                return missing
            works = self._state_is_stored()
            refusals = refusals + 1 if works else 0
            hopeless = isinstance(copier.error, StoreRefused) and not works
            left = deadline - time.monotonic()
            if hopeless or refusals >= _MOST_REFUSALS or left <= 0:
                return missing
            time.sleep(min(delay, left))
        raise AssertionError("delays never end")

    def _report(self, outcome: JobOutcome, complete: bool) -> bool:
        stored = self._try(partial(self.log_copier.copy, is_over=True))
        self.state.change(
            state=outcome.state,
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            ended=time.time(),
            published=outcome.published,
            log_bytes=self.log_copier.bytes_sent,
            outputs_complete=complete,
            metrics=latest_metrics(self.scratch.outputs / "metrics.jsonl")
            or self.state.progress.metrics,
        )
        return self._try(self.state.put) and stored

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            with_retries(action, self.patience_s)
        except EdgeloopError as error:
            self.log.write(f"{error} The job's folder is kept: {self.scratch.folder}")
            return False
        return True

    def _state_is_stored(self) -> bool:
        try:
            self.state.put()
        except STORE_ERRORS:
            return False
        return True


def recover(
    folder: Path, blobs: Blobs, reason: str, patience_s: float = 30.0, state: State = "failed"
) -> bool:
    """Whether the job is finished; False if its supervisor is still alive.

    A job that had reported its end keeps that state; only what is missing in the store is stored.
    `state` is that of any other: it has failed, unless it was canceled.
    """
    scratch = Scratch(folder)
    if not folder.is_dir():
        return True
    with scratch.locked(_DYING_S) as alone:
        if not alone:
            return False
        note = scratch.read_note()
        if note.command and start_time(note.command) == note.born:
            command.signal_group(signal.SIGKILL, note.command)
        command.kill_all(lambda: command.processes_of(scratch.job))
        progress = with_retries(lambda: stored_progress(blobs, scratch.job), patience_s)
        outcome = JobOutcome(state, KILLED, reason)
        if progress is None:
            now = time.time()
            progress = JobProgress(state, note.attempt, note.node, now, started=note.started)
        elif progress.state in FINAL_STATES:
            if progress.outputs_complete:
                shutil.rmtree(folder, ignore_errors=True)
                return True
            why = progress.reason or reason
            published = progress.published
            outcome = JobOutcome(progress.state, KILLED, why, progress.exit_code, published)
        scratch.log.touch()
        secrets = JobSecrets(scratch)
        log = JobLog(scratch.log, secrets)
        created = CreatedFiles(scratch.work, scratch.before)
        created.recall()
        JobFinisher(
            scratch=scratch,
            node=note.node,
            log=log,
            log_copier=LogCopier(scratch.log, blobs, scratch.job, secrets),
            outputs=OutputCopier(scratch.outputs, created, blobs, scratch.job, log.write_once),
            kept=KeptFiles(scratch.outputs, created, blobs, scratch.job, log.write_once),
            created=created,
            state=StateWriter(blobs, scratch.job, progress, secrets),
            patience_s=patience_s,
        ).finish(outcome)
    return True
