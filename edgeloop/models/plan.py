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

A row's `targets` say which devices its experiment has. A model goes through the device stages on
the primary one, whose results fill the plain columns. On each further device it goes through
`benchmark DEVICE` and `f1_1k DEVICE`, which fill columns of their own, such as
`mean_on_htp_x_elite`. It is converted once per toolchain that these devices take: by `convert`, and
by `convert TOOLCHAIN` for each one that comes later.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from edgeloop._util.values import did_you_mean
from edgeloop.errors import BadInput
from edgeloop.models.columns import (
    COLUMNS,
    filled,
    is_deterministic,
    is_true,
    mean_latency_ms,
    own_priority,
    place_suffix,
    runs_of,
)
from edgeloop.store import Changes, Record, Value, Values, merged

Priority = Callable[[Values], float]

REMEMBERED = 8
SILENT_ATTEMPTS = 10
ARCHAI_TOOLCHAIN = "snpe"  # what Archai converts with
UPLOAD = "upload"  # an upload is held like a stage, so that two people cannot fill one name
LAST_MOMENT = 253_402_300_799.0  # the end of the year 9999: later times cannot be shown
MOST_ATTEMPTS = 1_000_000
NOT_AVAILABLE = "n/a"  # as old tables say it where a device has no such result
FOR = "for"  # in names of columns of a further conversion: `quantized_for_snpe`

Parts = tuple[int, int]  # how many there are, and how many there should be


@dataclass(frozen=True)
class DeviceTarget:
    """A type of device that models are evaluated on, the toolchain whose files it runs, and the
    chip to compile for; empty where nothing is compiled."""

    device: str
    toolchain: str
    chip: str = ""


@dataclass(frozen=True)
class Targets:
    """For whom a model is evaluated. The results of the `primary` device fill the plain columns.
    `forms` are conversions beyond those that the devices need, as toolchain and chip. `dataset` is
    what it is calibrated and scored with; empty: what its runners have."""

    primary: str = ""
    devices: tuple[DeviceTarget, ...] = ()
    forms: tuple[tuple[str, str], ...] = ()
    dataset: str = ""

    def __getitem__(self, device: str) -> DeviceTarget | None:
        return next((target for target in self.devices if target.device == device), None)

    @property
    def toolchains(self) -> tuple[str, ...]:
        """All that convert for it, that of the primary device first."""
        first = [target.toolchain for target in self.devices if target.device == self.primary]
        others = [target.toolchain for target in self.devices]
        return tuple(dict.fromkeys([*first, *others, *(toolchain for toolchain, _ in self.forms)]))

    def chips(self, toolchain: str) -> tuple[str, ...]:
        """The chips that this toolchain compiles for."""
        of_devices = [each.chip for each in self.devices if each.toolchain == toolchain]
        of_forms = [chip for name, chip in self.forms if name == toolchain]
        return tuple(dict.fromkeys(filter(None, [*of_devices, *of_forms])))

    def text(self) -> str:
        """The column."""
        content: dict[str, object] = {"primary": self.primary} if self.primary else {}
        if self.devices:
            content["devices"] = {d.device: form_text(d.toolchain, d.chip) for d in self.devices}
        if self.forms:
            content["forms"] = [form_text(*form) for form in self.forms]
        if self.dataset:
            content["dataset"] = self.dataset
        return json.dumps(content) if content else ""


def form_text(toolchain: str, chip: str) -> str:
    return f"{toolchain}:{chip}" if chip else toolchain


def targets_of(row: Values) -> Targets:
    """The one place where the column is read; what cannot be read is not there."""
    text = row.get("targets")
    return _parsed_targets(str(text)) if filled(text) else _NO_TARGETS


@functools.lru_cache(maxsize=64)  # the same text in every row of an experiment
def _parsed_targets(text: str) -> Targets:
    try:
        content = json.loads(text)
        devices, forms = content.get("devices", {}), content.get("forms", [])
        return Targets(
            primary=str(content.get("primary", "")),
            devices=tuple(DeviceTarget(str(d), *_form(each)) for d, each in devices.items()),
            forms=tuple(_form(each) for each in forms),
            dataset=str(content.get("dataset", "")),
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return _NO_TARGETS


def _form(text: object) -> tuple[str, str]:
    toolchain, _, chip = str(text).partition(":")
    return toolchain, chip


_NO_TARGETS = Targets()


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
        on_further: Whether it is done on further devices, too.
        parts: What may be added to it later: context binaries for chips.
        kind: Of one for a further device or toolchain: the registered stage that it is one of.
        target: And that device or toolchain.
        suffix: And the end of the names of its columns.
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
    on_further: bool = False
    parts: Callable[[Values], Parts] | None = None
    kind: str = ""
    target: str = ""
    suffix: str = ""

    @property
    def is_on_device(self) -> bool:
        return self.capability.startswith("device")

    @property
    def converts(self) -> bool:
        return self.capability == CONVERTS

    @property
    def needs_data(self) -> bool:
        """Latency alone needs none."""
        return self.capability != LATENCY_ONLY

    def progress(self, row: Values) -> int:
        """How many runs are done; each commit must raise it."""
        if self.count is not None:
            return self.count(row)
        if not self.is_usable(row):
            return 0
        return 1 if self.parts is None else 1 + self.parts(row)[0]

    def is_usable(self, row: Values) -> bool:
        """Whether there is a result that later stages can work with: parts may still be missing."""
        if self.count is not None:
            return self.is_done(row)
        values = [row.get(column) for column in self.fills]  # `quantized` may be False
        return all(filled(value) and value is not False for value in values)

    def is_done(self, row: Values) -> bool:
        if self.enough is not None and self.enough(row):
            return True
        if self.fills and all(row.get(column) == NOT_AVAILABLE for column in self.fills):
            return True  # a further device or toolchain that could not do it
        lacking = 0
        if self.parts is not None:
            made, wanted = self.parts(row)
            lacking = max(0, wanted - made)
        return self.progress(row) >= self.runs and not lacking

    def view(self, row: Values) -> Values:
        """The row as the function of the registered stage reads it: with the columns of this
        device or toolchain under their plain names."""
        if not self.suffix:
            return row
        own = _placed_columns(self.converts)
        view = {name: value for name, value in row.items() if name not in own}
        for name in own:
            if name + self.suffix in row:
                view[name] = row[name + self.suffix]
        return view

    def place(self, columns: Changes, row: Values) -> dict[str, Value | None]:
        """The way back, for a result. What all devices share is kept where the row has none."""
        if not self.suffix:
            return dict(columns)
        own = {*_placed_columns(self.converts), "toolchain"}  # this one is the main conversion's
        placed = {n + self.suffix: v for n, v in columns.items() if n in own - {"toolchain"}}
        shared = {n: v for n, v in columns.items() if n not in own and not filled(row.get(n))}
        return {**shared, **placed}


@dataclass(frozen=True)
class Plan:
    stages: tuple[Stage, ...]
    _placed: dict[str, Stage] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        kind, _, target = name.partition(" ")
        for stage in self.stages:
            if target and stage.name == kind and (stage.converts or stage.on_further):
                return self._of(stage, target)
        names = [stage.name for stage in self.stages]
        hint = did_you_mean(name, names)
        reason = f"there is no stage {name!r}; {hint}{' ' if hint else ''}the stages are "
        raise BadInput(reason=reason + ", ".join(names))

    def __contains__(self, name: object) -> bool:
        with contextlib.suppress(BadInput):
            return bool(self[str(name)])
        return False

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Names of stages in the order of the plan, further ones after that which they are of."""
        kinds = [stage.name for stage in self.stages]
        return sorted(names, key=lambda name: (kinds.index(self[name].kind or name), name))

    def for_model(self, row: Values) -> Iterator[Stage]:
        """The stages this model goes through. A stage comes after those that it needs."""
        short = is_true(row.get("benchmark_only"))
        targets, primary = targets_of(row), primary_of(row)
        converting = main_toolchain(row)
        further = [each.device for each in targets.devices if primary and each.device != primary]
        for stage in self.stages:
            if short and not stage.in_benchmark_only:
                continue
            yield stage
            if stage.converts and converting:
                for toolchain in targets.toolchains:
                    if toolchain != converting:
                        yield self._of(stage, toolchain)
            elif stage.on_further:
                for device in further:
                    if self._can_have_form(row, targets[device]):
                        yield self._of(stage, device)

    def _can_have_form(self, row: Values, target: DeviceTarget | None) -> bool:
        """Whether conversion for a device has not failed for good."""
        form = self._form_for(row, target)
        return form is None or not form.suffix or row.get(form.fills[0]) != NOT_AVAILABLE

    def _form_for(self, row: Values, target: DeviceTarget | None) -> Stage | None:
        """The stage that makes what a device runs."""
        main = next((stage for stage in self.stages if stage.converts), None)
        if main is None or target is None or main_toolchain(row) in ("", None, target.toolchain):
            return main
        return self._of(main, target.toolchain)

    def _of(self, stage: Stage, target: str) -> Stage:
        """A registered stage for a further toolchain or device."""
        name = f"{stage.name} {target}"
        placed = self._placed.get(name)
        if placed is None:
            placed = self._placed[name] = _placed(stage, target, name)
        return placed

    def capabilities(self, on_device: bool, benchmark_only: bool = False) -> tuple[str, ...]:
        """The capabilities that stages ask of a device, or of the machine itself."""
        stages = [stage for stage in self.stages if stage.is_on_device == on_device]
        chosen = [stage for stage in stages if stage.in_benchmark_only or not benchmark_only]
        return tuple(dict.fromkeys(stage.capability for stage in chosen))

    def capability(self, row: Values, stage: Stage) -> str:
        """What a runner must have: the toolchain that converts, or the type of device. Numbers of
        two types never stand in one column."""
        target = stage.target
        if not target and stage.is_on_device:
            target = primary_of(row)
        elif not target and stage.converts:
            target = main_toolchain(row) or ""
        return f"{stage.capability}@{target}" if target else stage.capability

    def is_complete(self, row: Values) -> bool:
        return all(stage.is_done(row) for stage in self.for_model(row))

    def is_ready(self, row: Values, stage: Stage) -> bool:
        """Whether the stage is still to be done and nothing it needs is missing."""
        if stage not in self.for_model(row) or stage.is_done(row):
            return False
        return self.has_what_it_needs(row, stage)

    def has_what_it_needs(self, row: Values, stage: Stage) -> bool:
        return all(self._needed(row, stage, name).is_usable(row) for name in stage.needs)

    def _needed(self, row: Values, stage: Stage, name: str) -> Stage:
        """The stage behind a name in `needs`: that of the same device, or of its toolchain."""
        needed = self[name]
        if needed.converts:
            device = stage.target or primary_of(row)
            return self._form_for(row, targets_of(row)[device]) or needed
        return self._of(needed, stage.target) if stage.target and needed.on_further else needed

    def title(self, row: Values, stage: Stage) -> str:
        """What people read: `convert snpe`, `benchmark htp:qcs8550`, or the plain name where any
        machine or device may do it."""
        _, _, target = self.capability(row, stage).partition("@")
        return f"{stage.kind or stage.name} {target}" if target else stage.name

    def is_further(self, row: Values, stage: Stage) -> bool:
        """Whether a model can do without it: it serves only devices beside the primary one."""
        if not stage.target:
            return False
        primary = targets_of(row)[primary_of(row)]
        return not stage.converts or primary is None or primary.toolchain != stage.target

    def priority(self, row: Values, stage: Stage) -> float:
        priority = own_priority(row)
        return stage.priority(stage.view(row)) if priority is None else priority

    def chosen_in(self, row: Values, names: Collection[str]) -> list[Stage]:
        """The stages of a row that these names mean, and those that use their results. A plain
        name means the stage for all devices and toolchains; without names, all are meant."""
        chosen = {name: self[name] for name in names}
        every = {stage.name: stage for stage in (*self.for_model(row), *self.stages)}
        every |= {name: self[name] for name in records_of(row) if name in self}
        if not names:
            return list(every.values())
        kinds = self.and_those_after({name for name, stage in chosen.items() if not stage.target})
        after = self.and_those_after({stage.kind for stage in chosen.values() if stage.target})
        affected = {stage.target for stage in chosen.values() if stage.target}
        affected |= {t.device for t in targets_of(row).devices if t.toolchain in affected}

        def is_chosen(stage: Stage) -> bool:
            if stage.name in chosen or (stage.kind or stage.name) in kinds:
                return True
            device = stage.target or (primary_of(row) if stage.is_on_device else "")
            return device in affected and (stage.kind or stage.name) in after

        return [stage for stage in every.values() if is_chosen(stage)]

    def and_those_after(self, names: set[str]) -> set[str]:
        """These stages, and those that must be done again with them: they use their results."""
        affected = set(names)
        for stage in self.stages:  # in order, so one pass reaches everything
            if affected.intersection(stage.needs):
                affected.add(stage.name)
        return affected


def _placed(stage: Stage, target: str, name: str) -> Stage:
    word = FOR if stage.converts else "on"
    suffix = place_suffix(word, target)
    shell = replace(stage, name=name, kind=stage.name, target=target, suffix=suffix, count=None)
    count, enough = stage.count, stage.enough
    own = _placed_columns(stage.converts)
    fills = ("quantized",) if stage.converts else stage.fills
    return replace(
        shell,
        fills=tuple(column + suffix for column in fills),
        clears=tuple(c + suffix for c in (*stage.fills, *stage.clears) if c in own),
        artefacts=(),
        count=None if count is None else lambda row: count(shell.view(row)),
        enough=None if enough is None else lambda row: enough(shell.view(row)),
        parts=functools.partial(compiled_parts, toolchain=target) if stage.converts else None,
    )


@functools.cache
def _placed_columns(converts: bool) -> frozenset[str]:
    """The columns that a further toolchain, or a further device, has of its own."""
    if converts:
        return _OF_A_FORM
    stages = {stage.name for stage in STAGES.values() if stage.is_on_device}
    return frozenset(column.name for column in COLUMNS.values() if column.stage in stages)


def primary_of(row: Values) -> str:
    """The type of device whose results fill the plain columns; empty: whichever comes first. A
    model that Archai converted has files for SNPE, and Archai may be about to benchmark it."""
    device, targets = row.get("device"), targets_of(row)
    if filled(device):
        return str(device)
    if is_converted_by_archai(row):
        boards = [each.device for each in targets.devices if each.toolchain == ARCHAI_TOOLCHAIN]
        return boards[0] if boards else ARCHAI_TOOLCHAIN
    return targets.primary


def main_toolchain(row: Values) -> str | None:
    """What `convert` converts with, or has converted with. Empty: the runner's own choice, or not
    known of an old row. None: the row of a model that no device has asked for."""
    if is_converted_by_archai(row):
        return ARCHAI_TOOLCHAIN
    if is_true(row.get("quantized")):
        return str(row.get("toolchain") or "")
    return next(iter(_in_order(row)), None)


def _in_order(row: Values) -> tuple[str, ...]:
    targets = targets_of(row)
    primary = primary_of(row)
    return replace(targets, primary=primary).toolchains if primary else targets.toolchains


def compiled_parts(row: Values, toolchain: str | None = None) -> Parts:
    """For how many of the chips that were asked for a conversion has something compiled."""
    main = main_toolchain(row)
    name = "compiled" if toolchain is None else "compiled" + place_suffix(FOR, toolchain)
    wanted = targets_of(row).chips((main or "") if toolchain is None else toolchain)
    compiled = compiled_for(row.get(name))
    return len(compiled.intersection(wanted)), len(wanted)


def compiled_for(value: Value | None) -> frozenset[str]:
    """The chips in the column `compiled`; those that refused the model have a mark."""
    return frozenset(chip.lstrip("!") for chip in str(value or "").split())


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


CONVERTS = "quantize"  # the capability of conversion
LATENCY_ONLY = "device"  # and that of benchmarks
_OF_A_FORM = frozenset(
    {
        "quantized",
        "precision",
        "calibration",
        "compiled",
        "notes",
        "recovery",
        "f1_before_recovery",
        "f1_after_recovery",
        "peak_memory_bytes",
        "weight_bytes",
    }
)


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
        parts=compiled_parts,
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
        on_further=True,
    ),
    _f1("f1_onnx", "onnx", lambda row: 60, ()),
    replace(_f1("f1_1k", "device-accuracy", _by_latency(1), _MEASURED), on_further=True),
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
    """Our own conversions are in the records, and newer ones name their toolchain. A record that
    says nothing is not written again, so it must not count."""
    recorded = records_of(row).get("convert", StageRecord())
    is_ours = filled(row.get("toolchain")) or recorded != StageRecord()
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


def retargeting(
    targets: Targets, plan: Plan, clock: Callable[[], float]
) -> Callable[[Record], Changes | None]:
    """The edit that writes for whom a model is evaluated."""

    def edit(row: Record) -> Changes | None:
        records = records_of(row.values)
        if row.values.get("targets", "") == targets.text() or is_foreign(row.values, records):
            return None
        columns = {"targets": targets.text() or None}
        return summary(row.values, records, plan, clock(), columns)

    return edit


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
