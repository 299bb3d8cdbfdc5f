"""From a checked specification to a job that its compute has taken.

Nothing is recorded before all that the job needs is in the store, so a submission that is killed
leaves at worst files that the next one finds and uses. Then: the record here, the ticket in the
store, the order to the compute. Its id is in the record before anybody is asked to run it, so
whatever happens in between, the job can be found, canceled and submitted again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgeloop._util.units import size_text
from edgeloop.data import Datasets, Progress, Reference, find_local, parse_reference
from edgeloop.errors import (
    BadJob,
    ComputeUnavailable,
    EdgeloopError,
    JobNameTaken,
    NoSuchDataset,
    NoSuchJob,
)
from edgeloop.jobs.computes import Compute, Order
from edgeloop.jobs.protocol.bundle import ensure_wrapper
from edgeloop.jobs.protocol.ticket import Environment, Input, Ticket, check_apart, ticket_key
from edgeloop.jobs.records import Draft, JobRecord, Run, Runs, now
from edgeloop.jobs.snapshot import Snapshot
from edgeloop.jobs.spec import JobSpec
from edgeloop.jobs.sweep import expand
from edgeloop.jobs.watch import Status
from edgeloop.settings import STORE_FOLDER, Settings
from edgeloop.store import Access, Blobs

ACCESS_S = 30 * 24 * 3600  # a job may wait and run this long
MEGABYTE = 1_000_000

Teller = Callable[[str], None]


@dataclass(frozen=True)
class Sent:
    """What the jobs of one submission share."""

    code: str
    inputs: tuple[Input, ...]
    wrapper: str
    access: Access
    summary: str


@dataclass(frozen=True)
class Submission:
    """Where jobs are submitted from and to. `tell` hears one line for a person."""

    settings: Settings
    blobs: Blobs
    runs: Runs
    compute: Compute
    tell: Teller = lambda _: None
    progress: Progress | None = None

    def send(self, spec: JobSpec, push: bool = True, together: bool = False) -> list[Run]:
        """One job, or all jobs of a sweep. Refused as a whole before anything moves. `together`:
        as one pipeline, where the compute has such a thing."""
        self.compute.check(spec.resources)
        if spec.name and not spec.sweep:
            self._refuse_taken(spec.name)
        sent = self._share(spec, push)
        self.tell(f"{sent.summary} · compute {self.compute.name}")
        if not spec.sweep:
            return self._start([self._record(spec, sent)], sent)
        stem = spec.name or self.runs.free_stem(spec.stem)
        specs = expand(spec, stem)
        for each in specs:
            self._refuse_taken(each.name)
        return self._start([self._record(each, sent) for each in specs], sent, together=together)

    def send_all(self, specs: Sequence[JobSpec], push: bool = True) -> list[Run]:
        """Jobs that have names and share nothing, given to the compute as one batch."""
        for spec in specs:
            self.compute.check(spec.resources)
            self._refuse_taken(spec.name)
        shared = [self._share(spec, push) for spec in specs]
        made: list[tuple[Run, JobSpec]] = []
        try:
            for spec, sent in zip(specs, shared, strict=True):
                made.append(self._record(spec, sent))
            orders = self._orders(made, shared, None, together=True)
            self.compute.submit_many(orders)
        except EdgeloopError as error:
            self._give_up(made, error)
            raise
        self._end_unwanted(made)
        return [run for run, _ in made]

    def send_again(
        self, run: Run, spec: JobSpec, push: bool = True, with_outputs: bool = False
    ) -> Run:
        """Another attempt of a job, linked to it; the old one and its results stay as they are."""
        self.compute.check(spec.resources)
        sent = self._share(spec, push)
        self.tell(f"{sent.summary} · compute {self.compute.name}")

        def draft(name: str, job: str, attempt: int) -> JobRecord:
            record = self._drafted(spec, sent)(name, job)
            return replace(record, attempt=attempt, parent=run.name)

        again = self.runs.add_attempt(run.record, draft)
        previous = run.record.id if with_outputs else None
        return self._start([(again, replace(spec, name=again.name))], sent, previous)[0]

    def _share(self, spec: JobSpec, push: bool) -> Sent:
        check_apart([parse_reference(text)[0] for text in (*spec.data, *spec.writes)])
        if spec.environment.kind == "image" and "image" not in self.compute.builds:
            reason = f"the compute {self.compute.name} ({self.compute.kind}) starts no images"
            raise BadJob(where="environment", reason=reason)
        snapshot = Snapshot.take(spec.code, self.settings.code_limit_mb * MEGABYTE)
        _check_travels(spec, snapshot)
        datasets = Datasets(self.blobs, index_folder(self.settings))
        inputs, described = [], []
        for text in spec.data:
            reference, note = self._input(datasets, text, push)
            inputs.append(Input(reference.name, reference.version))
            described.append(f"data {reference} ({note})")
        check_apart([*(item.name for item in inputs), *spec.writes])  # bare names are full now
        _, is_new = snapshot.ensure(self.blobs)
        lifetime_s = self.compute.access_s(spec.timeout_s)
        size = size_text(snapshot.size)
        code = f"snapshot {len(snapshot.files)} files, {size} ({'sent' if is_new else 'unchanged'})"
        if snapshot.withheld:
            code += f", without {', '.join(snapshot.withheld)} (private keys never travel)"
        return Sent(
            snapshot.digest,
            tuple(inputs),
            ensure_wrapper(self.blobs),
            self.blobs.access(ACCESS_S if lifetime_s is None else lifetime_s),
            " · ".join((code, *described)),
        )

    def _input(self, datasets: Datasets, text: str, push: bool) -> tuple[Reference, str]:
        """A version that is named stands; else what is here is pushed first, if it changed."""
        _, version = parse_reference(text)
        if push and version is None:
            with suppress(NoSuchDataset):
                name, folder = find_local(self.settings.project, text)
                pushed = datasets.push(name, folder, progress=self.progress)
                moved = f"{pushed.moved_files} files sent" if pushed.is_new else "unchanged"
                return pushed.reference, moved
        return datasets.resolve(text), "in the store"

    def _record(self, spec: JobSpec, sent: Sent) -> tuple[Run, JobSpec]:
        draft = self._drafted(spec, sent)
        if spec.name:
            run = self.runs.add(spec.name, draft)
        else:
            run = self.runs.add_numbered(spec.stem, draft)
        return run, replace(spec, name=run.name)

    def _drafted(self, spec: JobSpec, sent: Sent) -> Draft:
        def draft(name: str, job: str) -> JobRecord:
            return JobRecord(
                id=job,
                name=name,
                created=now(),
                experiment=spec.experiment or self.settings.experiment,
                spec=replace(spec, name="", stem=spec.stem).document(),
                compute=self.compute.name,
                kind=self.compute.kind,
                config=self.settings.computes.get(self.compute.name, {}),
                store=str(self.settings.location),
                code=sent.code,
                inputs=sent.inputs,
                command=spec.full_command(),
                params=spec.params,
                tags=spec.tags,
            )

        return draft

    def _start(
        self,
        made: Sequence[tuple[Run, JobSpec]],
        sent: Sent,
        previous: str | None = None,
        together: bool = False,
    ) -> list[Run]:
        orders = self._orders(made, [sent] * len(made), previous, together)
        try:
            self.compute.submit_many(orders)
        except EdgeloopError as error:
            self._give_up(made, error)
            raise
        self._end_unwanted(made)
        return [run for run, _ in made]

    def _orders(
        self,
        made: Sequence[tuple[Run, JobSpec]],
        shared: Sequence[Sent],
        previous: str | None,
        together: bool,
    ) -> list[Order]:
        """Their tickets are in the store when this returns."""
        orders = []
        for (run, spec), sent in zip(made, shared, strict=True):
            is_built = spec.environment.kind in self.compute.builds
            ticket = _ticket(run.record, spec, previous)
            if is_built:
                ticket = replace(ticket, environment=Environment())
            self.blobs.put(ticket_key(run.record.id), ticket.to_json())
            order = replace(_order(run.record, spec, sent), together=together)
            orders.append(_with_environment(order, spec) if is_built else order)
        return orders

    def _give_up(self, made: Sequence[tuple[Run, JobSpec]], error: EdgeloopError) -> None:
        """What the compute took before it failed runs on: only what it does not know has failed.
        Where it cannot say, the next look at the job finds out."""
        taken = self._taken([run for run, _ in made], error)
        reason = f"it could not be submitted: {error}"
        for run, _ in made:
            if taken is not None and run.record.id not in taken:
                self.runs.save(replace(run, status=Status("failed", reason)))

    def _end_unwanted(self, made: Sequence[tuple[Run, JobSpec]]) -> None:
        """Somebody may have canceled or removed a job while it was on its way: nobody heard it."""
        unwanted = [run.record.id for run, _ in made if not self._is_wanted(run.name)]
        if unwanted:
            self.compute.cancel(unwanted)

    def _is_wanted(self, name: str) -> bool:
        try:
            return not self.runs.get(name).cancel_asked
        except NoSuchJob:
            return False

    def _taken(self, runs: Sequence[Run], error: EdgeloopError) -> set[str] | None:
        """Those that are on the compute; None where that is not known, since an order whose answer
        was lost may still arrive."""
        if isinstance(error, ComputeUnavailable):
            return None
        try:
            seen = self.compute.states([run.record.id for run in runs])
        except EdgeloopError:  # one order that was refused is not there
            return set() if len(runs) == 1 else None
        return {job for job, view in seen.items() if view.state is not None}

    def _refuse_taken(self, name: str) -> None:
        """Before anything moves; the record itself decides between two at once."""
        if self.runs.path(name).exists():
            raise JobNameTaken(name=name, folder=self.runs.folder.name)


def index_folder(settings: Settings) -> Path:
    """Where this machine remembers what it read of the project's datasets."""
    return settings.project / STORE_FOLDER / "index"


def _check_travels(spec: JobSpec, snapshot: Snapshot) -> None:
    """What the job cannot begin without may be here and yet be kept from travelling."""
    file = "" if spec.environment.kind == "image" else spec.environment.file
    for path in (spec.script, file):
        if path and path not in snapshot:
            reason = "it would stay here: an ignore file or the rule on keys leaves it out"
            raise BadJob(where=path, reason=reason)


def _ticket(record: JobRecord, spec: JobSpec, previous: str | None) -> Ticket:
    return Ticket(
        id=record.id,
        name=record.name,
        experiment=record.experiment,
        command=record.command,
        code=record.code,
        inputs=record.inputs,
        writes=spec.writes,
        environment=spec.environment,
        variables=spec.filled_variables(),
        attempt=record.attempt,
        retries=spec.retries,
        timeout_s=spec.timeout_s,
        grace_s=spec.grace_s,
        previous=previous,
    )


def _order(record: JobRecord, spec: JobSpec, sent: Sent) -> Order:
    return Order(
        job=record.id,
        name=record.name,
        resources=spec.resources,
        priority=spec.priority,
        access=sent.access,
        wrapper=sent.wrapper,
        experiment=record.experiment,
        timeout_s=spec.timeout_s,
    )


def _with_environment(order: Order, spec: JobSpec) -> Order:
    """For a compute that makes the environment itself: what it is made of."""
    is_file = spec.environment.kind != "image"
    recipe = (spec.code / spec.environment.file).read_text("utf-8") if is_file else ""
    return replace(order, environment=spec.environment, recipe=recipe)
