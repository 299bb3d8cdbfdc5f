"""store check, repair and upgrade: whether a store is sound and up to date, and what to do if it is
not."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import (
    all_experiments_options,
    json_option,
    load_settings,
    opened,
    store_option,
)
from edgeloop.cli.terminal import TableColumn, listing, print_json, printable, shown

if TYPE_CHECKING:
    from edgeloop.operate.integrity import Saved, StoreHealth
    from edgeloop.operate.secrets import Leak, SecretScan
    from edgeloop.workspace import Workspace


SHOWN = 50


@click.group(name="store")
def store_group() -> None:
    """Check, repair and upgrade a store.

    Example: edgeloop store check --content
    """


@store_group.command()
@click.option("--content", is_flag=True, help="Read all files too, and compare their SHA-256.")
@all_experiments_options
def check(content: bool, experiment: str | None, store: str | None, as_json: bool) -> None:
    """Say what is wrong with a store.

    Reads the database itself, every row of every experiment, the hints and notes beside them, and
    the list of files: those that rows name must be there, in the right size. What is in the files
    is compared only with --content. Nothing is changed. Exit code 1 if something is wrong.

    Example: edgeloop store check

    Example: edgeloop store check --content --store sqlite:/srv/models
    """
    from edgeloop.operate.integrity import check_store

    with opened(store, experiment) as workspace, _progress("Checking") as progress:
        health = check_store(workspace.store, workspace.settings, content, progress, experiment)
    if as_json:
        print_json(
            {"kind": p.kind, "what": p.what, "why": p.why, "repair": p.is_repairable}
            for p in health.problems
        )
    else:
        _show(health, workspace, content)
    if health.problems:
        sys.exit(1)


@store_group.command()
@click.option(
    "--to",
    metavar="FOLDER|URL",
    help="Save what can be read into a new store there, instead of mending this one.",
)
@click.option("--rows-only", is_flag=True, help="With --to: leave the files where they are.")
@click.option(
    "--set-aside",
    is_flag=True,
    help="Move rows that cannot be read into a file, so that their names are free again.",
)
@all_experiments_options
def repair(
    to: str | None,
    rows_only: bool,
    set_aside: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Repair a store, or save what is readable.

    Without options it restores hints and notes, which can be derived from the rows. Rows that
    cannot be read stay as they are, unless --set-aside moves them into a file in this folder.

    With --to it makes a new store and copies every row and file that can be read, out of a database
    that cannot even be opened, too. The old store is not changed. What cannot be read is written
    to a file in this folder, as the store has it.

    Example: edgeloop store repair

    Example: edgeloop store repair --to saved
    """
    if rows_only and to is None:
        raise click.UsageError("--rows-only goes with --to.")
    if set_aside and to is not None:
        raise click.UsageError("choose one of --to and --set-aside.")
    with opened(store, experiment) as workspace:
        if to is None:
            done = _repair(workspace, set_aside, experiment)
        else:
            done = _save(workspace, to, not rows_only, experiment)
    if as_json:
        print_json([done])
    if done.get("left") or done.get("failed"):
        sys.exit(1)


@store_group.command()
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@click.option("--force", is_flag=True, help="Also if runners at work would be shut out.")
@store_option
@json_option
def upgrade(dry_run: bool, force: bool, store: str | None, as_json: bool) -> None:
    """Bring an older store up to date.

    A store says which schema it has. Steps that older versions can live with are taken by the
    first change that a newer version makes; others, which shut older versions out, only by this
    command. It refuses to while runners of such versions are at work, unless it is told --force.

    It may be stopped at any moment and repeated, and a store that is up to date stays as it is.

    Example: edgeloop store upgrade --dry-run

    Example: edgeloop store upgrade --store sqlite:/srv/models
    """
    from edgeloop.store.location import read_version
    from edgeloop.store.upgrades import SCHEMA, excludes
    from edgeloop.store.upgrades import upgrade as take_steps

    with opened(store, None) as workspace:
        version = read_version(workspace.store)
        _check_runners(workspace, excludes(version), is_forced=force or dry_run)
        has_models = bool(workspace.store.experiments())
        steps = []
        for step in take_steps(workspace.store, dry_run) if has_models else ():
            steps.append({"schema": step.schema, "what": step.summary, "rows": step.changed})
            if not as_json:
                text = f"Schema {step.schema} {step.summary}: {plural(step.changed, 'row')}."
                click.echo(text)
        if as_json:
            print_json(steps)
            return
        place = shown(workspace.store.description)
        if not has_models:
            click.echo(f"There are no models in {place}: nothing to upgrade.")
        elif not steps:
            click.echo(f"{place} has schema {version.schema}: nothing to do.")
        elif dry_run:
            click.echo(f"{place} has schema {version.schema}. Nothing was changed.")
        else:
            click.echo(f"{place} has schema {SCHEMA} now; it had {version.schema}.")


def _check_runners(workspace: Workspace, is_exclusive: bool, is_forced: bool) -> None:
    """Say which runners at work are of older versions. Raises Conflict if they would be shut out,
    unless that is forced."""
    from edgeloop.errors import Conflict
    from edgeloop.models.runners import Registry
    from edgeloop.store.upgrades import SCHEMA

    entries = Registry(workspace.store).entries()
    older = [entry.node for entry in entries if not entry.is_dead and entry.schema < SCHEMA]
    if not older:
        return
    names = ", ".join(sorted(set(older))[:SHOWN])
    runners = f"{plural(len(older), 'runner')} of older versions: {names}"
    if is_exclusive and not is_forced:
        how = "End them, then try again; --force upgrades all the same"
        raise Conflict(reason=f"the upgrade would shut out {runners}. {how}.")
    fate = "would be shut out" if is_exclusive else "can go on"
    click.echo(f"note: {runners}; they {fate}.", err=True)


def _repair(workspace: Workspace, sets_aside: bool, experiment: str | None) -> dict[str, object]:
    from edgeloop.operate.integrity import check_store, repair, restore_version, set_aside

    with _progress("Checking") as progress:
        health = check_store(workspace.store, workspace.settings, False, progress, experiment)
        restore_version(workspace.store, health)
        moved, file = 0, _file_of_rows()
        if sets_aside and health.lost:
            moved = set_aside(workspace.store, health.lost, file)
        repaired = repair(workspace.store, workspace.settings, health, experiment)
    left = sum(not problem.is_repairable for problem in health.problems) - moved
    click.echo(f"Hints and notes repaired: {repaired}.", err=True)
    if moved:
        click.echo(f"{plural(moved, 'row')} moved to {file}.", err=True)
    if left:
        how = "'edgeloop store check' lists them; --to FOLDER saves what can be read"
        click.echo(f"{plural(left, 'problem')} left that cannot be repaired here: {how}.", err=True)
    return {"mended": repaired, "moved": moved, "left": left}


def _save(
    workspace: Workspace, to: str, with_files: bool, experiment: str | None
) -> dict[str, object]:
    from edgeloop._util.values import size_text
    from edgeloop.operate.integrity import save, write_lost
    from edgeloop.store.location import open_store, parse_location

    location = parse_location(to if ":" in to else f"sqlite:{to}", where="--to")
    target = open_store(location)
    try:
        with _progress("Saving") as progress:
            saved = save(
                workspace.store, target, workspace.settings, with_files, progress, experiment
            )
    finally:
        target.close()
    files = f" and {plural(saved.files, 'file')}, {size_text(saved.size)}," if with_files else ""
    click.echo(f"{plural(saved.models, 'model')}{files} saved to {location}.", err=True)
    if saved.lost:
        file = _file_of_rows()
        write_lost(saved.lost, file)
        click.echo(f"{plural(len(saved.lost), 'row')} could not be read: see {file}.", err=True)
    _say_failed(saved)
    return {
        "models": saved.models,
        "files": saved.files,
        "bytes": saved.size,
        "lost": len(saved.lost),
        "failed": len(saved.failed),
    }


def _say_failed(saved: Saved) -> None:
    for line in saved.failed[:SHOWN]:
        click.echo(f"edgeloop: not saved: {line}", err=True)


def _file_of_rows() -> Path:
    return Path(f"unreadable-rows-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl").absolute()


def _show(health: StoreHealth, workspace: Workspace, content: bool) -> None:
    from edgeloop._util.values import size_text

    what = f"{plural(health.models, 'model')} and {plural(health.files, 'file')}"
    hashed = f", {plural(health.hashed, 'file')} by content" if content else ""
    if content and health.unknown:
        hashed += f" ({plural(health.unknown, 'other')} had nothing to compare with)"
    place = shown(workspace.store.description)
    click.echo(f"Checked {what} ({size_text(health.size)}){hashed} of {place}.")
    for note in health.notes:
        click.echo(f"note: {note}", err=True)
    if not health.problems:
        click.echo("Nothing is wrong.")
        return
    rows = [(p.kind, p.what, p.why) for p in health.problems[:SHOWN]]
    why = TableColumn("why", 80, 24, wraps=True)
    click.echo(listing((TableColumn("kind", 100), TableColumn("what", 90, 16), why), rows))
    more = len(health.problems) - SHOWN
    if more > 0:
        click.echo(f"… and {more} more; --json prints all.")
    repairable = sum(problem.is_repairable for problem in health.problems)
    total = plural(len(health.problems), "problem")
    if repairable:
        click.echo(f"{total}; 'edgeloop store repair' fixes {repairable} of them.")
    else:
        each = "it" if len(health.problems) == 1 else "none of them"
        click.echo(f"{total}; {each} can{'not' if each == 'it' else ''} be repaired here.")


@contextlib.contextmanager
def _progress(verb: str) -> Iterator[Callable[[str], None]]:
    """On a terminal, what is being looked at."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(verb) as status:
        yield lambda text: status.update(f"{verb} {escape(text)}")


# secrets scan: secrets in files where they should not be.


@click.group()
def secrets() -> None:
    """Find secrets where they should not be."""


@secrets.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Also files made for secrets, as .env.")
@click.option("--processes", is_flag=True, help="Also read the command lines of processes.")
@json_option
@click.pass_context
def scan(
    ctx: click.Context,
    paths: tuple[Path, ...],
    everything: bool,
    processes: bool,
    as_json: bool,
) -> None:
    """Find secrets in files.

    Looks for private keys, keys and tokens of cloud services, signatures, connection strings and
    addresses with passwords, and for the secrets that your environment and the project's settings
    hold. Reads archives of code too. Without PATH, the current folder; - is the standard input.

    Each is printed as FILE:LINE with the secret masked. The exit code is 1 if there are any.

    Example: edgeloop secrets scan

    Example: curl -s http://127.0.0.1:8080/api/jobs | edgeloop secrets scan -
    """
    from edgeloop.errors import EdgeloopError
    from edgeloop.operate.secrets import SecretScan, known_secrets

    settings = None
    with suppress(EdgeloopError):  # what cannot be read now has no secrets to compare with
        settings = load_settings()
    leak_stream = _leaks(
        SecretScan(known_secrets(settings), everything), paths or (Path(),), processes
    )
    if as_json:
        leaks = list(leak_stream)
        print_json(asdict(leak) for leak in leaks)
        ctx.exit(1 if leaks else 0)
    count = 0
    for leak in leak_stream:
        count += 1
        click.echo(printable(leak.sentence))
    if count:
        what = "1 secret" if count == 1 else f"{count} secrets"
        hint = "remove them there, and replace those that others may have seen"
        click.echo(f"edgeloop: {what} found: {hint}", err=True)
        ctx.exit(1)
    click.echo("No secrets found.")


def _leaks(scan: SecretScan, paths: tuple[Path, ...], processes: bool) -> Iterator[Leak]:
    parts = [
        scan.stream(sys.stdin.buffer, "-") if str(path) == "-" else scan.path(path)
        for path in paths
    ]
    return chain(*parts, scan.processes() if processes else ())


COMMANDS = (
    store_group,
    secrets,
)
