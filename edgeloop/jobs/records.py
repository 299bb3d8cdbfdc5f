"""The records of jobs, in `runs/<name>/` and in the store, and the selection of jobs by name, tag
or state.

`job.json`      what was submitted; written once, never changed. It holds no secret
`secrets.json`  values of secret variables, for another attempt; only its owner may read it
`state.json`    the last known state; a final state is never overwritten by an earlier one

A record is written in a hidden folder and appears by one rename. So there is never half a record,
and of two that submit the same name at once one wins and the other gets an error.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from socket import gethostname
from urllib.parse import quote

from edgeloop._util.files import write_atomic, write_private
from edgeloop._util.redact import redact
from edgeloop._util.system import ordered_map, user_name
from edgeloop._util.values import did_you_mean
from edgeloop.errors import BadInput, BadName, BlobMissing, JobNameTaken, LocalFileError, NoSuchJob
from edgeloop.jobs.secrets import with_values
from edgeloop.jobs.spec import MADE_NAME_LIMIT, check_job_name
from edgeloop.jobs.watch import Status, status_from_store
from edgeloop.node.ticket import (
    CODE_FOLDER,
    FINAL_STATES,
    WRAPPER_FOLDER,
    Input,
    JobProgress,
    State,
    Ticket,
    cancel_key,
    folder_key,
    from_json,
    from_plain,
    state_key,
    ticket_key,
    to_json,
)
from edgeloop.paths import find_project
from edgeloop.store import BlobInfo, Blobs

RECORD_FILE = "job.json"
STATE_FILE = "state.json"
SECRETS_FILE = "secrets.json"
ID_LIMIT = 60
_MOST_NUMBERS = 100_000  # tried for a name
_SECRET_KEY = re.compile(r"(?i)token|secret|password|key|credential|signature|sas$|connection")


@dataclass(frozen=True)
class JobRecord:
    """All that was decided when a job was submitted. It holds no secret.

    `spec` is the specification as a document; `code` the digest of its snapshot.
    """

    id: str
    name: str
    created: datetime
    experiment: str
    spec: Mapping[str, object]
    compute: str
    kind: str
    config: Mapping[str, object] = field(default_factory=dict)
    place: Mapping[str, str] = field(default_factory=dict)  # see `Compute.place`
    store: str = ""
    code: str = ""
    inputs: tuple[Input, ...] = ()
    command: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    attempt: int = 1
    parent: str | None = None  # the name of the job that this one is another attempt of
    user: str = ""  # who submitted it, and where

    def to_json(self) -> bytes:
        return to_json(replace(self, config=without_secrets(self.config)), indent=2)


@dataclass(frozen=True)
class Run:
    """A job as this machine knows it.

    Attributes:
        record: What was submitted: id, name, command, datasets, compute. It never changes.
        status: What was last known of it: state, reason, exit code, times and metrics.
        cancel_asked: Whether it was asked to end.
        in_doubt: Whether its submission failed in a way that leaves open if the compute has it.

    Examples:
        >>> from edgeloop import Jobs
        >>> [run.name for run in Jobs.open().select(["all"]).runs]
        []
    """

    record: JobRecord
    status: Status
    cancel_asked: bool = False
    in_doubt: bool = False

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.record.name

    @property
    def state(self) -> State:
        """`queued`, `preparing`, `running`, `completed`, `failed` or `canceled`."""
        return self.status.state


@dataclass(frozen=True)
class Listing:
    """Runs from the oldest to the newest, and a sentence for each record that cannot be read."""

    runs: tuple[Run, ...]
    damaged: tuple[str, ...] = ()


Draft = Callable[[str, str], JobRecord]  # from a name and an id


class RunRecords:
    """The folder of records of one project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self, name: str, draft: Draft, attempt: int = 1, secrets: Mapping[str, str] | None = None
    ) -> Run:
        """Record a new job under exactly this name; raises JobNameTaken. `secrets` are kept apart
        from its record."""
        _check(name)
        record = draft(name, new_id(name, attempt))
        run = Run(record, Status("queued"))
        with self._hidden_folder() as new:
            write_atomic(new / RECORD_FILE, record.to_json(), durable=True)
            write_atomic(new / STATE_FILE, _state_json(run))
            if secrets:
                write_private(new / SECRETS_FILE, json.dumps(secrets))
            try:
                new.rename(self.folder / name)
            except OSError:
                if not os.path.lexists(self.folder / name):
                    raise
                raise JobNameTaken(name=name, folder=self._folder_name) from None
        return run

    def add_numbered(
        self, stem: str, draft: Draft, secrets: Mapping[str, str] | None = None
    ) -> Run:
        """Record a new job as `stem-1`, `stem-2`, …: the first number above those in use."""
        first = self._highest(re.compile(rf"{re.escape(stem)}-(\d+)")) + 1
        for number in range(first, first + _MOST_NUMBERS):
            with contextlib.suppress(JobNameTaken):
                return self.add(f"{stem}-{number}", draft, secrets=secrets)
        raise JobNameTaken(name=stem, folder=self._folder_name)

    def add_attempt(
        self,
        of: JobRecord,
        draft: Callable[[str, str, int], JobRecord],
        secrets: Mapping[str, str] | None = None,
    ) -> Run:
        """Record another attempt: `lr-3` → `lr-3.2` → `lr-3.3`. The draft gets its number."""
        base = _first_name(of)
        first = max(1, self._highest(re.compile(rf"{re.escape(base)}\.(\d+)"))) + 1
        for number in range(first, first + _MOST_NUMBERS):
            with contextlib.suppress(JobNameTaken):
                drafted = _numbered(draft, number)
                return self.add(f"{base}.{number}", drafted, number, secrets)
        raise JobNameTaken(name=base, folder=self._folder_name)

    def newest_attempts(self, of: Iterable[JobRecord]) -> dict[str, str]:
        """By the names of these jobs, that of the newest attempt of the same job; those that are
        the newest themselves are left out. The folder is looked through once."""
        highest: dict[str, int] = {}
        for base, _, number in (name.rpartition(".") for name in self._names()):
            if number.isdecimal():
                highest[base] = max(highest.get(base, 0), int(number))
        newest = {record.name: (_first_name(record), max(1, record.attempt)) for record in of}
        return {
            name: f"{base}.{highest[base]}"
            for name, (base, own) in newest.items()
            if highest.get(base, 0) > own
        }

    def free_stem(self, stem: str) -> str:
        """`stem-4` if no job has that name or begins with `stem-4-`: for the names of a sweep."""
        pattern = re.compile(rf"{re.escape(stem)}-(\d+)(?:[-.].*)?")
        return f"{stem}-{self._highest(pattern) + 1}"

    def list(self) -> Listing:
        """Every job with a record here. Damaged records are reported and hide no other."""
        runs, damaged = [], []
        for name in self._names():
            try:
                runs.append(self._read(name))
            except FileNotFoundError:
                continue  # a folder without a record, or one that is being removed
            except LocalFileError as error:
                damaged.append(str(error))
        return Listing(tuple(sorted(runs, key=age)), tuple(sorted(damaged)))

    def get(self, name: str) -> Run:
        try:
            _check(name)
            return self._read(name)
        except (BadName, FileNotFoundError):
            raise NoSuchJob(pattern=name, folder=self.folder.absolute()) from None

    def whole_spec(self, record: JobRecord) -> Mapping[str, object]:
        """The specification with the values of its secret variables, if they were given here."""
        secret_values: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            content = json.loads(_content(self.path(record.name) / SECRETS_FILE))
            secret_values = {str(key): str(value) for key, value in content.items()}
        return with_values(record.spec, secret_values, record.name)

    def save(self, run: Run) -> Run:
        """Save the state; a final state stays final. A run that was removed meanwhile stays
        removed."""
        folder = self.folder / run.name
        saved = _read_state(folder)
        if saved is not None and saved.status.is_final and not run.status.is_final:
            asked = run.cancel_asked or saved.cancel_asked
            run = replace(run, status=saved.status, cancel_asked=asked)
        with contextlib.suppress(FileNotFoundError):
            write_atomic(folder / STATE_FILE, _state_json(run))
        return run

    def remove(self, name: str) -> None:
        """Remove the record and all that was fetched: hidden at once, then deleted."""
        _check(name)
        hidden = self.folder / f".gone-{secrets.token_hex(6)}"
        with contextlib.suppress(FileNotFoundError):
            (self.folder / name).rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def path(self, name: str) -> Path:
        return self.folder / _check(name)

    @property
    def _folder_name(self) -> str:
        return self.folder.name

    def _highest(self, pattern: re.Pattern[str]) -> int:
        matches = (pattern.fullmatch(name) for name in self._names())
        return max((int(match[1]) for match in matches if match), default=0)

    def _names(self) -> tuple[str, ...]:
        try:
            with os.scandir(self.folder) as entries:
                return tuple(entry.name for entry in entries if entry.name[0] != ".")
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def _read(self, name: str) -> Run:
        folder = self.folder / name
        try:
            record = from_json(JobRecord, _content(folder / RECORD_FILE))
        except NotADirectoryError:
            raise FileNotFoundError from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            path = f"{self._folder_name}/{name}/{RECORD_FILE}"
            reason = f"is damaged ({type(error).__name__}): restore it, or remove its folder"
            raise LocalFileError(path=path, reason=reason) from None
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            path = f"{self._folder_name}/{name}/{RECORD_FILE}"
            raise LocalFileError(path=path, reason=f"cannot be read: {error.strerror}") from None
        saved = _read_state(folder) or _StateFile(Status("queued"))
        # The folder's name is the job's: it may have been renamed or copied by hand.
        record = record if record.name == name else replace(record, name=name)
        return Run(record, saved.status, saved.cancel_asked, saved.in_doubt)

    @contextlib.contextmanager
    def _hidden_folder(self) -> Iterator[Path]:
        new = self.folder / f".new-{secrets.token_hex(6)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new.mkdir(0o700)
            yield new
        except OSError as error:
            reason = f"no record can be written: {error.strerror}"
            raise LocalFileError(path=self.folder, reason=reason) from None
        finally:
            shutil.rmtree(new, ignore_errors=True)


def new_id(name: str, attempt: int) -> str:
    """A unique id that the store and every compute accept: lower-case letters, digits, '-' and '_',
    at most 60 of them."""
    unique = base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]
    ending = f"-{attempt}-{unique}"
    plain = re.sub(r"[^a-z0-9_-]", "-", name.lower())
    return plain[: ID_LIMIT - len(ending)].rstrip("-_") + ending


def without_secrets(config: Mapping[str, object]) -> dict[str, object]:
    """Settings of a compute that may be shown: values under names such as `token` are masked,
    unless they are references to variables."""
    return {key: _shown_value(key, value) for key, value in config.items()}


def _shown_value(key: str, value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _shown_value(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown_value(key, item) for item in value]
    if isinstance(value, str):
        is_variable = re.fullmatch(r"\$\{\w+\}", value)
        return "***" if _SECRET_KEY.search(key) and not is_variable else redact(value)
    return value


def now() -> datetime:
    return datetime.now(UTC)


def _first_name(record: JobRecord) -> str:
    """The name of the first attempt: `lr-3` of `lr-3.2`."""
    is_first = record.parent is None
    return record.name if is_first else record.name.removesuffix(f".{record.attempt}")


def _numbered(draft: Callable[[str, str, int], JobRecord], number: int) -> Draft:
    return lambda name, job: draft(name, job, number)


def _check(name: str) -> str:
    try:
        return check_job_name(name, MADE_NAME_LIMIT)
    except ValueError as error:
        raise BadName(what="job", name=name[:120], reason=f"it {error}") from None


@dataclass(frozen=True)
class _StateFile:
    """The content of `state.json`, which is checked against these fields when it is read."""

    status: Status
    cancel_asked: bool = False
    in_doubt: bool = False


def _state_json(run: Run) -> bytes:
    state = _StateFile(run.status, run.cancel_asked, run.in_doubt)
    return json.dumps(asdict(state), ensure_ascii=False).encode()


def _read_state(folder: Path) -> _StateFile | None:
    """None if nothing is known; a damaged state is fetched again."""
    try:
        content = json.loads(_content(folder / STATE_FILE))
        return from_plain(_StateFile, content)  # type: ignore[no-any-return]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _content(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - faster, for thousands
        return file.read()


@dataclass(frozen=True)
class Selection:
    """Runs from the oldest to the newest, each once.

    `exact`: each was named individually. Otherwise, and if there are several, a command that
    changes something asks first. `unknown` has an error for each pattern that matches nothing.
    """

    runs: tuple[Run, ...]
    exact: bool
    unknown: tuple[NoSuchJob, ...] = ()


def select(
    runs: Sequence[Run],
    patterns: Sequence[str],
    tag: str = "",
    states: Collection[State] = (),
    folder: Path = Path("runs"),
) -> Selection:
    """The runs that match a pattern (without patterns: all) and have the tag and one of the states.

    A pattern is a name, a prefix, a glob, a folder, `all` or `last`. One that matches nothing is
    reported in `unknown` and hides no other; that no run has the tag or a state is not an error.
    """
    chosen: dict[tuple[str, str], Run] = {}
    unknown = []
    exact = bool(patterns)
    for pattern in patterns or ("all",):
        try:
            matching, named = _named(list(runs), pattern, folder)
        except NoSuchJob as error:
            unknown.append(error)
            continue
        exact = exact and named
        chosen |= {(run.name, run.record.id): run for run in matching}
    selected = [
        run
        for run in chosen.values()
        if (not tag or tag in run.record.tags) and (not states or run.state in states)
    ]
    return Selection(tuple(sorted(selected, key=age)), exact, tuple(unknown))


def _named(runs: list[Run], pattern: str, folder: Path) -> tuple[list[Run], bool]:
    """The runs that match a pattern, and whether it names one exactly."""
    if pattern == "all":
        return runs, False
    if pattern == "last":
        newest = max(runs, key=age, default=None)
        named_runs = [newest] if newest is not None else []
    else:
        name = _without_folder(pattern, folder)
        named_runs = [run for run in runs if run.name == name]
        if not named_runs and name:
            is_glob = any(char in name for char in "*?[")
            fits = fnmatchcase if is_glob else str.startswith
            matches = [run for run in runs if fits(run.name, name)]
            if matches:
                return matches, False
    if not named_runs:
        name = _without_folder(pattern, folder) or Path(pattern).name
        hint = did_you_mean(name, [run.name for run in runs])
        hint = f"; {hint}" if hint else "."
        raise NoSuchJob(pattern=pattern, folder=folder.absolute(), hint=hint)
    return named_runs, True


def _without_folder(pattern: str, folder: Path) -> str:
    """`runs/lr-3`, `./runs/lr-3/` and `.` inside that folder are `lr-3`, seen from here or from the
    project; other paths are empty."""
    if "/" not in pattern and pattern not in (".", ".."):
        return pattern
    project = find_project(folder)
    for start in dict.fromkeys((Path.cwd(), project)):  # as `--data` takes paths of the project
        path = Path(os.path.normpath(start / pattern))
        for base, candidate in ((folder.absolute(), path), (folder.resolve(), path.resolve())):
            if candidate.parent == base:
                return candidate.name
    return ""


def by_compute(runs: Iterable[Run]) -> list[list[Run]]:
    """Groups of runs of the same compute in the same place."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        place = tuple(sorted(run.record.place.items()))
        groups.setdefault((run.record.compute, place), []).append(run)
    return list(groups.values())


def age(run: Run) -> tuple[float, str]:
    return run.record.created.timestamp(), run.name


# The jobs of a whole team: a record of each in the store, so that any machine can list them; and
# what the store keeps for them.
#
# `_records/<experiment>/<id>.json` what was submitted, by whom; written with the ticket


_PARALLEL = 32


def submitter() -> str:
    """Who submits a job: `ada@laptop`."""
    return f"{user_name()}@{gethostname()}"


def record_key(record: JobRecord) -> str:
    return f"{_folder(record.experiment)}{record.id}.json"


def delete_job(blobs: Blobs, record: JobRecord) -> None:
    """Delete all that the store has of a job."""
    blobs.delete([record_key(record)])
    blobs.delete_folder(folder_key(record.id))


def mark_canceled(blobs: Blobs, runs: Sequence[Run]) -> None:
    """Ask jobs to end through the store: their wrappers look for the mark at each heartbeat."""
    keys = [cancel_key(run.record.id) for run in runs]
    for _ in ordered_map(lambda key: blobs.put(key, b"canceled"), keys, _PARALLEL, 2 * _PARALLEL):
        pass


def shared_runs(
    blobs: Blobs,
    experiment: str,
    local: Sequence[Run] = (),
    clock: Callable[[], float] = time.time,
) -> Listing:
    """Every job of the experiment, of all users, with the state that its wrapper reported.

    No compute is asked. `local` are the jobs of this machine, which also knows what computes said
    about them.
    """
    final_statuses = {run.record.id: run.status for run in local if run.status.is_final}
    keys = [info.key for info in blobs.list(_folder(experiment))]
    read = ordered_map(lambda key: _read(blobs, key, clock()), keys, _PARALLEL, 2 * _PARALLEL)
    runs, damaged = [], []
    for key, entry in zip(keys, read, strict=True):
        if isinstance(entry, Run):
            status = final_statuses.get(entry.record.id, entry.status)
            runs.append(entry if entry.status.is_final else replace(entry, status=status))
        elif entry:
            damaged.append(f"{key} {entry}")
    return Listing(tuple(sorted(runs, key=age)), tuple(damaged))


@dataclass
class StoredJob:
    """What the store has of one job. `record` is the key of its record; empty: it has none."""

    id: str
    record: str = ""
    size: int = 0
    modified: float = 0.0  # of the newest of its files
    logs: list[BlobInfo] = field(default_factory=list)
    kept: list[BlobInfo] = field(default_factory=list)  # created outside outputs/


def stored_jobs(blobs: Blobs) -> dict[str, StoredJob]:
    """All jobs of a store, of every experiment. Job folders are listed before records, which are
    written after them: a job that is being submitted has a young folder."""
    jobs_by_id: dict[str, StoredJob] = {}
    for info in blobs.list("_jobs/"):
        _, job, rest = (*info.key.split("/", 2), "", "")[:3]
        if rest:
            stored = jobs_by_id.setdefault(job, StoredJob(job))
            stored.size += info.size
            stored.modified = max(stored.modified, info.modified.timestamp())
            if rest.startswith("log/"):
                stored.logs.append(info)
            elif rest.startswith("kept/"):
                stored.kept.append(info)
    for info in blobs.list("_records/"):
        name = info.key.rpartition("/")[2]
        if name.endswith(".json"):
            job = name[: -len(".json")]
            jobs_by_id.setdefault(job, StoredJob(job)).record = info.key
    return jobs_by_id


def stored_code(blobs: Blobs) -> tuple[dict[str, BlobInfo], dict[str, BlobInfo]]:
    """The snapshots of code by their digests, and the wrappers by their keys."""
    codes = {
        info.key[len(CODE_FOLDER) :].partition(".")[0]: info for info in blobs.list(CODE_FOLDER)
    }
    return codes, {info.key: info for info in blobs.list(WRAPPER_FOLDER)}


def used_code(blobs: Blobs, jobs: Iterable[StoredJob]) -> set[str]:
    """Digests of the code that these jobs need, to run or to be submitted again. Raises BadInput if
    one of them cannot be read."""

    def digests(job: StoredJob) -> tuple[str, ...]:
        with suppress(BlobMissing):
            ticket = Ticket.from_json(blobs.read_document(ticket_key(job.id)))
            return ticket.code, ticket.package
        try:
            return (
                (from_json(JobRecord, blobs.read_document(job.record)).code,) if job.record else ()
            )
        except BlobMissing:  # deleted since it was listed
            return ()
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BadInput(reason=f"the record {job.record} cannot be read") from None

    digests_by_job = ordered_map(digests, list(jobs), _PARALLEL, 2 * _PARALLEL)
    return {digest for each in digests_by_job for digest in each if digest}


def ended_jobs(blobs: Blobs, jobs: Sequence[str]) -> Mapping[str, JobProgress]:
    """Those of these that have ended, by the last word of their wrappers."""

    def progress(job: str) -> JobProgress | None:
        with suppress(BlobMissing, BadInput):
            return JobProgress.from_json(blobs.read_document(state_key(job)))
        return None

    read = ordered_map(progress, jobs, _PARALLEL, 2 * _PARALLEL)
    pairs = zip(jobs, read, strict=True)
    return {job: state for job, state in pairs if state and state.state in FINAL_STATES}


def has_record(blobs: Blobs, job: str) -> bool:
    """Whether a job has a record now, by the experiment that its ticket names. Without a ticket
    there is no job."""
    try:
        ticket = Ticket.from_json(blobs.read_document(ticket_key(job)))
    except (BlobMissing, BadInput):
        return False
    return blobs.size(f"{_folder(ticket.experiment)}{job}.json") is not None


def _read(blobs: Blobs, key: str, now: float) -> Run | str:
    """A sentence if it cannot be read; empty if it was deleted since it was listed."""
    try:
        record = from_json(JobRecord, blobs.read_document(key))
    except BlobMissing:
        return ""
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"is damaged ({type(error).__name__}) and was left out"
    return Run(record, status_from_store(blobs, record.id, now))


def _folder(experiment: str) -> str:
    return f"_records/{quote(experiment, safe='')}/"
