"""From a checked specification to a job that its compute has accepted.

Nothing is recorded before everything that the job needs is in the store, so a killed submission
leaves at worst files that the next one uses. Then come the local record, the ticket in the store
and the order to the compute. The id is recorded before the compute is asked to run it, so whatever
happens in between, the job can be found, canceled and submitted again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from edgeloop._util.redact import SHORTEST_MASKED
from edgeloop._util.system import ordered_map
from edgeloop._util.values import plural, size_text
from edgeloop.errors import (
    BadJob,
    BadSetting,
    ComputeUnavailable,
    EdgeloopError,
    JobNameTaken,
    NoSuchDataset,
    NoSuchJob,
    StoreError,
    StoreRefused,
)
from edgeloop.jobs.bundle import edgeloop_requirements, ensure_wrapper, package_snapshot
from edgeloop.jobs.computes import Compute, JobOrder, ServedPlace
from edgeloop.jobs.records import (
    Draft,
    JobRecord,
    Run,
    RunRecords,
    delete_job,
    now,
    record_key,
    submitter,
)
from edgeloop.jobs.secrets import (
    secret_argument,
    secret_names,
    secret_values,
    too_short,
    without_values,
)
from edgeloop.jobs.snapshot import CodeSnapshot
from edgeloop.jobs.spec import (
    JobSpec,
    RemotePath,
    UrlParts,
    as_recorded,
    expand,
    parse_url,
)
from edgeloop.jobs.watch import ACCESS_S, has_no_report
from edgeloop.node.datasets import Datasets, Progress
from edgeloop.node.ledger import Reference, below_data, find_local, parse_reference
from edgeloop.node.ticket import (
    PLACE_PREFIX,
    Environment,
    Input,
    Ticket,
    TicketPlace,
    check_apart,
    filled,
    named_place,
    order_key,
    placeholders,
    ticket_key,
)
from edgeloop.paths import DATA_ROOT, runs_folder
from edgeloop.settings import (
    STORE_FOLDER,
    Settings,
    cache_folder,
    older_datastore,
    state_folder,
    storage_account,
)
from edgeloop.store import Access, Blobs
from edgeloop.store.location import AzureLocation, SqliteLocation, job_access

_WAIT_S = 7 * 24 * 3600  # for resources, if the job has a time limit
_DAY_S = 24 * 3600
MEGABYTE = 1_000_000
_WRITERS = 16
_STARTED = {"image": "images", "name": "environments by name"}  # no file of the code

Teller = Callable[[str], None]


@dataclass(frozen=True)
class SharedUpload:
    """What the jobs of one submission have in common."""

    code: str
    inputs: tuple[Input, ...]
    wrapper: str
    access: Access
    summary: str
    # Places may hold signatures, which a printed or logged upload must not show.
    sources: tuple[TicketPlace, ...] = field(repr=False)
    targets: tuple[TicketPlace, ...] = field(repr=False)
    served: tuple[ServedPlace, ...] = field(repr=False)
    package: str = ""
    lifetime_s: int = 0  # of the access
    warning: str = ""  # who else can use the access
    has_links: bool = False  # which are shown to them in its place


@dataclass(frozen=True)
class Submission:
    """Where jobs are submitted from and to. `tell` gets one line for a person."""

    settings: Settings
    blobs: Blobs
    runs: RunRecords
    compute: Compute
    tell: Teller = lambda _: None
    progress: Progress | None = None

    def send(self, spec: JobSpec, push: bool = True, together: bool = False) -> list[Run]:
        """One job, or all jobs of a sweep, checked as a whole before anything is sent. `together`:
        as one pipeline, if the compute has pipelines."""
        self.compute.check(spec.resources)
        if spec.name and not spec.sweep:
            self._refuse_taken(spec.name)
        shared = self._share(spec, push)
        self._tell(spec, shared)
        if not spec.sweep:
            return self._start([self._record(spec, shared)], [shared])
        stem = spec.name or self.runs.free_stem(spec.stem)
        specs = expand(spec, stem)
        for each in specs:
            self._refuse_taken(each.name)
        recorded = [self._record(each, shared) for each in specs]
        return self._start(recorded, [shared] * len(specs), together=together)

    def send_all(self, specs: Sequence[JobSpec], push: bool = True) -> list[Run]:
        """Jobs that have names and nothing in common, submitted as one batch."""
        for spec in specs:
            self.compute.check(spec.resources)
            self._refuse_taken(spec.name)
        uploads = [self._share(spec, push) for spec in specs]
        for warning in {shared.warning for shared in uploads} - {""}:
            self.tell(warning)
        recorded: list[tuple[Run, JobSpec]] = []
        try:
            for spec, shared in zip(specs, uploads, strict=True):
                recorded.append(self._record(spec, shared))
        except EdgeloopError as error:
            self._give_up(recorded, error)
            raise
        return self._start(recorded, uploads, together=len(specs) > 1)

    def send_again(
        self, run: Run, spec: JobSpec, push: bool = True, with_outputs: bool = False
    ) -> Run:
        """Another attempt of a job, linked to it; the old one and its results do not change."""
        self.compute.check(spec.resources)
        shared = self._share(spec, push)
        self._tell(spec, shared)

        def draft(name: str, job: str, attempt: int) -> JobRecord:
            record = self._drafted(spec, shared)(name, job)
            return replace(record, attempt=attempt, parent=run.name)

        again = self.runs.add_attempt(run.record, draft, _secrets(spec))
        previous = run.record.id if with_outputs else None
        return self._start([(again, replace(spec, name=again.name))], [shared], previous)[0]

    def _tell(self, spec: JobSpec, shared: SharedUpload) -> None:
        note = f", {self.compute.note}" if self.compute.note else ""
        self.tell(f"{shared.summary} · compute {self.compute.name}{note}")
        if shared.warning:
            self.tell(shared.warning)
        for name in too_short(spec.filled_variables(), spec.secrets):
            reason = f"has fewer than {SHORTEST_MASKED} characters, so logs and results show it"
            self.tell(f"warning: the value of the secret {name} {reason}")
        kind = secret_argument(spec.full_command())
        if kind is not None:
            reason = f"an argument looks like a secret ({kind}), and records and lists of"
            self.tell(f"warning: {reason} processes show arguments: pass it with --secret instead")

    def _share(self, spec: JobSpec, push: bool) -> SharedUpload:
        remote = [place.name for place in (*spec.sources, *spec.targets)]
        check_apart([*(parse_reference(text)[0] for text in (*spec.data, *spec.writes)), *remote])
        _check_reachable(self.blobs)
        kind = spec.environment.kind
        if kind in _STARTED and kind not in self.compute.builds:
            name = f"{self.compute.name} ({self.compute.kind})"
            reason = f"the compute {name} cannot start {_STARTED[kind]}"
            raise BadJob(where="environment", reason=reason)
        lifetime_s = self.compute.access_s(spec.timeout_s)
        if lifetime_s is None:
            lifetime_s = access_seconds(spec)
        resolver = PlaceResolver(self.settings, self.compute, lifetime_s or ACCESS_S)
        sources, targets, served = resolver.resolve(spec.sources, spec.targets)
        limit_bytes = self.settings.code_limit_mb * MEGABYTE
        snapshot = CodeSnapshot.take(
            spec.code,
            limit_bytes,
            folders_apart(self.settings, self.blobs),
            secrets=list(_secrets(spec).values()),
            allowed=spec.allow_secrets,
        )
        snapshot.refuse_tokens()
        _check_travels(spec, snapshot)
        datasets = Datasets(self.blobs, index_folder(self.settings))
        inputs, described = [], []
        for text in spec.data:
            reference, note = self._input(datasets, text, push)
            inputs.append(Input(reference.name, reference.version))
            described.append(f"data {reference} ({note})")
        # Bare names are full now.
        check_apart([*(item.name for item in inputs), *spec.writes, *remote])
        reads = [*(item.name for item in inputs), *(place.name for place in spec.sources)]
        writes = [*spec.writes, *(place.name for place in spec.targets)]
        for word in spec.full_command():
            for placeholder in placeholders(word):
                named_place(placeholder, reads, writes)
        described += [f"data {place.url} (where it is)" for place in spec.sources]
        _, is_new = snapshot.ensure(self.blobs)
        size = size_text(snapshot.size)
        count = plural(len(snapshot.files), "file")
        code = f"snapshot {count}, {size} ({'sent' if is_new else 'unchanged'})"
        if snapshot.withheld:
            code += f", {snapshot.withheld_note}"
        access = self.blobs.access(lifetime_s)
        warning = self.compute.exposes(access, True)
        has_links = bool(warning) and self._has_links(lifetime_s)
        if warning and not has_links:
            warning = self.compute.exposes(access, False)
        return SharedUpload(
            code=snapshot.digest,
            inputs=tuple(inputs),
            wrapper=ensure_wrapper(self.blobs),
            access=access,
            lifetime_s=lifetime_s,
            warning=warning,
            has_links=has_links,
            summary=" · ".join((code, *described)),
            sources=sources,
            targets=targets,
            served=served,
            package=self._send_package() if spec.edgeloop else "",
        )

    def _has_links(self, seconds: int) -> bool:
        """A store that is opened with a signature of the user's own cannot make a narrower one."""
        try:
            self.blobs.link(order_key("any"), seconds)
        except StoreRefused:
            return False
        return True

    def _send_package(self) -> str:
        """Edgeloop's own files, which all jobs of this version share."""
        package = package_snapshot()
        package.ensure(self.blobs)
        return package.digest

    def _input(self, datasets: Datasets, text: str, push: bool) -> tuple[Reference, str]:
        """A given version is used; otherwise the local folder is pushed first, if it changed."""
        text = below_data(text, self.settings.data_root)
        _, version = parse_reference(text)
        missing = ""
        if push and version is None:
            try:
                name, folder = find_local(self.settings.project, text)
                pushed = datasets.push(name, folder, progress=self.progress)
                moved = (
                    f"{plural(pushed.moved_files, 'file')} sent" if pushed.is_new else "unchanged"
                )
                return pushed.reference, moved
            except NoSuchDataset as error:
                missing = f"{error.fields['reason']}, and "
        try:
            return datasets.resolve(text), "in the store"
        except NoSuchDataset as error:
            raise NoSuchDataset(name=text, reason=f"{missing}{error.fields['reason']}") from None

    def _record(self, spec: JobSpec, shared: SharedUpload) -> tuple[Run, JobSpec]:
        draft = self._drafted(spec, shared)
        if spec.name:
            run = self.runs.add(spec.name, draft, secrets=_secrets(spec))
        else:
            run = self.runs.add_numbered(spec.stem, draft, _secrets(spec))
        return run, replace(spec, name=run.name)

    def _drafted(self, spec: JobSpec, shared: SharedUpload) -> Draft:
        def draft(name: str, job: str) -> JobRecord:
            return JobRecord(
                id=job,
                name=name,
                created=now(),
                experiment=spec.experiment or self.settings.experiment,
                spec=as_recorded(
                    without_values(
                        replace(spec, name="", stem=spec.stem).document(), _secrets(spec)
                    )
                ),
                compute=self.compute.name,
                kind=self.compute.kind,
                config=self.settings.computes.get(self.compute.name, {}),
                place=self.compute.place,
                store=str(self.settings.location),
                code=shared.code,
                inputs=shared.inputs,
                command=spec.full_command(),
                params={name: filled(value, lambda _: None) for name, value in spec.params.items()},
                tags=spec.tags,
                user=submitter(),
            )

        return draft

    def _start(
        self,
        recorded: Sequence[tuple[Run, JobSpec]],
        uploads: Sequence[SharedUpload],
        previous: str | None = None,
        together: bool = False,
    ) -> list[Run]:
        try:
            self.compute.submit_many(self._orders(recorded, uploads, previous, together))
        except EdgeloopError as error:
            self._give_up(recorded, error)
            raise
        self._end_unwanted(recorded)
        return [run for run, _ in recorded]

    def _orders(
        self,
        recorded: Sequence[tuple[Run, JobSpec]],
        uploads: Sequence[SharedUpload],
        previous: str | None,
        together: bool,
    ) -> list[JobOrder]:
        """The orders, with their tickets and shared records in the store."""
        orders = []
        tickets: list[tuple[str, bytes]] = []
        records: list[tuple[str, bytes]] = []
        for (run, spec), shared in zip(recorded, uploads, strict=True):
            is_built = spec.environment.kind in self.compute.builds
            ticket = _ticket(run.record, spec, shared, previous, self.settings)
            if is_built:
                ticket = replace(ticket, environment=Environment())
            tickets.append((ticket_key(run.record.id), ticket.to_json()))
            records.append((record_key(run.record), run.record.to_json()))
            order = replace(_order(run.record, spec, shared), together=together)
            if shared.has_links:
                link = self.blobs.link(order_key(run.record.id), shared.lifetime_s)
                order = replace(order, link=link)
            if is_built:  # by the compute, which needs to know what it is made of
                is_file = spec.environment.kind not in _STARTED
                file = spec.code / spec.environment.file
                recipe = file.read_text("utf-8") if is_file else ""
                order = replace(order, environment=spec.environment, recipe=recipe)
            orders.append(order)
        for put, files in ((self.blobs.put_private, tickets), (self.blobs.put, records)):
            for _ in ordered_map(partial(_put, put), files, _WRITERS, 2 * _WRITERS):
                pass
        return orders

    def _give_up(self, recorded: Sequence[tuple[Run, JobSpec]], error: EdgeloopError) -> None:
        """Jobs that the compute accepted before the error keep running; those it does not have are
        forgotten, and their names are free. If it cannot tell, the next status of a job does, or
        the next submission of its name."""
        taken = self._taken([run for run, _ in recorded], error)
        for run, _ in recorded:
            if taken is None:
                self.runs.save(replace(run, in_doubt=True))
            elif run.record.id not in taken:
                self._forget(run)

    def _forget(self, run: Run) -> None:
        """Without its ticket, a job that did reach a compute does nothing there."""
        with suppress(StoreError):
            delete_job(self.blobs, run.record)
        self.runs.remove(run.name)

    def _end_unwanted(self, recorded: Sequence[tuple[Run, JobSpec]]) -> None:
        """End jobs that were canceled or removed while they were being submitted."""
        unwanted = []
        for run, _ in recorded:
            try:
                is_wanted = not self.runs.get(run.name).cancel_asked
            except NoSuchJob:
                is_wanted = False
            if not is_wanted:
                unwanted.append(run.record.id)
        if unwanted:
            self.compute.cancel(unwanted)

    def _taken(self, runs: Sequence[Run], error: EdgeloopError) -> set[str] | None:
        """Ids of jobs that are on the compute; None if that is unknown, since an order whose
        response was lost may still arrive."""
        if isinstance(error, ComputeUnavailable):
            return None
        try:
            seen = self.compute.states([run.record.id for run in runs])
        except EdgeloopError:  # a single order that was refused is not on the compute
            return set() if len(runs) == 1 else None
        return {job for job, view in seen.items() if view.state is not None}

    def _refuse_taken(self, name: str) -> None:
        """Checked before anything is sent; the record itself decides between two at once. A job
        that never reached its compute does not keep its name."""
        if not self.runs.path(name).exists():
            return
        with suppress(NoSuchJob):
            run = self.runs.get(name)
            if self._never_arrived(run):
                self._forget(run)
                return
        raise JobNameTaken(name=name, folder=self.runs.folder.name)

    def _never_arrived(self, run: Run) -> bool:
        record = run.record
        age_s = time.time() - record.created.timestamp()
        if record.store != str(self.settings.location) or run.state not in ("queued", "failed"):
            return False
        if not run.in_doubt and age_s < self.compute.on_its_way_s:
            return False  # another process may be submitting it right now
        if not has_no_report(self.blobs, record.id):
            return False
        if record.compute != self.compute.name:
            return run.in_doubt
        return self.compute.states([record.id])[record.id].state is None


def index_folder(settings: Settings) -> Path:
    """Where this machine keeps the index of the project's datasets."""
    return settings.project / STORE_FOLDER / "index"


def _put(put: Callable[[str, bytes], None], file: tuple[str, bytes]) -> None:
    put(*file)


def access_seconds(spec: JobSpec) -> int:
    """How long a job's access to the store is valid: as long as it may wait and run, at least if it
    says how long it may run."""
    if spec.timeout_s is None:
        return ACCESS_S
    return int(min(ACCESS_S, _WAIT_S + spec.timeout_s + spec.grace_s + _DAY_S))


def folders_apart(settings: Settings, blobs: Blobs) -> list[Path]:
    """Folders of Edgeloop itself that may be inside a project, and are no code of it."""
    location = settings.location
    folders = [state_folder(), cache_folder(), runs_folder(settings.project)]
    if settings.data_root != DATA_ROOT:  # `data/` may hold a package of that name
        folders.append(settings.project / settings.data_root)
    stores = [location.folder] if isinstance(location, SqliteLocation) else []
    with suppress(StoreError):
        access = blobs.access(0)
        stores += [Path(access.options["folder"])] if access.make == "LocalStore" else []
    return [*folders, *stores]


def _check_reachable(blobs: Blobs) -> None:
    """Obstore opens more kinds of stores on this machine than the wrapper does on a node."""
    url = blobs.access(0).options.get("url", "")
    if url.startswith("gs://"):
        reason = (
            "jobs cannot open gs:// on their node: keep the files of the store in s3:// or az://"
        )
        raise BadJob(where=f"the store's files at {url}", reason=reason)


def _secrets(spec: JobSpec) -> dict[str, str]:
    return secret_values(spec.variables, spec.secrets)


def _check_travels(spec: JobSpec, snapshot: CodeSnapshot) -> None:
    """Files that the job needs may exist and yet not be part of the snapshot."""
    file = "" if spec.environment.kind in _STARTED else spec.environment.file
    for path in (spec.script, file):
        if path and path not in snapshot:
            reason = "it would not be sent: an ignore file or the rule on secrets excludes it"
            raise BadJob(where=path, reason=reason)


def _ticket(
    record: JobRecord,
    spec: JobSpec,
    shared: SharedUpload,
    previous: str | None,
    settings: Settings,
) -> Ticket:
    variables = spec.filled_variables()
    return Ticket(
        id=record.id,
        name=record.name,
        experiment=record.experiment,
        command=record.command,
        code=record.code,
        inputs=record.inputs,
        writes=spec.writes,
        outputs=spec.outputs,
        sources=shared.sources,
        targets=shared.targets,
        environment=spec.environment,
        variables=variables,
        secrets=secret_names(variables, spec.secrets),
        attempt=record.attempt,
        retries=spec.retries,
        timeout_s=spec.timeout_s,
        grace_s=spec.grace_s,
        previous=previous,
        earlier=spec.earlier,
        data_root=settings.data_root,
        kept_bytes=int(settings.kept_limit_mb * MEGABYTE),
        package=shared.package,
    )


def _order(record: JobRecord, spec: JobSpec, shared: SharedUpload) -> JobOrder:
    return JobOrder(
        job=record.id,
        name=record.name,
        resources=spec.resources,
        priority=spec.priority,
        access=shared.access,
        wrapper=shared.wrapper,
        experiment=record.experiment,
        timeout_s=spec.timeout_s,
        threads=spec.threads,
        places=shared.served,
        requires=edgeloop_requirements(*spec.edgeloop) if spec.edgeloop else (),
    )


# Data at URLs, as a job's compute and wrapper need it: who provides it, and with what access.
#
# A compute that has a service of its own for this (Azure ML, for its datastores and Azure's blobs)
# is told the URL. Otherwise the wrapper transfers the data on the node: from Azure with a
# signature that expires and, for inputs, can only read; from S3 with the credentials that the node
# or the job's variables have. The data never passes through this machine.


@dataclass(frozen=True)
class PlaceResolver:
    """Resolves the URLs of one submission; `seconds` is how long an access has to be valid."""

    settings: Settings
    compute: Compute
    seconds: int

    def resolve(
        self, sources: Sequence[RemotePath], targets: Sequence[RemotePath]
    ) -> tuple[tuple[TicketPlace, ...], tuple[TicketPlace, ...], tuple[ServedPlace, ...]]:
        """The sources and the targets for a job's ticket, and those of both that its compute is
        asked to provide. Raises BadJob for a place that it cannot provide."""
        served: list[ServedPlace] = []
        read = [self._place(place, f"SOURCE_{n}", False, served) for n, place in enumerate(sources)]
        made = [self._place(place, f"TARGET_{n}", True, served) for n, place in enumerate(targets)]
        return tuple(read), tuple(made), tuple(served)

    def _place(
        self, place: RemotePath, slot: str, is_output: bool, served: list[ServedPlace]
    ) -> TicketPlace:
        parts = self._with_account(parse_url(place.url), place)
        if parts.kind in self.compute.serves:
            variable = PLACE_PREFIX + slot
            is_file = parts.is_file and not is_output
            url = place.url
            if parts.kind == "azure":
                url = f"{parts.endpoint}/{parts.container}/{parts.path}"
            served.append(ServedPlace(variable, url, place.mode, is_output, is_file))
            return TicketPlace(place.name, place.url, place.mode, variable)
        if parts.kind == "file":
            return self._folder(place, parts, is_output)
        if place.mode == "mount":
            other = "upload" if is_output else "download"
            reason = f"the compute {self.compute.name} ({self.compute.kind}) cannot mount it"
            raise BadJob(where=place.url, reason=f"{reason}: use mode: {other}, or no mode")
        if parts.kind == "gs":
            reason = "jobs cannot open gs:// on their node: use s3:// or az://, or a dataset"
            raise BadJob(where=place.url, reason=f"{reason} ('edgeloop data push')")
        if parts.kind == "s3":
            options = {"url": f"s3://{parts.container}"}
            return TicketPlace(
                name=place.name,
                url=place.url,
                mode=place.mode,
                variable="",
                path=parts.path,
                make="from_url",
                options=options,
            )
        location, path = self._azure(parts, place)
        access = job_access(location, self.seconds, is_output)
        options = dict(access.options)
        return TicketPlace(
            name=place.name,
            url=place.url,
            mode=place.mode,
            variable="",
            path=path,
            make=access.make,
            options=options,
        )

    def _folder(self, place: RemotePath, parts: UrlParts, is_output: bool) -> TicketPlace:
        if not self.compute.sees_folders:
            reason = f"the nodes of {self.compute.name} do not see folders of this machine"
            raise BadJob(where=place.url, reason=f"{reason}: push it with 'edgeloop data push'")
        is_here = self.compute.kind == "local"
        if is_here and not is_output and not Path(parts.path).exists():
            raise BadJob(where=place.url, reason="there is no such file or folder")
        options = {"folder": parts.path}
        return TicketPlace(
            name=place.name,
            url=place.url,
            mode=place.mode,
            variable="",
            path="",
            make="LocalStore",
            options=options,
        )

    def _with_account(self, parts: UrlParts, place: RemotePath) -> UrlParts:
        """`az://container/path` names no account: the environment's, or the project's."""
        if parts.kind != "azure" or parts.account:
            return parts
        accounts = [*self._accounts()]
        if not accounts:
            reason = "it names no storage account: write https://ACCOUNT.blob.core.windows.net/…, "
            raise BadJob(where=place.url, reason=f"{reason}or set AZURE_STORAGE_ACCOUNT_NAME")
        return replace(parts, account=accounts[0].account, endpoint=accounts[0].blob_endpoint)

    def _azure(self, parts: UrlParts, place: RemotePath) -> tuple[AzureLocation, str]:
        """The container, with whatever opens its account here, and the path in it."""
        if parts.kind == "azureml":
            return self._datastore(parts, place), parts.path
        for location in self._accounts():
            if location.account == parts.account:
                return replace(location, container=parts.container), parts.path
        table = parts.endpoint.replace(".blob.", ".table.", 1)
        new_location = AzureLocation(
            parts.account, parts.endpoint, table, container=parts.container
        )
        return new_location, parts.path

    def _accounts(self) -> list[AzureLocation]:
        """Those that this machine has access to, the most explicit first."""
        older = older_datastore(self.settings.project)
        candidates = (storage_account(), self.settings.location, older and older[1])
        return [location for location in candidates if isinstance(location, AzureLocation)]

    def _datastore(self, parts: UrlParts, place: RemotePath) -> AzureLocation:
        """From `datastore.json`, else from the workspace: the project's, or that of the URL."""
        name, older = parts.container, older_datastore(self.settings.project)
        if older and older[0] == name and not parts.workspace:
            return older[1]
        from edgeloop.jobs.computes.azureml.connection import connect, explained, is_missing
        from edgeloop.jobs.computes.azureml.workspace import WorkspaceKeys, find_workspace

        try:
            fields = ("subscription", "resource_group", "workspace")
            keys = WorkspaceKeys.model_validate(dict(zip(fields, parts.workspace, strict=False)))
            address = find_workspace(keys, self.settings.azure, self.settings.project)
        except BadSetting as error:
            reason = f".azureml/datastore.json does not name the datastore {name}, and "
            raise BadJob(where=place.url, reason=f"{reason}{error.fields['reason']}") from None
        with explained(self.compute.name, address, lambda: ""):
            try:
                datastore = connect(address).ml.datastores.get(name, include_secrets=True)
            except Exception as error:
                if not is_missing(error):
                    raise
                reason = f"the workspace {address.workspace} has no datastore {name!r}"
                raise BadJob(where=place.url, reason=reason) from None
        return _location_of(datastore, place)


def _location_of(datastore: object, place: RemotePath) -> AzureLocation:
    """A datastore of the workspace as a container, with the secret it holds, if any."""
    account = getattr(datastore, "account_name", "")
    container = getattr(datastore, "container_name", "") or getattr(datastore, "filesystem", "")
    if not account or not container:
        reason = "its datastore is not a blob container: only a job on Azure ML can use it"
        raise BadJob(where=place.url, reason=reason)
    suffix = getattr(datastore, "endpoint", "") or "core.windows.net"
    protocol = getattr(datastore, "protocol", "") or "https"
    endpoint = f"{protocol}://{account}.blob.{suffix}"
    secret = getattr(datastore, "credentials", None)
    key, sas = getattr(secret, "account_key", None), getattr(secret, "sas_token", None)
    table = endpoint.replace(".blob.", ".table.", 1)
    return AzureLocation(account, endpoint, table, key, sas, container)
