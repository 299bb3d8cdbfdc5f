"""The stages of a model, which machines can perform them, and what a row remembers of each.

| stage     | needs              | capability      | priority            |
|-----------|--------------------|-----------------|---------------------|
| convert   |                    | quantize        | 20                  |
| benchmark | convert            | device          | 30 + runs done      |
| f1_onnx   |                    | onnx            | 60                  |
| f1_1k     | convert, benchmark | device-accuracy | 100 + latency       |
| f1_1k_f   | convert, benchmark | device-float    | 100 + 10 × latency  |
| f1_10k    | convert, benchmark | device-accuracy | 100 + 100 × latency |

Latency is the mean in milliseconds, so quick models come first. A row's own priority comes
before all of these; among rows of the same one, and among the stages of a row, they decide.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from edgeloop.errors import BadInput
from edgeloop.models.columns import (
    COLUMNS,
    filled,
    is_deterministic,
    is_true,
    mean_latency_ms,
    own_priority,
    runs_of,
)
from edgeloop.store import Changes, Value, Values, merged

Priority = Callable[[Values], float]

REMEMBERED = 8
SILENT_ATTEMPTS = 10
ARCHAI_TOOLCHAIN = "snpe"  # what Archai converts with
UPLOAD = "upload"  # an upload is held like a stage, so that two people cannot fill one name
LAST_MOMENT = 253_402_300_799.0  # the end of the year 9999: later times cannot be shown
MOST_ATTEMPTS = 1_000_000


@dataclass(frozen=True)
class Stage:
    """One kind of work. It is done when all columns it fills are filled or, if runs are counted,
    when `count` has reached `runs`.

    Attributes:
        name: Its name in commands and in rows.
        capability: What a runner must have. Those that start with `device` run on a device, the
            others on the machine itself.
        priority: When runners take it; lower is sooner.
        work: The function that performs it, as `module:name`: an `Assignment` and the `Equipment`
            of a runner in, a `Result` out.
        needs: Stages that must be done before.
        fills: Columns without which it is not done; from the registry of columns.
        clears: Further columns that a reset empties; from the registry of columns.
        artefacts: Names that tools before Edgeloop gave to its files, at the top of the model's
            folder. Files of our own are in the row's record of the stage.
        runs: How often it is done.
        count: How many runs a row has.
        enough: Whether more runs would only repeat the first.
        in_benchmark_only: Whether models uploaded with `--benchmark-only` go through it.
        uses_all_cpus: Whether runners of one machine do it in turns.
    """

    name: str
    capability: str
    priority: Priority
    work: str = ""
    needs: tuple[str, ...] = ()
    fills: tuple[str, ...] = ()
    clears: tuple[str, ...] = ()
    artefacts: tuple[str, ...] = ()
    runs: int = 1
    count: Callable[[Values], int] | None = None
    enough: Callable[[Values], bool] | None = None
    in_benchmark_only: bool = False
    uses_all_cpus: bool = False

    @property
    def is_on_device(self) -> bool:
        return self.capability.startswith("device")

    def progress(self, row: Values) -> int:
        """How many runs are done; each commit must raise it."""
        if self.count is not None:
            return self.count(row)
        values = [row.get(column) for column in self.fills]  # `quantized` may be False
        return int(all(filled(value) and value is not False for value in values))

    def is_done(self, row: Values) -> bool:
        is_enough = self.enough is not None and self.enough(row)
        return is_enough or self.progress(row) >= self.runs


@dataclass(frozen=True)
class Plan:
    stages: tuple[Stage, ...]

    def __getitem__(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        names = ", ".join(stage.name for stage in self.stages)
        raise BadInput(reason=f"there is no stage {name!r}; the stages are {names}")

    def __contains__(self, name: object) -> bool:
        return any(stage.name == name for stage in self.stages)

    def for_model(self, row: Values) -> Iterator[Stage]:
        """The stages this model goes through."""
        short = is_true(row.get("benchmark_only"))
        return (stage for stage in self.stages if stage.in_benchmark_only or not short)

    def capabilities(self, on_device: bool, benchmark_only: bool = False) -> tuple[str, ...]:
        """The capabilities that stages ask of a device, or of the machine itself."""
        stages = [stage for stage in self.stages if stage.is_on_device == on_device]
        chosen = [stage for stage in stages if stage.in_benchmark_only or not benchmark_only]
        return tuple(dict.fromkeys(stage.capability for stage in chosen))

    def capability(self, row: Values, stage: Stage) -> str:
        """What a runner must have. All device stages of a model run on one type of device, the one
        that benchmarked it first: numbers of two types do not belong in one row."""
        device = row.get("device")
        pinned = stage.is_on_device and filled(device)
        return f"{stage.capability}@{device}" if pinned else stage.capability

    def is_complete(self, row: Values) -> bool:
        return all(stage.is_done(row) for stage in self.for_model(row))

    def is_ready(self, row: Values, stage: Stage) -> bool:
        """Whether the stage is still to be done and nothing it needs is missing."""
        if stage not in self.for_model(row) or stage.is_done(row):
            return False
        return all(self[name].is_done(row) for name in stage.needs)

    def priority(self, row: Values, stage: Stage) -> float:
        priority = own_priority(row)
        return stage.priority(row) if priority is None else priority

    def and_those_after(self, names: set[str]) -> set[str]:
        """These stages, and those that must be done again with them: they use their results."""
        affected = set(names)
        for stage in self.stages:  # in order, so one pass reaches everything
            if affected.intersection(stage.needs):
                affected.add(stage.name)
        return affected


STAGES: dict[str, Stage] = {}


def register_stages(stages: Iterable[Stage]) -> None:
    """Add stages to the plan. A stage comes after those that it needs."""
    for stage in stages:
        STAGES[stage.name] = stage


def default_plan(benchmark_runs: int = 5) -> Plan:
    """All registered stages, with the columns that name them."""
    stages = []
    for stage in STAGES.values():
        columns = [column for column in COLUMNS.values() if column.stage == stage.name]
        stages.append(
            replace(
                stage,
                fills=tuple(column.name for column in columns if column.is_result),
                clears=tuple(column.name for column in columns if not column.is_result),
                runs=benchmark_runs if stage.count is not None else stage.runs,
            )
        )
    return Plan(tuple(stages))


def _by_latency(factor: float) -> Priority:
    return lambda row: 100 + factor * mean_latency_ms(row)


def _f1(name: str, capability: str, priority: Priority, needs: tuple[str, ...]) -> Stage:
    return Stage(
        name,
        capability,
        priority,
        work="edgeloop.runner.stages.accuracy:accuracy",
        needs=needs,
        artefacts=(f"test_results_{name}.csv", f"pr_curve_{name}.png"),
    )


_MEASURED = ("convert", "benchmark")
_BUILT_IN = (
    Stage(
        "convert",
        "quantize",
        priority=lambda row: 20,
        work="edgeloop.runner.stages.convert:convert",
        artefacts=("*.dlc", "*.info.csv"),
        in_benchmark_only=True,
        uses_all_cpus=True,
    ),
    Stage(
        "benchmark",
        "device",
        priority=lambda row: 30 + len(runs_of(row)),
        work="edgeloop.runner.stages.benchmark:benchmark",
        needs=("convert",),
        artefacts=("perf_results*.csv",),
        count=lambda row: len(runs_of(row)),
        enough=is_deterministic,
        in_benchmark_only=True,
    ),
    _f1("f1_onnx", "onnx", lambda row: 60, ()),
    _f1("f1_1k", "device-accuracy", _by_latency(1), _MEASURED),
    _f1("f1_1k_f", "device-float", _by_latency(10), _MEASURED),
    _f1("f1_10k", "device-accuracy", _by_latency(100), _MEASURED),
)
register_stages(_BUILT_IN)


# The column `stages`: who works on a model, how often it was tried, which files came out.
#
# One JSON object in the row, stage → record, so that a single compare-and-set covers a claim, its
# fencing token and the result. `status`, `node` and `since` are drawn from it for people and for
# other tools; they are written together with it, and only here.


@dataclass(frozen=True)
class StageRecord:
    """What a row remembers of one stage. `token` is empty when it is free. `queued`: its
    holder has claimed it ahead and not begun, so an idle runner may take it away. `attempts` are
    those that failed and the one under way; `silent` are those whose holder was not heard of again,
    most often because its machine is gone. `files` are keys below the model's folder and `sha256`
    the content, by name; older versions wrote no content. `other` is what we cannot read: the keys
    of a newer version, or what stands where a record should; it is written back as it was."""

    token: str = ""
    owner: str = ""
    expires: float = 0.0
    since: float = 0.0
    attempts: int = 0
    not_before: float = 0.0
    committed: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    queued: bool = False
    silent: int = 0
    other: object = None
    sha256: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_held(self) -> bool:
        return bool(self.token)

    def has_attempts_left(self, most: int) -> bool:
        """Machines of a fleet come and go, so silence says less of a model than a failure does."""
        failures, silences = self.attempts - self.is_held, self.silent + self.has_begun
        return failures < most and silences < max(most, SILENT_ATTEMPTS)

    @property
    def has_begun(self) -> bool:
        return self.is_held and not self.queued

    def free(self) -> StageRecord:
        return replace(self, token="", owner="", expires=0.0, since=0.0, queued=False)

    def given_back(self) -> StageRecord:
        """Free, and the attempt under way does not count: it was not the model's fault."""
        return replace(self.free(), attempts=max(self.attempts - self.is_held, 0))

    def settled(self) -> StageRecord:
        """Free, and the token remembered: its holder may repeat a write whose answer got lost."""
        return replace(self.free(), committed=[*self.committed, self.token][-REMEMBERED:])


Records = Mapping[str, StageRecord]


def records_of(row: Values) -> dict[str, StageRecord]:
    """The one place where the column is read. Others may have written it too, so each field that
    is not of its type is as if it were not there: a lease whose end cannot be read has ended."""
    text = row.get("stages")
    return dict(_parsed(str(text))) if filled(text) else {}


@functools.lru_cache(maxsize=64)  # a claim asks half a dozen times for the records of one row
def _parsed(text: str) -> dict[str, StageRecord]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {n: _record(fields) for n, fields in content.items()} if type(content) is dict else {}


def with_records(records: Records) -> dict[str, Value]:
    """The column as it is written: what is at its default is left out."""
    content = {name: _written(record) for name, record in records.items()}
    return {"stages": json.dumps({name: fields for name, fields in content.items() if fields})}


def _written(record: StageRecord) -> object:
    fields = {name: value for name, value in vars(record).items() if value != vars(_EMPTY)[name]}
    other = fields.pop("other", {})
    return {**other, **fields} if isinstance(other, dict) else fields or other


def holders(records: Records) -> list[str]:
    return sorted({record.owner for record in records.values() if record.is_held})


def node_text(records: Records) -> str:
    """The column `node`."""
    return ", ".join(holders(records))


def is_foreign(row: Values, records: Records) -> bool:
    """Held by a tool that knows `node` but no leases. We leave such a row alone until 'unlock'."""
    return filled(row.get("node")) and str(row["node"]) != node_text(records)


def holders_of(row: Values) -> list[str]:
    """Who works on a row, with Edgeloop or another tool."""
    node = row.get("node")
    return holders(records_of(row)) or ([str(node)] if filled(node) else [])


def is_converted_by_archai(row: Values) -> bool:
    """Our own conversions are in the records, and newer ones name their toolchain."""
    is_ours = filled(row.get("toolchain")) or "convert" in records_of(row)
    return is_true(row.get("quantized")) and not is_ours


def is_on(owner: str, node: str) -> bool:
    """Whether a claim belongs to this machine: `bench-1:runner`, `bench-1/DEVICE`."""
    return owner == node or owner.startswith((f"{node}/", f"{node}:"))


def summary(
    row: Values,
    records: Records,
    plan: Plan,
    now: float,
    columns: Changes | None = None,
    resting: bool = False,
) -> dict[str, Value | None]:
    """All that a change of `records` (and of `columns`) writes, with how the model then stands."""
    after = merged(row, columns or {})
    status = "error" if resting else _status(after, records, plan)
    changes: dict[str, Value | None] = {
        **(columns or {}),
        **with_records(records),
        "status": status,
        "node": node_text(records),
    }
    if status != row.get("status"):
        changes["since"] = utc(now)
    if status == "complete":
        changes["completed"] = utc(now)
        changes["error"] = None
    return changes


def utc(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")


def _status(row: Values, records: Records, plan: Plan) -> str:
    if row.get("status") == "error":
        return "error"
    held = {name: record for name, record in records.items() if record.is_held}
    if UPLOAD in held:
        return "uploading"
    running = sorted(name for name, record in held.items() if not record.queued)
    if running:
        return "running " + ", ".join(running)
    if held:
        return "queued on " + ", ".join(holders(held))
    if plan.is_complete(row):
        return "complete"
    begun = any(stage.progress(row) for stage in plan.for_model(row))
    return "waiting" if begun else "new"


def _record(fields: object) -> StageRecord:
    if not isinstance(fields, dict):
        return StageRecord(other=fields)
    our_fields = {name: read(fields[name]) for name, read in _READERS.items() if name in fields}
    other = {name: value for name, value in fields.items() if name not in _READERS}
    return StageRecord(**our_fields, other=other or None)  # type: ignore[arg-type]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object, largest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value <= largest else 0.0


def _moment(value: object) -> float:
    return _number(value, LAST_MOMENT)


def _count(value: object) -> int:
    return int(_number(value, MOST_ATTEMPTS))


def _tokens(value: object) -> list[str]:
    tokens = value if isinstance(value, list) else []
    return [token for token in tokens if isinstance(token, str)][-REMEMBERED:]


def _files(value: object) -> dict[str, str]:
    """Names and keys are texts; what else a stranger wrote there names no file."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {name: key for name, key in pairs if isinstance(key, str)}


_EMPTY = StageRecord()
_READERS: Mapping[str, Callable[[object], object]] = {
    "token": _text,
    "owner": _text,
    "expires": _moment,
    "since": _moment,
    "attempts": _count,
    "not_before": _moment,
    "committed": _tokens,
    "files": _files,
    "sha256": _files,
    "queued": lambda value: value is True,
    "silent": _count,
}
