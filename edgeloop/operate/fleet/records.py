"""The record of a fleet in the store: what people want of it, and what its supervisor observes.

People write the first half (`fleet up`, `scale`, `down`), and the supervisor obeys at its next
tick. The supervisor writes the second half, and proves with a token that it still is the
supervisor: one that has been silent for `DEAD_S` may be replaced, and one that finds another's
token in the record ends without touching a runner. All times are the store's.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

from edgeloop._util.redact import redact
from edgeloop._util.schema import Count, Section, Text, key, validated
from edgeloop._util.values import Reads, items, mapping, matching, number, plain_text, shown, whole
from edgeloop._util.yaml import Origin
from edgeloop.errors import (
    BadName,
    BadSetting,
    Conflict,
    NotFound,
    RowChanged,
    RowExists,
    SupervisorReplaced,
)
from edgeloop.models.columns import check_experiment_name
from edgeloop.store import Changes, Record, Store

DEAD_S = 20.0
TEXT_LIMIT = 500
_TRIES = 20

# draining: runners finish their stages; ending: they are killed
FleetState = Literal["up", "draining", "ending"]


@dataclass(frozen=True)
class FleetObservation:
    """What the supervisor saw and did at its last tick. `shares` has a line per experiment."""

    wanted: int = 0
    running: int = 0
    waiting: int = 0
    draining: int = 0
    boards: int = 0
    note: str = ""
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class FleetRecord:
    """A fleet as it was read. `settings` are the project's, where they differ from the defaults;
    `host` is the machine of a fleet on the compute `local`."""

    name: str
    spec: FleetSpec
    state: FleetState
    generation: int
    kind: str = "local"
    host: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    started: float = 0.0
    supervisor: str = field(default="", repr=False)
    where: str = ""
    beat: float = 0.0
    seen: int = 0  # the generation that the supervisor obeys
    observed: FleetObservation = FleetObservation()
    age_s: float = field(default=0.0, compare=False)  # of the beat
    row: Record | None = field(default=None, compare=False, repr=False)

    @property
    def bounds(self) -> Bounds:
        return self.spec.runners

    @property
    def is_supervised(self) -> bool:
        """Whether a supervisor has reported lately."""
        return bool(self.supervisor) and self.age_s <= DEAD_S


class Fleets:
    """The fleets of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table = store.fleets()

    def get(self, name: str) -> FleetRecord | None:
        row = self._table.get(name)
        return None if row is None else self._read(row)

    def named(self, name: str) -> FleetRecord:
        """Raises NotFound with the names that there are."""
        record = self.get(name)
        if record is None:
            names = [row.key for row in self._table.query()]
            hint = f"there are: {', '.join(names)}" if names else "start one with 'fleet up'"
            raise NotFound(reason=f"the store has no fleet {name!r}; {hint}")
        return record

    def all(self) -> list[FleetRecord]:
        return [self._read(row) for row in self._table.query()]

    def declare(
        self, spec: FleetSpec, kind: str, host: str, settings: Mapping[str, Any] | None = None
    ) -> tuple[FleetRecord, FleetRecord | None]:
        """Want a fleet, or want it otherwise; also the record as it was before, if there was one.
        Raises Conflict where the fleet is on another compute."""
        desired: dict[str, str | int | float] = {
            "spec": _json(spec.to_json()),
            "state": "up",
            "kind": kind,
            "host": host,
            "settings": _json(dict(settings or {})),
        }
        for _ in range(_TRIES):
            before = self.get(spec.name)
            if before is None:
                values = {**desired, "generation": 1, "started": self._store.now()}
                try:
                    return self._read(self._table.insert(spec.name, values)), None
                except RowExists:
                    continue
            _check_same_place(before, spec, kind, host)
            changes = {**desired, "generation": before.generation + 1}
            if (changed := self._changed(before, changes)) is not None:
                return changed, before
        raise _busy(spec.name)

    def scale(self, name: str, bounds: Bounds) -> FleetRecord:
        def rescaled(record: FleetRecord) -> Changes:
            spec = record.spec.model_copy(update={"runners": bounds})
            return {"spec": _json(spec.to_json()), "generation": record.generation + 1}

        return self._change(name, rescaled)

    def end(self, name: str, now: bool) -> FleetRecord:
        """Want no runner any more; `now`: without waiting for stages under way."""

        def ended(record: FleetRecord) -> Changes:
            state = "ending" if now or record.state == "ending" else "draining"
            return {"state": state, "generation": record.generation + 1}

        return self._change(name, ended)

    def claim(self, name: str, where: str, *, is_alone: bool = False) -> FleetRecord:
        """Become the supervisor; raises Conflict while another one lives, unless the engine has
        made sure that we are alone."""
        token = secrets.token_hex(8)
        for _ in range(_TRIES):
            record = self.named(name)
            if record.is_supervised and not is_alone:
                reason = f"the fleet {name!r} has a supervisor already: {record.where or 'unknown'}"
                raise Conflict(reason=reason)
            changes: Changes = {
                "supervisor": token,
                "where": where[:TEXT_LIMIT],
                "beat": self._store.now(),
            }
            if (changed := self._changed(record, changes)) is not None:
                return changed
        raise _busy(name)

    def report(self, record: FleetRecord, observed: FleetObservation) -> FleetRecord:
        """Write what was observed while the token holds. Returns the record as it is then, perhaps
        with a new spec. Raises SupervisorReplaced."""
        token, seen = record.supervisor, record.generation
        for _ in range(_TRIES):
            changes: Changes = {
                "beat": self._store.now(),
                "seen": seen,
                "observed": _json({**vars(observed), "note": observed.note[:TEXT_LIMIT]}),
            }
            if (changed := self._changed(record, changes)) is not None:
                return changed
            record = self.owned(record.name, token)
        raise _busy(record.name)

    def owned(self, name: str, token: str) -> FleetRecord:
        """The record; raises SupervisorReplaced where it is gone or another's."""
        record = self.get(name)
        if record is None or record.supervisor != token:
            raise SupervisorReplaced(fleet=name)
        return record

    def release(self, record: FleetRecord) -> None:
        """Give the fleet up without ending it: a successor need not wait."""
        for _ in range(_TRIES):
            if self._changed(record, {"supervisor": None, "where": None}) is not None:
                return
            try:
                record = self.owned(record.name, record.supervisor)
            except SupervisorReplaced:
                return

    def remove(self, record: FleetRecord) -> bool:
        """Remove the record of a fleet that has ended; False if it was changed meanwhile."""
        assert record.row is not None
        try:
            self._table.delete(record.row)
        except RowChanged:
            return False
        return True

    def _change(self, name: str, edit: Callable[[FleetRecord], Changes]) -> FleetRecord:
        for _ in range(_TRIES):
            record = self.named(name)
            if (changed := self._changed(record, edit(record))) is not None:
                return changed
        raise _busy(name)

    def _changed(self, record: FleetRecord, changes: Changes) -> FleetRecord | None:
        assert record.row is not None
        try:
            return self._read(self._table.update(record.row, changes))
        except RowChanged:
            return None

    def _read(self, row: Record) -> FleetRecord:
        values = row.values
        beat = float(values.get("beat", 0.0))
        state = str(values.get("state", "up"))
        return FleetRecord(
            name=row.key,
            spec=_spec(row),
            state=cast(FleetState, state if state in ("draining", "ending") else "up"),
            generation=int(values.get("generation", 0)),
            kind=str(values.get("kind", "")),
            host=str(values.get("host", "")),
            settings=_object(values.get("settings")),
            started=float(values.get("started", 0.0)),
            supervisor=str(values.get("supervisor", "")),
            where=str(values.get("where", "")),
            beat=beat,
            seen=int(values.get("seen", 0)),
            observed=_observation(_object(values.get("observed"))),
            age_s=max(0.0, self._store.now() - beat),
            row=row,
        )


def new_runner_name(fleet: str) -> str:
    """An id of a runner, unique among all fleets of a store."""
    return f"{fleet}-{secrets.token_hex(4)}"


def _check_same_place(before: FleetRecord, spec: FleetSpec, kind: str, host: str) -> None:
    old = (before.kind, before.spec.compute, before.host)
    if old == (kind, spec.compute, host):
        return
    place = before.host if before.kind == "local" else before.spec.compute
    raise Conflict(
        reason=f"the fleet {spec.name!r} is on {place}: end it there with 'edgeloop fleet down', "
        "or start another one with --name"
    )


def _busy(name: str) -> Conflict:
    return Conflict(reason=f"others keep changing the fleet {name!r}: try again in a moment")


def _spec(row: Record) -> FleetSpec:
    """Unknown keys are ignored: a newer version of Edgeloop may have written them."""
    written = _object(row.values.get("spec"))
    readable = {name: value for name, value in written.items() if name in FleetSpec.model_fields}
    return read_spec(readable, {"name": row.key})


def _observation(fields: Mapping[str, Any]) -> FleetObservation:
    readable = {
        name: value for name, value in fields.items() if name in FleetObservation.__annotations__
    }
    return FleetObservation(**readable)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(text: object) -> dict[str, Any]:
    try:
        decoded = json.loads(str(text)) if text else {}
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


# What a fleet is told: the section `fleet` of edgeloop.yaml, and the options of `fleet up`.


FLEET_NAME = "fleet"
MOST_RUNNERS = 10_000
_BOUNDS = re.compile(r"([0-9]{1,6})(?::([0-9]{1,6}))?")
_NAME = matching(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?", "small letters, digits and '-'")
# Options of `edgeloop runner` that the fleet gives itself, or that would end a runner.
_OWN_OPTIONS = {
    **dict.fromkeys(("--experiment", "-e"), "experiments"),
    "--device": "devices",
    "--dataset": "dataset",
    "--task": "task",
    "--cpus": "cpus",
    "--grace": "grace",
    "--store": "store",
    "--json": "",
    "--drain": "",
    "--once": "",
    "--idle": "idle_seconds",
}


@dataclass(frozen=True)
class Bounds:
    """How many runners there are at the least and at the most: `2:16`; `4` is always four."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}"

    @classmethod
    def parse(cls, value: object) -> Bounds:
        """Raises ValueError with what continues the sentence after the key."""
        text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        match = _BOUNDS.fullmatch(text.strip()) if text else None
        if isinstance(value, Bounds):
            return value
        if match is None:
            raise ValueError(f"must be LEAST:MOST or one number, such as 2:16, not {shown(value)}")
        least = int(match[1])
        most = least if match[2] is None else int(match[2])
        if not most:
            raise ValueError("must allow at least one runner: 'edgeloop fleet down' ends a fleet")
        if least > most:
            raise ValueError(f"must begin with the smaller number, such as {most}:{least}")
        if most > MOST_RUNNERS:
            raise ValueError(f"must be {MOST_RUNNERS} at the most, not {most}")
        return cls(least, most)


@dataclass(frozen=True)
class ExperimentShare:
    """An experiment that a fleet serves: its weight among others, and how many runners it may have
    at the most (None: all)."""

    weight: float = 1.0
    quota: int | None = None


_WEIGHT, _QUOTA = number(is_open=True), whole(1)


def _share(value: object) -> ExperimentShare:
    if isinstance(value, ExperimentShare):
        return value
    if value is None:
        return ExperimentShare()
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return ExperimentShare(float(str(_WEIGHT.read(value))))
    written = mapping(value)
    unknown = [name for name in written if name not in ("weight", "quota")]
    if unknown:
        raise ValueError(f"may have 'weight' and 'quota', not {unknown[0]!r}")
    weight = 1.0 if written.get("weight") is None else float(str(_WEIGHT.read(written["weight"])))
    quota = None if written.get("quota") is None else int(str(_QUOTA.read(written["quota"])))
    return ExperimentShare(weight, quota)


def _shares(value: object) -> dict[str, ExperimentShare]:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        value = {plain_text(name): None for name in value}
    shares = {}
    for name, written in mapping(value).items():
        try:
            shares[check_experiment_name(name)] = _share(written)
        except BadName as error:
            raise ValueError(f"has {name!r}: {error}") from None
        except ValueError as error:
            raise ValueError(f"has a wrong entry {name!r}, which {error}") from None
    return shares


def _options(value: object) -> tuple[str, ...]:
    words = tuple(plain_text(item) for item in items(value))
    for word in words:
        option = word.partition("=")[0]
        if option in _OWN_OPTIONS:
            setting = _OWN_OPTIONS[option]
            hint = (
                f"use the key {setting!r}" if setting in FleetSpec.model_fields else "leave it out"
            )
            raise ValueError(f"cannot have {option}: {hint}")
        if redact(word) != word or not word.isprintable():
            raise ValueError("cannot hold a secret or a control character: everybody can read it")
    return words


def _devices(value: object) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else items(value)
    return tuple(dict.fromkeys(plain_text(item) for item in words))


_SHARES_SCHEMA: dict[str, object] = {
    "type": ["object", "array"],
    "additionalProperties": {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0},
            {
                "type": "object",
                "properties": {
                    "weight": {
                        "type": "number",
                        "exclusiveMinimum": 0,
                        "description": "Its share of the runners, relative to the others.",
                    },
                    "quota": {
                        "type": "integer",
                        "minimum": 1,
                        "description": "Runners that it may have at the most.",
                    },
                },
                "additionalProperties": False,
            },
            {"type": "null"},
        ]
    },
}
_LIST_SCHEMA: dict[str, object] = {"type": "array", "items": {"type": "string"}}


class FleetSpec(Section):
    """What a fleet is told."""

    name: Annotated[str, _NAME] = key(FLEET_NAME, "Name of the fleet; a store may have several.")
    compute: Text = key("", "Compute of kind `local` or `ray`; by default the project's.")
    runners: Annotated[
        Bounds, Reads(Bounds.parse, {"type": ["string", "integer"], "examples": ["2:16", "4"]})
    ] = key(Bounds(0, 4), "Runners at the least and at the most; boards are not counted.", "0:4")
    cpus: Count = key(1, "CPU cores of each runner.")
    devices: Annotated[tuple[str, ...], Reads(_devices, {"type": ["string", "array"]})] = key(
        (),
        "`host` or `htp:CHIP` for every runner; `adb:SERIAL`, or `adb` for all boards of the "
        "compute, with one runner each. Devices of plug-ins by their names.",
    )
    dataset: Text = key(
        "", "A folder that every machine has, or a dataset of the store such as `faces@3`."
    )
    task: Text = key("", "What the dataset is for; by default the project's `task`.")
    experiments: Annotated[dict[str, ExperimentShare], Reads(_shares, _SHARES_SCHEMA)] = key(
        dict,
        "Experiments that share the fleet: a list, or each with its `weight` and `quota`; by "
        "default the project's experiment.",
    )
    idle_seconds: Annotated[float, number()] = key(
        30.0, "How long a runner may be idle before a fleet above its least ends it."
    )
    grace: Annotated[float, number(is_open=True)] = key(
        900.0, "Seconds that a stage has to finish when its runner is told to end."
    )
    options: Annotated[tuple[str, ...], Reads(_options, _LIST_SCHEMA)] = key(
        (), "Further options of `edgeloop runner`, such as `[--precision, a16w8]`."
    )

    kubernetes: Annotated[
        dict[str, Any], Reads(mapping, {"type": "object", "additionalProperties": True})
    ] = key(dict, "Values of the chart, for `edgeloop fleet manifest`; `fleet up` ignores them.")

    def to_json(self) -> dict[str, Any]:
        """What `read_spec` reads as this, without what is only for Kubernetes."""
        shares = {
            name: {"weight": share.weight, "quota": share.quota}
            for name, share in self.experiments.items()
        }
        names = [name for name in type(self).model_fields if name != "kubernetes"]
        plain = {name: getattr(self, name) for name in names}
        lists = {name: list(plain[name]) for name in ("devices", "options")}
        return {**plain, **lists, "runners": str(self.runners), "experiments": shares}


def read_spec(
    written: Mapping[str, object], options: Mapping[str, object] | None = None
) -> FleetSpec:
    """From the section of the settings and the options of a command, which win. Raises BadSetting
    that names the key."""
    document = {**written, **(options or {})}
    return validated(FleetSpec, document, Origin("fleet", BadSetting))
