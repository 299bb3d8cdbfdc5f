"""The Python interface to jobs; the command line is a thin layer over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloop._util.values import seconds_of
from edgeloop.errors import (
    BadInput,
    BadSetting,
    ComputeRefused,
    ComputeUnavailable,
    EdgeloopError,
    JobRunning,
    MissingExtra,
    WaitTimeout,
)
from edgeloop.jobs.records import (
    Run,
    RunRecords,
    Selection,
    by_compute,
    delete_job,
    mark_canceled,
    select,
)
from edgeloop.jobs.spec import JobSpec, as_submitted, changed, spec_from, spec_of
from edgeloop.jobs.watch import (
    Fetched,
    LogReader,
    current_status,
    fetch,
    fetch_kept,
    last_lines,
    log_size,
    outputs_of,
    stored_files,
)
from edgeloop.node.ticket import State, kept_folder
from edgeloop.paths import runs_folder
from edgeloop.settings import Settings
from edgeloop.store import Blobs
from edgeloop.store.location import open_blobs

if TYPE_CHECKING:
    from edgeloop.jobs.computes import Compute
    from edgeloop.jobs.submit import Submission, Teller
    from edgeloop.node.datasets import Progress

SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0


class Jobs:
    """The jobs of one project: submit scripts, follow them and fetch their results.

    Create it with [`open`][edgeloop.Jobs.open]. Nothing is contacted before it is needed.

    Args:
        settings: The settings to use, for example `Settings.load()`.
        blobs: Files of a store that is already open. By default those of the store that the
            settings name.

    Attributes:
        settings: The settings it was opened with.
        blobs: The files of the store.
        runs: The records of jobs in the project's folder `runs/`.

    Examples:
        >>> from pathlib import Path
        >>> from edgeloop import Jobs
        >>> script = Path("hello.py").write_text("print('hello')")
        >>> jobs = Jobs.open()
        >>> [run] = jobs.wait(jobs.submit("hello.py"), timeout_s=120)
        >>> run.name, run.state, run.status.exit_code
        ('hello-1', 'completed', 0)
        >>> b"".join(jobs.log(run).more()).splitlines()[0]
        b'hello'
    """

    def __init__(self, settings: Settings, blobs: Blobs | None = None) -> None:
        self.settings = settings
        self.blobs = blobs or open_blobs(settings.location)
        self.runs = RunRecords(runs_folder(settings.project))
        self._computes: dict[object, Compute] = {}

    @classmethod
    def open(
        cls,
        store: str | None = None,
        experiment: str | None = None,
        workspace_config: Path | None = None,
    ) -> Jobs:
        """Open the jobs of the current project.

        Args:
            store: URL of the store. By default as for `Workspace.open`.
            experiment: Name of the experiment that new jobs belong to.
            workspace_config: A `config.json` of an Azure ML workspace for new jobs.

        Returns:
            The jobs.
        """
        return cls(
            Settings.load(store=store, experiment=experiment, workspace_config=workspace_config)
        )

    # Submitting

    def submit(
        self,
        job: JobSpec | Path | str,
        args: Sequence[str] = (),
        options: Mapping[str, object] | None = None,
        *,
        push: bool = True,
        pipeline: bool = False,
        tell: Teller | None = None,
        progress: Progress | None = None,
    ) -> list[Run]:
        """Submit a job, or one job per combination if it is a sweep.

        Args:
            job: A script, a YAML file, or a specification that was made from one of them.
            args: Arguments of the script, passed as they are, as after `--` on the command line.
                Those in which placeholders are filled in are the key `args` of `options`.
            options: Keys of a job file, which win over those of `job`, for example
                `{"data": ["working/faces64"], "compute": "cluster"}`.
            push: First push datasets whose local folder changed.
            pipeline: Send a sweep as one pipeline, if the compute has pipelines.
            tell: Called with a sentence at each step.
            progress: Called with bytes done, bytes in total, files done and files in total.

        Returns:
            The submitted jobs.

        Raises:
            BadJob: If the specification is wrong. Nothing has been sent then.
        """
        spec = spec_from(job, args, options or {})
        return self._submission(spec.compute, tell, progress).send(spec, push, pipeline)

    def submit_all(
        self, specs: Sequence[JobSpec], *, push: bool = True, tell: Teller | None = None
    ) -> list[Run]:
        """Submit several jobs to one compute, as one pipeline if it has pipelines.

        Args:
            specs: The specifications, each with a name.
            push: First push datasets whose local folder changed.
            tell: Called with a sentence about what others can see of the jobs.

        Returns:
            The submitted jobs, in order.
        """
        return self._submission(specs[0].compute, tell, None).send_all(specs, push)

    def resubmit(
        self,
        run: Run,
        overrides: Sequence[str] = (),
        args: Sequence[str] | None = None,
        *,
        push: bool = True,
        with_outputs: bool = False,
        tell: Teller | None = None,
        progress: Progress | None = None,
    ) -> Run:
        """Submit another attempt of a job with the current code and data.

        Args:
            run: The job.
            overrides: Changes such as `resources.gpus=1`.
            args: New arguments of the script, passed as they are. By default the old ones.
            push: First push datasets whose local folder changed.
            with_outputs: Start with the outputs of the old attempt.
            tell: Called with a sentence at each step.
            progress: Called with bytes done, bytes in total, files done and files in total.

        Returns:
            The new attempt, for example `lr-3.2` of `lr-3`.
        """
        spec = changed(self.spec(run), overrides, args)
        if spec.sweep:
            raise BadInput(reason="A sweep cannot be resubmitted as one job: submit it again")
        if spec.name:
            reason = f"A new attempt is named after {run.name}: for another name, submit a new job"
            raise BadInput(reason=reason)
        submission = self._submission(spec.compute or run.record.compute, tell, progress)
        return submission.send_again(run, spec, push, with_outputs)

    def spec(self, run: Run) -> JobSpec:
        """Read the specification of a job again.

        Args:
            run: The job.

        Returns:
            The specification it was submitted with.
        """
        document = as_submitted(self.runs.whole_spec(run.record))
        return spec_of(document, self.settings.project, run.name, run.name.partition(".")[0])

    def grace_s(self, run: Run) -> float:
        """Look up the grace period of a job.

        Args:
            run: The job.

        Returns:
            Seconds from SIGTERM to SIGKILL when it is canceled.
        """
        return seconds_of(str(run.record.spec.get("grace", ""))) or 0.0

    # Status

    def select(
        self, patterns: Sequence[str], tag: str = "", states: Collection[State] = ()
    ) -> Selection:
        """Find jobs by what is known locally, without contacting a compute.

        Args:
            patterns: Names, prefixes, globs, folders, `all` or `last`.
            tag: Only jobs with this tag.
            states: Only jobs in one of these states.

        Returns:
            The jobs, and whether each was named individually.

        Raises:
            NoSuchJob: If a pattern matches nothing.
        """
        selection = select(self.runs.list().runs, patterns, tag, states, self.runs.folder)
        for error in selection.unknown:
            raise error
        return selection

    def refresh(self, runs: Sequence[Run]) -> list[Run]:
        """Ask the computes for the current state of jobs, with one request per compute.

        Args:
            runs: The jobs.

        Returns:
            The jobs as they are now, in the same order.
        """
        current, errors = self.survey(runs)
        for error in errors.values():
            raise error
        return current

    def survey(self, runs: Sequence[Run]) -> tuple[list[Run], dict[str, EdgeloopError]]:
        """Like `refresh`, but a job that cannot be asked about hides no other.

        Args:
            runs: The jobs.

        Returns:
            The jobs as they are now, in the same order, and the errors of those that cannot be
                asked about from here, by name. They keep their last status, with a note.
        """
        alive = [run for run in runs if not run.status.is_final]
        errors: dict[str, EdgeloopError] = {}
        for run in alive:
            try:
                self.check_store(run)
            except BadInput as error:
                errors[run.name] = error
        fresh: dict[str, Run] = {}
        for members in by_compute(run for run in alive if run.name not in errors):
            try:
                fresh |= self._refreshed(members)
            except (BadSetting, ComputeRefused, MissingExtra) as error:
                errors |= {run.name: error for run in members}
        for run in runs:
            if run.name in errors:
                noted = replace(run.status, note=str(errors[run.name]))
                fresh[run.name] = replace(run, status=noted)
        return [fresh.get(run.name, run) for run in runs], errors

    def watch(self, runs: Sequence[Run], timeout_s: float | None = None) -> Iterator[list[Run]]:
        """Refresh jobs until all have ended, at increasing intervals.

        Args:
            runs: The jobs.
            timeout_s: Give up after this many seconds.

        Yields:
            The jobs as they are now.

        Raises:
            WaitTimeout: If the time is over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause = SHORTEST_WAIT_S
        while True:
            runs = self.refresh(runs)
            yield list(runs)
            if all(run.status.is_final for run in runs):
                return
            if deadline is not None and time.monotonic() > deadline:
                waiting = ", ".join(run.name for run in runs if not run.status.is_final)
                raise WaitTimeout(what=waiting, seconds=timeout_s, verb="job status")
            time.sleep(pause)
            pause = min(pause * 1.3, LONGEST_WAIT_S)

    def wait(self, runs: Sequence[Run], timeout_s: float | None = None) -> list[Run]:
        """Wait until all of these jobs have ended.

        Args:
            runs: The jobs.
            timeout_s: Give up after this many seconds. By default it waits forever.

        Returns:
            The jobs as they ended.

        Raises:
            WaitTimeout: If the time is over.
        """
        for current in self.watch(runs, timeout_s):
            runs = current
        return list(runs)

    # Logs and results

    def log(self, run: Run, offset: int = 0) -> LogReader:
        """Read the log of a job.

        Args:
            run: The job.
            offset: Start after this many bytes.

        Returns:
            A reader; `more()` yields the bytes that have arrived since the last call.
        """
        self.check_store(run)
        return LogReader(self.blobs, run.record.id, offset)

    def log_size(self, run: Run) -> int:
        """Measure the log of a job.

        Args:
            run: The job.

        Returns:
            Bytes of the log in the store.
        """
        self.check_store(run)
        return log_size(self.blobs, run.record.id)

    def last_lines(self, run: Run, count: int) -> bytes:
        """Read the end of the log of a job.

        Args:
            run: The job.
            count: Number of lines.

        Returns:
            The lines.
        """
        self.check_store(run)
        return last_lines(self.blobs, run.record.id, count)

    def compute_log(self, run: Run) -> str:
        """Read what the compute itself printed, which explains a job that never started.

        Args:
            run: The job.

        Returns:
            The compute's own log.
        """
        return self._compute_of(run).logs(run.record.id)

    def fetch(self, run: Run, without: Collection[str] = ()) -> Fetched:
        """Copy the outputs of a job from the store into `runs/NAME/outputs`.

        Args:
            run: The job, running or ended. Only new files are copied.
            without: Names of files that are not copied, in whatever folder.

        Returns:
            How many files there are, and how many were copied.
        """
        self.check_store(run)
        return fetch(self.blobs, run.record.id, self.outputs(run), without)

    def fetch_kept(self, run: Run) -> Fetched:
        """Copy what a job created outside `outputs/` into `runs/NAME/kept`.

        The store keeps these files for seven days, up to the limit `kept_limit_mb` of the settings.

        Args:
            run: The job, running or ended. Only new files are copied.

        Returns:
            How many files there are, and how many were copied.
        """
        self.check_store(run)
        return fetch_kept(self.blobs, run.record.id, self.kept(run))

    def kept(self, run: Run) -> Path:
        """Locate the files of a job from outside `outputs/` on this machine.

        Args:
            run: The job.

        Returns:
            The folder to which `fetch_kept` copies.
        """
        return self.runs.path(run.name) / "kept"

    def outputs(self, run: Run) -> Path:
        """Locate the outputs of a job on this machine.

        Args:
            run: The job.

        Returns:
            The folder to which `fetch` copies.
        """
        return self.runs.path(run.name) / "outputs"

    def links(self, run: Run, seconds: int, with_kept: bool = False) -> dict[str, str]:
        """Create temporary links to the outputs of a job.

        Args:
            run: The job.
            seconds: How long the links are valid.
            with_kept: Also to the files outside `outputs/` that the store keeps, as `kept/PATH`.

        Returns:
            A URL for each output, by its path.
        """
        self.check_store(run)
        files, _ = outputs_of(self.blobs, run.record.id)
        if with_kept:
            kept, _ = stored_files(self.blobs, kept_folder(run.record.id))
            files |= {f"kept/{path}": info for path, info in kept.items()}
        return {path: self.blobs.link(info.key, seconds) for path, info in sorted(files.items())}

    # Ending

    def cancel(self, runs: Sequence[Run]) -> list[Run]:
        """Ask jobs to end, and return before they have.

        A mark in the store asks as well, so that a job also ends if its compute no longer knows it
        or cannot be reached.

        Args:
            runs: The jobs. Those that have ended are left alone.

        Returns:
            The jobs, marked as canceled; `wait` tells when they have ended.
        """
        asked = {}
        for run in runs:
            if not run.status.is_final:
                self.check_store(run)
                asked[run.name] = self.runs.save(replace(run, cancel_asked=True))
        mark_canceled(self.blobs, list(asked.values()))
        for members in by_compute(asked.values()):
            try:
                self._compute_of(members[0]).cancel([run.record.id for run in members])
            except ComputeUnavailable as error:
                if any(run.state == "queued" for run in members):  # no wrapper reads the mark yet
                    asks = "the store asks its jobs to end, which they do when it is back"
                    raise ComputeUnavailable(
                        compute=members[0].record.compute,
                        reason=f"{error.fields['reason']}; {asks}",
                    ) from None
        return [asked.get(run.name, run) for run in runs]

    def remove(self, runs: Sequence[Run]) -> None:
        """Delete jobs: their records, their files in the store, and what the compute keeps.

        Args:
            runs: The jobs, which must have ended.

        Raises:
            JobRunning: If one of them has not.
        """
        for run in runs:
            self.check_removable(run)
        for run in runs:
            delete_job(self.blobs, run.record)
        for members in by_compute(runs):
            with suppress(BadSetting):  # a compute that is no longer in the settings
                self._compute_of(members[0]).forget([run.record.id for run in members])
        for run in runs:
            self.runs.remove(run.name)

    def check_removable(self, run: Run) -> None:
        """Check that a job may be removed: it has ended, and its files are in this store.

        Args:
            run: The job.

        Raises:
            JobRunning: If it has not ended.
            BadInput: If it was submitted to another store.
        """
        if not run.status.is_final:
            raise JobRunning(names=run.name)
        self.check_store(run)

    def _refreshed(self, runs: Sequence[Run]) -> dict[str, Run]:
        statuses = current_status(self.blobs, self._compute_of(runs[0]), runs)
        fresh = {}
        for run, status in zip(runs, statuses, strict=True):
            current = replace(run, status=status)
            fresh[run.name] = current if status == run.status else self.runs.save(current)
        return fresh

    def _submission(
        self, compute: str, tell: Teller | None, progress: Progress | None
    ) -> Submission:
        from edgeloop.jobs.submit import Submission

        name = compute or self.settings.compute
        teller: Callable[[str], None] = tell or (lambda _: None)
        return Submission(
            self.settings, self.blobs, self.runs, self._compute(name), teller, progress
        )

    def _compute_of(self, run: Run) -> Compute:
        return self._compute(run.record.compute, run.record.place)

    def _compute(self, name: str, place: Mapping[str, str] | None = None) -> Compute:
        from edgeloop.jobs.computes import make_compute

        key = (name, tuple(sorted((place or {}).items())))
        if key not in self._computes:
            config = self.settings.compute_settings(name)
            self._computes[key] = make_compute(name, {**config, **(place or {})})
        return self._computes[key]

    def check_store(self, run: Run) -> None:
        """Check that a job's files are in the store of the settings.

        Args:
            run: The job.

        Raises:
            BadInput: If it was submitted to another store.
        """
        here = str(self.settings.location)
        if run.record.store and run.record.store != here:
            raise BadInput(
                reason=f"{run.name} was submitted to the store {run.record.store}, but the "
                f"settings name {here}: choose the first with --store or EDGELOOP_STORE"
            )
