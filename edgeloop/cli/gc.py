"""gc: orphaned files in the store, on this machine and on its boards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import all_experiments_options, opened, yes_option
from edgeloop.cli.terminal import TableColumn, listing, print_json, waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeloop.errors import EdgeloopError
    from edgeloop.operate.gc import Finding, GcOptions, Report


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option(
    "--older-than",
    metavar="AGE",
    default="7d",
    show_default=True,
    help="What is younger stays, such as 12h or 30d; see above for exceptions.",
)
@click.option(
    "--keep-logs",
    metavar="SIZE|AGE",
    help="Remove the oldest logs of jobs that ended beyond this, such as 2GB or 30d.",
)
@click.option(
    "--keep-cache",
    metavar="SIZE",
    help="Remove the longest unused of this machine's caches beyond this, such as 50GB.",
)
@click.option("--boards", is_flag=True, help="Clean the boards of this machine too.")
@yes_option
@all_experiments_options
def gc(
    dry_run: bool,
    older_than: str,
    keep_logs: str | None,
    keep_cache: str | None,
    boards: bool,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Remove orphaned files and entries.

    In the store: files of attempts that never counted, uploads and deletes that broke off, files
    and hints of models that are gone, files of jobs without a record, code that no job uses, what
    jobs that ended seven days ago created outside outputs/, entries of dead runners and fleets.
    Results that a dead runner committed get their names.

    On this machine: files that runners and jobs keep, unused for longer than --older-than. With
    --boards: SDKs and inputs on boards. Work under way is never touched.

    Exceptions to --older-than: entries of runners that died a day ago, hints of deleted models,
    folders of stages whose processes died, and files that --keep-cache removes, unused for half an
    hour at least.

    Of every experiment, unless --experiment names one. Without a terminal it needs --yes.

    Example: edgeloop gc --dry-run

    Example: edgeloop gc --older-than 30d --keep-logs 2GB --boards --yes
    """
    from edgeloop.operate.gc import find_leftovers, remove_leftovers

    if not dry_run and not yes and not _is_terminal():
        raise click.UsageError(
            "without a terminal nothing can be confirmed: add --yes or --dry-run."
        )
    options = _options(older_than, keep_logs, keep_cache, boards, experiment)
    with opened(store, experiment) as workspace:
        if not dry_run:  # files of a newer version may look like leftovers
            workspace.store.begin_writing()
        with waiting("Looking for leftovers"):
            report = find_leftovers(workspace, options)
        if dry_run or not report.findings:
            if as_json:
                print_json(_json(finding, 0) for finding in report.findings)
            else:
                _show(report, "would be removed" if dry_run else "")
            _note(report)
            return
        if not yes:
            _show(report, "will be removed", err=as_json)
            click.confirm("Continue?", abort=True, err=True)
        done = list(remove_leftovers(report))
    if as_json:
        print_json(_json(finding, result) for finding, result in done)
    else:
        _show_done(done)
    _note(report)
    if any(not isinstance(result, int) for _, result in done):
        sys.exit(1)


COMMANDS = (gc,)


def _options(
    older_than: str,
    keep_logs: str | None,
    keep_cache: str | None,
    boards: bool,
    experiment: str | None,
) -> GcOptions:
    from edgeloop._util.values import SIZE_FORMS, TIME_FORMS, bytes_of, seconds_of
    from edgeloop.operate.gc import GcOptions

    older_s = seconds_of(older_than)
    if older_s is None:
        raise click.BadParameter(f"{older_than!r} is not {TIME_FORMS}", param_hint="--older-than")
    age_s = seconds_of(keep_logs) if keep_logs else None
    size = bytes_of(keep_logs) if keep_logs else None
    if keep_logs and age_s is None and size is None:
        reason = f"{keep_logs!r} is neither {SIZE_FORMS} nor {TIME_FORMS}"
        raise click.BadParameter(reason, param_hint="--keep-logs")
    cache = bytes_of(keep_cache) if keep_cache else None
    if keep_cache and cache is None:
        raise click.BadParameter(f"{keep_cache!r} is not {SIZE_FORMS}", param_hint="--keep-cache")
    chosen = (experiment,) if experiment else ()
    return GcOptions(older_s, age_s, size, cache, boards, chosen)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _show(report: Report, verb: str, err: bool = False) -> None:
    from edgeloop._util.values import size_text

    if not report.findings:
        click.echo("Nothing to clean up.", err=err)
        return
    rows = [_cells(finding, finding.count) for finding in report.findings]
    click.echo(_table(rows), err=err)
    removed = [finding for finding in report.findings if finding.verb == "remove"]
    count, size = sum(f.count for f in removed), sum(f.size for f in removed)
    click.echo(f"{plural(count, 'item')} {verb}, {size_text(size)}.", err=err)


def _show_done(done: list[tuple[Finding, int | EdgeloopError]]) -> None:
    rows = [_cells(finding, result) for finding, result in done if isinstance(result, int)]
    if rows:
        click.echo(_table(rows))
    total = sum(result for f, result in done if isinstance(result, int) and f.verb == "remove")
    click.echo(f"{plural(total, 'item')} removed.")
    for finding, result in done:
        if not isinstance(result, int):
            click.echo(f"edgeloop: {finding.kind}: {result}", err=True)
        elif result < finding.count:
            left = finding.count - result
            click.echo(f"{finding.kind}: {left} stayed, in use again or gone already.", err=True)


def _cells(finding: Finding, count: int) -> tuple[str, ...]:
    from edgeloop._util.values import size_text

    size = size_text(finding.size) if finding.size else ""
    return finding.kind, finding.where, str(count), size, finding.why


def _table(rows: Sequence[Sequence[str]]) -> str:
    columns = (
        TableColumn("what", 100, 16),
        TableColumn("where", 60, 16),
        TableColumn("count", 90, right=True),
        TableColumn("size", 95, right=True),
        TableColumn("why", 80, 20),
    )
    return listing(columns, rows)


def _note(report: Report) -> None:
    for note in report.notes:
        click.echo(f"note: {note}", err=True)


def _json(finding: Finding, result: int | EdgeloopError) -> dict[str, object]:
    return {
        "what": finding.kind,
        "where": finding.where,
        "action": finding.verb,
        "count": finding.count,
        "bytes": finding.size,
        "why": finding.why,
        "removed": result if isinstance(result, int) else 0,
        "error": "" if isinstance(result, int) else str(result),
        "items": list(finding.items),
    }
