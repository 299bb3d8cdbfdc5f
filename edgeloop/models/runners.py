"""The registry of runners: which machines serve a store, what they have, and what they do now.

A runner writes one row and renews it every `BEAT_S` seconds, or sooner when its work changes; it
removes the row when it ends. One that was killed stays, is shown as dead after `DEAD_S` seconds of
silence, and is forgotten after `FORGET_S` seconds or when more than `MOST_DEAD` have died since.
All times are the store's, so that no machine's clock can make another one look dead.

The rows say what is so for people and for scheduling; who may write a result is decided by leases
alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from edgeloop.errors import RowChanged, RowExists
from edgeloop.models.plan import Plan
from edgeloop.store import Record, Store, Value
from edgeloop.store.upgrades import SCHEMA

BEAT_S = 10.0
DEAD_S = 40.0
FORGET_S = 24 * 3600.0
MOST_DEAD = 200
TEXT_LIMIT = 500
WRITE_TRIES = 3  # only its own runner writes a row: others only remove it
_LAST_MOMENT = 253_402_300_799.0  # of the year 9999

DeviceState = Literal["busy", "idle", "hot", "plugged", "unplugged", "unauthorized", "offline"]


@dataclass(frozen=True)
class CurrentStage:
    """A stage under way; `since` is a time of the store."""

    stage: str
    model: str
    since: float = 0.0

    def __str__(self) -> str:
        return f"{self.stage} {self.model}"


@dataclass(frozen=True)
class RunnerDevice:
    """A device of a runner's machine; an empty name is the machine itself, which converts models
    and tests float ones. `can` are the capabilities that the runner has by it: none for a board
    that is plugged in there but not used by this runner. `error` is the last one there, and
    `error_at` when that was."""

    device: str = ""
    state: str = "idle"
    detail: str = ""
    chip: str = ""
    can: tuple[str, ...] = ()
    doing: tuple[CurrentStage, ...] = ()
    since: float = 0.0
    celsius: float | None = field(default=None, compare=False)  # another degree is no news
    error: str = ""
    error_at: float = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether it could begin a stage now."""
        return self.state == "idle" and bool(self.can)


@dataclass(frozen=True)
class RunnerEntry:
    """One runner as it last described itself. `beat` is when, `age_s` how long ago that was.
    `schema` is the newest schema of a store that it understands."""

    id: str
    node: str
    experiment: str
    host: str = ""
    pid: int = 0
    version: str = ""
    toolchain: str = ""
    subset: str = ""
    task: str = ""  # what it evaluates models for; empty: latency only
    started: float = 0.0
    beat: float = 0.0
    waits_for: str = ""
    devices: tuple[RunnerDevice, ...] = ()
    age_s: float = field(default=0.0, compare=False)
    schema: int = SCHEMA

    @property
    def is_dead(self) -> bool:
        return self.age_s > DEAD_S

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(can for device in self.devices for can in device.can)

    @property
    def doing(self) -> tuple[CurrentStage, ...]:
        return tuple(stage for device in self.devices for stage in device.doing)

    @property
    def state(self) -> str:
        if self.is_dead:
            return "dead"
        return "working" if self.doing else "idle"

    @property
    def since(self) -> float:
        """When it began the oldest stage under way, or when it became idle."""
        times = [stage.since for stage in self.doing] or [d.since for d in self.devices if d.can]
        return min(times, default=self.started) if self.doing else max(times, default=self.started)

    def stages(self, plan: Plan) -> tuple[str, ...]:
        """The stages it can do on models that no device has measured yet."""
        return tuple(stage.name for stage in plan.stages if stage.capability in self.capabilities)

    def is_idle_for(self, capability: str) -> bool:
        """Whether it could begin such a stage now."""
        able = any(device.is_idle and capability in device.can for device in self.devices)
        return able and not self.is_dead


def new_runner_id(node: str) -> str:
    """Unique for each start: a runner that is restarted is another one."""
    plain = "".join(c if c.isprintable() and c not in "/\\#?%|" else "~" for c in node)
    return f"{plain[:100]}|{os.getpid()}-{secrets.token_hex(4)}"


class Registry:
    """The runners of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table = store.runners()
        self._records: dict[str, Record] = {}

    def entries(self, experiment: str | None = None) -> list[RunnerEntry]:
        """All runners, of one experiment or of all, by machine; dead ones included."""
        now = self._store.now()
        every = [_entry(record, now) for record in self._table.query()]
        chosen = [entry for entry in every if experiment in (None, entry.experiment)]
        return sorted(
            chosen, key=lambda entry: (entry.node, entry.is_dead, entry.started, entry.id)
        )

    def live(self, experiment: str) -> list[RunnerEntry]:
        return [entry for entry in self.entries(experiment) if not entry.is_dead]

    def idle_for(
        self, experiment: str, capability: str, besides: Collection[str] = ()
    ) -> list[RunnerEntry]:
        """Live runners that could begin a stage of this capability now, `besides` some by id."""
        live = [entry for entry in self.live(experiment) if entry.id not in besides]
        return [entry for entry in live if entry.is_idle_for(capability)]

    def write(self, entry: RunnerEntry, now: float | None = None) -> None:
        """Register a runner, or renew its row; `now` is the store's time, if it was just asked."""
        values = {"beat": self._store.now() if now is None else now, **columns_of(entry)}
        record = self._records.get(entry.id)
        for _ in range(WRITE_TRIES):
            with contextlib.suppress(RowChanged, RowExists):  # it was forgotten, or is there
                if record is None:
                    self._records[entry.id] = self._table.insert(entry.id, values)
                else:
                    changes = {**dict.fromkeys(record.values), **values}
                    self._records[entry.id] = self._table.update(record, changes)
                return
            record = self._table.get(entry.id)

    def remove(self, runner: str) -> None:
        record = self._records.pop(runner, None) or self._table.get(runner)
        with contextlib.suppress(RowChanged):
            if record is not None:
                self._table.delete(record)

    def prune(self, older_s: float = FORGET_S) -> int:
        """Forget runners that died long ago, and the oldest of too many; how many."""
        forgotten = 0
        for _, record in self._dead(older_s):
            with contextlib.suppress(RowChanged):
                self._table.delete(record)
                forgotten += 1
        return forgotten

    def forgettable(self, older_s: float = FORGET_S) -> list[RunnerEntry]:
        """Those that `prune` forgets."""
        return [entry for entry, _ in self._dead(older_s)]

    def _dead(self, older_s: float) -> list[tuple[RunnerEntry, Record]]:
        now = self._store.now()
        entries = [(_entry(record, now), record) for record in self._table.query()]
        dead = sorted((pair for pair in entries if pair[0].is_dead), key=lambda pair: pair[0].age_s)
        return [pair for n, pair in enumerate(dead) if pair[0].age_s > older_s or n >= MOST_DEAD]


def columns_of(entry: RunnerEntry) -> dict[str, Value]:
    """What a person who opens the table can read; the devices are JSON."""
    values = {
        key: value[:TEXT_LIMIT] if isinstance(value, str) else value
        for key, value in vars(entry).items()
        if key not in ("id", "beat", "age_s", "devices")
    }
    devices = [
        asdict(replace(d, detail=d.detail[:TEXT_LIMIT], error=d.error[:TEXT_LIMIT]))
        for d in entry.devices
    ]
    doing = ", ".join(map(str, entry.doing))[:TEXT_LIMIT]
    return {
        **{key: value for key, value in values.items() if value != ""},
        "state": entry.state,
        "doing": doing,
        "capabilities": " ".join(sorted(entry.capabilities))[:TEXT_LIMIT],
        "devices": json.dumps(devices, ensure_ascii=False),
    }


def _entry(record: Record, now: float) -> RunnerEntry:
    """Unknown fields are ignored: a newer version of Edgeloop may have written them."""
    values = record.values
    beat = _number(values, "beat")
    return RunnerEntry(
        id=record.key,
        node=str(values.get("node", "")) or record.key.partition("|")[0],
        experiment=str(values.get("experiment", "")),
        host=str(values.get("host", "")),
        pid=int(_number(values, "pid")),
        version=str(values.get("version", "")),
        toolchain=str(values.get("toolchain", "")),
        subset=str(values.get("subset", "")),
        task=str(values.get("task", "")),
        started=_number(values, "started"),
        beat=beat,
        waits_for=str(values.get("waits_for", "")),
        devices=_devices(values.get("devices")),
        age_s=max(0.0, now - beat),
        schema=int(_number(values, "schema")),
    )


def _devices(text: object) -> tuple[RunnerDevice, ...]:
    try:
        return tuple(_device(fields) for fields in json.loads(str(text)))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ()


def _device(fields: Mapping[str, Any]) -> RunnerDevice:
    doing = tuple(
        CurrentStage(str(work["stage"]), str(work["model"]), _number(work, "since"))
        for work in _list(fields.get("doing"))
        if {"stage", "model"} <= work.keys()
    )
    return RunnerDevice(
        **{key: str(fields.get(key, "")) for key in ("device", "state", "detail", "chip", "error")},
        can=tuple(map(str, _list(fields.get("can")))),
        doing=doing,
        since=_number(fields, "since"),
        celsius=_number(fields, "celsius") or None,
        error_at=_number(fields, "error_at"),
    )


def _list(value: object) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name, 0.0)
    is_number = isinstance(value, int | float) and 0 <= value <= _LAST_MOMENT
    return float(value) if is_number else 0.0
