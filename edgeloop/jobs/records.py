"""The local records of jobs: `runs/<name>/`, which all verbs start from.

`job.json`    what was submitted; written once, never changed
`state.json`  what was last known of it; rewritten whole, and never from an end back to a beginning

A record is made in a hidden folder and appears by one rename. So there is never half a record, and
of two who submit the same name at once one wins and the other is told.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from edgeloop._util.redact import redact
from edgeloop.errors import BadName, JobNameTaken, LocalFileError, NoSuchJob
from edgeloop.jobs.fields import MADE_NAME_LIMIT, check_job_name
from edgeloop.jobs.protocol.ticket import Input, State
from edgeloop.jobs.watch import Status

RUNS_FOLDER = "runs"
RECORD_FILE = "job.json"
STATE_FILE = "state.json"
ID_LIMIT = 60
_MANY = 100_000  # numbers that are tried for a name
_SECRET_KEY = re.compile(r"(?i)token|secret|password|key|credential|signature|sas$|connection")


@dataclass(frozen=True)
class JobRecord:
    """All that was decided when a job was submitted. It holds no secret.

    `spec` is the specification as a document; `code` the digest of its snapshot, as in the ticket.
    """

    id: str
    name: str
    created: datetime
    experiment: str
    spec: Mapping[str, object]
    compute: str
    kind: str
    config: Mapping[str, object] = field(default_factory=dict)
    store: str = ""
    code: str = ""
    inputs: tuple[Input, ...] = ()
    command: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    attempt: int = 1
    parent: str | None = None  # the name of the job that this one is another attempt of

    def to_json(self) -> bytes:
        plain = {**asdict(self), "created": self.created.isoformat(timespec="microseconds")}
        plain["config"] = without_secrets(self.config)
        return json.dumps(plain, indent=2, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, content: bytes) -> JobRecord:
        """Raises ValueError, TypeError or KeyError for what is no record."""
        fields = json.loads(content)
        fields["created"] = datetime.fromisoformat(fields["created"])
        fields["inputs"] = tuple(Input(**item) for item in fields["inputs"])
        fields["command"], fields["tags"] = tuple(fields["command"]), tuple(fields["tags"])
        return cls(**fields)


@dataclass(frozen=True)
class Run:
    """A job as this machine knows it.

    Attributes:
        record: What was submitted: id, name, command, datasets, compute. It never changes.
        status: What was last heard of it: state, reason, exit code, times and metrics.
        cancel_asked: Whether it was asked to end.

    Examples:
        >>> from edgeloop import Jobs
        >>> [run.name for run in Jobs.open().select(["all"]).runs]
        []
    """

    record: JobRecord
    status: Status
    cancel_asked: bool = False

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


class Runs:
    """The folder of records of one project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, draft: Draft, attempt: int = 1) -> Run:
        """Record a new job under this very name; raises JobNameTaken."""
        _check(name)
        record = draft(name, new_id(name, attempt))
        run = Run(record, Status("queued"))
        with self._hidden_folder() as new:
            _write(new / RECORD_FILE, record.to_json(), durable=True)
            _write(new / STATE_FILE, _state_json(run))
            try:
                new.rename(self.folder / name)
            except OSError:
                if not os.path.lexists(self.folder / name):
                    raise
                raise JobNameTaken(name=name, folder=self._shown) from None
        return run

    def add_numbered(self, stem: str, draft: Draft) -> Run:
        """Record a new job as `stem-1`, `stem-2`, …: the first number above those in use."""
        first = self._highest(re.compile(rf"{re.escape(stem)}-(\d+)")) + 1
        return self._add_first((f"{stem}-{n}" for n in range(first, first + _MANY)), draft)

    def add_attempt(self, of: JobRecord, draft: Callable[[str, str, int], JobRecord]) -> Run:
        """Record another attempt: `lr-3` → `lr-3.2` → `lr-3.3`. The draft is told its number."""
        base = of.name if of.parent is None else of.name.removesuffix(f".{of.attempt}")
        first = max(1, self._highest(re.compile(rf"{re.escape(base)}\.(\d+)"))) + 1
        for number in range(first, first + _MANY):
            with contextlib.suppress(JobNameTaken):
                return self.add(f"{base}.{number}", _numbered(draft, number), number)
        raise JobNameTaken(name=base, folder=self._shown)

    def free_stem(self, stem: str) -> str:
        """`stem-4` where no job is called that or begins with `stem-4-`: for a sweep's names."""
        pattern = re.compile(rf"{re.escape(stem)}-(\d+)(?:[-.].*)?")
        return f"{stem}-{self._highest(pattern) + 1}"

    def list(self) -> Listing:
        """Every job that has a record here. What is damaged is said and hides no other."""
        runs, damaged = [], []
        for name in self._names():
            try:
                runs.append(self._read(name))
            except FileNotFoundError:
                continue  # a folder without a record, or one that is being removed
            except LocalFileError as error:
                damaged.append(str(error))
        return Listing(tuple(sorted(runs, key=_age)), tuple(sorted(damaged)))

    def get(self, name: str) -> Run:
        try:
            _check(name)
            return self._read(name)
        except (BadName, FileNotFoundError):
            raise NoSuchJob(pattern=name, folder=self._shown) from None

    def save(self, run: Run) -> Run:
        """Remember what was heard; what is known to be over stays over. A run that was removed
        meanwhile stays removed."""
        folder = self.folder / run.name
        known = _read_state(folder)
        if known is not None and known[0].is_final and not run.status.is_final:
            run = replace(run, status=known[0], cancel_asked=run.cancel_asked or known[1])
        with contextlib.suppress(FileNotFoundError):
            _replace_file(folder / STATE_FILE, _state_json(run))
        return run

    def remove(self, name: str) -> None:
        """The record and all that was fetched; gone at once, whatever takes long to delete."""
        _check(name)
        going = self.folder / f".gone-{secrets.token_hex(6)}"
        with contextlib.suppress(FileNotFoundError):
            (self.folder / name).rename(going)
            shutil.rmtree(going, ignore_errors=True)

    def path(self, name: str) -> Path:
        return self.folder / _check(name)

    @property
    def _shown(self) -> str:
        return self.folder.name

    def _add_first(self, names: Iterator[str], draft: Draft) -> Run:
        for name in names:
            with contextlib.suppress(JobNameTaken):
                return self.add(name, draft)
        raise JobNameTaken(name="…", folder=self._shown)

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
            record = JobRecord.from_json(_content(folder / RECORD_FILE))
        except NotADirectoryError:
            raise FileNotFoundError from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            path = f"{self._shown}/{name}/{RECORD_FILE}"
            reason = f"is damaged ({type(error).__name__}): put it back, or remove its folder"
            raise LocalFileError(path=path, reason=reason) from None
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            path = f"{self._shown}/{name}/{RECORD_FILE}"
            raise LocalFileError(path=path, reason=f"cannot be read: {error.strerror}") from None
        status, cancel_asked = _read_state(folder) or (Status("queued"), False)
        # The folder's name is the job's: it may have been renamed or copied by hand.
        record = record if record.name == name else replace(record, name=name)
        return Run(record, status, cancel_asked)

    @contextlib.contextmanager
    def _hidden_folder(self) -> Iterator[Path]:
        new = self.folder / f".new-{secrets.token_hex(6)}"
        try:
            new.mkdir(parents=True)
            yield new
        except OSError as error:
            reason = f"no record can be written: {error.strerror}"
            raise LocalFileError(path=self.folder, reason=reason) from None
        finally:
            shutil.rmtree(new, ignore_errors=True)


def new_id(name: str, attempt: int) -> str:
    """Known to the store and to every compute: lower-case letters, digits, '-' and '_', at most 60
    of them, and never the same twice."""
    unique = base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]
    ending = f"-{attempt}-{unique}"
    plain = re.sub(r"[^a-z0-9_-]", "-", name.lower())
    return plain[: ID_LIMIT - len(ending)].rstrip("-_") + ending


def without_secrets(config: Mapping[str, object]) -> dict[str, object]:
    """Settings of a compute that may be shown: a value under a telling name is starred, if it is
    not the name of a variable."""
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


def _numbered(draft: Callable[[str, str, int], JobRecord], number: int) -> Draft:
    return lambda name, job: draft(name, job, number)


def _check(name: str) -> str:
    try:
        return check_job_name(name, MADE_NAME_LIMIT)
    except ValueError as error:
        raise BadName(what="job", name=name[:120], reason=f"it {error}") from None


def _age(run: Run) -> tuple[datetime, str]:
    return run.record.created, run.name


def _state_json(run: Run) -> bytes:
    return json.dumps(
        {"status": asdict(run.status), "cancel_asked": run.cancel_asked}, ensure_ascii=False
    ).encode()


def _read_state(folder: Path) -> tuple[Status, bool] | None:
    """None where nothing is known; what is damaged is asked for again."""
    try:
        content = json.loads(_content(folder / STATE_FILE))
        return Status(**content["status"]), bool(content["cancel_asked"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _content(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a thousand of these in a blink
        return file.read()


def _replace_file(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write(new, content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _write(path: Path, content: bytes, durable: bool = False) -> None:
    with path.open("wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
