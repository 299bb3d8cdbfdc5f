"""status and experiments: the status table, once or live, for people and programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import any_names_argument, common_options, opened

if TYPE_CHECKING:
    from edgeloop.store import Values
    from edgeloop.workspace import Workspace


@click.command()
@any_names_argument
@click.option(
    "--csv",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write CSV to this file; '-' for stdout.",
)
@click.option("--tag", help="Only models with this label.")
@click.option(
    "--state",
    "--status",
    "states",
    multiple=True,
    metavar="WORD",
    help="Only models in this state, such as running or failed; repeatable.",
)
@click.option("--node", help="Only models that this machine works on.")
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
    from edgeloop.cli.output import print_json, shown
    from edgeloop.cli.tables import Screen, in_order, model_table
    from edgeloop.cli.terminal import no_models, say_empty
    from edgeloop.cli.terminal import watch as show
    from edgeloop.models.columns import decoded, ran_on, visible_columns
    from edgeloop.store import rows_left_out

    if sum((csv is not None, as_json, watch)) > 1:
        raise click.UsageError("choose one of --csv, --json and --watch.")
    with opened(store, experiment) as workspace:
        if stage is not None:
            workspace.plan[stage]

        def read() -> list[Values]:
            found = workspace.status(*names, tag=tag)
            found = [row for row in found if device is None or ran_on(row, device)]
            found = [row for row in found if _is_wanted(row, workspace, states, node, stage)]
            if sort is None and (as_json or csv is not None):
                return found
            return in_order(found, _checked_sort(sort or "state", found))

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
            hint = no_models(workspace, tag, bool(states or node or device or stage or names))
        say_empty(hint, as_json or csv is not None)


@click.command()
@common_options
def experiments(experiment: str | None, store: str | None, as_json: bool) -> None:
    """List experiments and count their models.

    Example: edgeloop experiments --json
    """
    from edgeloop.cli.output import plural, print_json
    from edgeloop.cli.tables import TableColumn, listing
    from edgeloop.cli.terminal import no_models, say_empty
    from edgeloop.models.columns import check_experiment_name

    if experiment is not None:
        check_experiment_name(experiment)
    with opened(store, experiment) as workspace:
        counts = workspace.experiments()
        if experiment is not None:
            counts = {name: count for name, count in counts.items() if name == experiment}
        hint = "" if counts else no_models(workspace)
    if as_json:
        print_json({"name": name, "models": count} for name, count in counts.items())
    if hint:
        say_empty(hint, as_json)
    elif not as_json:
        cells = [(name, str(count)) for name, count in counts.items()]
        columns = (TableColumn("experiment", 100, 20), TableColumn("models", 90, right=True))
        models = plural(sum(counts.values()), "model")
        total = f"{plural(len(counts), 'experiment')}: {models}"
        click.echo(listing(columns, cells, total=total))


COMMANDS = (status, experiments)


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


def _is_wanted(
    row: Values, workspace: Workspace, states: tuple[str, ...], node: str | None, stage: str | None
) -> bool:
    from edgeloop.models.plan import holders_of, is_on, records_of
    from edgeloop.models.queue import ready_at

    text = str(row.get("status", ""))
    wanted = {"error" if state == "failed" else state for state in states}
    if wanted and not wanted.intersection((text, text.partition(" ")[0])):
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
    from edgeloop.cli.tables import INTERVAL, known_columns
    from edgeloop.models.columns import column_named

    names = [name.strip() for name in (columns or "").split(",") if name.strip()]
    known = [*known_columns(rows), *([INTERVAL] if for_people else [])]
    return [column_named(_known(name, known)) for name in names]


def _checked_sort(sort: str, rows: Sequence[Values]) -> str:
    from edgeloop.cli.tables import known_columns

    name, _, way = sort.partition(":")
    if way not in ("", "asc", "desc"):
        raise click.UsageError(f"--sort is COLUMN, COLUMN:asc or COLUMN:desc, not {sort!r}.")
    _known(name, ["state", *known_columns(rows)])
    return sort


def _known(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    from edgeloop.errors import BadInput

    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else "'edgeloop status --json' shows all."
        raise BadInput(reason=f"there is no column {name!r}; {hint}")
    return name
