"""status: the status table, once or live, for people and programs."""

from __future__ import annotations

import json
import math
import tempfile
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import duration_text, suggestion
from edgeloop.cli.app import (
    any_names_argument,
    common_options,
    csv_option,
    interval_option,
    opened,
    tag_option,
    threshold_option,
    unsteady_option,
    watch_option,
)
from edgeloop.cli.terminal import (
    Screen,
    TableColumn,
    fit,
    no_models,
    print_csv,
    print_json,
    say_empty,
    short_count,
    shown,
    totals,
)
from edgeloop.cli.terminal import watch as show

if TYPE_CHECKING:
    from edgeloop.models.columns import Column
    from edgeloop.models.plan import StageRecord
    from edgeloop.store import Values
    from edgeloop.workspace import Workspace


@click.command()
@any_names_argument
@csv_option
@tag_option
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="WORD",
    help="Only models in this state, such as running or failed; repeatable.",
)
@click.option("--node", help="Only models that this machine works on.")
@click.option("--locked", is_flag=True, help="Only models that a runner or another tool holds.")
@click.option("--device", help="Only models measured on this chip or device.")
@unsteady_option
@threshold_option
@click.option("--stage", help="Only models for which this stage is running or could start.")
@click.option(
    "--sort",
    metavar="COLUMN[:desc]",
    help="Sort by this column  [default: state, running and failed first]",
)
@click.option(
    "--columns", metavar="NAMES", help="Columns to show, such as name,latency_ms,f1_1k,size_mb."
)
@watch_option
@interval_option
@common_options
def status(
    names: tuple[str, ...],
    csv: Path | None,
    tag: str | None,
    states: tuple[str, ...],
    node: str | None,
    locked: bool,
    device: str | None,
    unsteady: bool,
    threshold: float,
    stage: str | None,
    sort: str | None,
    columns: str | None,
    watch: bool,
    interval: float,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show models, their progress and results.

    In a terminal the table is as wide as the window: the least important columns are left out
    first, long texts end with …, and the last line has the totals; if all models are new and no
    runner is alive, it says so. A file or a pipe gets every column in full.

    --sort and --columns take the names that the table shows, and all others of 'edgeloop status
    --json'. CSV and JSON have the columns of the store, in its units.

    Like every listing, it exits with 0 if the experiment has no models, and says which ones have.
    A model that is named and not there is an error.

    Example: edgeloop status 'brave-*' --csv results.csv

    --unsteady shows how much the runs of each model differ on the same board, and beside it how
    much equal boards differ, which does not count. 'edgeloop reset --unsteady' benchmarks them
    again.

    Example: edgeloop status --state failed --state running

    Example: edgeloop status --sort latency_ms --columns name,latency_ms,f1_1k,device
    """
    from edgeloop.store import rows_left_out

    if sum((csv is not None, as_json, watch)) > 1:
        raise click.UsageError("choose one of --csv, --json and --watch.")
    with opened(store, experiment) as workspace:
        if stage is not None:
            workspace.plan[stage]
        models = _Selection(
            workspace=workspace,
            names=names,
            tag=tag,
            states=states,
            node=node,
            is_locked=locked,
            device=device,
            most_spread=threshold if unsteady else None,
            stage=stage,
        )
        shown_columns = columns or (_SPREAD_COLUMNS if unsteady else None)

        def read() -> list[Values]:
            wanted = _table_columns(shown_columns, sort)
            rows = models.for_table(wanted)
            further = [] if shown_columns else _further_columns(rows)
            if further:
                rows = models.for_table([*wanted, *further])
            return in_order(rows, _checked_sort(sort or "state", rows))

        def text(rows: Sequence[Values], screen: Screen, live: bool = False) -> str:
            return model_table(rows, screen, _chosen(shown_columns, rows), live)

        if watch:
            show(lambda screen: text(read(), screen, live=True), interval)
            return
        left_out = rows_left_out()
        if as_json or csv is not None:
            has_rows = _write_all(models, columns, sort, csv)
        else:
            rows, screen = read(), Screen.of_stdout()
            has_rows = bool(rows)
            if has_rows:
                click.echo(text(rows, screen))
                if screen.width is not None and (next_step := _without_runner(workspace, rows)):
                    click.echo(next_step)
        if has_rows:
            return
        if rows_left_out() > left_out:
            place = f"experiment '{workspace.experiment}' ({shown(workspace.store.description)})"
            hint = f"No model can be read in {place}. Next: edgeloop store check"
        elif unsteady and workspace.find(names):
            hint = f"No model's benchmark varies by more than {threshold:g} %."
        else:
            is_filtered = bool(states or node or locked or device or stage or names)
            hint = no_models(workspace, tag, is_filtered)
            unknown = [state for state in states if state not in _STATE_WORDS]
            if unknown and workspace.find(names):
                hint = f"There is no state {unknown[0]!r}; "
                hint += suggestion(unknown[0], _STATE_WORDS, "the states are")
        say_empty(hint, as_json or csv is not None)


COMMANDS = (status,)
_STATE_WORDS = (
    "running",
    "failed",
    "uploading",
    "new",
    "waiting",
    "complete",
    "candidate",
)
_UNTOUCHED = ("new", "uploaded", "reset")  # the last two are Archai's words


def _without_runner(workspace: Workspace, rows: Sequence[Values]) -> str:
    """What to do where no model has been begun, and no live runner would begin one."""
    if any(row.get("status") not in _UNTOUCHED for row in rows):
        return ""
    if not all(runner.is_dead for runner in workspace.runners()):
        return ""
    experiment = workspace.experiment
    return f"No runner serves experiment '{experiment}'. Next: edgeloop runner -e {experiment}"


@dataclass(frozen=True)
class _Selection:
    """The models that the options name."""

    workspace: Workspace
    names: tuple[str, ...]
    tag: str | None
    states: tuple[str, ...]
    node: str | None
    is_locked: bool
    device: str | None
    most_spread: float | None
    stage: str | None

    def stream(self, bookkeeping: bool = False) -> Iterator[Values]:
        """One row after the other: a table may be larger than memory. Without the columns of
        `BOOKKEEPING`, which only --columns shows."""
        from edgeloop.models.columns import BOOKKEEPING

        for row in self.workspace.catalog.rows(self.names, self.tag):
            if not self._has(row.values):
                continue
            if bookkeeping:
                yield row.values
            else:
                yield {name: v for name, v in row.values.items() if name not in BOOKKEEPING}

    def for_table(self, columns: Sequence[str]) -> list[Values]:
        """Of these columns, and the stages of models that are being worked on: the table says
        since when. Whether a stage could start is a question to the whole row."""
        from edgeloop.models.catalog import is_at_work
        from edgeloop.store.base import projected

        catalog = self.workspace.catalog
        if self.stage is not None:
            whole = (row for row in catalog.rows(self.names, self.tag) if self._has(row.values))
            with_stages = [*columns, "stages"]
            return [
                projected(row, with_stages if is_at_work(row.values) else columns).values
                for row in whole
            ]
        rows = {row.key: row.values for row in catalog.rows(self.names, self.tag, columns)}
        at_work = [name for name, values in rows.items() if is_at_work(values)]
        for name, stages in catalog.stages_of(at_work):
            rows[name] = {**rows[name], "stages": stages}
        filters = (self.device, self.node, self.most_spread)
        if all(each is None for each in filters) and not self.states and not self.is_locked:
            return list(rows.values())
        return list(filter(self._has, rows.values()))

    def _has(self, row: Values) -> bool:
        from edgeloop.models.columns import ran_on, run_spread
        from edgeloop.models.plan import holders_of, is_on, records_of
        from edgeloop.models.queue import ready_at

        if self.device is not None and not ran_on(row, self.device):
            return False
        if self.states:
            text = str(row.get("status", ""))
            stored_states = {"error" if state == "failed" else state for state in self.states}
            if not stored_states.intersection((text, text.partition(" ")[0])):
                return False
        if self.node is not None and not any(is_on(o, self.node) for o in holders_of(row)):
            return False
        if self.is_locked and not holders_of(row):
            return False
        if self.most_spread is not None and not run_spread(row) > self.most_spread:
            return False
        if self.stage is None:
            return True
        plan, margin_s = self.workspace.plan, self.workspace.settings.clock_margin_seconds
        records = records_of(row)
        for stage in {plan[self.stage], *plan.for_model(row)}:
            if self.stage not in (stage.name, plan.title(row, stage)):
                continue
            record = records.get(stage.name)
            if record is not None and record.is_held:
                return True
            if ready_at(row, stage, plan, margin_s) is not None:
                return True
        return False


def _write_all(models: _Selection, columns: str | None, sort: str | None, csv: Path | None) -> bool:
    """As JSON, or as CSV to a file; whether there were rows. The header of a CSV needs the columns
    of all rows, and so does the check of a name: they are read in a pass of their own."""
    from edgeloop.models.columns import BOOKKEEPING, column_names, decoded, visible_columns

    names = _names(columns)
    sorted_by = {sort.partition(":")[0]} - {"state"} if sort else set()
    needs_all = (csv is not None and not names) or not sorted_by.union(names) <= set(column_names())
    present = visible_columns(models.stream()) if needs_all else []
    every_column = [dict.fromkeys(present, "")]
    chosen = _chosen(columns, every_column, for_people=False)
    rows = models.stream(bookkeeping=not BOOKKEEPING.isdisjoint(chosen))
    if sort is not None:
        rows = _sorted(rows, _checked_sort(sort, every_column))
    count = 0

    def counted() -> Iterator[Values]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    if csv is None:
        print_json(
            {
                name: decoded(name, row[name])
                for name in chosen or visible_columns([row])
                if name in row
            }
            for row in counted()
        )
    else:
        print_csv(counted(), csv, chosen or present)
        if str(csv) != "-":
            click.echo(f"{count} rows written to {csv}", err=True)
    return count > 0


def _sorted(rows: Iterable[Values], sort: str) -> Iterator[Values]:
    """As `in_order`. The rows wait in a file: together they may be larger than memory."""
    from edgeloop.models.columns import column_named

    compared = ("name", "status", "total_inference_avg", column_named(sort.partition(":")[0]))
    keys: list[Values] = []
    starts = array("q")
    with tempfile.SpooledTemporaryFile(_MOST_IN_MEMORY) as file:
        for row in rows:
            keys.append({name: row[name] for name in compared if name in row})
            starts.append(file.tell())
            file.write(json.dumps(row).encode() + b"\n")
        for place in _order(keys, sort):
            file.seek(starts[place])
            yield json.loads(file.readline())


def _table_columns(chosen: str | None, sort: str | None) -> list[str]:
    """All that a table of models reads: columns that it may show, those that their cells and
    headings are made from, and those that options name."""
    from edgeloop.models.columns import (
        AGREEMENT_COLUMNS,
        COLUMNS,
        ESTIMATE_COLUMNS,
        SCORE_COLUMNS,
        column_named,
        split_place,
    )

    weighted = [column.name for column in COLUMNS.values() if column.weight is not None]
    images = [f"{name}_images" for name in SCORE_COLUMNS]
    others = ["error", "metric", "boards", "total_inference_avg", "targets", "stdev", "run_spread"]
    usual = [*weighted, *SCORE_COLUMNS, *images, *AGREEMENT_COLUMNS, *ESTIMATE_COLUMNS, *others]
    named = [*_names(chosen), *([sort.partition(":")[0]] if sort else [])]
    suffixes = {split_place(column_named(name))[1] for name in named} - {""}
    of_devices = [column + suffix for suffix in sorted(suffixes) for column in _OF_LATENCY]
    every = dict.fromkeys([*usual, *of_devices, *map(column_named, named)])
    return [name for name in every if name.isidentifier()]


def _further_columns(rows: Sequence[Values]) -> list[str]:
    """What the table shows of devices beside the primary one, and what their cells are made from.
    Rows say which devices there are."""
    from edgeloop.models.columns import place_suffix
    from edgeloop.models.plan import targets_of

    texts = {row["targets"] for row in rows if "targets" in row}
    devices = [d.device for text in texts for d in targets_of({"targets": text}).devices]
    suffixes = [place_suffix("on", device) for device in sorted(set(devices))]
    several = suffixes if len(suffixes) > 1 else []
    return [column + suffix for suffix in several for column in (*_OF_LATENCY, FURTHER_SCORE)]


def _names(columns: str | None) -> list[str]:
    return [name.strip() for name in (columns or "").split(",") if name.strip()]


def _chosen(columns: str | None, rows: Sequence[Values], for_people: bool = True) -> list[str]:
    """The columns of --columns, as the store names them; none: the usual ones."""
    from edgeloop.models.columns import column_named

    names = _names(columns)
    if not names:
        return []
    columns_here = [*known_columns(rows), *([INTERVAL] if for_people else [])]
    return [column_named(_checked_column(name, columns_here)) for name in names]


def _checked_sort(sort: str, rows: Sequence[Values]) -> str:
    name, _, way = sort.partition(":")
    if way not in ("", "asc", "desc"):
        raise click.UsageError(f"--sort is COLUMN, COLUMN:asc or COLUMN:desc, not {sort!r}.")
    if name != "state":
        _checked_column(name, known_columns(rows))
    return sort


def _checked_column(name: str, columns: Sequence[str]) -> str:
    from edgeloop._util.values import did_you_mean
    from edgeloop.errors import BadInput
    from edgeloop.models.columns import column_named

    if not {name, column_named(name)} & {*columns}:
        hint = did_you_mean(name, columns, "'edgeloop status --json' shows all.")
        raise BadInput(reason=f"there is no column {name!r}; {hint}")
    return name


# The table: its columns, what each of them shows, and the order of the rows.


INTERVAL = "interval"  # derived from the row: no column of the store
STATES = ("running", "failed", "uploading", "new", "waiting", "queued", "candidate", "complete")
_MOST_IN_MEMORY = 32_000_000  # bytes of rows to be sorted
_INTERVAL_WEIGHT, _CHOSEN_WEIGHT, _USUAL_WEIGHT, _FURTHER_WEIGHT = 60, 50, 30, 20
# Of a further device, a table shows its latency and this score.
FURTHER_SCORE = "f1_1k"
_SPREAD_COLUMNS = "name,latency_ms,run_spread,board_spread,status"
_OF_LATENCY = ("mean", "total_inference_avg", "latency_kind", "latency_missing_ops")


def model_table(
    rows: Sequence[Values], screen: Screen, chosen: Sequence[str] = (), live: bool = False
) -> str:
    """As much of it as the screen has room for; a terminal also gets the totals. A live table ends
    with the screen."""
    now = time.time()
    names = list(chosen) or _usual_columns(rows)
    measures = [_measure(name, rows) for name in names]
    cells = zip(
        *(
            map(_cells_of(name, measure, now), rows)
            for name, measure in zip(names, measures, strict=True)
        ),
        strict=True,
    )
    states = [_state(row, now)[1] for row in rows] if screen.width is not None else []
    titles = _titles(rows, names, measures)
    columns = [
        _column(name, title, bool(chosen)) for name, title in zip(names, titles, strict=True)
    ]
    table = fit(columns, cells, screen, states, "status")
    if screen.width is None:
        return table.text(screen)
    words = ["running" if state == "stalled" else state for state in states]
    below = [totals("model", words, STATES), *table.remark]
    most = screen.height - len(below) - 3 if live and screen.height else None
    return table.text(screen, below, most)


def in_order(rows: Sequence[Values], sort: str) -> list[Values]:
    """By `COLUMN` or `COLUMN:desc`; `state` is running and failed ones first. Names are in the
    order that people count in, and rows without a value come last."""
    return [rows[place] for place in _order(rows, sort)]


def _order(rows: Sequence[Values], sort: str) -> list[int]:
    """The places of rows, as `in_order` sorts them."""
    from edgeloop.models.columns import attention_rank, column_named, natural_key

    name, _, way = sort.partition(":")
    names = [natural_key(str(row.get("name", ""))) for row in rows]
    by_name = sorted(range(len(rows)), key=names.__getitem__)
    if name in ("state", "status"):
        ranks = [attention_rank(str(row.get("status", ""))) for row in rows]
        return sorted(by_name, key=ranks.__getitem__, reverse=way == "desc")
    column = column_named(name)
    keys = [_sort_key(column, row) for row in rows]
    present = [(key, place) for place in by_name if (key := keys[place]) is not None]
    present.sort(key=lambda pair: pair[0], reverse=way == "desc")
    return [place for _, place in present] + [p for p in by_name if keys[p] is None]


def known_columns(rows: Sequence[Values]) -> list[str]:
    """The names that options accept, other tools' columns included."""
    from edgeloop.models.columns import column_names, visible_columns

    return list(dict.fromkeys([*column_names(), *visible_columns(rows)]))


def _usual_columns(rows: Sequence[Values]) -> list[str]:
    """Columns with a weight, as far as some model has a value there."""
    from edgeloop.models.columns import COLUMNS, latency_interval, recovery_of, shown_scores

    present = set().union(*rows)  # a column that no row has is not searched for in all of them
    first, last = ["name", "macs", "mean", *_on_further("mean", present)], ["status", "node"]
    if "latency_low_ms" in present and any(map(latency_interval, rows)):
        first.append(INTERVAL)
    if len({row["device"] for row in rows if row.get("device")}) > 1:
        first.append("device")
    if "recovery" in present and any(map(recovery_of, rows)):
        last.insert(0, "recovery")
    others = [
        column.name
        for column in COLUMNS.values()
        if column.weight is not None
        and not column.group
        and column.name not in (*first, *last, "device", "recovery")
        and column.name in present
        and any(_has_value(column, row) for row in rows)
    ]
    scores = [each for name in shown_scores(rows) for each in (name, *_on_further(name, present))]
    return [*first, *others, *scores, *last]


def _on_further(column: str, present: Collection[str]) -> list[str]:
    """The same column of further devices, as far as there are any."""
    from edgeloop.models.columns import split_place

    return sorted(name for name in present if name != column and split_place(name)[0] == column)


def _has_value(column: Column, row: Values) -> bool:
    value = row.get(column.name)
    if column.is_number:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return value is not None and value != ""


def _measure(name: str, rows: Sequence[Values]) -> Column:
    """In the unit of the whole column; an interval is in the unit of the latency beside it."""
    from edgeloop.models.columns import LATENCY, column_in_unit

    return column_in_unit(LATENCY if name == INTERVAL else name, rows)


def _titles(rows: Sequence[Values], names: Sequence[str], measures: Sequence[Column]) -> list[str]:
    from edgeloop.models.columns import interval_heading, score_meaning

    meaning = score_meaning(rows)
    titles = []
    for name, column in zip(names, measures, strict=True):
        if name == INTERVAL:
            titles.append(interval_heading(rows))
        elif column.group == "score":
            titles.append(meaning.heading(name))
        else:
            titles.append(name if _is_count(column) else column.heading)
    return titles


def _is_count(column: Column) -> bool:
    """Shown as 1.2M: the unit is in the cell, not in the heading."""
    return column.unit == "millions"


def _column(name: str, title: str, is_chosen: bool) -> TableColumn:
    from edgeloop.models.columns import column_of

    column = column_of(name)
    is_number = column.is_number or name == INTERVAL
    usual = _FURTHER_WEIGHT if column.suffix else _USUAL_WEIGHT
    weight = _INTERVAL_WEIGHT if name == INTERVAL else column.weight or usual
    if is_chosen and name != "name":
        weight = _CHOSEN_WEIGHT
    return TableColumn(title, weight, None if is_number else column.width, right=is_number)


def _cells_of(name: str, column: Column, now: float) -> Callable[[Values], str]:
    """How to write this column of a row, in the unit of `column`."""
    from edgeloop.models.columns import LATENCY, interval_cell, latency_cell, recovery_of

    is_count, is_score = _is_count(column), column.places is not None
    is_agreement = column.group == "agreement"

    def cell(row: Values) -> str:
        value = row.get(name)
        if value is None:
            return ""
        if type(value) is str:
            return " ".join(value.split())
        if is_count:
            return short_count(value)
        if isinstance(value, float) and is_score:
            return f"{value:.3f}".removeprefix("0")
        if isinstance(value, float) and is_agreement:
            return f"{value:.3g}"
        if isinstance(value, int | float) and not isinstance(value, bool) and _number(value):
            is_exact = isinstance(value, int) and column.factor == 1
            return str(value) if is_exact else column.text(column.factor * value)
        return str(value)

    def recovery(row: Values) -> str:
        summary = recovery_of(row)
        return summary.short if summary else ""

    special: dict[str, Callable[[Values], str]] = {
        "status": lambda row: _state(row, now)[0],
        LATENCY + column.suffix: lambda row: latency_cell(row, column, has_spread=False),
        INTERVAL: lambda row: interval_cell(row, column),
        "recovery": recovery,
    }
    return special.get(name, cell)


def _state(row: Values, now: float) -> tuple[str, str]:
    """The current stage, since when, and the last error, `running f1_1k (12 s)`; and its word."""
    text = str(row.get("status", ""))
    word = text.partition(" ")[0]
    held = _held(row) if "stages" in row else []
    if held and text not in ("error", "complete"):
        silent = max(record.expires for record in held) < now
        seconds = now - min(record.since for record in held)
        text += " (stalled)" if silent else f" ({duration_text(seconds)})"
        word = "stalled" if silent else word
    if row.get("error"):
        error = " ".join(str(row["error"]).split())
        text += f": {error}" if text == "error" else f" (last error: {error})"
    return text, word


def _held(row: Values) -> list[StageRecord]:
    from edgeloop.models.plan import records_of

    return [record for record in records_of(row).values() if record.is_held]


def _sort_key(column: str, row: Values) -> tuple[int, float, str] | None:
    """Numbers before texts."""
    from edgeloop.models.columns import mean_latency_ms, natural_key

    value = mean_latency_ms(row) or None if column == "mean" else row.get(column)
    if value is None or value == "":
        return None
    if isinstance(value, int | float):
        number = _number(value)
        return None if number is None else (0, number, "")
    return (1, 0.0, natural_key(str(value)))


def _number(value: float) -> float | None:
    """None for what is no number to compare or to show: NaN, infinity, an integer without end."""
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
