"""What an experiment asks of every machine that works on it.

Kept in the store, not in the options of each runner: the result of a model must not depend on which
machine came up first, or on what was typed there. One row per experiment; a change is a
compare-and-set, so of two people who set different keys at once neither loses theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from edgeloop.errors import BadInput, Conflict, RowChanged, RowExists
from edgeloop.models.columns import CONFLICT_LIMIT, check_experiment_name
from edgeloop.models.plan import DeviceTarget, Targets, form_text
from edgeloop.store import Changes, Condition, Store, Values

RANDOM_INPUTS = "random"  # as a dataset: calibrate on random inputs, and score nothing
MOST_TARGETS = 50
MOST_DEVICES = 8  # types: each further one has a set of columns, of which Azure allows 252
TEXT_LIMIT = 1_000
_DATASET = re.compile(r"[^\\@\x00-\x1f\x7f]+(@[1-9][0-9]{0,8})?")
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_FORM = r"(?P<toolchain>[a-z0-9][a-z0-9_-]*)(:(?P<chip>[A-Za-z0-9][A-Za-z0-9._-]*))?"
_TARGET = re.compile(_FORM)
_REGISTERED = re.compile(rf"(?P<device>[A-Za-z0-9][A-Za-z0-9._:-]*)={_FORM}")


@dataclass(frozen=True)
class ExperimentSettings:
    """The settings of one experiment; an empty one is not set.

    Attributes:
        dataset: A dataset of the store with its version, such as `working/faces@3`, or `random`.
        task: What the dataset is for; else that of the runner's own settings.
        primary: The device whose measurements fill the columns that Archai knows, by its name or
            type: `htp:qcs8550`, or the chip of boards.
        targets: What models are converted for, as `TOOLCHAIN` or `TOOLCHAIN:CHIP`; none: what the
            devices take.
        devices: The types of devices that runners have registered, as `TYPE=TOOLCHAIN[:CHIP]`.
    """

    dataset: str = ""
    task: str = ""
    primary: str = ""
    targets: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def for_models(self) -> Targets:
        """As rows have it. Targets that were set by hand win: devices of other toolchains are left
        out, since no model is converted for them."""
        forms = tuple(parse_target(target) for target in self.targets)
        toolchains = {toolchain for toolchain, _ in forms}
        registered = (_registered(text) for text in self.devices)
        devices = [d for d in registered if not forms or d.toolchain in toolchains]
        devices.sort(key=lambda device: device.device != self.primary)
        has_primary = any(device.device == self.primary for device in devices)
        primary = self.primary if has_primary or not devices else devices[0].device
        return Targets(primary, tuple(devices), forms, self.dataset)

    @property
    def has_random_inputs(self) -> bool:
        return self.dataset == RANDOM_INPUTS


SettingChanges = Mapping[str, str | tuple[str, ...]]
Decide = Callable[[ExperimentSettings], SettingChanges]
KEYS = tuple(key.name for key in fields(ExperimentSettings))


def read_settings(store: Store, experiment: str) -> ExperimentSettings:
    record = store.experiment_settings().get(experiment)
    return ExperimentSettings() if record is None else _settings(record.values)


def change_settings(
    store: Store, experiment: str, changes: SettingChanges | Decide
) -> ExperimentSettings:
    """Set these keys and leave the others as they are; an empty value clears its key. Returns all
    settings as they are then. Raises BadInput for a value that no runner could read. What depends
    on the settings before is a function of them, which is called again if they change meanwhile."""
    check_experiment_name(experiment)
    table = store.experiment_settings()
    for _ in range(CONFLICT_LIMIT):
        record = table.get(experiment)
        before = ExperimentSettings() if record is None else _settings(record.values)
        chosen = changes(before) if callable(changes) else changes
        columns = {key: _checked(key, value) for key, value in chosen.items()}
        if not columns:
            return before
        try:
            if record is None:
                new_row = {key: text for key, text in columns.items() if text is not None}
                return _settings(table.insert(experiment, new_row).values)
            return _settings(table.update(record, columns).values)
        except (RowChanged, RowExists):
            continue
    reason = f"others keep changing the experiment {experiment!r}: try again in a moment"
    raise Conflict(reason=reason)


def register_devices(
    store: Store, experiment: str, devices: Sequence[DeviceTarget]
) -> ExperimentSettings:
    """Note what these types of devices take, so that models are converted and evaluated for them.
    The first one becomes the primary device, unless the models here were measured on another."""

    def add(before: ExperimentSettings) -> SettingChanges:
        present = {_registered(text).device: text for text in before.devices}
        asked = {d.device: f"{d.device}={form_text(d.toolchain, d.chip)}" for d in devices}
        if asked.items() <= present.items():
            return {}
        changes: dict[str, str | tuple[str, ...]] = {
            "devices": tuple({**present, **asked}.values())
        }
        if not before.primary:
            changes["primary"] = _measured_on(store, experiment) or next(iter(asked))
        return changes

    return change_settings(store, experiment, add)


def _measured_on(store: Store, experiment: str) -> str:
    """The type of device that benchmarked a model of an experiment first."""
    where = [Condition("device", "!=", "")]
    rows = store.models(experiment).query(where=where, limit=1, columns=["device"])
    return next((str(row.values["device"]) for row in rows if row.values.get("device")), "")


def parse_target(text: str) -> tuple[str, str]:
    """`snpe:qcs8550` is ("snpe", "qcs8550"); the chip may be left out."""
    match = _TARGET.fullmatch(text)
    if match is None or len(text) > TEXT_LIMIT:
        reason = f"a target is TOOLCHAIN or TOOLCHAIN:CHIP, such as snpe:qcs8550, not {text!r}"
        raise BadInput(reason=reason)
    return match["toolchain"], match["chip"] or ""


def _checked(key: str, value: str | tuple[str, ...]) -> str | None:
    """The text of a column; None empties it."""
    if key == "targets":
        targets = tuple(dict.fromkeys((value,) if isinstance(value, str) and value else value))
        if len(targets) > MOST_TARGETS:
            raise BadInput(reason=f"an experiment has {MOST_TARGETS} targets at the most")
        for target in targets:
            parse_target(target)
        return " ".join(targets) or None
    if key == "devices":
        texts = tuple(value.split() if isinstance(value, str) else value)
        if len(texts) > MOST_DEVICES:
            names = ", ".join(_registered(text).device for text in texts[:MOST_DEVICES])
            raise BadInput(
                reason=f"an experiment has {MOST_DEVICES} types of devices at the most, and this "
                f"one has {names}: forget one with 'edgeloop experiment set --forget DEVICE'"
            )
        for text in texts:
            _registered(text)
        return " ".join(texts) or None
    shapes = {
        "dataset": (_DATASET, "a dataset of the store, such as working/faces@3, or 'random'"),
        "task": (_TASK, "the name of a task, such as segmentation"),
        "primary": (_DEVICE, "a device or a chip, such as htp:qcs8550"),
    }
    if key not in shapes:
        keys = ", ".join(KEYS)
        raise BadInput(reason=f"an experiment has no setting {key!r}; the settings are {keys}")
    pattern, meaning = shapes[key]
    text = str(value)
    if text and (len(text) > TEXT_LIMIT or not pattern.fullmatch(text)):
        raise BadInput(reason=f"{key} must be {meaning}, not {text[:60]!r}")
    return text or None


def _registered(text: str) -> DeviceTarget:
    match = _REGISTERED.fullmatch(text)
    if match is None or len(text) > TEXT_LIMIT:
        raise BadInput(reason=f"a device is TYPE=TOOLCHAIN[:CHIP], not {text[:60]!r}")
    return DeviceTarget(match["device"], match["toolchain"], match["chip"] or "")


def _settings(values: Values | Changes) -> ExperimentSettings:
    """What is not of its form counts as not set: other tools can write into the table, too."""
    texts = {key: str(values.get(key) or "") for key in KEYS}
    readable = {key: text for key, text in texts.items() if _is_readable(key, text)}
    return ExperimentSettings(
        dataset=readable.get("dataset", ""),
        task=readable.get("task", ""),
        primary=readable.get("primary", ""),
        targets=tuple(readable.get("targets", "").split()),
        devices=tuple(readable.get("devices", "").split()),
    )


def _is_readable(key: str, text: str) -> bool:
    try:
        _checked(key, tuple(text.split()) if key in ("targets", "devices") else text)
    except BadInput:
        return False
    return True
