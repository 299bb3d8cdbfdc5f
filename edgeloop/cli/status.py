"""status and experiments: the status table, once or live, for people and programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.units import duration_text
from edgeloop.cli.context import any_names_argument, common_options, opened

if TYPE_CHECKING:
    from edgeloop.store import Value, Values
    from edgeloop.workspace import Workspace

OF_TRAINING = ("val_iou", "final_val_iou")  # shown where a model has one


@click.command()
@any_names_argument
@click.option(
    "--csv",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write CSV to this file; '-' for stdout.",
)
@click.option("--tag", help="Only models with this label.")
@click.option(
    "--status",
    "states",
    multiple=True,
    metavar="WORD",
    help="Only models in this status, such as running or error; repeatable.",
)
@click.option("--node", help="Only models that this machine works on.")
@click.option("--device", help="Only models measured on this chip or device.")
@click.option("--stage", help="Only models for which this stage is running or could start.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, help="Seconds between refreshes."
)
@common_options
def status(
    names: tuple[str, ...],
    csv: Path | None,
    tag: str | None,
    states: tuple[str, ...],
    node: str | None,
    device: str | None,
    stage: str | None,
    watch: bool,
    interval: float,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show models, their progress and results.

    Example: edgeloop status 'brave-*' --csv results.csv

    Example: edgeloop status --status error --status running
    """
    from edgeloop.cli.output import print_json, shown
    from edgeloop.cli.output import watch as show
    from edgeloop.models import decoded, ran_on, visible_columns
    from edgeloop.store import rows_left_out

    if sum((csv is not None, as_json, watch)) > 1:
        raise click.UsageError("choose one of --csv, --json and --watch.")
    with opened(store, experiment) as workspace:
        if stage is not None:
            workspace.plan[stage]

        def read() -> list[Values]:
            found = workspace.status(*names, tag=tag)
            found = [row for row in found if device is None or ran_on(row, device)]
            return [row for row in found if _is_wanted(row, workspace, states, node, stage)]

        if watch:
            show(lambda: _table(read()), interval)
            return
        left_out = rows_left_out()
        rows = read()
        if as_json:
            columns = visible_columns(rows)
            print_json({n: decoded(n, row[n]) for n in columns if n in row} for row in rows)
        elif csv is not None:
            _write_csv(rows, csv)
        elif rows:
            click.echo(_table(rows))
        elif states or node or device or stage or tag or names:
            click.echo("No model matches. 'edgeloop status' shows all.")
        else:
            place = f"experiment '{workspace.experiment}' ({shown(workspace.store.description)})"
            if rows_left_out() > left_out:
                click.echo(f"No model can be read in {place}. Next: edgeloop store check")
                return
            click.echo(f"No models yet in {place}. Next: edgeloop upload MODEL.onnx")


@click.command()
@common_options
def experiments(experiment: str | None, store: str | None, as_json: bool) -> None:
    """List experiments and count their models.

    Example: edgeloop experiments --json
    """
    from edgeloop.cli.output import print_json, table
    from edgeloop.models import check_experiment_name

    with opened(store, None) as workspace:
        counts = workspace.experiments()
    if experiment is not None:
        check_experiment_name(experiment)
        counts = {name: count for name, count in counts.items() if name == experiment}
    if as_json:
        print_json({"name": name, "models": count} for name, count in counts.items())
    else:
        cells = [(name, str(count)) for name, count in counts.items()]
        click.echo(table(("experiment", "models"), cells, right=("models",)))


COMMANDS = (status, experiments)


def _write_csv(rows: list[Values], target: Path) -> None:
    from edgeloop._util.files import replacing
    from edgeloop.errors import LocalFileError
    from edgeloop.models import visible_columns, write_csv

    columns = visible_columns(rows)
    if str(target) == "-":
        write_csv(rows, columns, sys.stdout)
        return
    if target.is_dir():
        raise LocalFileError(path=target, reason="is a folder; name a file for the CSV")
    with replacing(target) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_csv(rows, columns, file)
    click.echo(f"{len(rows)} rows written to {target}", err=True)


def _is_wanted(
    row: Values, workspace: Workspace, states: tuple[str, ...], node: str | None, stage: str | None
) -> bool:
    from edgeloop.models import holders_of, is_on, ready_at, records_of

    text = str(row.get("status", ""))
    if states and not any(text == state or text.partition(" ")[0] == state for state in states):
        return False
    if node is not None and not any(is_on(owner, node) for owner in holders_of(row)):
        return False
    if stage is None:
        return True
    record = records_of(row).get(stage)
    margin_s = workspace.settings.clock_margin_seconds
    ready = ready_at(row, workspace.plan[stage], workspace.plan, margin_s)
    return ready is not None or (record is not None and record.is_held)


def _table(rows: Sequence[Values]) -> str:
    from edgeloop.cli.output import table
    from edgeloop.models import (
        SCORE_COLUMNS,
        interval_heading,
        latency_interval,
        recovery_of,
        score_meaning,
        shown_scores,
    )

    now = time.time()
    trained = [name for name in OF_TRAINING if any(isinstance(r.get(name), float) for r in rows)]
    columns = [*trained, *shown_scores(rows)]
    meaning = score_meaning(rows)
    titles = [meaning.heading(c) if c in SCORE_COLUMNS else c for c in columns]
    intervals = [interval_heading(rows)] if any(map(latency_interval, rows)) else []
    cells = [_cells(row, now, columns, bool(intervals)) for row in rows]
    headings = ("name", "macs", "latency_ms", *intervals, *titles, "status", "node")
    right = ("macs", "latency_ms", *intervals, *titles)
    won_back = [recovery_of(row) for row in rows]
    if any(won_back):  # a column of its own, behind the scores
        place = len(headings) - 2
        headings = (*headings[:place], "recovery", *headings[place:])
        for line, found in zip(cells, won_back, strict=True):
            line.insert(place, found.short if found else "")
    return table(headings, cells, right=right)


def _cells(row: Values, now: float, columns: Sequence[str], has_interval: bool) -> list[str]:
    from edgeloop.cli.output import short_count
    from edgeloop.models import latency_interval, mean_latency_ms

    latency = mean_latency_ms(row)
    return [
        str(row.get("name", "")),
        short_count(row.get("macs")),
        _latency(latency, row),
        *([str(latency_interval(row) or "")] if has_interval else []),
        *(_score(column, row.get(column)) for column in columns),
        _state(row, now),
        str(row.get("node", "")),
    ]


def _latency(latency_ms: float, row: Values) -> str:
    """An estimate is always marked as one, and so is a lower bound."""
    from edgeloop.models import is_estimate, is_lower_bound

    if not latency_ms:
        return ""
    text = f"{latency_ms:.3g} est" if is_estimate(row) else f"{latency_ms:.3g}"
    return f"≥ {text}" if is_lower_bound(row) else text


def _score(column: str, value: Value | None) -> str:
    if isinstance(value, float) and column in ("sqnr_db", "max_error"):
        return f"{value:.3g}"
    if isinstance(value, float):
        return f"{value:.3f}".removeprefix("0")
    return "" if value is None else str(value)


def _state(row: Values, now: float) -> str:
    """The current stage, since when, and the last error: `running f1_1k (12 s)`."""
    from edgeloop.models import records_of

    text = str(row.get("status", ""))
    held = [record for record in records_of(row).values() if record.is_held]
    if held and text not in ("error", "complete"):
        silent = max(record.expires for record in held) < now
        seconds = now - min(record.since for record in held)
        text += " (stalled)" if silent else f" ({duration_text(seconds)})"
    if row.get("error"):
        text += f": {row['error']}" if text == "error" else f" (last error: {row['error']})"
    return text
