"""What a job is once it is on its way, and where its things lie in the store.

`_jobs/<id>/ticket.json`   the order, written once before the job is handed to a compute
`_jobs/<id>/order.json`    the way to the store, for a compute that hands it over by a file
`_jobs/<id>/state.json`    how far it is; the wrapper alone writes it
`_jobs/<id>/log/<n>`       what it printed, in pieces of LOG_PIECE bytes; only the last one grows
`_jobs/<id>/outputs/…`     what it wrote to `outputs/`, file by file
`_code/<hash>.tar.gz`      a snapshot of code; many jobs share one
`_wrapper/<hash>.pyz`      the program that runs inside every job

No experiment or model can be called so: their names begin with a letter or a digit.
This module, like all that the wrapper uses, needs the standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from edgeloop.errors import BadInput

State = Literal["queued", "preparing", "running", "completed", "failed", "canceled"]
FINAL_STATES: frozenset[State] = frozenset({"completed", "failed", "canceled"})
LOG_PIECE = 1 << 20


@dataclass(frozen=True)
class Input:
    """A dataset that the job reads, at one version: `working/faces128` and 4."""

    name: str
    version: int


@dataclass(frozen=True)
class Environment:
    """What the command runs in. `file` is a path inside the code, or the name of an image; "here"
    needs none."""

    kind: Literal["here", "requirements", "conda", "image"] = "here"
    file: str = ""


@dataclass(frozen=True)
class Ticket:
    """All that the wrapper needs to know. Placeholders in `command` are still unfilled."""

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

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Ticket:
        try:
            fields = json.loads(content)
            fields["command"] = tuple(fields["command"])
            fields["inputs"] = tuple(Input(**item) for item in fields["inputs"])
            fields["writes"] = tuple(fields["writes"])
            fields["environment"] = Environment(**fields["environment"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(reason=f"The job's ticket cannot be read: {error}") from None


@dataclass(frozen=True)
class Progress:
    """What the wrapper says of its job; times are seconds since 1970, by the node's clock."""

    state: State
    attempt: int
    node: str
    heartbeat: float
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""  # one sentence, when it failed or was canceled
    metrics: Mapping[str, object] = field(default_factory=dict)  # last of outputs/metrics.jsonl
    published: Mapping[str, int] = field(default_factory=dict)  # datasets it made, and versions
    log_bytes: int = 0
    outputs_complete: bool = False  # every file of outputs/ is in the store

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Progress:
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError) as error:
            raise BadInput(reason=f"The job's state cannot be read: {error}") from None


def folder_key(job: str) -> str:
    return f"_jobs/{job}"


def ticket_key(job: str) -> str:
    return f"_jobs/{job}/ticket.json"


def order_key(job: str) -> str:
    return f"_jobs/{job}/order.json"


def state_key(job: str) -> str:
    return f"_jobs/{job}/state.json"


def log_key(job: str, piece: int) -> str:
    return f"_jobs/{job}/log/{piece:08d}"


def outputs_folder(job: str) -> str:
    return f"_jobs/{job}/outputs/"


def code_key(digest: str) -> str:
    return f"_code/{digest}.tar.gz"


def wrapper_key(digest: str) -> str:
    return f"_wrapper/{digest}.pyz"


def check_apart(datasets: Sequence[str]) -> None:
    """Those that a job reads and writes, by their full names. One that is inside another would be
    written into the cache that the jobs of a machine share."""
    for number, name in enumerate(datasets):
        for other in (*datasets[:number], *datasets[number + 1 :]):
            if f"{name}/".startswith(f"{other}/"):
                both = f"{name} and {other} overlap" if name != other else f"{name} comes twice"
                raise BadInput(reason=f"{both} among the datasets of this job: rename one")
