"""What an experiment asks of every machine that works on it.

Kept in the store, not in the options of each runner: the result of a model must not depend on which
machine came up first, or on what was typed there. One row per experiment; a change is a
compare-and-set, so of two people who set different keys at once neither loses theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from edgeloop.errors import BadInput, Conflict, RowChanged, RowExists
from edgeloop.models.columns import CONFLICT_LIMIT, check_experiment_name
from edgeloop.store import Changes, Store, Values

RANDOM_INPUTS = "random"  # as a dataset: calibrate on random inputs, and score nothing
MOST_TARGETS = 50
TEXT_LIMIT = 1_000
_DATASET = re.compile(r"[^\\@\x00-\x1f\x7f]+(@[1-9][0-9]{0,8})?")
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_TARGET = re.compile(r"(?P<toolchain>[a-z0-9][a-z0-9_-]*)(:(?P<chip>[A-Za-z0-9][A-Za-z0-9._-]*))?")


@dataclass(frozen=True)
class ExperimentSettings:
    """The settings of one experiment; an empty one is not set.

    Attributes:
        dataset: A dataset of the store with its version, such as `working/faces@3`, or `random`.
        task: What the dataset is for; else that of the runner's own settings.
        primary: The device whose measurements fill the columns that Archai knows, by its name or
            type: `htp:qcs8550`, or the chip of boards.
        targets: What models are converted for, as `TOOLCHAIN` or `TOOLCHAIN:CHIP`.
    """

    dataset: str = ""
    task: str = ""
    primary: str = ""
    targets: tuple[str, ...] = ()

    @property
    def has_random_inputs(self) -> bool:
        return self.dataset == RANDOM_INPUTS


KEYS = tuple(key.name for key in fields(ExperimentSettings))


def read_settings(store: Store, experiment: str) -> ExperimentSettings:
    record = store.experiment_settings().get(experiment)
    return ExperimentSettings() if record is None else _settings(record.values)


def change_settings(
    store: Store, experiment: str, changes: Mapping[str, str | tuple[str, ...]]
) -> ExperimentSettings:
    """Set these keys and leave the others as they are; an empty value clears its key. Returns all
    settings as they are then. Raises BadInput for a value that no runner could read."""
    check_experiment_name(experiment)
    columns = {key: _checked(key, value) for key, value in changes.items()}
    table = store.experiment_settings()
    for _ in range(CONFLICT_LIMIT):
        record = table.get(experiment)
        try:
            if record is None:
                new_row = {key: text for key, text in columns.items() if text is not None}
                return _settings(table.insert(experiment, new_row).values)
            return _settings(table.update(record, columns).values)
        except (RowChanged, RowExists):
            continue
    reason = f"others keep changing the experiment {experiment!r}: try again in a moment"
    raise Conflict(reason=reason)


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


def _settings(values: Values | Changes) -> ExperimentSettings:
    """What is not of its form counts as not set: other tools can write into the table, too."""
    texts = {key: str(values.get(key) or "") for key in KEYS}
    readable = {key: text for key, text in texts.items() if _is_readable(key, text)}
    return ExperimentSettings(
        dataset=readable.get("dataset", ""),
        task=readable.get("task", ""),
        primary=readable.get("primary", ""),
        targets=tuple(readable.get("targets", "").split()),
    )


def _is_readable(key: str, text: str) -> bool:
    try:
        _checked(key, tuple(text.split()) if key == "targets" else text)
    except BadInput:
        return False
    return True
