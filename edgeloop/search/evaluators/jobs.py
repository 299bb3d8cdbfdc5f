"""Accuracy after partial training, as jobs on any compute.

    training = PartialTraining(Jobs.open(), "faces", TrainingPlan(epochs=3), compute="cluster")
    training.send(arch)
    answers = training.collect(timeout_s=60)

A job says in its tags which architectures it trains under which conditions. Whoever comes later, a
search that was killed and resumed above all, finds it by them and waits for it instead of sending
a second one; a job that failed or was canceled is resubmitted and goes on from its checkpoints.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from edgeloop.architectures import Architecture
from edgeloop.data import Datasets, Version, find_local, parse_reference
from edgeloop.errors import (
    BadInput,
    ComputeUnavailable,
    EdgeloopError,
    JobNameTaken,
    NoSuchDataset,
    NotFound,
    StoreError,
    StoreUnavailable,
    WaitTimeout,
)
from edgeloop.jobs import Jobs, JobSpec, Resources, Run
from edgeloop.search.evaluators.desk import Request, Watch, failure
from edgeloop.search.evaluators.order import (
    GIVES,
    ORDER,
    Order,
    digest,
    plan_text,
    read_outcome,
    source_of,
)
from edgeloop.settings import STORE_FOLDER
from edgeloop.training import TrainingPlan

_MODULE = "edgeloop.search.evaluators.trainer"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_KEY = re.compile(r"id_[0-9a-f]{16}=[0-9a-f]{16}")
_LINGER_S = 2.0  # a batch that is not full waits this long for more
_CANCEL_LIMIT_S = 30.0


class PartialTraining(Watch):
    """`data` names a dataset of the project or the store; its newest version now is that of all
    jobs, and what is here and not in the store yet is pushed. `batch` architectures are one job, of
    which `at_once` share its machine; up to `steps` jobs that are ready together are one pipeline
    (on a compute that has none, they are just submitted together). The store or the compute may be
    away for `away_s`.

    `search` begins the names of the jobs. `close` cancels those that it waits for.
    """

    gives = GIVES
    cost = 1

    def __init__(
        self,
        jobs: Jobs,
        data: str,
        plan: TrainingPlan,
        *,
        search: str = "search",
        compute: str = "",
        resources: Resources | None = None,
        timeout_s: float | None = None,
        retries: int = 1,
        batch: int = 1,
        at_once: int = 1,
        steps: int = 1,
        variables: Mapping[str, str] | None = None,
        away_s: float = 900.0,
    ) -> None:
        if batch < 1 or at_once < 1 or steps < 1 or retries < 0:
            raise BadInput(reason="batch, at_once and steps must be 1 or more, retries 0 or more")
        if not _NAME.fullmatch(search):
            reason = f"a search cannot be called {search!r}: use letters, digits, '.', '_' and '-'"
            raise BadInput(reason=reason)
        super().__init__(away_s)
        self._jobs, self._plan, self._search = jobs, plan, search
        self._batch, self._at_once, self._steps = batch, at_once, steps
        self._version = pinned(jobs, data)
        self.conditions = f"trained on {self._version.digest[:16]}: {plan_text(plan)}"
        self._project = jobs.settings.project
        self._usual = JobSpec(
            code=self._project,
            stem="train",
            data=(str(self._version.reference),),
            compute=compute,
            resources=resources or Resources(),
            timeout_s=timeout_s,
            retries=retries,
            variables=dict(variables or {}),
        )
        self._new: dict[str, Request] = {}  # neither submitted nor attached yet, by id
        self._sent: dict[str, tuple[Request, str]] = {}  # waiting for the job of this name, by id
        self._runs: dict[str, Run] = {}  # those jobs, by name
        self._useless: set[str] = set()  # jobs that ended well and left no result

    def _take(self, request: Request) -> None:
        self._new[request.arch.id] = request

    def _waiting(self) -> list[str]:
        return [*self._new, *self._sent]

    def _forget(self, arch_id: str) -> None:
        self._new.pop(arch_id, None)
        self._sent.pop(arch_id, None)
        needed = {name for _, name in self._sent.values()}
        self._runs = {name: run for name, run in self._runs.items() if name in needed}

    def _look(self) -> bool:
        happened = bool(self._new) and self._attach()
        happened |= self._submit_batches()
        return self._see_jobs() or happened

    # Jobs that are there already

    def _attach(self) -> bool:
        """Wait for jobs that others began; those that ended badly are given another attempt."""
        known = self._known()
        wanted = {self._key(request.arch): request for request in self._new.values()}
        found = {key: known[key] for key in wanted if key in known}
        fresh = {run.name: run for run in self._jobs.refresh(_unique(found.values()))}
        for key, run in found.items():
            request = wanted[key]
            try:
                if self._is_spent(fresh[run.name]):
                    fresh[run.name] = self._again(fresh[run.name])
                self._wait_for(request, fresh[run.name])
            except (StoreUnavailable, ComputeUnavailable):
                raise
            except EdgeloopError as error:
                self._settle(failure(request.arch.id, error))
        return bool(found)

    def _known(self) -> dict[str, Run]:
        """The newest job of each architecture and its conditions, by its tag."""
        here = str(self._jobs.settings.location)
        runs = [run for run in self._jobs.runs.list().runs if run.record.store == here]
        return {tag: run for run in runs for tag in _keys_of(run)}  # oldest to newest

    def _is_spent(self, run: Run) -> bool:
        return run.state in ("failed", "canceled") or run.name in self._useless

    def _again(self, run: Run) -> Run:
        if not Path(str(run.record.spec.get("code", ""))).is_dir():
            reason = f"the code of {run.name} is gone: remove that job with 'edgeloop job remove'"
            raise BadInput(reason=reason)
        return self._jobs.resubmit(run, push=False, with_outputs=True)

    # Jobs of our own

    def _submit_batches(self) -> bool:
        happened = False
        while ripe := self._ripe():
            try:
                self._submit(ripe)
            except JobNameTaken:  # somebody was first; the next look finds that job
                return True
            except (StoreUnavailable, ComputeUnavailable):
                raise
            except EdgeloopError as error:
                for request in ripe:
                    self._settle(failure(request.arch.id, error))
            happened = True
        return happened

    def _ripe(self) -> list[Request]:
        """The next jobs' worth, when they are full or have waited long enough."""
        most = self._batch * self._steps
        waiting = list(self._new.values())[:most]
        if not waiting or len(waiting) == most:
            return waiting
        return waiting if time.monotonic() - waiting[0].sent > _LINGER_S else []

    def _submit(self, ripe: Sequence[Request]) -> None:
        size = self._batch
        batches = [ripe[start : start + size] for start in range(0, len(ripe), size)]
        specs = [self._spec(batch) for batch in batches]
        if len(specs) == 1:
            runs = self._jobs.submit(specs[0], push=False)
        else:
            runs = self._jobs.submit_all(specs, push=False)
        for batch, run in zip(batches, runs, strict=True):
            for request in batch:
                self._wait_for(request, run)

    def _spec(self, batch: Sequence[Request]) -> JobSpec:
        archs = tuple(request.arch for request in batch)
        keys = tuple(self._key(arch) for arch in archs)
        last = keys[0].replace("=", "-") if len(keys) == 1 else f"{len(keys)}-{digest(*keys)}"
        name = f"{self._search}-{last}"
        return replace(
            self._usual,
            name=name,
            code=self._code(name, archs),
            tags=(self._search, *keys),
            command=(
                *("python", "-m", _MODULE, ORDER, "--dataset", f"{{input:{self._version.name}}}"),
                *("--out", "{outputs}"),
            ),
        )

    def _code(self, name: str, archs: tuple[Architecture, ...]) -> Path:
        """What travels: the order, and the file of a user's space. It stays for other attempts."""
        folder = self._project / STORE_FOLDER / "search" / name
        Order(self._plan, archs, self.conditions, self._at_once).save(folder / ORDER)
        for source in {source_of(arch, self._project) for arch in archs} - {None}:
            target = folder / str(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._project / str(source), target)
        return folder

    def _key(self, arch: Architecture) -> str:
        """Also by the text of a user's space: an edited file builds another net of the same id."""
        source = source_of(arch, self._project)
        text = b"" if source is None else (self._project / source).read_bytes()
        return f"{arch.id}={digest(self.conditions, text)}"

    def _wait_for(self, request: Request, run: Run) -> None:
        self._new.pop(request.arch.id, None)
        self._sent[request.arch.id] = (request, run.name)
        self._runs[run.name] = run

    # What comes of them

    def _see_jobs(self) -> bool:
        if not self._runs:
            return False
        before = {name: run.state for name, run in self._runs.items()}
        seen = self._jobs.refresh(list(self._runs.values()))
        self._runs = {run.name: run for run in seen}
        for run in seen:
            if run.status.is_final:
                self._settle_all_of(run)
        return any(before[run.name] != run.state for run in seen)

    def _settle_all_of(self, run: Run) -> None:
        self._jobs.fetch(run)
        members = [request for request, name in self._sent.values() if name == run.name]
        for request in members:
            folder = self._folder_of(run, request.arch)
            outcome = read_outcome(folder, request.arch.id, self.conditions)
            if outcome is not None:
                answer = outcome.answer(folder)
                self._settle(replace(answer, seconds=time.monotonic() - request.sent))
                continue
            if run.state == "completed":
                self._useless.add(run.name)
            self._settle(failure(request.arch.id, self._why(run), is_final=False))

    def _folder_of(self, run: Run, arch: Architecture) -> Path:
        """As the order has it: a job of one net has its outputs for itself."""
        outputs = self._jobs.outputs(run)
        return outputs if len(_keys_of(run)) == 1 else outputs / arch.id

    def _why(self, run: Run) -> str:
        if run.state == "completed":
            return f"The job {run.name} ended well, but left no result"
        last = ""
        with suppress(StoreError, NotFound):
            last = self._jobs.last_lines(run, 1).decode(errors="replace").strip()
        said = f" ({last})" if last else ""
        return f"The job {run.name} was {run.state}: {run.status.reason or 'no reason given'}{said}"

    def close(self) -> None:
        """Waits a while for the jobs to end; a cluster that is slow ends them later."""
        super().close()
        running = [run for run in self._runs.values() if not run.status.is_final]
        self._runs.clear()
        with suppress(WaitTimeout):
            self._jobs.wait(self._jobs.cancel(running), _CANCEL_LIMIT_S)


def _keys_of(run: Run) -> list[str]:
    """The tags that name an architecture and its conditions."""
    return [tag for tag in run.record.tags if _KEY.fullmatch(tag)]


def _unique(runs: Iterable[Run]) -> list[Run]:
    return list({run.name: run for run in runs}.values())


def pinned(jobs: Jobs, data: str) -> Version:
    """One version for the whole search: what is pushed in the meantime is for the next."""
    datasets = Datasets(jobs.blobs, jobs.settings.project / STORE_FOLDER / "index")
    reference = None
    if parse_reference(data)[1] is None:
        with suppress(NoSuchDataset):
            name, folder = find_local(jobs.settings.project, data)
            reference = datasets.push(name, folder).reference
    reference = reference or datasets.resolve(data)
    return next(v for v in datasets.versions(reference.name) if v.reference == reference)
