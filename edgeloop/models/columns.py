"""The columns of a model's row: one registry, and how values are checked, read and sorted.

A column is declared once, in `COLUMNS`. Tables, charts, the portal, resets and the reference page
read its declaration. A column that is empty or absent in a row is not filled yet.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgeloop._util.values import bare_range, number_text, range_text
from edgeloop.errors import BadInput, BadName, ModelBusy, RowChanged
from edgeloop.store import Changes, Record, Table, Value, Values

Kind = Literal["text", "integer", "number", "boolean", "json", "unknown"]
Goal = Literal["min", "max"]
Group = Literal["", "score", "agreement", "latency"]
Row = Mapping[str, object]
Edit = Callable[[Record], Changes | None]

CONFLICT_LIMIT = 100
LARGEST_PRIORITY = 99_999_999  # keys of the queue have room for eight digits
MODEL_NAME_LIMIT = 100
EXPERIMENT_NAME_LIMIT = 40
RESERVED_EXPERIMENTS = frozenset(
    {
        "usage",
        "tables",
        "edgeloopqueue",
        "edgeloop-runners",
        "edgeloop-fleets",
        "edgeloop-experiments",
        "edgeloop-store",
    }
)
LATENCY = "mean"
DETERMINISTIC = "deterministic"  # in the column `runs`
CANDIDATE = "candidate"  # status of a row that a search made, with no model file yet
ARCHITECTURE_ID = "architecture"  # the column with the id of a searched model
SEARCH_NODE = "edgeloop search"  # holds such a row: Archai would look for its model, and fail it
BOOKKEEPING = frozenset({"stages", "results", "targets"})
_LISTS = frozenset({"shape", "output_shape"})  # Archai writes them as text
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NUMBER = re.compile(r"0*([0-9]+)")
_NOT_IN_COLUMNS = re.compile(r"[^A-Za-z0-9]")
_PLACE = re.compile(r"_(on|for)_(?=[A-Za-z0-9])")
_FIRST_SHOWN = {"running": 0, "error": 1, "failed": 1}


def architecture_id(canonical: str) -> str:
    """Of the canonical JSON of an architecture."""
    return "id_" + hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        name: Its name in the store, in JSON and in CSV.
        kind: The type of its values. A number may also be `n/a`.
        meaning: One line for people.
        stage: The stage that fills it. A reset of the stage empties it.
        is_result: Whether the stage is done only when this is filled.
        label: Words for charts; the name by default.
        short: Heading in the portal, which shows the unit beside it; the name by default.
        unit: Unit in which people see it.
        factor: Number of these units per unit of the store.
        shown: Name in tables, if the unit differs from the store's. Options take both names.
        goal: Whether less or more is better; None: neither.
        places: Decimals, for a share between 0 and 1. By default four significant digits are shown.
        group: The columns that are shown together with it.
        weight: Importance in the table of `status`: a narrow terminal leaves out the least
            important columns. None: shown only if `--columns` asks for it.
        width: Least width of a text there. None: shown in full or not at all.
        suffix: End of the name, of a column that a further device has of its own.
    """

    name: str
    kind: Kind
    meaning: str
    stage: str = ""
    is_result: bool = False
    label: str = ""
    short: str = ""
    unit: str = ""
    factor: float = 1.0
    shown: str = ""
    goal: Goal | None = None
    places: int | None = None
    group: Group = ""
    weight: int | None = None
    width: int | None = 12
    suffix: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name)

    @property
    def is_number(self) -> bool:
        return self.kind in ("integer", "number")

    @property
    def heading(self) -> str:
        """Heading in tables."""
        return self.shown or self.name

    @property
    def title(self) -> str:
        """Title of an axis."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def of(self, row: Row) -> float:
        """The number that people see; NaN if the row has no finite one: empty, `n/a`, infinity."""
        if self.name == LATENCY + self.suffix:
            in_ms = latency_ms(unplaced(row, self.suffix) if self.suffix else row)
            return in_ms * (self.factor / COLUMNS[LATENCY].factor)
        return number(self.factor * number(row.get(self.name)))

    def text(self, value: float) -> str:
        if math.isnan(value):
            return ""
        if self.places is not None and abs(value) < 1000:
            return f"{value:.{self.places}f}"
        return number_text(value)


COLUMNS: dict[str, Column] = {}
_NAMES_SHOWN: dict[str, str] = {}


def register_columns(columns: Iterable[Column]) -> None:
    """Add columns to the table."""
    for column in columns:
        COLUMNS[column.name] = column
        if column.shown:
            _NAMES_SHOWN[column.shown] = column.name


# The table of Microsoft Archai's face-segmentation tools: these columns keep their names and their
# meaning forever. Those of Edgeloop follow `error`.
_OF_ARCHAI = (
    Column(
        "name",
        "text",
        "the model's short name, unique in its experiment",
        weight=100,
        width=20,
    ),
    Column(
        "status",
        "text",
        "uploading, new, waiting, queued on NODE, running STAGE, complete or error; or candidate",
        weight=95,
        width=24,
    ),
    Column("node", "text", "the machines working on it now", short="machine", weight=65),
    Column(
        "priority",
        "integer",
        "overrides the priorities of the stages, 0 to 99,999,999; lower runs sooner",
    ),
    Column("benchmark_only", "integer", "1: only convert and benchmark"),
    Column("model_date", "text", "time of the upload, UTC"),
    Column("model_name", "text", "name of the uploaded file"),
    Column("experiment", "text", "the experiment it belongs to"),
    Column("epochs", "integer", "epochs of training", label="training", unit="epochs", goal="min"),
    Column("iteration", "integer", "the iteration of the search that proposed it"),
    Column(
        "onnx_latency",
        "number",
        "seconds per inference on the host's CPU",
        label="latency on the host's CPU",
        unit="ms",
        factor=1e3,
        shown="onnx_latency_ms",
        goal="min",
    ),
    Column("pipeline_id", "text", "the training pipeline that produced it"),
    Column(
        "val_iou",
        "number",
        "mIoU after partial training",
        label="mIoU after partial training",
        goal="max",
        places=4,
        weight=75,
    ),
    Column(
        "final_val_iou",
        "number",
        "mIoU after full training",
        label="mIoU after full training",
        goal="max",
        places=4,
        weight=80,
    ),
    Column(
        "training_time",
        "number",
        "seconds of training",
        label="training",
        unit="s",
        shown="training_s",
        goal="min",
    ),
    Column(
        "shape",
        "text",
        "input shape without the batch: [height, width, channels]",
        stage="convert",
        is_result=True,
    ),
    Column(
        "output_shape",
        "text",
        "output shape without the batch: [height, width, classes]",
        stage="convert",
        is_result=True,
    ),
    Column(
        "quantized",
        "boolean",
        "whether the quantized model exists",
        stage="convert",
        is_result=True,
    ),
    Column(
        "macs",
        "integer",
        "multiply-accumulates per inference",
        stage="convert",
        is_result=True,
        label="multiply-accumulates",
        short="MACs",
        unit="millions",
        factor=1e-6,
        shown="macs_m",
        goal="min",
        weight=70,
    ),
    Column(
        "params",
        "integer",
        "parameters",
        stage="convert",
        is_result=True,
        label="parameters",
        unit="millions",
        factor=1e-6,
        shown="params_m",
        goal="min",
    ),
    Column(
        "total_inference_avg",
        "json",
        "seconds per inference, one entry per benchmark run",
        stage="benchmark",
        is_result=True,
    ),
    Column(
        LATENCY,
        "number",
        "mean of the runs, seconds",
        stage="benchmark",
        is_result=True,
        label="latency",
        short="latency",
        unit="ms",
        factor=1e3,
        shown="latency_ms",
        goal="min",
        weight=90,
    ),
    Column(
        "stdev",
        "number",
        "standard deviation of the runs, percent of the mean",
        stage="benchmark",
        is_result=True,
        label="spread of the runs",
        unit="% of the mean",
        goal="min",
    ),
    Column("completed", "text", "end of the last stage, UTC"),
    Column(
        "f1_onnx",
        "number",
        "F1 of the float ONNX model, at most 10,000 test images",
        stage="f1_onnx",
        is_result=True,
        label="F1 of the float ONNX model, 10,000 images",
        goal="max",
        places=4,
        group="score",
        weight=55,
    ),
    Column(
        "f1_1k",
        "number",
        "F1 of the quantized model on the device, at most 1,000 test images",
        stage="f1_1k",
        is_result=True,
        label="F1 on the device, quantized, 1,000 images",
        goal="max",
        places=4,
        group="score",
        weight=85,
    ),
    Column(
        "f1_1k_f",
        "number",
        "F1 of the float model on the device, at most 1,000 test images; "
        "n/a if the device has no float mode",
        stage="f1_1k_f",
        is_result=True,
        label="F1 of the float model, 1,000 images",
        goal="max",
        places=4,
        group="score",
        weight=45,
    ),
    Column(
        "f1_10k",
        "number",
        "F1 of the quantized model on the device, at most 10,000 test images",
        stage="f1_10k",
        is_result=True,
        label="F1 on the device, quantized, 10,000 images",
        goal="max",
        places=4,
        group="score",
        weight=50,
    ),
)
register_columns(_OF_ARCHAI)

SCORE_COLUMNS = tuple(column.name for column in COLUMNS.values() if column.group == "score")

for _score in SCORE_COLUMNS:
    register_columns(
        (
            Column(
                f"{_score}_images",
                "integer",
                f"how many test images {_score} is of: a small dataset has fewer than 1k or 10k",
                stage=_score,
            ),
            Column(
                f"{_score}_set",
                "text",
                f"which test images {_score} is of: a digest of their content",
                stage=_score,
            ),
            Column(
                f"{_score}_low",
                "number",
                f"lower end of the 95 % interval of {_score}, by bootstrap over the test images",
                stage=_score,
            ),
            Column(
                f"{_score}_high",
                "number",
                f"upper end of the 95 % interval of {_score}",
                stage=_score,
            ),
        )
    )

_OF_EDGELOOP = (
    Column("use_pillow", "boolean", "whether images were prepared with Pillow"),
    Column("error", "text", "the last error, with its stage"),
    Column("since", "text", "time of the last change of status, UTC"),
    Column("tags", "json", "labels given at upload or in the portal, a list"),
    Column("comment", "text", "what people noted about it"),
    Column("shapes", "json", "shapes of inputs whose sizes the file leaves open, by name"),
    Column(
        "size",
        "integer",
        "bytes of the model with its external data",
        label="size of the model",
        unit="MB",
        factor=1e-6,
        shown="size_mb",
        goal="min",
    ),
    Column("content", "text", "SHA-256 of the model with its external data and shapes"),
    Column(
        "device",
        "text",
        "what its device stages run on: host, htp:CHIP, or the chip of a board",
        stage="benchmark",
        weight=68,
    ),
    Column("boards", "text", "the boards that measured it, by serial", stage="benchmark"),
    Column(
        "board_runs",
        "json",
        "boards: seconds per inference of each run, by the board that it ran on",
        stage="benchmark",
    ),
    Column(
        "run_spread",
        "number",
        "standard deviation of runs on the same board or device, percent of the mean; n/a while no "
        "board has two runs",
        stage="benchmark",
        label="spread between runs",
        unit="% of the mean",
        goal="min",
    ),
    Column(
        "board_spread",
        "number",
        "two boards or more: standard deviation of the boards' means, percent of their mean",
        stage="benchmark",
        label="spread between boards",
        unit="% of the mean",
        goal="min",
    ),
    Column(
        "precision",
        "text",
        "how it was quantized: a8w8, a8w8-per-channel, a16w8 or mixed: and a digest",
    ),
    Column(
        "calibration",
        "text",
        "what it was quantized on: dataset, given (runner --calibration) or random inputs",
        stage="convert",
    ),
    Column("toolchain", "text", "what converted it: qnn, or snpe for boards"),
    Column(
        "compiled",
        "text",
        "the chips that something was compiled for; `!` marks one whose compiler refused it",
        stage="convert",
    ),
    Column(
        "recovery",
        "json",
        "steps tried to recover accuracy lost to quantization, with their scores",
        stage="convert",
        weight=30,
        width=None,
    ),
    Column(
        "f1_before_recovery",
        "number",
        "score before recovery, on held-out images of the calibration set",
        stage="convert",
    ),
    Column(
        "f1_after_recovery",
        "number",
        "score after recovery, on the same images",
        stage="convert",
    ),
    Column("notes", "text", "remarks on its conversion and measurements", stage="convert"),
    Column(
        "task",
        "text",
        "what it was evaluated for: segmentation, ..., or tensors",
        stage="convert",
    ),
    Column(
        "metric",
        "text",
        "what the columns of scores hold: f1, or what the task measures instead, such as mAP",
    ),
    Column(
        "sqnr_db",
        "number",
        "task tensors: SQNR of the quantized model on the device against the float model, dB; "
        "the worst output",
        stage="f1_1k",
        label="SQNR against the float model",
        short="SQNR",
        unit="dB",
        goal="max",
        group="agreement",
        weight=84,
    ),
    Column(
        "cosine",
        "number",
        "task tensors: cosine similarity with the float model; the worst output",
        stage="f1_1k",
        label="cosine similarity with the float model",
        goal="max",
        places=5,
        group="agreement",
        weight=43,
    ),
    Column(
        "max_error",
        "number",
        "task tensors: largest difference from the float model; the worst output",
        stage="f1_1k",
        label="largest difference from the float model",
        short="max error",
        goal="min",
        group="agreement",
        weight=42,
    ),
    Column(
        "top1_agreement",
        "number",
        "task tensors: share of equal top-1 answers, 0 to 1; the worst output",
        stage="f1_1k",
        label="top-1 agreement with the float model",
        short="top-1",
        goal="max",
        places=4,
        group="agreement",
        weight=44,
    ),
    Column(
        "latency_kind",
        "text",
        "measured, or estimate: never a measurement on a chip",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_raw_us",
        "number",
        "the compiler's estimate before calibration, µs",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_low_us",
        "number",
        "the compiler's lower bound, µs",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_high_us",
        "number",
        "the compiler's upper bound, µs",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_low_ms",
        "number",
        "lower end of the interval in which the time on the chip is expected, ms",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_high_ms",
        "number",
        "upper end of that interval, ms; empty for a measured latency",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_coverage",
        "number",
        "probability of that interval, such as 0.9; empty where no data supports one",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_basis",
        "text",
        "where the interval comes from, or why there is none",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_missing_ops",
        "integer",
        "steps that the estimate leaves out; the latency is then a lower bound, and on no front",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_margin_percent",
        "number",
        "of rows that older versions wrote; never shown, since no data supported it",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_profile",
        "text",
        "the device profile that calibrated the estimate",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "latency_calibrated",
        "boolean",
        "whether that profile was fitted on a real device",
        stage="benchmark",
        group="latency",
    ),
    Column(
        "peak_memory_bytes",
        "integer",
        "the most activations alive at once, as quantized",
        stage="convert",
        label="peak activations",
        unit="MB",
        factor=1e-6,
        shown="peak_memory_mb",
        goal="min",
    ),
    Column(
        "weight_bytes",
        "integer",
        "weights as quantized",
        stage="convert",
        label="weights as quantized",
        unit="MB",
        factor=1e-6,
        shown="weights_mb",
        goal="min",
    ),
    Column(
        "ddr_bytes",
        "integer",
        "traffic with the memory outside the chip per inference, as the compiler plans it",
        stage="benchmark",
        label="DDR traffic per inference",
        unit="MB",
        factor=1e-6,
        shown="ddr_mb",
        goal="min",
    ),
    Column(
        "peak_rss_bytes",
        "integer",
        "boards: peak memory of the process that ran it",
        stage="benchmark",
        label="peak memory on the board",
        unit="MB",
        factor=1e-6,
        shown="peak_rss_mb",
        goal="min",
    ),
    Column(
        "power_mw",
        "number",
        "boards that report it: mean power of the board during the runs, mW",
        stage="benchmark",
        label="power",
        unit="mW",
        goal="min",
    ),
    Column(
        "runs",
        "text",
        "how many benchmark runs the mean is of; `1, deterministic` for an estimate",
        stage="benchmark",
        group="latency",
    ),
    Column("arch", "json", "the architecture, where a search made it"),
    Column(ARCHITECTURE_ID, "text", "the id of the architecture, a hash of it"),
    Column("results", "json", "results of searches, by their conditions"),
    Column("targets", "json", "for which devices and toolchains its experiment evaluates it"),
    Column("stages", "json", "Edgeloop's record of each stage: leases, attempts, files"),
)
register_columns(_OF_EDGELOOP)

AGREEMENT_COLUMNS = tuple(c.name for c in COLUMNS.values() if c.group == "agreement")
LATENCY_COLUMNS = tuple(c.name for c in COLUMNS.values() if c.group == "latency")
# Those of them that tell how an estimate is shown in a table.
ESTIMATE_COLUMNS = (
    "latency_kind",
    "latency_missing_ops",
    "latency_low_ms",
    "latency_high_ms",
    "latency_coverage",
)


def column_of(name: str) -> Column:
    """The column of this name, as stored or as shown: `mean_on_htp_x_elite` is `mean` of a further
    device. Another tool's has neither unit nor goal."""
    stored = column_named(name)
    if stored in COLUMNS:
        return COLUMNS[stored]
    base, suffix = split_place(stored)
    if not suffix:
        return Column(stored, "unknown", "")
    declared, place = COLUMNS[base], suffix[1:].replace("_", " ", 1)
    return replace(
        declared,
        name=stored,
        meaning=f"{declared.meaning}; {place}",
        label=f"{declared.label}, {place}",
        short="",
        shown=declared.shown and declared.shown + suffix,
        weight=None,
        stage="",
        is_result=False,
        suffix=suffix,
    )


def column_named(name: str) -> str:
    """The stored name of a column: `latency_ms` and `latency_us`, as tables show it, and `mean` are
    valid."""
    known = {**_NAMES_SHOWN, **{_in_us(shown): n for shown, n in _NAMES_SHOWN.items()}}
    base, suffix = split_place(name, known)
    return known.get(base, base) + suffix


def _in_us(heading: str) -> str:
    return heading.removesuffix("_ms") + "_us" if heading.endswith("_ms") else heading


def place_suffix(word: str, place: str) -> str:
    """How names of columns end that a further device (`on`) or toolchain (`for`) has of its own.
    Azure takes letters, digits and underscores."""
    return f"_{word}_{_NOT_IN_COLUMNS.sub('_', place)}"


def split_place(name: str, names: Collection[str] | None = None) -> tuple[str, str]:
    """The plain name of a column, and the end that `place_suffix` gave it, if it has one."""
    known = COLUMNS if names is None else names
    for match in _PLACE.finditer(name):
        base, suffix = name[: match.start()], name[match.start() :]
        if base in known:
            return base, suffix
    return name, ""


def column_names() -> list[str]:
    """Every name that options accept: as stored, then as shown."""
    return [*COLUMNS, *_NAMES_SHOWN]


def unplaced(row: Row, suffix: str) -> Row:
    """The columns of a further device, under their plain names."""
    ends = ((name, value) for name, value in row.items() if name.endswith(suffix))
    return {name.removesuffix(suffix): value for name, value in ends}


def number(value: object) -> float:
    """A finite number, even if written as text; NaN for everything else."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        converted = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return converted if math.isfinite(converted) else math.nan


def latency_ms(row: Row) -> float:
    """NaN for a lower bound, which cannot be compared with a latency."""
    if is_lower_bound(row):
        return math.nan
    mean = number(row.get(LATENCY))
    return number(1e3 * mean if not math.isnan(mean) else mean_latency_ms(row) or math.nan)


def check_model_name(name: str) -> str:
    """Names become row keys, blob folders and local folders, so they are plain everywhere."""
    if len(name) > MODEL_NAME_LIMIT:
        shown = f"{name[:20]}…"
        reason = f"it has {len(name)} characters; {MODEL_NAME_LIMIT} are the limit"
        raise BadName(what="name", name=shown, reason=reason)
    if not _PLAIN.fullmatch(name):
        reason = "use letters, digits, '.', '_' and '-', and begin with a letter or digit"
        raise BadName(what="name", name=name, reason=reason)
    return name


def check_experiment_name(name: str) -> str:
    if not 3 <= len(name) <= EXPERIMENT_NAME_LIMIT:
        reason = f"it must have 3 to {EXPERIMENT_NAME_LIMIT} characters"
        raise BadName(what="experiment", name=name[:60], reason=reason)
    if not _EXPERIMENT.fullmatch(name):
        reason = "use letters, digits, '_' and '-', and begin with a letter or digit"
        raise BadName(what="experiment", name=name, reason=reason)
    if name.lower() in RESERVED_EXPERIMENTS:
        raise BadName(what="experiment", name=name, reason="Edgeloop keeps that name for itself")
    return name


def can_be_key(name: str) -> bool:
    """Whether a row may have this name; wider than what we allow, since old tables came before.
    Azure takes what is not for a fault of the service, and tries again and again."""
    return bool(name) and name.isprintable() and not any(char in name for char in "/\\#?")


def is_pattern(text: str) -> bool:
    return any(char in text for char in "*?[")


def matches(name: str, pattern: str) -> bool:
    """Globs as a shell reads them, on every system case-sensitive."""
    return fnmatch.fnmatchcase(name, pattern)


def matches_any(name: str, patterns: Collection[str]) -> bool:
    """Whether it matches one of the globs; without globs every name does."""
    return not patterns or any(matches(name, pattern) for pattern in patterns)


def natural_key(name: str) -> str:
    """Sorts names as people count: `net-2` before `net-10`, whatever the case of the letters."""
    counted = _NUMBER.sub(lambda digits: f"{len(digits[1]):03}{digits[1]}", name.casefold())
    return f"{counted}\0{name}"


def attention_rank(status: str) -> int:
    """Place in lists: running models first, then failed ones, then all others, each in natural
    order."""
    return _FIRST_SHOWN.get(status.partition(" ")[0], 2)


def filled(value: Value | None) -> bool:
    return value is not None and value != ""


def is_true(value: Value | None) -> bool:
    """Old tables hold 1, True and 'True' for yes."""
    return value is True or (not isinstance(value, bool) and str(value).lower() in ("1", "true"))


def ran_on(row: Values, device: str) -> bool:
    """Whether a model was measured on this device: a type such as a board's chip, or one board."""
    name = device.strip()
    return name in boards_of(row) or row.get("device") in (name, name.lower().replace(" ", "-"))


def own_priority(row: Values) -> float | None:
    """The priority that was set for the model, as a number or as the text of one; None: those of
    the stages hold. Another tool may have written it: anything but a number is ignored, and numbers
    out of range count as the nearest valid one."""
    written = row.get("priority")
    if written is None or isinstance(written, bool):
        return None
    try:
        number = float(written)
    except (ValueError, OverflowError):
        return None
    return bounded_priority(number) if math.isfinite(number) else None


def bounded_priority(number: float) -> float:
    """As the queue sorts it; what is not a number comes last."""
    return LARGEST_PRIORITY if math.isnan(number) else min(max(number, 0.0), LARGEST_PRIORITY)


def check_priority(priority: int | None) -> int | None:
    """A priority as people give it: refused here, whichever way it came."""
    is_whole = isinstance(priority, int) and not isinstance(priority, bool)
    if priority is not None and not (is_whole and 0 <= priority <= LARGEST_PRIORITY):
        shown = repr(priority)[:40]
        reason = f"a priority is a whole number from 0 to {LARGEST_PRIORITY}, not {shown}"
        raise BadInput(reason=reason)
    return priority


def runs_of(row: Row) -> list[float]:
    """The benchmark runs so far, in seconds; a cell that cannot be read counts as none."""
    try:
        runs = json.loads(str(row.get("total_inference_avg") or "[]"))
        return [float(run) for run in runs]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return []


def boards_of(row: Row) -> list[str]:
    return [board for board in str(row.get("boards") or "").split(", ") if board]


def runs_by_board(row: Row) -> dict[str, list[float]]:
    """The benchmark runs so far whose board is known. An older version named only the boards: with
    one name, all runs were its. Runs that another tool added or took back are not among them."""
    runs, boards = runs_of(row), boards_of(row)
    try:
        written = json.loads(str(row.get("board_runs") or "{}"))
        by_board = {str(b): [t for t in map(float, ts) if t in runs] for b, ts in written.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        by_board = {}
    if not by_board and len(boards) == 1:
        by_board = {boards[0]: runs}
    return {board: own for board, own in by_board.items() if own}


def run_spread(row: Values) -> float:
    """How much runs on the same board differ, in percent; NaN if not known. Older versions and
    Archai wrote only `stdev`, which mixes boards."""
    written = row.get("run_spread")
    return number(written if filled(written) else row.get("stdev"))


def is_deterministic(row: Values) -> bool:
    """Whether its benchmark is an estimate that another run would only repeat. Rows of older
    versions do not say so; all their estimates are."""
    if not is_estimate(row) or not runs_of(row):
        return False
    runs = row.get("runs")
    return not filled(runs) or str(runs).endswith(DETERMINISTIC)


def mean_latency_ms(row: Row) -> float:
    """From `mean` where it is a number, else from the runs; 0 when there is neither."""
    mean = row.get("mean")
    if isinstance(mean, int | float) and not isinstance(mean, bool) and math.isfinite(mean):
        return 1000.0 * mean
    runs = runs_of(row)
    return 1000.0 * sum(runs) / len(runs) if runs else 0.0


@dataclass(frozen=True)
class LatencyInterval:
    """Where the time on the chip is expected, for a row with an estimate. `coverage` is the stated
    probability; None: no data supports one."""

    low_ms: float
    high_ms: float
    coverage: float | None

    def __str__(self) -> str:
        """With its unit, for a sentence; in brackets without a stated probability."""
        return self._bracketed(range_text(self.low_ms, self.high_ms))

    def in_unit(self, unit: str) -> str:
        """Bare numbers for a column whose heading has the unit, ms or µs."""
        return self._bracketed(bare_range(self.low_ms, self.high_ms, unit))

    def _bracketed(self, text: str) -> str:
        return text if self.coverage else f"({text})"


def is_estimate(row: Mapping[str, object]) -> bool:
    return row.get("latency_kind") == "estimate"


def is_lower_bound(row: Mapping[str, object]) -> bool:
    """Whether the estimate leaves out steps, so that the chip takes longer."""
    return is_estimate(row) and _number(row.get("latency_missing_ops")) > 0


def latency_interval(row: Mapping[str, object]) -> LatencyInterval | None:
    low, high = (_number(row.get(name)) for name in ("latency_low_ms", "latency_high_ms"))
    if not is_estimate(row) or not 0 < low <= high < math.inf:
        return None
    coverage = _number(row.get("latency_coverage"))
    return LatencyInterval(low, high, coverage if 0 < coverage < 1 else None)


def score_interval(row: Mapping[str, object], column: str) -> tuple[float, float] | None:
    """The 95 % interval of a score; None for rows that were tested before it was kept."""
    low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
    numbers = [value for value in (low, high) if type(value) in (int, float)]
    if len(numbers) < 2 or not -math.inf < low <= high < math.inf:  # type: ignore[operator]
        return None
    return float(low), float(high)  # type: ignore[arg-type]


def interval_heading(rows: Iterable[Mapping[str, object]]) -> str:
    """`90 % interval` where all rows that state a probability state this one."""
    intervals = (latency_interval(row) for row in rows)
    stated = {round(100 * one.coverage) for one in intervals if one and one.coverage}
    return f"{stated.pop()} % interval" if len(stated) == 1 else "interval"


def latency_notes(row: Mapping[str, object]) -> str:
    """Why there is no interval, or where it comes from."""
    return str(row.get("latency_basis") or "") if is_estimate(row) else ""


# How people see a value and its interval: in one unit for the whole column, named by its heading.


_WELL_BELOW_MS, _MOST_IN_US = 0.5, 10.0


def readable(measure: Column, values: Sequence[float]) -> tuple[Column, float]:
    """The measure in the unit that reads best, and the factor of its values: microseconds where
    most latencies are well below a millisecond. For people only; programs always get ms."""
    if measure.unit != "ms" or not values:
        return measure, 1.0
    if sorted(values)[len(values) // 2] >= _WELL_BELOW_MS or max(values) >= _MOST_IN_US:
        return measure, 1.0
    shown = re.sub(r"_ms(?=$|@|_on_)", "_us", measure.heading, count=1)
    return replace(measure, unit="µs", factor=1e3 * measure.factor, shown=shown), 1e3


def column_in_unit(column: str, rows: Collection[Row]) -> Column:
    """The column in the one unit in which its values in these rows read best."""
    measure = column_of(column)
    if measure.unit != "ms":
        return measure
    seen = [seen_from(column, row) for row in rows] if is_latency(column) else []
    values = [mean for row in seen if (mean := mean_latency_ms(row))] or [
        value for row in rows if not math.isnan(value := measure.of(row))
    ]
    return readable(measure, values)[0]


def is_latency(column: str) -> bool:
    """Whether it is the latency on any device."""
    return split_place(column)[0] == LATENCY


def seen_from(column: str, row: Row) -> Row:
    """The row as the device has it that a column is of: a further one has columns of its own."""
    _, suffix = split_place(column)
    return unplaced(row, suffix) if suffix else row


def latency_cell(row: Row, measure: Column, has_spread: bool = True) -> str:
    """In the unit of `measure`, which its heading names: `0.61 ± 0.02`, `≥ 0.61 est`."""
    row = seen_from(measure.name, row)
    factor = measure.factor / COLUMNS[LATENCY].factor
    if is_lower_bound(row):
        return f"≥ {measure.text(factor * mean_latency_ms(row))} est"
    text, sigma = measure.text(factor * latency_ms(row)), factor * sigma_ms(row)
    if not text:
        return ""
    spread = f" ± {number_text(sigma, 2)}" if sigma > 0 and has_spread else ""
    return f"{text}{spread}{' est' if is_estimate(row) else ''}"


def interval_cell(row: Row, measure: Column) -> str:
    """The interval of an estimate, in the same unit as its value: `405 – 480`."""
    interval = latency_interval(seen_from(measure.name, row))
    return interval.in_unit(measure.unit) if interval else ""


def value_span(row: Row, measure: Column) -> tuple[float, float] | None:
    """Where the value may lie, in the unit of `measure`: the interval of an estimate or a score,
    two standard deviations of measured runs, and the value itself where it is exact. None without a
    value; an estimate without an interval may lie anywhere."""
    value = measure.of(row)
    if math.isnan(value):
        return None
    if measure.group == "score":
        return score_interval(row, measure.name) or (value, value)
    if not is_latency(measure.name):
        return value, value
    seen, factor = seen_from(measure.name, row), measure.factor / COLUMNS[LATENCY].factor
    interval = latency_interval(seen)
    if interval:
        return factor * interval.low_ms, factor * interval.high_ms
    if is_estimate(seen):
        return -math.inf, math.inf
    sigma = factor * sigma_ms(seen)
    spread = 0.0 if math.isnan(sigma) else 2 * sigma
    return value - spread, value + spread


def are_best(rows: Sequence[Row], measure: Column) -> list[bool]:
    """Which values are better than every other one that is not the same, as far as anybody can
    tell: their spans must not overlap."""
    spans = {n: span for n, row in enumerate(rows) if (span := value_span(row, measure))}
    if measure.goal is None or len(spans) < 2:
        return [False] * len(rows)
    values = {place: measure.of(rows[place]) for place in spans}
    best = min(values.values()) if measure.goal == "min" else max(values.values())

    def is_apart(place: int) -> bool:
        low, high = spans[place]
        others = [spans[n] for n in spans if (values[n], spans[n]) != (best, spans[place])]
        if measure.goal == "min":
            return all(high < other_low for other_low, _ in others)
        return all(low > other_high for _, other_high in others)

    return [values.get(place) == best and is_apart(place) for place in range(len(rows))]


def sigma_ms(row: Row) -> float:
    """One standard deviation of the runs; the table holds it as percent of the mean."""
    return number(latency_ms(row) * number(row.get("stdev")) / 100.0)


# Values of a search as people see them.


_LABELS = (
    Column("chip_latency_ms", "number", "", label="estimated latency", unit="ms"),
    Column("host_latency_ms", "number", "", label="latency on the host's CPU", unit="ms"),
    Column("farm_latency_ms", "number", "", label="measured latency", unit="ms"),
    Column("memory_bytes", "number", "", label="memory", unit="MB", factor=1e-6),
    Column("ddr_bytes", "number", "", label="DDR traffic", unit="MB", factor=1e-6),
    Column("val_f1", "number", "", label="F1 after partial training"),
    Column("farm_f1", "number", "", label="F1 on the device"),
)
_VALUES = {column.name: column for column in _LABELS}


def search_measure(name: str) -> Column:
    """The value of a search as people read it: `chip_latency_ms@htp:qcs8550` is the estimated
    latency on qcs8550."""
    value, _, device = name.partition("@")
    column = _VALUES.get(value) or COLUMNS.get(value) or Column(value, "number", "")
    column = replace(column, name=name, shown=name)
    chip = device.rpartition(":")[2]
    return replace(column, label=f"{column.label} on {chip}") if chip else column


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if math.isfinite(value) else 0.0


def decoded(column: str, value: Value) -> object:
    """A list that is stored as text, as a list; what cannot be read stays text."""
    if not isinstance(value, str) or (column_of(column).kind != "json" and column not in _LISTS):
        return value
    try:
        content = json.loads(value, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return value
    return content if isinstance(content, list | dict) else value


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def shared_metric(rows: Iterable[Mapping[str, object]]) -> str:
    """The metric of all rows that name one, such as `mAP`; F1 where they differ."""
    metrics = {str(row["metric"]) for row in rows if row.get("metric")}
    return metrics.pop() if len(metrics) == 1 else "f1"


@dataclass(frozen=True)
class ScoreMeaning:
    """What the columns of scores hold in some rows: the metric, and of how many images each column
    is (`120`, `100–120`), if these are not as many as its name says."""

    metric: str = "f1"
    images: Mapping[str, str] = field(default_factory=dict)

    def heading(self, column: str) -> str:
        """What people see above the column: `mAP_1k`, or `f1_1k (120)` if it is of 120 images."""
        name = self.metric + column.removeprefix("f1")
        return f"{name} ({self.images[column]})" if column in self.images else name


def score_meaning(rows: Iterable[Mapping[str, object]]) -> ScoreMeaning:
    every = list(rows)
    images = {}
    for column in SCORE_COLUMNS:
        scored = [row for row in every if type(row.get(column)) in (int, float)]
        counts = {row.get(f"{column}_images") for row in scored}
        sizes = sorted(count for count in counts if type(count) is int)
        nominal = 1_000 if "_1k" in column else 10_000
        if sizes and sizes != [nominal]:
            least, most = sizes[0], sizes[-1]
            images[column] = f"{least:,}" if least == most else f"{least:,}–{most:,}"
    return ScoreMeaning(shared_metric(every), images)


def shown_scores(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Columns that say how good models are: those of scores, unless no row has one and some were
    compared with their float form instead. Beside scores, agreement takes two columns."""
    numbers: set[str] = set()
    candidates = {*SCORE_COLUMNS, *AGREEMENT_COLUMNS}
    for row in rows:
        numbers |= {name for name in candidates - numbers if type(row.get(name)) in (int, float)}
        if len(numbers) > len(SCORE_COLUMNS):  # some of both
            break
    if not numbers.intersection(AGREEMENT_COLUMNS):
        return list(SCORE_COLUMNS)
    if not numbers.intersection(SCORE_COLUMNS):
        return list(AGREEMENT_COLUMNS)
    return [*SCORE_COLUMNS, "sqnr_db", "top1_agreement"]


def visible_columns(rows: Iterable[Values], every: bool = False) -> list[str]:
    """Columns that some row has: the known ones in their order, each with those of further devices
    behind it, then others by name."""
    present = {name for row in rows for name in row}
    placed: dict[str, list[str]] = {}
    for name in sorted(present.difference(COLUMNS)):
        base, suffix = split_place(name)
        if suffix:
            placed.setdefault(base, []).append(name)
    families = ([name, *placed.get(name, ())] for name in COLUMNS)
    standard = [name for family in families for name in family if name in present]
    others = sorted(present.difference(standard))
    return [name for name in standard + others if every or name not in BOOKKEEPING]


RECOVERY_HEADINGS = ("step", "before", "after", "gain [95 %]", "kept")


@dataclass(frozen=True)
class RecoverySummary:
    """The column `recovery` as people see it. `short` fits into a table: `.374 → .852`. `lines`
    have a text for each of the headings."""

    short: str
    title: str
    lines: tuple[tuple[str, ...], ...]


def recovery_of(row: Mapping[str, object]) -> RecoverySummary | None:
    """None for a model that no recovery was tried on, and for text that is not ours."""
    text = row.get("recovery")
    report = decoded("recovery", text) if isinstance(text, str) else None
    if not isinstance(report, dict):
        return None
    metric = str(report.get("metric") or "f1")
    ends = [_recovery_score(report.get(name), metric) for name in ("before", "after")]
    if not all(ends):
        return None
    steps = report.get("steps")
    told = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    lines = [_recovery_line(step, metric) for step in told]
    images, device = report.get("images"), report.get("device")
    title = f"{_metric_name(metric)} on {images} images of the calibration set, {device}"
    if reference := _recovery_score(report.get("float"), metric):
        title += f"; float {reference}"
    unit = " dB" if metric == "sqnr_db" else ""
    return RecoverySummary(f"{ends[0]} → {ends[1]}{unit}", title, tuple(lines))


def _recovery_line(step: Mapping[str, object], metric: str) -> tuple[str, ...]:
    name = str(step.get("step", ""))
    if variant := step.get("variant"):
        name += f" ({variant})"
    before, after, low, high = (
        _recovery_score(step.get(key), metric) for key in ("before", "after", "low", "high")
    )
    if not after:
        return name, before, "", str(step.get("note", "")), "no"
    gain = f"{low} to {high}" if low and high else ""
    return name, before, after, gain, "yes" if step.get("kept") is True else "no"


def _recovery_score(value: object, metric: str) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return ""
    if metric == "sqnr_db":
        return f"{value:.1f}"
    sign = "-" if value < 0 else ""
    return f"{sign}{f'{abs(value):.4f}'.removeprefix('0')}"


def _metric_name(metric: str) -> str:
    return {"f1": "F1", "sqnr_db": "SQNR"}.get(metric, metric)


def change_row(
    table: Table,
    key: str,
    edit: Edit,
    last_seen: Record | None = None,
    update: Callable[[Record, Changes], Record] | None = None,
) -> tuple[Record, Record] | None:
    """Read, edit, write if unchanged; again if another write came in between.

    Returns the row before and after, or None if there is no such row. `edit` returns what to
    write, or None to leave the row as it is; it may be called several times, each time with the
    row as it then is. `last_seen` is the row as the caller last saw it, which saves a read if it
    has not changed since. `update` writes the row, and may write more with it.
    """
    row = last_seen or table.get(key)
    for attempt in range(CONFLICT_LIMIT):
        if row is None:
            return None
        changes = edit(row)
        if changes is None:
            return row, row
        try:
            return row, (update or table.update)(row, changes)
        except RowChanged:
            if attempt:
                time.sleep(random.uniform(0, min(0.002 * 2**attempt, 0.2)))
        row = table.get(key)
    raise ModelBusy(name=key, reason="its row keeps changing")
