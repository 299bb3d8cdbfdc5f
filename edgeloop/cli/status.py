"""status: the status table, once or live, for people and programs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import duration_text
from edgeloop.cli.app import (
    any_names_argument,
    common_options,
    interval_option,
    opened,
    tag_option,
    watch_option,
)
from edgeloop.cli.terminal import (
    Screen,
    TableColumn,
    fit,
    no_models,
    print_json,
    say_empty,
    short_count,
    shown,
    totals,
)
from edgeloop.cli.terminal import watch as show

if TYPE_CHECKING:
    from edgeloop.models.columns import Column
    from edgeloop.store import Values
    from edgeloop.workspace import Workspace


@click.command()
@any_names_argument
@click.option(
    "--csv",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write CSV to this file; '-' for stdout.",
)
@tag_option
@click.option(
    "--state",
    "--status",
    "states",
    multiple=True,
    metavar="WORD",
    help="Only models in this state, such as running or failed; repeatable.",
)
@click.option("--node", help="Only models that this machine works on.")
@click.option("--locked", is_flag=True, help="Only models that a runner or another tool holds.")
@click.option("--device", help="Only models measured on this chip or device.")
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
    first, long texts end with …, and the last line has the totals. A file or a pipe gets every
    column in full.

    --sort and --columns take the names that the table shows, and all others of 'edgeloop status
    --json'. CSV and JSON have the columns of the store, in its units.

    Like every listing, it exits with 0 if the experiment has no models, and says which ones have.
    A model that is named and not there is an error.

    Example: edgeloop status 'brave-*' --csv results.csv

    Example: edgeloop status --state failed --state running

    Example: edgeloop status --sort latency_ms --columns name,latency_ms,f1_1k,device
    """
    from edgeloop.models.columns import decoded, ran_on, visible_columns
    from edgeloop.models.plan import holders_of
    from edgeloop.store import rows_left_out

    if sum((csv is not None, as_json, watch)) > 1:
        raise click.UsageError("choose one of --csv, --json and --watch.")
    with opened(store, experiment) as workspace:
        if stage is not None:
            workspace.plan[stage]

        def read() -> list[Values]:
            rows = workspace.status(*names, tag=tag)
            rows = [row for row in rows if device is None or ran_on(row, device)]
            rows = [row for row in rows if not locked or holders_of(row)]
            rows = [row for row in rows if _is_selected(row, workspace, states, node, stage)]
            if sort is None and (as_json or csv is not None):
                return rows
            return in_order(rows, _checked_sort(sort or "state", rows))

        def text(screen: Screen, live: bool = False) -> str:
            rows = read()
            return model_table(rows, screen, _chosen(columns, rows), live)

        if watch:
            show(lambda screen: text(screen, live=True), interval)
            return
        left_out = rows_left_out()
        rows = read()
        chosen = _chosen(columns, rows, for_people=not as_json and csv is None)
        if as_json:
            named = chosen or visible_columns(rows)
            print_json({n: decoded(n, row[n]) for n in named if n in row} for row in rows)
        elif csv is not None:
            _write_csv(rows, csv, chosen or visible_columns(rows))
        elif rows:
            click.echo(model_table(rows, Screen.of_stdout(), chosen))
        if rows:
            return
        if rows_left_out() > left_out:
            place = f"experiment '{workspace.experiment}' ({shown(workspace.store.description)})"
            hint = f"No model can be read in {place}. Next: edgeloop store check"
        else:
            is_filtered = bool(states or node or locked or device or stage or names)
            hint = no_models(workspace, tag, is_filtered)
        say_empty(hint, as_json or csv is not None)


COMMANDS = (status,)


def _write_csv(rows: list[Values], target: Path, columns: Sequence[str]) -> None:
    from edgeloop._util.files import replacing
    from edgeloop.errors import LocalFileError
    from edgeloop.models.catalog import write_csv

    if str(target) == "-":
        write_csv(rows, columns, sys.stdout)
        return
    if target.is_dir():
        raise LocalFileError(path=target, reason="is a folder; name a file for the CSV")
    with replacing(target) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_csv(rows, columns, file)
    click.echo(f"{len(rows)} rows written to {target}", err=True)


def _is_selected(
    row: Values, workspace: Workspace, states: tuple[str, ...], node: str | None, stage: str | None
) -> bool:
    from edgeloop.models.plan import holders_of, is_on, records_of
    from edgeloop.models.queue import ready_at

    text = str(row.get("status", ""))
    stored_states = {"error" if state == "failed" else state for state in states}
    if stored_states and not stored_states.intersection((text, text.partition(" ")[0])):
        return False
    if node is not None and not any(is_on(owner, node) for owner in holders_of(row)):
        return False
    if stage is None:
        return True
    record = records_of(row).get(stage)
    margin_s = workspace.settings.clock_margin_seconds
    ready = ready_at(row, workspace.plan[stage], workspace.plan, margin_s)
    return ready is not None or (record is not None and record.is_held)


def _chosen(columns: str | None, rows: Sequence[Values], for_people: bool = True) -> list[str]:
    """The columns of --columns, as the store names them; none: the usual ones."""
    from edgeloop.models.columns import column_named

    names = [name.strip() for name in (columns or "").split(",") if name.strip()]
    columns_here = [*known_columns(rows), *([INTERVAL] if for_people else [])]
    return [column_named(_checked_column(name, columns_here)) for name in names]


def _checked_sort(sort: str, rows: Sequence[Values]) -> str:
    name, _, way = sort.partition(":")
    if way not in ("", "asc", "desc"):
        raise click.UsageError(f"--sort is COLUMN, COLUMN:asc or COLUMN:desc, not {sort!r}.")
    _checked_column(name, ["state", *known_columns(rows)])
    return sort


def _checked_column(name: str, columns: Sequence[str]) -> str:
    from edgeloop._util.values import did_you_mean
    from edgeloop.errors import BadInput

    if name not in columns:
        hint = did_you_mean(name, columns, "'edgeloop status --json' shows all.")
        raise BadInput(reason=f"there is no column {name!r}; {hint}")
    return name


# The table: its columns, what each of them shows, and the order of the rows.


INTERVAL = "interval"  # derived from the row: no column of the store
STATES = ("running", "failed", "uploading", "new", "waiting", "queued", "candidate", "complete")
_INTERVAL_WEIGHT, _CHOSEN_WEIGHT, _USUAL_WEIGHT = 60, 50, 30


def model_table(
    rows: Sequence[Values], screen: Screen, chosen: Sequence[str] = (), live: bool = False
) -> str:
    """As much of it as the screen has room for; a terminal also gets the totals. A live table ends
    with the screen."""
    now = time.time()
    names = list(chosen) or _usual_columns(rows)
    cells = [[_cell(name, row, now) for name in names] for row in rows]
    states = [_state(row, now)[1] for row in rows]
    titles = _titles(rows, names)
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
    from edgeloop.models.columns import attention_rank, column_named, natural_key

    name, _, way = sort.partition(":")
    by_name = sorted(rows, key=lambda row: natural_key(str(row.get("name", ""))))
    if name in ("state", "status"):
        ranks = [attention_rank(str(row.get("status", ""))) for row in by_name]
        order = sorted(range(len(by_name)), key=ranks.__getitem__, reverse=way == "desc")
        return [by_name[place] for place in order]
    keyed = [(_sort_key(column_named(name), row), row) for row in by_name]
    present = [(key, row) for key, row in keyed if key is not None]
    present.sort(key=lambda pair: pair[0], reverse=way == "desc")
    return [row for _, row in present] + [row for key, row in keyed if key is None]


def known_columns(rows: Sequence[Values]) -> list[str]:
    """The names that options accept, other tools' columns included."""
    from edgeloop.models.columns import column_names, visible_columns

    return list(dict.fromkeys([*column_names(), *visible_columns(rows)]))


def _usual_columns(rows: Sequence[Values]) -> list[str]:
    """Columns with a weight, as far as some model has a value there."""
    from edgeloop.models.columns import COLUMNS, latency_interval, recovery_of, shown_scores

    first, last = ["name", "macs", "mean"], ["status", "node"]
    if any(map(latency_interval, rows)):
        first.append(INTERVAL)
    if len({row["device"] for row in rows if row.get("device")}) > 1:
        first.append("device")
    if any(map(recovery_of, rows)):
        last.insert(0, "recovery")
    others = [
        column.name
        for column in COLUMNS.values()
        if column.weight is not None
        and not column.group
        and column.name not in (*first, *last, "device", "recovery")
        and any(_has_value(column, row) for row in rows)
    ]
    return [*first, *others, *shown_scores(rows), *last]


def _has_value(column: Column, row: Values) -> bool:
    value = row.get(column.name)
    if column.is_number:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return value is not None and value != ""


def _titles(rows: Sequence[Values], names: Sequence[str]) -> list[str]:
    from edgeloop.models.columns import column_of, interval_heading, score_meaning

    meaning = score_meaning(rows)
    titles = []
    for name in names:
        column = column_of(name)
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
    weight = _INTERVAL_WEIGHT if name == INTERVAL else column.weight or _USUAL_WEIGHT
    if is_chosen and name != "name":
        weight = _CHOSEN_WEIGHT
    return TableColumn(title, weight, None if is_number else column.width, right=is_number)


def _cell(name: str, row: Values, now: float) -> str:
    from edgeloop.models.columns import LATENCY, column_of, latency_interval, recovery_of

    column, value = column_of(name), row.get(name)
    if name == "status":
        return _state(row, now)[0]
    if name == LATENCY:
        return _latency(row)
    if name == INTERVAL:
        return str(latency_interval(row) or "")
    if name == "recovery":
        recovery = recovery_of(row)
        return recovery.short if recovery else ""
    if _is_count(column):
        return short_count(value)
    if isinstance(value, float) and column.places is not None:
        return f"{value:.3f}".removeprefix("0")
    if isinstance(value, float) and column.group == "agreement":
        return f"{value:.3g}"
    if isinstance(value, int | float) and not isinstance(value, bool) and _number(value):
        is_exact = isinstance(value, int) and column.factor == 1
        return str(value) if is_exact else f"{column.factor * value:.4g}"
    return "" if value is None else " ".join(str(value).split())


def _latency(row: Values) -> str:
    """An estimate is always marked as one, and so is a lower bound."""
    from edgeloop.models.columns import is_estimate, is_lower_bound, mean_latency_ms

    latency_ms = mean_latency_ms(row)
    if not latency_ms:
        return ""
    text = f"{latency_ms:.3g} est" if is_estimate(row) else f"{latency_ms:.3g}"
    return f"≥ {text}" if is_lower_bound(row) else text


def _state(row: Values, now: float) -> tuple[str, str]:
    """The current stage, since when, and the last error, `running f1_1k (12 s)`; and its word."""
    from edgeloop.models.plan import records_of

    text = str(row.get("status", ""))
    word = text.partition(" ")[0]
    held = [record for record in records_of(row).values() if record.is_held]
    if held and text not in ("error", "complete"):
        silent = max(record.expires for record in held) < now
        seconds = now - min(record.since for record in held)
        text += " (stalled)" if silent else f" ({duration_text(seconds)})"
        word = "stalled" if silent else word
    if row.get("error"):
        error = " ".join(str(row["error"]).split())
        text += f": {error}" if text == "error" else f" (last error: {error})"
    return text, word


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
