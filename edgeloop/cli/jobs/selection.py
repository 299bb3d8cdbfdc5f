"""Which jobs a command is about. What goes wrong with one of them hides no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from edgeloop.errors import EdgeloopError
    from edgeloop.jobs import Jobs, Listing, Run

Command = TypeVar("Command", bound=Callable[..., None])

STATES = ("queued", "preparing", "running", "completed", "failed", "canceled")

jobs_argument = click.argument("patterns", metavar="JOBS...", nargs=-1, required=True)
any_jobs_argument = click.argument("patterns", metavar="[JOBS]...", nargs=-1)


def selecting_options(command: Command) -> Command:
    options = (
        click.option("--tag", default="", help="Only jobs with this label."),
        click.option(
            "--state",
            multiple=True,
            type=click.Choice(STATES),
            help="Only jobs in this state, as last seen; repeatable.",
        ),
    )
    for option in options:
        command = option(command)
    return command


class ChosenJobs:
    """The selected jobs. Names that no job has and errors of single jobs are printed as they come;
    `end` then exits with 1."""

    def __init__(
        self,
        jobs: Jobs,
        patterns: Sequence[str],
        tag: str,
        states: Sequence[str] = (),
        listing: Listing | None = None,
    ) -> None:
        from edgeloop.jobs import select

        runs = (listing or jobs.runs.list()).runs
        selection = select(runs, patterns, tag, states, jobs.runs.folder)  # type: ignore[arg-type]
        self._jobs = jobs
        self._failed = False
        self.runs = list(selection.runs)
        self.are_named = bool(patterns)
        self.exact = selection.exact
        for error in selection.unknown:
            self.say(error)
        if selection.unknown and not self.runs:
            self.end()

    def refresh(self) -> None:
        """Ask the computes. A job that cannot be asked about stays in the list, with a note."""
        self.runs, errors = self._jobs.survey(self.runs)
        self._failed = self._failed or (self.are_named and bool(errors))

    def keep_reachable(self) -> None:
        """Refresh, and drop those that cannot be asked about: a command that waits for jobs would
        wait for them forever."""
        runs, errors = self._jobs.survey(self.runs)
        for error in {str(error): error for error in errors.values()}.values():
            self.say(error)
        self.runs = [run for run in runs if run.name not in errors]

    def keep(self, check: Callable[[Run], None]) -> None:
        """Drop the jobs for which `check` raises."""
        kept = []
        for run in self.runs:
            with self.handling():
                check(run)
                kept.append(run)
        self.runs = kept

    def each(self, action: Callable[[Run], None]) -> None:
        """Do it for every job, whatever happens to the others."""
        for run in self.runs:
            with self.handling():
                action(run)

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """An error of one job is printed. That of the store concerns all, and is raised."""
        from edgeloop.errors import EdgeloopError, StoreError

        try:
            yield
        except StoreError:
            raise
        except EdgeloopError as error:
            self.say(error)

    def say(self, error: EdgeloopError) -> None:
        from edgeloop._util.redact import redact

        self._failed = True
        click.echo(redact(f"edgeloop: {error}"), err=True)

    def end(self) -> None:
        """Exit with 1 if one of the jobs could not be handled."""
        if self._failed:
            raise SystemExit(1)
