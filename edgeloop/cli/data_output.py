"""How datasets look on a terminal, as JSON, and while they move."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop._util.units import size_text
from edgeloop.cli.output import plural, printable, shown

if TYPE_CHECKING:
    from edgeloop.data import Progress, Pulled, Pushed, Verified, Version


def push_line(pushed: Pushed, dry_run: bool, seconds: float) -> str:
    whole = _amount(pushed.files, pushed.bytes)
    if not pushed.is_new:
        return f"{pushed.reference}: nothing to do ({whole})"
    moved = _amount(pushed.moved_files, pushed.moved_bytes)
    if dry_run:
        return f"{pushed.reference.name}: would send {moved}, of {whole}"
    return f"{pushed.reference}: {whole}; sent {moved} in {seconds:.1f} s"


def pull_line(pulled: Pulled, folder: Path, dry_run: bool, seconds: float) -> str:
    where = f"{pulled.reference} → {shown(str(folder))}"
    whole = _amount(pulled.files, pulled.bytes)
    deleted = f", {'delete' if dry_run else 'deleted'} {plural(pulled.deleted_files, 'file')}"
    deleted = deleted if pulled.deleted_files else ""
    if not pulled.moved_files and not deleted:
        return f"{where}: nothing to do ({whole})"
    moved = _amount(pulled.moved_files, pulled.moved_bytes)
    if dry_run:
        return f"{where}: would fetch {moved}{deleted}, of {whole}"
    return f"{where}: {whole}; fetched {moved}{deleted} in {seconds:.1f} s"


def _amount(files: int, size: int) -> str:
    return f"{files:,} file{'' if files == 1 else 's'}, {size_text(size)}"


def moved_row(moved: Pushed | Pulled, dry_run: bool) -> dict[str, object]:
    return {
        "name": moved.reference.name,
        "version": moved.reference.version,
        "files": moved.files,
        "bytes": moved.bytes,
        "moved_files": moved.moved_files,
        "moved_bytes": moved.moved_bytes,
        "dry_run": dry_run,
    }


def version_row(version: Version) -> dict[str, object]:
    return {
        "name": version.name,
        "version": version.version,
        "files": version.files,
        "bytes": version.bytes,
        "created": version.created,
        "node": version.node,
        "message": version.message,
    }


def _differences(verified: Verified) -> dict[str, tuple[str, ...]]:
    return {
        "missing": verified.missing,
        "changed": verified.changed,
        "extra": verified.extra,
        "damaged": verified.damaged,
    }


def verified_row(verified: Verified) -> dict[str, object]:
    return {
        "name": verified.reference.name,
        "version": verified.reference.version,
        "right": verified.is_right,
        **{kind: list(paths) for kind, paths in _differences(verified).items()},
    }


def show_verified(verified: Verified) -> None:
    for kind, paths in _differences(verified).items():
        for path in paths:
            click.echo(f"{kind:<8} {printable(path)}")
    counts = [f"{len(p):,} {kind}" for kind, p in _differences(verified).items() if p]
    whole = _amount(verified.files, verified.bytes)
    click.echo(f"{verified.reference}: {', '.join(counts) or 'all right'} ({whole})")


@contextlib.contextmanager
def count_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A moving bar for a person at a terminal; logs and pipes get the last line only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def bytes_bar(title: str) -> Iterator[Progress | None]:
    """As above, with bytes, files and the rate."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[files]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, files="")

        def progress(done: int, total: int, done_files: int, files: int) -> None:
            counted = f"{done_files:,} of {files:,} files"
            bar.update(task, completed=done, total=total, files=counted)

        yield progress
