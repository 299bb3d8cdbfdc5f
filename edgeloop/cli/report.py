"""pareto, report, portal: results on the terminal, in files and in a browser."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import plural, suggestion
from edgeloop.cli.app import (
    Command,
    NewPath,
    any_names_argument,
    check_folder,
    common_options,
    demo_option,
    load_settings,
    opened,
    opened_demo_farm,
    say_if_new,
)
from edgeloop.cli.terminal import listing, print_json, say_if_none, shown, step_bar

if TYPE_CHECKING:
    from edgeloop.search.results import SeenSearch
    from edgeloop.store import Record, Value, Values
    from edgeloop.view.drawing import ChartAxes, Theme
    from edgeloop.view.front import Pareto
    from edgeloop.view.measures import ColumnObjective
    from edgeloop.view.portal.server import Address
    from edgeloop.workspace import Workspace

GOAL = click.Choice(["min", "max"])
_INTERVAL = ("latency_low_ms", "latency_high_ms", "latency_coverage")
BESIDE = ("stdev", "latency_kind", *_INTERVAL, "device", "iteration")


def selection_options(command: Command) -> Command:
    """Which models, and the objectives with their goals."""
    options: tuple[Callable[[Command], Command], ...] = (
        any_names_argument,
        click.option("--tag", help="Only models with this label."),
        click.option("--device", help="Device of the front; '*': all  [default: most models]"),
        click.option("--search", help="Only models of this search: its name, job or folder."),
        click.option(
            "--objective",
            "more",
            multiple=True,
            metavar="COLUMN[:min|max]",
            help="Another objective; repeatable.",
        ),
        click.option(
            "--apart",
            type=click.FloatRange(0, max=100, max_open=True),
            default=0.0,
            metavar="PERCENT",
            help="Of models that differ by less in --x, only the best joins the front.",
        ),
        click.option("--y-goal", type=GOAL, help="Goal of --y  [default: known per column]"),
        click.option("--x-goal", type=GOAL, help="Goal of --x  [default: known per column]"),
        click.option(
            "--y", help="Column of the y axis  [default: f1_1k; sqnr_db if no model has F1]"
        ),
        click.option("--x", default="latency_ms", show_default=True, help="Column of the x axis."),
    )
    for option in options:
        command = option(command)
    return command


@click.command()
@selection_options
@click.option(
    "--output",
    "-o",
    "outputs",
    multiple=True,
    type=NewPath(),
    metavar="FILE",
    help="Write .csv, .png, .svg, .html or .gif (front by iteration); repeatable.",
)
@click.option("--dark", is_flag=True, help="Draw for a dark background.")
@demo_option
@common_options
def pareto(
    names: tuple[str, ...],
    tag: str | None,
    search: str | None,
    device: str | None,
    more: tuple[str, ...],
    apart: float,
    y_goal: str | None,
    x_goal: str | None,
    y: str | None,
    x: str,
    outputs: tuple[Path, ...],
    dark: bool,
    demo: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show the Pareto front of the models.

    Prints a table and a plot, and writes files with --output. Models without a value in every
    objective are left out. Latency is in milliseconds; 'est' marks an estimate.

    Example: edgeloop pareto --x latency_ms --y f1_1k -o front.png -o front.csv
    """
    from edgeloop.view.front import ALL_DEVICES, device_note, one_device, pareto_of

    objectives = _objectives(x, x_goal, y, y_goal, more, apart)
    _check_endings(outputs)
    store, experiment, members, _ = _of_search(search, store, experiment)
    with opened(store, experiment, demo) as workspace:
        rows = _rows(workspace, names, tag, objectives, members)
    objectives = _objectives(x, x_goal, y, y_goal, more, apart, rows)
    whole = pareto_of(rows, objectives)
    pareto, chosen = one_device(whole, device or "")
    note = device_note(whole, chosen)
    left_out = f"of models less than {apart:g} % apart in {x}, only the best" if apart else ""
    for path in outputs:
        shown_note = "; ".join(filter(None, (note, left_out and f"front: {left_out}")))
        _write(pareto, path, "dark" if dark else "light", shown_note)
        click.echo(f"{path} written", err=True)
    if as_json:
        print_json(_shown(pareto, row) for row in pareto.front)
    elif device and whole.rows and not pareto.rows:
        measured = sorted({str(row["device"]) for row in whole.rows if row.get("device")})
        hint = suggestion(device, measured, "there are results of")
        click.echo(f"No model has results of device {device!r}; {hint}")
    elif rows:
        _print(pareto)
        if left_out:
            click.echo(f"front: {left_out}")
    if note and device in (None, ALL_DEVICES):
        click.echo(f"{note}. Choose with --device; '*' compares all with each other.", err=True)


@click.command()
@selection_options
@click.option(
    "--output",
    "-o",
    type=NewPath(),
    default=Path("report.html"),
    show_default=True,
    metavar="FILE",
    help="Output file.",
)
@click.option(
    "--details",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    help="Models of the front shown with layers, classes and PR curves.",
)
@demo_option
@common_options
def report(
    names: tuple[str, ...],
    tag: str | None,
    search: str | None,
    device: str | None,
    more: tuple[str, ...],
    apart: float,
    y_goal: str | None,
    x_goal: str | None,
    y: str | None,
    x: str,
    output: Path,
    details: int,
    demo: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Write a report as one HTML file.

    The file can be mailed: it needs neither network nor scripts. It holds a summary, the front, a
    table of all models, charts, a section per model, and provenance; with --search, the search.

    Example: edgeloop report -o report.html
    """
    from datetime import UTC, datetime

    from edgeloop._util.values import size_text
    from edgeloop.models.columns import ran_on
    from edgeloop.view.drawing import write_whole
    from edgeloop.view.front import ALL_DEVICES, one_device, pareto_of
    from edgeloop.view.report import ReportData, Source, read_evidence, render

    objectives = _objectives(x, x_goal, y, y_goal, more, apart)
    store, experiment, members, seen = _of_search(search, store, experiment)
    with opened(store, experiment, demo) as workspace, step_bar("report, models") as bar:
        rows = _rows(workspace, names, tag, objectives, members)
        if device and device != ALL_DEVICES:
            rows = [row for row in rows if ran_on(row, device)]
        objectives = _objectives(x, x_goal, y, y_goal, more, apart, rows)
        pareto, device = one_device(pareto_of(rows, objectives), device or "")
        content = ReportData(
            rows=rows,
            objectives=objectives,
            source=Source(workspace.store.description, workspace.experiment, datetime.now(UTC)),
            uses=_uses(workspace),
            evidence=read_evidence(workspace, rows, pareto.front, details, bar.update),
            search=seen,
            device=device,
        )
        page = render(content, bar.update).encode()
    write_whole(output, page)
    models, front = len(rows), len(pareto.front)
    if as_json:
        print_json([{"file": str(output), "models": models, "front": front, "bytes": len(page)}])
    else:
        what = f"{plural(models, 'model')}, {front} on the front"
        click.echo(f"{output} written: {what}, {size_text(len(page))}")


def _of_search(
    search: str | None, store: str | None, experiment: str | None
) -> tuple[str | None, str | None, set[str] | None, SeenSearch | None]:
    """Where the results of a search are, the architectures that it evaluated, and itself."""
    if search is None:
        return store, experiment, None, None
    from edgeloop.search.results import read_search
    from edgeloop.search.study import arch_ids, find_search, kept_search

    project = load_settings().project
    folder = find_search(search, project)
    config = kept_search(folder, project)
    place = (store or config.store or None, experiment or config.experiment, arch_ids(folder))
    return *place, read_search(folder, config.name)


def _objectives(
    x: str,
    x_goal: str | None,
    y: str | None,
    y_goal: str | None,
    more: Sequence[str],
    apart: float,
    rows: Sequence[Values] = (),
) -> list[ColumnObjective]:
    from edgeloop.view.measures import objective, quality_column

    if apart and more:
        raise click.UsageError("--apart needs a front of two objectives: leave out --objective.")
    first = replace(objective(x, x_goal), apart=apart / 100)
    y = y or quality_column(rows)
    return [first, objective(y, y_goal), *(objective(text) for text in more)]


def _rows(
    workspace: Workspace,
    names: tuple[str, ...],
    tag: str | None,
    objectives: Sequence[ColumnObjective],
    members: Collection[str] | None = None,
) -> list[Values]:
    from edgeloop.models.columns import ARCHITECTURE_ID
    from edgeloop.view.measures import check_columns

    def architecture_of(row: Record) -> str:
        """Older versions named the rows of a search by it."""
        return str(row.values.get(ARCHITECTURE_ID) or row.key.partition(".")[0])

    rows: list[Values] = [
        {**row.values, "name": row.key}
        for row in workspace.find(names, tag)
        if members is None or architecture_of(row) in members
    ]
    say_if_none(rows, workspace, tag)
    check_columns(rows, objectives)
    return rows


def _uses(workspace: Workspace) -> list[dict[str, object]]:
    from edgeloop.runner.machines import utilisation

    return [
        {**use.values} for use in utilisation(row.values for row in workspace.store.usage().query())
    ]


def _check_endings(outputs: Sequence[Path]) -> None:
    endings = (".csv", ".png", ".svg", ".html", ".gif")
    if wrong := [path for path in outputs if path.suffix.lower() not in endings]:
        raise click.UsageError(f"{wrong[0]}: the file must end in one of {', '.join(endings)}.")


def _write(pareto: Pareto, path: Path, theme: Theme, note: str) -> None:
    from edgeloop.view.charts import front_frames, pareto_chart
    from edgeloop.view.drawing import to_gif, to_png, write_chart, write_whole

    kind = path.suffix.lower()
    if kind == ".csv":
        write_whole(path, _csv(pareto).encode())
    elif kind == ".gif":
        frames = [to_png(chart, theme) for chart in front_frames(pareto.rows, pareto.objectives)]
        write_whole(path, to_gif(frames))
    else:
        write_chart(pareto_chart(pareto.rows, pareto.objectives, note=note), path, "Front", theme)


def _csv(pareto: Pareto) -> str:
    """The shown columns first, then all others."""
    import io

    from edgeloop.models.catalog import write_csv
    from edgeloop.models.columns import visible_columns

    rows: list[Values] = [{**_shown(pareto, row), **row} for row in pareto.front]  # type: ignore[dict-item]
    first = ["name", *(item.measure.heading for item in pareto.objectives)]
    columns = [*first, *(name for name in visible_columns(rows) if name not in first)]
    text = io.StringIO()
    write_csv(rows, columns, text)
    return text.getvalue()


def _shown(pareto: Pareto, row: object) -> dict[str, Value]:
    values: Values = row  # type: ignore[assignment]
    shown: dict[str, Value] = {"name": str(values.get("name", ""))}
    shown |= {item.measure.heading: item.of(values) for item in pareto.objectives}
    return shown | {name: values[name] for name in BESIDE if name in values}


def _print(pareto: Pareto) -> None:
    from edgeloop.models.columns import interval_heading, latency_interval, seen_from
    from edgeloop.view.charts import ASCII, UNICODE, plot
    from edgeloop.view.drawing import chart_axes

    if not pareto.rows:
        headings = [item.measure.heading for item in pareto.objectives]
        click.echo(f"No model has {' and '.join(headings)} yet. See: edgeloop status")
        return
    axes = chart_axes(pareto)
    headings = [measure.heading for measure in axes.measures]
    seen = [seen_from(pareto.latency, row) for row in pareto.front]
    intervals = bool(pareto.latency) and any(map(latency_interval, seen))
    beside = [interval_heading(seen)] if intervals else []
    cells = [_cells(pareto, row, axes, intervals) for row in pareto.front]
    titles = ("name", *headings, *beside, "iteration", "device")
    click.echo(listing(titles, cells, right=[*headings, *beside]))
    click.echo()
    is_unicode = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    width = shutil.get_terminal_size().columns
    click.echo(plot(pareto, width, marks=UNICODE if is_unicode else ASCII))
    left_out = f"; {pareto.missing} without all values left out" if pareto.missing else ""
    click.echo(f"\n{len(pareto.front)} of {plural(len(pareto.rows), 'model')}{left_out}")
    click.echo(f"hypervolume {pareto.share:.3f} (reference: {pareto.reference})")


def _cells(pareto: Pareto, row: object, axes: ChartAxes, has_interval: bool) -> list[str]:
    from edgeloop.models.columns import interval_cell, is_latency, latency_cell

    values: Values = row  # type: ignore[assignment]
    cells, interval = [str(values.get("name", ""))], ""
    for item, measure in zip(pareto.objectives, axes.measures, strict=True):
        text = measure.text(measure.of(values))
        cells.append(latency_cell(values, measure) if is_latency(item.column) else text)
        if item.column == pareto.latency:
            interval = interval_cell(values, measure)
    if has_interval:
        cells.append(interval)
    return [*cells, str(values.get("iteration", "")), str(values.get("device", ""))]


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; all but loopback need a token  [default: 127.0.0.1]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8750,
    help="Port; 0 takes a free one  [default: 8750]",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the token that visitors need  [default: $EDGELOOP_PORTAL_TOKEN, or one of "
    "your own, which the printed link has]",
)
@click.option("--new-token", is_flag=True, help="Replace your own token, which ends all sessions.")
@click.option("--no-token", is_flag=True, help="Serve without a token; only on loopback.")
@click.option("--token", hidden=True, help="Not accepted any more: see --token-file.")
@click.option(
    "--tls", "is_self_signed", is_flag=True, help="Encrypt, with a self-signed certificate."
)
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Encrypt, with this certificate (PEM, with its chain).",
)
@click.option(
    "--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Key of the certificate."
)
@click.option(
    "--public-url",
    default="",
    metavar="URL",
    help="Where a proxy serves the portal, such as https://portal.example.",
)
@click.option(
    "--allow-changes", is_flag=True, help="Allow visitors to upload, reset, delete and prioritise."
)
@click.option("--open/--no-open", "open_page", default=False, help="Open the portal in a browser.")
@demo_option
@common_options
def portal(
    host: str,
    port: int,
    token_file: Path | None,
    new_token: bool,
    no_token: bool,
    token: str | None,
    is_self_signed: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    public_url: str,
    allow_changes: bool,
    open_page: bool,
    demo: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show everything live in a browser.

    Serves models, devices, jobs and searches until Ctrl-C. Open the printed link: it has the token
    that this machine's other users do not have.

    Example: edgeloop portal --open
    """
    from edgeloop.errors import BadInput
    from edgeloop.view.portal.server import checked, serve
    from edgeloop.view.portal.state import PortalOptions
    from edgeloop.view.portal.tokens import own_token

    chosen = _token(token, token_file, new_token, no_token)
    options = PortalOptions(
        host=host,
        port=port,
        token=chosen,
        allow_changes=allow_changes,
        public_url=public_url,
        certificate=tls_cert,
        key=tls_key,
        is_self_signed=is_self_signed,
    )
    try:
        checked(options)
    except BadInput as error:
        raise click.UsageError(f"{error}.") from None
    if new_token:
        own_token(renew=True)
    place = opened_demo_farm(store, experiment) if demo else opened(store, experiment, makes=True)
    with place as workspace:
        if not demo:
            check_folder(workspace)
            say_if_new(workspace.settings)
        served = workspace if demo or experiment else _with_models(workspace)
        serve(served, options, lambda address: _announce(served, address, as_json, open_page))


def _with_models(workspace: Workspace) -> Workspace:
    """Of a store in the project. One elsewhere may not answer yet, which is no reason not to
    start."""
    from edgeloop.store.location import SqliteLocation
    from edgeloop.workspace import with_models

    is_here = isinstance(workspace.settings.location, SqliteLocation)
    return with_models(workspace) if is_here else workspace


def _token(token: str | None, file: Path | None, new: bool, none: bool) -> str:
    """From a file or the environment only: every user of a machine can list arguments."""
    from edgeloop.settings import portal_token
    from edgeloop.view.portal.tokens import AUTO, token_in

    if token not in (None, AUTO):
        raise click.UsageError(
            "--token TEXT is no longer accepted, since every user of this machine can read the "
            "arguments of a process: choose another token and put it into EDGELOOP_PORTAL_TOKEN or "
            "a file (--token-file FILE)."
        )
    if sum((file is not None, new, none)) > 1:
        raise click.UsageError("--token-file, --new-token and --no-token exclude each other.")
    if none:
        return ""
    if file is not None:
        file_token = token_in(file)
        if not file_token:
            raise click.UsageError(f"{file} is empty, so it has no token.")
        return file_token
    return AUTO if new or token == AUTO else portal_token() or AUTO


def _announce(workspace: Workspace, address: Address, as_json: bool, open_page: bool) -> None:
    from edgeloop._util.redact import redact
    from edgeloop.settings import is_in_journal
    from edgeloop.view.portal.tokens import opening_page

    place = redact(shown(workspace.store.description))
    is_logged = is_in_journal() and not sys.stdout.isatty()
    link = address.url if is_logged else address.link
    if as_json:
        links = {"url": address.url, "link": link}
        print_json([{**links, "experiment": workspace.experiment, "store": place}])
    else:
        click.echo(f"Portal of experiment '{workspace.experiment}' ({place}): {link}")
        if is_logged and address.token_file is not None:
            click.echo(f"Its token is in {address.token_file}")
        if address.fingerprint:
            click.echo(f"Its certificate is self-signed, SHA-256 {address.fingerprint}")
    if open_page:
        is_secret = address.link != address.url
        click.launch(opening_page(address.link) if is_secret else address.url)


COMMANDS = (pareto, report, portal)
