"""What a fleet is told: the section `fleet` of edgeloop.yaml, and the options of `fleet up`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from edgeloop._util.redact import redact
from edgeloop._util.schema import Count, Section, Text, key, validated
from edgeloop._util.values import Reads, items, mapping, matching, number, plain_text, shown, whole
from edgeloop._util.yaml import Origin
from edgeloop.errors import BadName, BadSetting
from edgeloop.models.columns import check_experiment_name

FLEET_NAME = "fleet"
MOST_RUNNERS = 10_000
_BOUNDS = re.compile(r"([0-9]{1,6})(?::([0-9]{1,6}))?")
_NAME = matching(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?", "small letters, digits and '-'")
# Options of `edgeloop runner` that the fleet gives itself, or that would end a runner.
_OWN_OPTIONS = {
    **dict.fromkeys(("--experiment", "-e"), "experiments"),
    **{"--device": "devices", "--dataset": "dataset", "--task": "task", "--cpus": "cpus"},
    **{"--grace": "grace", "--store": "store", "--json": "", "--drain": "", "--once": ""},
    **{"--idle": "idle_seconds"},
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
        found = _BOUNDS.fullmatch(text.strip()) if text else None
        if isinstance(value, Bounds):
            return value
        if found is None:
            raise ValueError(f"must be LEAST:MOST or one number, such as 2:16, not {shown(value)}")
        least = int(found[1])
        most = least if found[2] is None else int(found[2])
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
    found = {}
    for name, written in mapping(value).items():
        try:
            found[check_experiment_name(name)] = _share(written)
        except BadName as error:
            raise ValueError(f"has {name!r}: {error}") from None
        except ValueError as error:
            raise ValueError(f"has a wrong entry {name!r}, which {error}") from None
    return found


def _options(value: object) -> tuple[str, ...]:
    words = tuple(plain_text(item) for item in items(value))
    for word in words:
        option = word.partition("=")[0]
        if option in _OWN_OPTIONS:
            own = _OWN_OPTIONS[option]
            hint = f"use the key {own!r}" if own in FleetSpec.model_fields else "leave it out"
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
                        **{"type": "number", "exclusiveMinimum": 0},
                        "description": "Its share of the runners, relative to the others.",
                    },
                    "quota": {
                        **{"type": "integer", "minimum": 1},
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
        "compute, with one runner each.",
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
    written: Mapping[str, object], given: Mapping[str, object] | None = None
) -> FleetSpec:
    """From the section of the settings and the options of a command, which win. Raises BadSetting
    that names the key."""
    document = {**written, **(given or {})}
    return validated(FleetSpec, document, Origin("fleet", BadSetting))
