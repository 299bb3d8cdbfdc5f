"""Progress on a terminal: bars, lines above them, and the state of what one waits for.

All of it is on stderr, and only where that is a terminal: logs and pipes get whole lines, or
nothing. A bar appears when something moves, and is gone at the end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as RichBar
    from rich.progress import ProgressColumn, TaskID
    from rich.status import Status

    from edgeloop.data import Progress


class StepBar:
    """How many steps of how many are done. Where stderr is no terminal, only lines are shown."""

    def __init__(self, title: str, bar: RichBar | None = None) -> None:
        self._title = title
        self._bar = bar
        self._task: TaskID | None = None

    def update(self, done: int, total: int, text: str = "") -> None:
        """The bar appears with the first steps that there are."""
        if self._bar is None or (self._task is None and total <= 0):
            return
        if self._task is None:
            self._task = self._bar.add_task(self._title, total=total, text=text)
        self._bar.update(self._task, completed=done, total=total, text=text)

    def say(self, line: str) -> None:
        """A line that stays, above the bar."""
        if self._bar is None:
            click.echo(line, err=True)
        else:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def step_bar(title: str, is_quiet: bool = False) -> Iterator[StepBar]:
    """`is_quiet`: for output of programs that is followed on a terminal."""
    if is_quiet or not sys.stderr.isatty():
        yield StepBar(title)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with _bar(*columns) as bar:
        yield StepBar(title, bar)


@contextlib.contextmanager
def count_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """For functions that report `done, total`."""
    if not sys.stderr.isatty():
        yield None
        return
    with step_bar(title) as bar:
        yield bar.update


@contextlib.contextmanager
def bytes_bar(title: str) -> Iterator[Progress | None]:
    """With bytes, files and the rate; it appears if there is something to send or to fetch."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[files]}"),
    )
    with _bar(*columns) as bar:
        task = bar.add_task(title, total=None, files="", visible=False)

        def progress(done: int, total: int, done_files: int, files: int) -> None:
            counted = f"{done_files:,} of {files:,} files"
            bar.update(task, completed=done, total=total, files=counted, visible=files > 0)

        yield progress


class StateLine:
    """What one waits for, on the last line of a terminal: `queued on cluster`. Others get none."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._is_over = not sys.stderr.isatty()

    def update(self, text: str) -> None:
        if self._is_over:
            return
        from rich.console import Console
        from rich.text import Text

        if self._status is None:
            self._status = Console(stderr=True).status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))

    def close(self) -> None:
        """For good: what comes now speaks for itself."""
        self._is_over = True
        if self._status is not None:
            self._status.stop()


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Says what takes a while."""
    line = StateLine()
    line.update(text)
    try:
        yield
    finally:
        line.close()


def _bar(*columns: ProgressColumn) -> RichBar:
    from rich.console import Console
    from rich.progress import Progress as Bar

    return Bar(*columns, console=Console(stderr=True), transient=True)
