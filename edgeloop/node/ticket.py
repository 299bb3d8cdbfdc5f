"""A submitted job: its ticket, order and progress, and where its files are in the store.

`_jobs/<id>/ticket.json`   what to run, written once before the job is given to a compute
`_jobs/<id>/order.json`    access to the store, for a compute that passes it as a file
`_jobs/<id>/access.json`   newer access to the store, for a job that outlives its first one
`_jobs/<id>/state.json`    its progress; only the wrapper writes it
`_jobs/<id>/cancel`        asks it to end, also where its compute no longer knows it
`_jobs/<id>/log/<n>`       its output, in pieces of LOG_PIECE bytes; only the last one grows
`_jobs/<id>/outputs/…`     the files of `outputs/`
`_code/<hash>.tar.gz`      a snapshot of code, shared by jobs
`_wrapper/<hash>.pyz`      the program that runs inside every job

No experiment or model has such a name: theirs begin with a letter or a digit.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal
from urllib.parse import parse_qs

from edgeloop._util.values import size_text
from edgeloop.errors import BadInput, BadSetting
from edgeloop.node.codec import from_json, to_json
from edgeloop.store.base import Access, Blobs

State = Literal["queued", "preparing", "running", "completed", "failed", "canceled"]
FINAL_STATES: frozenset[State] = frozenset({"completed", "failed", "canceled"})
LOG_PIECE = 1 << 20
CODE_FOLDER = "_code/"
WRAPPER_FOLDER = "_wrapper/"
REFRESH_S = 86_400.0  # code that is found in the store and older than this is sent again
ORDER_VARIABLE = "EDGELOOP_ORDER"
PLACE_PREFIX = "EDGELOOP_PLACE_"  # of variables with the paths of what a compute mounts
NODE_CACHE = "EDGELOOP_NODE_CACHE"  # a folder for data that outlives the job on its node


@dataclass(frozen=True)
class Input:
    """A dataset that the job reads, at one version: `working/faces128` and 4."""

    name: str
    version: int


@dataclass(frozen=True)
class TicketPlace:
    """Data at a URL that the job reads or writes. The compute provides it at a path, which it puts
    into the variable of that name, or the wrapper transfers it with this access."""

    name: str
    url: str
    mode: str = ""
    variable: str = ""
    path: str = ""  # below the root of the access; empty: all of it
    make: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def access(self) -> Access:
        return Access(self.make, self.options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Environment:
    """What the command runs in. `file` is a path inside the code, the name of an image, or that of
    an environment which the compute knows."""

    kind: Literal["here", "requirements", "conda", "image", "name"] = "here"
    file: str = ""


@dataclass(frozen=True)
class EarlierOutputs:
    """Outputs of another job that this one continues: those in `folder` there, to `into` here; both
    are below `outputs/`, and empty for all of it."""

    job: str
    folder: str = ""
    into: str = ""


@dataclass(frozen=True)
class Ticket:
    """All that the wrapper needs to know. Placeholders in `command` are not yet filled in."""

    id: str
    name: str
    experiment: str
    command: tuple[str, ...]
    code: str
    inputs: tuple[Input, ...] = ()
    writes: tuple[str, ...] = ()
    environment: Environment = Environment()
    variables: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    retries: int = 0
    timeout_s: float | None = None
    grace_s: float = 30.0
    previous: str | None = None  # an earlier job whose outputs this one starts from
    outputs: tuple[str, ...] = ()  # patterns of files to collect beside those in outputs/
    sources: tuple[TicketPlace, ...] = ()
    targets: tuple[TicketPlace, ...] = ()
    package: str = ""  # the snapshot of Edgeloop itself, for a command that runs it
    earlier: tuple[EarlierOutputs, ...] = ()  # files of the first ones take precedence

    def to_json(self) -> bytes:
        return to_json(self, indent=2)

    @classmethod
    def from_json(cls, content: bytes) -> Ticket:
        try:
            return from_json(cls, content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(reason=f"The job's ticket cannot be read: {error}") from None


@dataclass(frozen=True)
class CreatedFile:
    """A file that a job created outside outputs/; `name` is relative to the job's folder."""

    name: str
    size: int


@dataclass(frozen=True)
class JobFiles:
    """What a job left in its folder: files that were collected, and files that were not."""

    collected: int = 0
    collected_bytes: int = 0
    left: int = 0
    left_bytes: int = 0
    largest: tuple[CreatedFile, ...] = ()  # of those that were not collected

    def note(self, most: int = 3) -> str:
        """One sentence about files that would be lost unnoticed; empty if there are none."""
        if not self.left:
            return ""
        listed = ", ".join(
            f"{ascii(file.name)[1:-1]} ({size_text(file.size)})" for file in self.largest[:most]
        )
        more = f" and {self.left - most} more" if self.left > most else ""
        total = "1 file" if self.left == 1 else f"{self.left} files"
        what = f"{total} ({size_text(self.left_bytes)})"
        places = dict.fromkeys(file.name.partition("/")[0] for file in self.largest)
        options = " ".join(f"--outputs {shlex.quote(place)}" for place in [*places][:3])
        empty = "outputs/ is empty, but " if not self.collected else ""
        return (
            f"{empty}{what} created outside outputs/ {'was' if self.left == 1 else 'were'} "
            f"not collected: {listed}{more}; to collect them: {options}"
        )


@dataclass(frozen=True)
class JobProgress:
    """What the wrapper reports about its job; times are seconds since 1970, by the node's clock."""

    state: State
    attempt: int
    node: str
    heartbeat: float
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""  # one sentence, when it failed or was canceled
    metrics: Mapping[str, object] = field(default_factory=dict)  # last of outputs/metrics.jsonl
    published: Mapping[str, int] = field(default_factory=dict)  # datasets and their versions
    log_bytes: int = 0
    outputs_complete: bool = False  # every file of outputs/ is in the store
    files: JobFiles = JobFiles()  # known when the job has ended
    compute_stores: bool = False  # what it wrote to URLs is only there when its compute is done

    def to_json(self) -> bytes:
        return to_json(self)

    @classmethod
    def from_json(cls, content: bytes) -> JobProgress:
        try:
            return from_json(cls, content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(reason=f"The job's state cannot be read: {error}") from None


@dataclass(frozen=True)
class Pace:
    """Intervals and limits of the wrapper."""

    log_s: float = 1.0
    outputs_s: float = 2.0
    heartbeat_s: float = 10.0
    patience_s: float = 600.0  # how long a store may be unavailable before and after the command
    install_s: float = 3600.0  # limit for pip or conda


@dataclass(frozen=True)
class WrapperOrder:
    """What a compute passes to the wrapper: a job's id, the access to its store, and which wrapper
    to run. A job of several nodes has a wrapper on each.

    It goes into one environment variable, which may hold secrets: it is read once, not passed to
    the command, and never shown.
    """

    job: str
    wrapper: str
    access: Access = field(repr=False)
    pace: Pace = Pace()
    nodes: int = 1

    def to_variables(self) -> dict[str, str]:
        """The variable to set for the wrapper's process. It holds secrets: never log it."""
        return {ORDER_VARIABLE: to_json(self).decode()}

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> WrapperOrder:
        if ORDER_VARIABLE not in variables:
            reason = f"{ORDER_VARIABLE} is missing: start jobs with 'edgeloop job submit'"
            raise BadSetting(where=ORDER_VARIABLE, reason=reason)
        try:
            return from_json(cls, variables[ORDER_VARIABLE])
        except (ValueError, TypeError, KeyError, AttributeError):
            reason = "it cannot be read"  # the decoder's own message would quote the secret
        raise BadSetting(where=ORDER_VARIABLE, reason=reason)


def folder_key(job: str) -> str:
    return f"_jobs/{job}"


def ticket_key(job: str) -> str:
    return f"_jobs/{job}/ticket.json"


def order_key(job: str) -> str:
    return f"_jobs/{job}/order.json"


def access_key(job: str) -> str:
    return f"_jobs/{job}/access.json"


def expires_at(access: Access) -> float | None:
    """When a signature of Azure ends, in seconds since 1970; None for other kinds of access."""
    ends = parse_qs(access.options.get("sas_key", "")).get("se", [""])[0]
    try:
        moment = datetime.strptime(ends, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp()


def state_key(job: str) -> str:
    return f"_jobs/{job}/state.json"


def cancel_key(job: str) -> str:
    return f"_jobs/{job}/cancel"


def log_key(job: str, piece: int) -> str:
    return f"_jobs/{job}/log/{piece:08d}"


def outputs_folder(job: str) -> str:
    return f"_jobs/{job}/outputs/"


def code_key(digest: str) -> str:
    return f"{CODE_FOLDER}{digest}.tar.gz"


def wrapper_key(digest: str) -> str:
    return f"{WRAPPER_FOLDER}{digest}.pyz"


def is_fresh(blobs: Blobs, key: str) -> bool:
    """Whether a file that all jobs share is in the store, and so young that no clean-up will take
    it before the job that wants it has its record. One that is older is to be sent again."""
    found = blobs.info(key)
    return found is not None and time.time() - found.modified.timestamp() < REFRESH_S


def check_apart(datasets: Sequence[str]) -> None:
    """The datasets that a job reads and writes may not overlap: one inside another would be written
    into the cache that the jobs of a machine share."""
    for number, name in enumerate(datasets):
        for other in (*datasets[:number], *datasets[number + 1 :]):
            if f"{name}/".startswith(f"{other}/"):
                both = f"{name} and {other} overlap" if name != other else f"{name} comes twice"
                raise BadInput(reason=f"{both} among the datasets of this job: rename one")
