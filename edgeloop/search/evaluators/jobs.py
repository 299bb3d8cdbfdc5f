"""Accuracy after partial training, as jobs on any compute.

The tags of a job say which architectures it trains under which conditions. A search that was killed
and resumed finds it by them and waits for it instead of submitting a second one; a job that failed
or was canceled is resubmitted and continues from its checkpoints.

A training that pauses is a job that ends there. To continue it is another job, which starts with
the outputs of the earlier ones; the candidates of such a job may come from several jobs.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from edgeloop.errors import (
    BadInput,
    ComputeUnavailable,
    EdgeloopError,
    JobNameTaken,
    NoSuchDataset,
    StoreUnavailable,
    WaitTimeout,
)
from edgeloop.jobs.bundle import edgeloop_requirements
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.records import Run
from edgeloop.jobs.spec import JobSpec, spec_of
from edgeloop.jobs.watch import discard_outputs
from edgeloop.node.datasets import Datasets
from edgeloop.node.ledger import Version, find_local, parse_reference
from edgeloop.node.ticket import EarlierOutputs, Environment, Resources
from edgeloop.search.evaluators.threads import PollingEvaluator, Request, failure
from edgeloop.search.evaluators.trainer import (
    GIVES,
    ORDER,
    TrainingOrder,
    TrainingOutcome,
    plan_text,
    read_outcome,
)
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.plan import CHECKPOINT, TrainingPlan
from edgeloop.search.nets.spaces import digest, source_of
from edgeloop.settings import STORE_FOLDER

Part = TypeVar("Part", Resources, Environment)

_MODULE = "edgeloop.search.evaluators.trainer"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_KEY = re.compile(r"id_[0-9a-f]{16}=[0-9a-f]{16}")
_RUNG = "rung"  # a tag of jobs whose trainings may end before their end
_EXTRA = "train"
_LINGER_S = 2.0  # a batch that is not full waits this long for more
_CANCEL_LIMIT_S = 30.0


class PartialTraining(PollingEvaluator):
    """Train architectures partially, as jobs on any compute, and return how accurate they are.

    `send` accepts an architecture and returns at once; `collect` returns the evaluations that are
    finished, in any order. The values of one are `val_f1`, `val_iou`, `training_time` and what
    else the training knows; `files` has its `model.onnx`. An architecture that was trained before
    under the same conditions, by whatever process of the project, is not trained again.

    Args:
        jobs: The project whose code, data and computes are used.
        data: Name of a dataset of the project or the store, for example `working/faces64`. All
            jobs use its newest version at the start; one that is not in the store yet is pushed.
        plan: How to train, as a plan or by its fields: `{"epochs": 3}` or `{"steps": 500}`.
        search: Beginning of the names of the jobs.
        compute: Name of the compute. By default that of the settings.
        resources: What a job needs of its machine, as in a job file: `{"gpus": 1}`.
        timeout_s: Seconds after which a job is ended.
        retries: Restarts after a failure; a restart continues from the last checkpoint.
        batch: How many architectures one job trains.
        at_once: How many of them it trains at a time.
        steps: Up to so many jobs that are ready together become one pipeline. On a compute without
            pipelines they are just submitted together.
        variables: Environment variables of the jobs.
        environment: What is installed on the node, as in a job file.
        away_s: How many seconds the store or the compute may be unavailable.
        tell: Called with a sentence about a job that a person should read.

    Examples:
        >>> from pathlib import Path
        >>> from edgeloop import Jobs, PartialTraining
        >>> faces = Path("data/working/faces")
        >>> faces.mkdir(parents=True)
        >>> size = (faces / "1.txt").write_text("a face")
        >>> training = PartialTraining(Jobs.open(), "working/faces", {"epochs": 1})
        >>> training.collect(timeout_s=0)  # nothing was sent
        []
        >>> training.close()
    """

    gives = GIVES
    cost = 1
    label = "in training"
    can_pause = True

    def __init__(
        self,
        jobs: Jobs,
        data: str,
        plan: TrainingPlan | Mapping[str, object],
        *,
        search: str = "search",
        compute: str = "",
        resources: Resources | Mapping[str, object] | None = None,
        timeout_s: float | None = None,
        retries: int = 1,
        batch: int = 1,
        at_once: int = 1,
        steps: int = 1,
        variables: Mapping[str, str] | None = None,
        environment: Environment | Mapping[str, object] | str | None = None,
        away_s: float = 900.0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        if batch < 1 or at_once < 1 or steps < 1 or retries < 0:
            raise BadInput(reason="batch, at_once and steps must be 1 or more, retries 0 or more")
        if not _NAME.fullmatch(search):
            reason = f"a search cannot be called {search!r}: use letters, digits, '.', '_' and '-'"
            raise BadInput(reason=reason)
        super().__init__(away_s)
        self._jobs, self._plan, self._search = jobs, TrainingPlan.of(plan), search
        self._batch, self._at_once, self._steps = batch, at_once, steps
        self.together = batch * steps if steps > 1 else 1
        self._version = pinned(jobs, data)
        self.conditions = f"trained on {self._version.digest[:16]}: {plan_text(self._plan)}"
        self._project = jobs.settings.project
        self._template = JobSpec(
            code=self._project,
            stem="train",
            data=(str(self._version.reference),),
            compute=compute,
            resources=self._keys("resources", resources, Resources),
            timeout_s=timeout_s,
            retries=retries,
            variables=dict(variables or {}),
            environment=self._keys("environment", environment, Environment),
            edgeloop=(_EXTRA,),
        )
        self._new: dict[str, Request] = {}  # neither submitted nor attached yet, by id
        self._sent: dict[str, tuple[Request, str]] = {}  # waiting for the job of this name, by id
        self._runs: dict[str, Run] = {}  # those jobs, by name
        self._useless: set[str] = set()  # jobs that completed without a result
        self._earlier: dict[str, list[Run]] = {}  # jobs that trained it before, the newest first
        self._tell = tell
        self._has_warned = False
        self._looked: set[str] = set()  # jobs that ended and whose results were fetched
        self._unusable: set[str] = set()  # jobs that cannot be asked about, or not fetched
        self._discarded: SimpleQueue[Architecture] = SimpleQueue()

    def _keys(self, name: str, given: object, kind: type[Part]) -> Part:
        """A part of a specification, also if it is written as in a job file."""
        if given is None:
            return kind()
        if isinstance(given, kind):
            return given
        spec = spec_of({"command": ["python"], name: given}, self._project, "PartialTraining")
        part: Part = getattr(spec, name)
        return part

    def discard(self, arch: Architecture) -> None:
        """Remove what only the next part of a paused training would need.

        Checkpoints are as large as three models, and the store keeps one for every pause.

        Args:
            arch: The architecture, whose training never continues.
        """
        self._discarded.put(arch)
        self._wake.set()

    def _take(self, request: Request) -> None:
        self._new[request.arch.id] = request

    def _waiting(self) -> list[str]:
        return [*self._new, *self._sent]

    def _forget(self, arch_id: str) -> None:
        self._new.pop(arch_id, None)
        self._sent.pop(arch_id, None)
        needed = {name for _, name in self._sent.values()}
        self._runs = {name: run for name, run in self._runs.items() if name in needed}

    def _poll(self) -> bool:
        has_changed = bool(self._new) and self._attach()
        has_changed |= self._submit_batches()
        has_changed |= self._refresh()
        self._remove_checkpoints()
        return has_changed

    # Jobs that exist already

    def _attach(self) -> bool:
        """Wait for jobs that an earlier run submitted; those that failed get another attempt."""
        runs = self._known_runs()
        whole = [run for run in runs if _RUNG not in run.record.tags]
        run_by_key = {tag: run for run in whole for tag in _keys_of(run)}  # the newest run wins
        has_changed = self._attach_rungs(runs)
        request_by_key = {
            self._key(request.arch): request
            for request in self._new.values()
            if request.until is None
        }
        attached = {key: run_by_key[key] for key in request_by_key if key in run_by_key}
        unique = {run.name: run for run in attached.values()}
        fresh = {run.name: run for run in self._current(unique.values())}
        attached = {key: run for key, run in attached.items() if run.name in fresh}
        for key, run in attached.items():
            request, current = request_by_key[key], fresh[run.name]
            try:
                if current.state in ("failed", "canceled") or run.name in self._useless:
                    current = fresh[run.name] = self._resubmitted(current)
                self._wait_for(request, current)
            except (StoreUnavailable, ComputeUnavailable):
                raise
            except EdgeloopError as error:
                self._settle(failure(request.arch.id, error))
        return bool(attached) or has_changed

    def _attach_rungs(self, runs: Sequence[Run]) -> bool:
        """Trainings that pause: wait for a job that runs, use a result that is far enough, and
        remember the others, for the next job to continue from."""
        has_changed = False
        for request in [r for r in self._new.values() if r.until is not None]:
            key, arch_id = self._key(request.arch), request.arch.id
            mine = self._current(run for run in reversed(runs) if key in _keys_of(run))
            running = [run for run in mine if not run.status.is_final]
            usable = running or [run for run in mine if self._is_fetched(run)]
            settled = bool(running) or any(self._settle_with(request, run) for run in usable)
            if running:
                self._wait_for(request, running[0])
            elif not settled:
                self._earlier[arch_id] = usable
            has_changed |= settled
        return has_changed

    def _known_runs(self) -> list[Run]:
        """Jobs in this store that can be used, the oldest first."""
        here = str(self._jobs.settings.location)
        every = [run for run in self._jobs.runs.list().runs if run.record.store == here]
        return [run for run in every if run.name not in self._unusable]

    def _current(self, runs: Iterable[Run]) -> list[Run]:
        """Those that can be asked about, as they are now."""
        current, errors = self._jobs.survey(list(runs))
        for name, error in errors.items():
            self._leave_out(name, error)
        return [run for run in current if run.name not in errors]

    def _is_fetched(self, run: Run) -> bool:
        """Fetch the results of a job that has ended, once; returns whether they are here."""
        if run.name in self._looked or run.name in self._unusable:
            return run.name in self._looked
        try:
            self._jobs.fetch(run, without=(CHECKPOINT,))
        except (StoreUnavailable, ComputeUnavailable):
            raise
        except (EdgeloopError, OSError) as error:
            self._leave_out(run.name, error)
            return False
        self._looked.add(run.name)
        return True

    def _leave_out(self, name: str, error: Exception) -> None:
        """One earlier job that is damaged must not fail those that need nothing of it."""
        self._unusable.add(name)
        self._tell(f"The job {name} is left out: {error}")

    def _remove_checkpoints(self) -> None:
        """Of trainings that never continue, from all their jobs that have ended."""
        with suppress(Empty, EdgeloopError, OSError):  # what stays there costs space only
            while True:
                arch = self._discarded.get_nowait()
                key = self._key(arch)
                for run in self._current(r for r in self._known_runs() if key in _keys_of(r)):
                    folder = arch.id if len(_keys_of(run)) > 1 else ""
                    if run.status.is_final:
                        path = f"{folder}/{CHECKPOINT}".lstrip("/")
                        discard_outputs(self._jobs.blobs, run.record.id, [path])

    def _resubmitted(self, run: Run) -> Run:
        if not Path(str(run.record.spec.get("code", ""))).is_dir():
            reason = f"the code of {run.name} is gone: remove that job with 'edgeloop job remove'"
            raise BadInput(reason=reason)
        return self._jobs.resubmit(run, push=False, with_outputs=True)

    # Jobs of our own

    def _submit_batches(self) -> bool:
        has_changed = False
        while ready := self._ready():
            try:
                self._submit(ready)
            except JobNameTaken:  # by another process; the next poll finds that job
                return True
            except (StoreUnavailable, ComputeUnavailable):
                raise
            except EdgeloopError as error:
                for request in ready:
                    self._settle(failure(request.arch.id, error))
            has_changed = True
        return has_changed

    def _ready(self) -> list[Request]:
        """What to submit now: full batches, or those that have waited long enough."""
        most = self._batch * self._steps
        waiting = list(self._new.values())[:most]
        if not waiting or len(waiting) == most:
            return waiting
        return waiting if time.monotonic() - waiting[0].sent > _LINGER_S else []

    def _submit(self, ready: Sequence[Request]) -> None:
        size = self._batch
        batches = [ready[start : start + size] for start in range(0, len(ready), size)]
        specs = [self._spec(batch) for batch in batches]
        runs = self._jobs.submit_all(specs, push=False, tell=self._tell_once)
        for batch, run in zip(batches, runs, strict=True):
            for request in batch:
                self._wait_for(request, run)

    def _tell_once(self, sentence: str) -> None:
        """It is the same for every batch of an evaluator, apart from the day that it names."""
        if not self._has_warned:
            self._has_warned = True
            self._tell(sentence)

    def _sources(self, batch: Sequence[Request]) -> list[EarlierOutputs]:
        """Where the checkpoints of a batch are: a job of one architecture has it in `outputs/`."""
        sources = []
        for arch_id in (request.arch.id for request in batch):
            into = arch_id if len(batch) > 1 else ""
            for run in self._earlier.get(arch_id, ()):
                folder = arch_id if len(_keys_of(run)) > 1 else ""
                sources.append(EarlierOutputs(run.record.id, folder, into))
        return sources

    def _spec(self, batch: Sequence[Request]) -> JobSpec:
        archs = tuple(request.arch for request in batch)
        keys = tuple(self._key(arch) for arch in archs)
        last = keys[0].replace("=", "-") if len(keys) == 1 else f"{len(keys)}-{digest(*keys)}"
        name = f"{self._search}-{last}"
        sources = self._sources(batch)
        until = {request.arch.id: request.until for request in batch if request.until is not None}
        if until:  # each of them has a job per rung, and more after faults
            jobs = [source.job for source in sources]
            farthest = max(until.values())
            name = f"{name}-{farthest}-{digest(*keys, str(sorted(until.items())), *jobs)[:8]}"
        return replace(
            self._template,
            name=name,
            code=self._code(name, archs, until),
            tags=(self._search, *keys, *([_RUNG] if until else [])),
            earlier=tuple(sources),
            command=(
                "python",
                "-P",
                "-m",
                _MODULE,
                ORDER,
                "--dataset",
                f"{{input:{self._version.name}}}",
                "--out",
                "{outputs}",
            ),
        )

    def _code(self, name: str, archs: tuple[Architecture, ...], until: Mapping[str, int]) -> Path:
        """What is sent: the order, and the files of a user's space and environment. It stays for
        other attempts."""
        folder = self._project / STORE_FOLDER / "search" / name
        order = TrainingOrder(self._plan, archs, self.conditions, self._at_once, until)
        order.save(folder / ORDER)
        for source in {source_of(arch, self._project) for arch in archs} - {None}:
            target = folder / str(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._project / str(source), target)
        self._copy_environment(folder)
        return folder

    def _copy_environment(self, folder: Path) -> None:
        """A requirements file gets what Edgeloop needs; a compute adds that to conda files."""
        environment = self._template.environment
        if environment.kind not in ("requirements", "conda"):
            return
        try:
            text = (self._project / environment.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            reason = f"train.environment names {environment.file}, which is not a file of the "
            raise BadInput(reason=f"{reason}project {self._project}") from None
        if environment.kind == "requirements":
            text = "\n".join((text, *edgeloop_requirements(_EXTRA), ""))
        target = folder / environment.file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def _key(self, arch: Architecture) -> str:
        """With the text of a user's space: an edited file builds another model with the same id."""
        source = source_of(arch, self._project)
        text = b"" if source is None else (self._project / source).read_bytes()
        return f"{arch.id}={digest(self.conditions, text)}"

    def _wait_for(self, request: Request, run: Run) -> None:
        self._new.pop(request.arch.id, None)
        self._earlier.pop(request.arch.id, None)
        self._sent[request.arch.id] = (request, run.name)
        self._runs[run.name] = run

    # Their results

    def _refresh(self) -> bool:
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
        self._is_fetched(run)
        members = [request for request, name in self._sent.values() if name == run.name]
        for request in members:
            if self._settle_with(request, run):
                continue
            if run.state == "completed" and self._is_of_earlier_rung(request, run):
                self._sent.pop(request.arch.id)
                self._new[request.arch.id] = request
                continue
            if run.state == "completed":
                self._useless.add(run.name)
            self._settle(failure(request.arch.id, self._why(run), is_final=False))

    def _is_of_earlier_rung(self, request: Request, run: Run) -> bool:
        """Submitted before a kill: it did what was asked then. One that failed has such a result,
        too, because it began with the outputs of the rung before."""
        return request.until is not None and self._outcome(request, run, until=1) is not None

    def _settle_with(self, request: Request, run: Run) -> bool:
        """With the result of a job, if it has one that is far enough."""
        outcome = self._outcome(request, run, request.until)
        if outcome is not None:
            seconds = time.monotonic() - request.sent
            evaluation = outcome.evaluation(self._folder_in(request, run))
            self._settle(replace(evaluation, seconds=seconds))
        return outcome is not None

    def _outcome(self, request: Request, run: Run, until: int | None) -> TrainingOutcome | None:
        folder = self._folder_in(request, run)
        return read_outcome(folder, request.arch.id, self.conditions, until)

    def _folder_in(self, request: Request, run: Run) -> Path:
        """See TrainingOrder.folder."""
        folder = self._jobs.outputs(run)
        return folder / request.arch.id if len(_keys_of(run)) > 1 else folder

    def _why(self, run: Run) -> str:
        log = f"'edgeloop job logs {run.name}' shows its log"
        if run.state == "completed":
            return f"The job {run.name} completed without a result; {log}"
        verb = "failed" if run.state == "failed" else f"was {run.state}"
        reason = run.status.reason.rstrip(".") or "no reason given"
        return f"The job {run.name} {verb}: {reason}; {log}"

    def close(self) -> None:
        """Cancels its jobs and waits for them up to a limit; a slow cluster ends them later."""
        super().close()
        self._remove_checkpoints()
        running = [run for run in self._runs.values() if not run.status.is_final]
        self._runs.clear()
        with suppress(WaitTimeout):
            self._jobs.wait(self._jobs.cancel(running), _CANCEL_LIMIT_S)


def _keys_of(run: Run) -> list[str]:
    """The tags that name an architecture and its conditions."""
    return [tag for tag in run.record.tags if _KEY.fullmatch(tag)]


def pinned(jobs: Jobs, data: str) -> Version:
    """One version for the whole search, even if a newer one is pushed in the meantime."""
    datasets = Datasets(jobs.blobs, jobs.settings.project / STORE_FOLDER / "index")
    reference = None
    if parse_reference(data)[1] is None:
        with suppress(NoSuchDataset):
            name, folder = find_local(jobs.settings.project, data)
            reference = datasets.push(name, folder).reference
    reference = reference or datasets.resolve(data)
    return next(v for v in datasets.versions(reference.name) if v.reference == reference)
