"""All that a person does with jobs, for programs too. The command line is a thin coat over this.

with Jobs.open() as jobs:
    run = jobs.submit(spec_of_script("train.py", ["--lr", "1e-3"], {"data": ["faces"]}))[0]
    run = jobs.wait([run])[0]
    jobs.fetch(run)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edgeloop._util.units import seconds_of
from edgeloop.data import Progress
from edgeloop.errors import BadInput, BadSetting, JobRunning, WaitTimeout
from edgeloop.jobs import results
from edgeloop.jobs.computes import Compute, make_compute
from edgeloop.jobs.folder import RUNS_FOLDER, Run, Runs
from edgeloop.jobs.logs import LogReader, last_lines, log_size
from edgeloop.jobs.results import Fetched
from edgeloop.jobs.selectors import Selection, select
from edgeloop.jobs.spec import JobSpec, changed, spec_of
from edgeloop.jobs.submission import Submission, Teller
from edgeloop.jobs.ticket import State, folder_key
from edgeloop.jobs.watch import Watched, look
from edgeloop.settings import Settings
from edgeloop.store import Blobs, open_blobs

SHORTEST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0


class Jobs:
    """The jobs of one project. Opening it contacts nobody."""

    def __init__(self, settings: Settings, blobs: Blobs | None = None) -> None:
        self.settings = settings
        self.blobs = blobs or open_blobs(settings.location)
        self.runs = Runs(settings.project / RUNS_FOLDER)
        self._computes: dict[str, Compute] = {}

    @classmethod
    def open(cls, store: str | None = None, experiment: str | None = None) -> Jobs:
        return cls(Settings.load(store=store, experiment=experiment))

    # Submitting

    def submit(
        self,
        spec: JobSpec,
        *,
        push: bool = True,
        pipeline: bool = False,
        tell: Teller | None = None,
        progress: Progress | None = None,
    ) -> list[Run]:
        """One job, or as many as its sweep has members; those as one pipeline, where asked for and
        where the compute has pipelines."""
        return self._submission(spec.compute, tell, progress).send(spec, push, pipeline)

    def submit_all(self, specs: Sequence[JobSpec], *, push: bool = True) -> list[Run]:
        """Jobs with names of their own on one compute, as one pipeline where it has such."""
        return self._submission(specs[0].compute, None, None).send_all(specs, push)

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
        """Another attempt of the same job, with changes; it is linked to the old one."""
        spec = changed(self.spec(run), overrides, args)
        if spec.sweep:
            raise BadInput(reason="A sweep cannot be resubmitted into one job: submit it anew")
        if spec.name:
            reason = f"A new attempt is named after {run.name}: for another name, submit it anew"
            raise BadInput(reason=reason)
        submission = self._submission(spec.compute or run.record.compute, tell, progress)
        return submission.send_again(run, spec, push, with_outputs)

    def spec(self, run: Run) -> JobSpec:
        """The specification that a job was made from."""
        document = dict(run.record.spec)
        return spec_of(document, self.settings.project, run.name, run.name.partition(".")[0])

    def grace_s(self, run: Run) -> float:
        """How long its script may take to end once it is asked to."""
        return seconds_of(str(run.record.spec.get("grace", ""))) or 0.0

    # Looking

    def select(
        self, patterns: Sequence[str], tag: str = "", states: Collection[State] = ()
    ) -> Selection:
        """Which jobs these words mean, by what is known here; nobody is asked."""
        return select(self.runs.list().runs, patterns, tag, states, self.runs.folder)

    def refresh(self, runs: Sequence[Run]) -> list[Run]:
        """What is true now, with one question to each compute; remembered for the next time."""
        by_compute: dict[str, list[Run]] = {}
        for run in runs:
            if not run.status.is_final:
                by_compute.setdefault(run.record.compute, []).append(run)
        fresh: dict[str, Run] = {}
        for name, members in by_compute.items():
            for run in members:
                self._check_store(run)
            fresh |= self._look(name, members)
        return [fresh.get(run.name, run) for run in runs]

    def watch(self, runs: Sequence[Run], timeout_s: float | None = None) -> Iterator[list[Run]]:
        """What is true, again and again, until all are over. Asks less and less often."""
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
        """Until all of these are over."""
        for seen in self.watch(runs, timeout_s):
            runs = seen
        return list(runs)

    # Logs and results

    def log(self, run: Run, offset: int = 0) -> LogReader:
        self._check_store(run)
        return LogReader(self.blobs, run.record.id, offset)

    def log_size(self, run: Run) -> int:
        """How many bytes of the log are in the store by now."""
        self._check_store(run)
        return log_size(self.blobs, run.record.id)

    def last_lines(self, run: Run, count: int) -> bytes:
        self._check_store(run)
        return last_lines(self.blobs, run.record.id, count)

    def compute_log(self, run: Run) -> str:
        """What the compute itself printed: the place to look when a job never began."""
        return self._compute(run.record.compute).logs(run.record.id)

    def fetch(self, run: Run) -> Fetched:
        """Bring what is in the store of a job's outputs into `runs/<name>/outputs`."""
        self._check_store(run)
        return results.fetch(self.blobs, run.record.id, self.outputs(run))

    def outputs(self, run: Run) -> Path:
        return self.runs.path(run.name) / "outputs"

    def links(self, run: Run, seconds: int) -> dict[str, str]:
        """An address for each output that anybody can open for a while."""
        self._check_store(run)
        found, _ = results.outputs_of(self.blobs, run.record.id)
        return {path: self.blobs.link(info.key, seconds) for path, info in sorted(found.items())}

    # Ending

    def cancel(self, runs: Sequence[Run]) -> list[Run]:
        """Ask all of these to end, and remember that we did; returns before they have."""
        asked = []
        for run in runs:
            asked.append(run if run.status.is_final else self._marked(run))
        by_compute: dict[str, list[str]] = {}
        for run in asked:
            if not run.status.is_final:
                by_compute.setdefault(run.record.compute, []).append(run.record.id)
        for name, ids in by_compute.items():
            self._compute(name).cancel(ids)
        return asked

    def remove(self, runs: Sequence[Run]) -> None:
        """The record, its files in the store, and what the compute keeps. Only jobs that ended."""
        alive = [run.name for run in runs if not run.status.is_final]
        if alive:
            raise JobRunning(names=", ".join(alive))
        by_compute: dict[str, list[str]] = {}
        for run in runs:
            self._check_store(run)
            self.blobs.delete_folder(folder_key(run.record.id))
            by_compute.setdefault(run.record.compute, []).append(run.record.id)
        for name, ids in by_compute.items():
            self._forget(name, ids)
        for run in runs:
            self.runs.remove(run.name)

    def _marked(self, run: Run) -> Run:
        return self.runs.save(replace(run, cancel_asked=True))

    def _forget(self, name: str, jobs: Sequence[str]) -> None:
        """A compute that is gone from the settings keeps nothing that we could reach."""
        try:
            compute = self._compute(name)
        except BadSetting:
            return
        compute.forget(jobs)

    def _look(self, name: str, runs: Sequence[Run]) -> dict[str, Run]:
        watched = [
            Watched(run.record.id, run.record.created.timestamp(), run.cancel_asked, run.status)
            for run in runs
        ]
        fresh = {}
        for run, status in zip(runs, look(self.blobs, self._compute(name), watched), strict=True):
            seen = replace(run, status=status)
            fresh[run.name] = seen if status == run.status else self.runs.save(seen)
        return fresh

    def _submission(
        self, compute: str, tell: Teller | None, progress: Progress | None
    ) -> Submission:
        name = compute or self.settings.compute
        teller: Callable[[str], None] = tell or (lambda _: None)
        return Submission(
            self.settings, self.blobs, self.runs, self._compute(name), teller, progress
        )

    def _compute(self, name: str) -> Compute:
        if name not in self._computes:
            config = self.settings.compute_settings(name)
            self._computes[name] = make_compute(name, config)
        return self._computes[name]

    def _check_store(self, run: Run) -> None:
        """A job's files are where it was sent to, which may not be where the settings point now."""
        here = str(self.settings.location)
        if run.record.store and run.record.store != here:
            raise BadInput(
                reason=f"{run.name} was submitted to the store {run.record.store}, and the "
                f"settings name {here}: choose the first with --store or EDGELOOP_STORE"
            )
