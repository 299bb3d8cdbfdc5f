"""The record of a search, an Optuna study: its candidates, and what became of each.

A candidate is proposed and stored as a running trial in one step, with its architecture. It ends as
complete, screened out, stopped early or failed, and stays that way. One that a limit of this
machine ended is dropped: it does not count. A search that was killed finds its running trials again
and continues with them. A proposal depends only on what has ended or
paused and on the number of proposals, so an interruption changes nothing.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from edgeloop._util.files import make_folder
from edgeloop._util.redact import redact
from edgeloop._util.retry import retry
from edgeloop._util.values import plural, suggestion
from edgeloop._util.yaml import NotYaml, parse_yaml
from edgeloop.errors import (
    BadInput,
    BadSetting,
    BadSpace,
    EdgeloopError,
    MissingExtra,
    StoreUnavailable,
)
from edgeloop.paths import runs_folder
from edgeloop.search.base import (
    Evaluator,
    Observation,
    ScreenedMember,
    barred_devices,
    broken_constraint,
    value_of,
)
from edgeloop.search.config import SearchConfig, read_config
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.spaces import Space
from edgeloop.search.sampler.members import (
    Choice,
    Distribution,
    Params,
    ProposalTrial,
    SpaceEncoding,
    ask,
    key_of,
    replayed,
)
from edgeloop.search.sampler.proposer import Proposer
from edgeloop.search.sampler.surrogate import Surrogate, fit_kernel
from edgeloop.search.stopping import expected_values
from edgeloop.settings import Settings
from edgeloop.store import Blobs
from edgeloop.store.location import Location, PostgresLocation, SqliteLocation, open_blobs

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from edgeloop.search.pool import Bank


End = Literal["complete", "screened", "stopped", "failed"]
Progress = Literal["running", "complete", "screened", "stopped", "failed"]

ARCH, VALUES, REASON, NOT_COUNTED = "arch", "values", "reason", "not_counted"
REFERENCE = "reference"
CHOSEN = "chosen"  # from a pool of screened members
RUNGS, PROMOTED, STOPPED = "rungs", "promoted", "stopped"
EARLIER = "earlier"  # of a trial: the search that it was taken over from
BASIS = "basis"  # what values depend on: of the study by key, of a trial the key
TAKEN = "taken_over"  # names of earlier searches
_REPEATS = 50  # known candidates that a sampler may propose before ours takes over


@dataclass(frozen=True)
class Candidate:
    """One architecture of a search, with all its known values by name.

    `rungs` has the values at each pause of its training, by epochs or steps; `promoted` is how far
    it was allowed to continue last.
    """

    number: int
    arch: Architecture
    params: Mapping[str, Any] = field(default_factory=dict)  # as suggested to the space
    state: Progress = "running"
    values: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    skipped: int = 0  # trials before it that do not count
    ended_at: float = 0.0  # seconds since 1970; 0 while it runs
    rungs: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    promoted: int = 0
    earlier: str = ""  # the search that it was taken over from
    basis: str = ""  # the key of what its values depend on

    @property
    def place(self) -> int:
        """Its index among those that count; Optuna's number includes repeats. That of a result of
        an earlier search is -1."""
        return self.number - self.skipped


class Study:
    """The study of one search."""

    def __init__(self, config: SearchConfig, space: Space, study: optuna.Study) -> None:
        self._config = config
        self._space = space
        self._study = study
        fronts = [front.places for front in config.fronts]
        self._proposer = Proposer(self._asked, config.seed, fronts=fronts)
        self.features: tuple[str, ...] = ()  # values that the sampler may learn from
        self.hints: Callable[[Mapping[str, Any]], Mapping[str, float]] = lambda _: {}
        self._basis = ""
        self._earlier: list[Candidate] | None = None
        self._ended: dict[int, Candidate] = {}

    @classmethod
    def open(
        cls, config: SearchConfig, space: Space, storage: optuna.storages.BaseStorage, resume: bool
    ) -> Study:
        """Create the study or, with `resume`, continue it."""
        import optuna

        ways = {"min": optuna.study.StudyDirection.MINIMIZE}
        directions = [
            ways.get(o.goal, optuna.study.StudyDirection.MAXIMIZE) for o in config.objectives
        ]
        if is_begun(storage, config) and not resume:
            raise BadInput(
                reason=f"there is already a search {config.name!r}: continue it with --resume, or "
                "give this one another search.name"
            )
        study = optuna.create_study(
            storage=storage, study_name=config.name, directions=directions, load_if_exists=True
        )
        _same_search(study, config)
        return cls(config, space, study)

    def candidates(self) -> list[Candidate]:
        """All that count, in the order of proposal."""
        counting = (trial for trial in self._trials() if _counts(trial))
        return [self._read(trial, trial.number - place) for place, trial in enumerate(counting)]

    def _read(self, trial: FrozenTrial, skipped: int) -> Candidate:
        """A trial that has ended never changes, so it is read once."""
        known = self._ended.get(trial.number)
        if known is not None and known.skipped == skipped:
            return known
        candidate = _candidate(trial, skipped)
        if trial.state.is_finished():
            self._ended[trial.number] = candidate
        return candidate

    def earlier(self) -> list[Candidate]:
        """Results of earlier searches under the same conditions: they count for what is proposed
        and for the front, and not for the budget."""
        if self._earlier is None:
            trials = [trial for trial in self._trials() if EARLIER in trial.user_attrs]
            every = [_candidate(trial, trial.number + 1) for trial in trials]
            self._earlier = [item for item in every if item.state == "complete"]
        return self._earlier

    def unfinished(self) -> list[Candidate]:
        """What an earlier run left running. A running trial without an architecture was cut off
        before it was proposed, or was a repeat; it is ended, as is one that was being dropped."""
        from optuna.trial import TrialState

        for trial in self._trials():
            is_uncounted = NOT_COUNTED in trial.user_attrs
            is_cut_off = is_uncounted or ARCH not in trial.user_attrs
            if trial.state is TrialState.RUNNING and is_cut_off:
                state = TrialState.PRUNED if is_uncounted else TrialState.FAIL
                self._study.tell(trial.number, state=state)
        return [item for item in self.candidates() if item.state == "running"]

    def propose(self) -> Candidate | None:
        """A new candidate, stored; None if the space has no other member."""
        if self._config.sampler != "default":
            for _ in range(_REPEATS):
                candidate = self._ask_optuna()
                if candidate is not None:
                    return candidate
        return self._ask_proposer()

    def architecture(self, params: Mapping[str, Any]) -> Architecture:
        """What a member of the space is called."""
        shape = (1, 3, *self._config.size)
        return Architecture(self._space.name, params, shape, self._config.classes)

    def batch(
        self, number: int, ended: int | None, bank: Sequence[ScreenedMember], count: int
    ) -> list[Params]:
        """Members worth screening for the candidate of this number; none if the space has no other.

        Of the candidates before it, the first so many count as `ended` and the others as pending,
        whatever has become of them since; None: as they are now.
        """
        candidates = self.candidates()[:number]
        ended = number if ended is None else ended
        history, pending = self._split(candidates[:ended])
        pending += [dict(item.params) for item in candidates[ended:]]
        return self._proposer.batch(number, history, pending, bank, count)

    def choose(
        self, bank: Sequence[ScreenedMember], known: Mapping[str, Mapping[str, float]]
    ) -> Candidate | None:
        """The member of the bank to train next, stored with what is `known` of it by its id; None
        if no feasible one is left."""
        candidates = self.candidates()
        taken = {item.arch.id for item in (*self.earlier(), *candidates)} | self._dropped()
        history, pending = self._split(candidates)
        left = list(bank)
        while left:
            params = self._proposer.choose(len(candidates), history, pending, left)
            if params is None:
                return None
            asked = ask(self._asked, replayed(params))
            arch = self.architecture(asked.params)
            if arch.id in known and arch.id not in taken:
                return self._stored(arch, asked.params, asked.distributions, known[arch.id])
            left = [member for member in left if member.params != params]
        return None

    def not_chosen(self) -> int:
        """How many candidates, from the first on, no pool was needed for."""
        trials = [trial for trial in self._trials() if _counts(trial)]
        chosen = [place for place, trial in enumerate(trials) if CHOSEN in trial.user_attrs]
        return chosen[0] if chosen else len(trials)

    def pause(self, candidate: Candidate, rungs: Mapping[int, Mapping[str, float]]) -> None:
        """Store the values at all pauses so far."""
        content = {str(at): dict(values) for at, values in rungs.items()}
        self._running(candidate).set_user_attr(RUNGS, content)

    def promote(self, candidate: Candidate, until: int) -> None:
        """Store how far a paused candidate continues."""
        self._running(candidate).set_user_attr(PROMOTED, until)

    def member(self, params: Mapping[str, Any]) -> ProposalTrial | None:
        """The member of the space with these parameters, if there is one."""
        asked = ask(self._asked, replayed(params))
        return asked if key_of(asked.params) == key_of(dict(params)) else None

    def take_over(self, member: ProposalTrial, values: Mapping[str, float], earlier: str) -> None:
        """Store a result of an earlier search as one of this search's conditions."""
        from optuna.trial import TrialState, create_trial

        arch = self.architecture(member.params)
        about = {ARCH: arch.canonical, VALUES: dict(values), BASIS: self._basis}
        self._study.add_trial(
            create_trial(
                state=TrialState.COMPLETE,
                params=member.params,
                distributions=optuna_distributions(member.distributions),
                values=[values[objective.name] for objective in self._config.objectives],
                user_attrs={**about, EARLIER: earlier},
            )
        )
        self._earlier = None

    @property
    def taken(self) -> dict[str, Any]:
        """What was taken over from earlier searches besides results, by their names."""
        return dict(self._study.user_attrs.get(TAKEN, {}))

    def keep_taken(self, name: str, content: object) -> None:
        self._study.set_user_attr(TAKEN, {**self.taken, name: content})

    def is_current(self, candidate: Candidate) -> bool:
        """Whether what is known of it would be found today: after an update of the compiler, the
        latency that it was chosen for is that of the old one."""
        return candidate.basis == self._basis

    def keep_basis(self, basis: Mapping[str, object]) -> None:
        """What values depend on from now on, for a later run of this search and for searches that
        start from it."""
        text = json.dumps(basis, sort_keys=True)
        self._basis = sha256(text.encode()).hexdigest()[:16]
        if f"{BASIS}:{self._basis}" not in self._study.user_attrs:
            self._study.set_user_attr(f"{BASIS}:{self._basis}", dict(basis))

    def end(
        self, candidate: Candidate, end: End, values: Mapping[str, float], reason: str = ""
    ) -> None:
        """Store the end of a candidate. A second call changes nothing."""
        from optuna.trial import TrialState

        if self._trials()[candidate.number].state.is_finished():
            return
        trial = self._running(candidate)
        trial.set_user_attr(VALUES, dict(values))
        if self._basis:
            trial.set_user_attr(BASIS, self._basis)
        if reason:
            trial.set_user_attr(REASON, reason)
        if end == "complete":
            objective_values = [values[objective.name] for objective in self._config.objectives]
            self._study.tell(candidate.number, objective_values)
            return
        if end == "stopped":
            trial.set_user_attr(STOPPED, value=True)
        state = TrialState.FAIL if end == "failed" else TrialState.PRUNED
        self._study.tell(candidate.number, state=state)

    def drop(self, candidate: Candidate, reason: str) -> None:
        """Store that a limit of this machine ended a candidate: it does not count any more, and is
        not proposed again. A second call changes nothing."""
        from optuna.trial import TrialState

        if not self._trials()[candidate.number].state.is_finished():
            self._running(candidate).set_user_attr(NOT_COUNTED, reason)
            self._study.tell(candidate.number, state=TrialState.PRUNED)

    def _dropped(self) -> set[str]:
        """The ids of candidates that this search could not evaluate."""
        trials = (trial.user_attrs for trial in self._trials())
        return {
            Architecture.from_json(about[ARCH]).id
            for about in trials
            if ARCH in about and NOT_COUNTED in about
        }

    def _running(self, candidate: Candidate) -> optuna.Trial:
        import optuna

        frozen = self._trials()[candidate.number]
        return optuna.trial.Trial(self._study, frozen._trial_id)

    @property
    def reference(self) -> object:
        """The reference point of its hypervolume, as it was kept; None if there is none."""
        return self._study.user_attrs.get(REFERENCE)

    def keep_reference(self, document: Mapping[str, object]) -> None:
        self._study.set_user_attr(REFERENCE, dict(document))

    def _asked(self, trial: Any) -> None:
        """A member that the space cannot build is one all the same, with the parameters suggested
        so far: it will fail when it is built, alone, and the search continues."""
        shape = (1, 3, *self._config.size)
        try:
            self._space.ask(trial, shape, self._config.classes)
        except BadSpace:
            if not trial.params:
                raise

    def _ask_proposer(self) -> Candidate | None:
        """Parameters that differ only in spelling build the same architecture and are skipped."""
        candidates = self.candidates()
        ids = {item.arch.id for item in (*self.earlier(), *candidates)} | self._dropped()
        number = self._proposals()
        history, pending = self._split(candidates)
        for _ in range(_REPEATS):
            params = self._proposer.propose(number, history, pending)
            if params is None:
                return None
            asked = ask(self._asked, replayed(params))
            arch = self.architecture(asked.params)
            if arch.id not in ids:
                return self._stored(arch, asked.params, asked.distributions)
            pending.append(params)
        return None

    def _split(self, candidates: Sequence[Candidate]) -> tuple[list[Observation], list[Params]]:
        """The history of these candidates and before them, and those of them that are pending. A
        training that is paused or was stopped is a result already: of what it is heading for."""
        is_stopping = self._config.rungs is not None
        expected = expected_values(self._config, candidates) if is_stopping else {}
        history = [self._observation(item) for item in self.earlier()]
        pending: list[Params] = []
        for item in candidates:
            if item.arch.id in expected or item.state == "stopped":
                partial = replace(item, values=expected.get(item.arch.id, item.values))
                history.append(self._observation(partial, is_partial=True))
            elif item.state == "running":
                pending.append(dict(item.params))
            else:
                history.append(self._observation(item))
        return history, pending

    def _stored(
        self,
        arch: Architecture,
        params: Params,
        distributions: Mapping[str, Distribution],
        values: Mapping[str, float] | None = None,
    ) -> Candidate:
        """`values` are known of a member that was screened before it was chosen."""
        from optuna.trial import TrialState, create_trial

        screened: dict[str, object] = {}
        if values is not None:
            screened = {VALUES: dict(values), CHOSEN: True, BASIS: self._basis}
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=params,
                distributions=optuna_distributions(distributions),
                user_attrs={ARCH: arch.canonical, **screened},
            )
        )
        for item in reversed(self.candidates()):  # the storage chose its number
            if item.arch == arch:
                return item
        raise BadInput(reason="the study lost a trial that was just added to it")

    def _ask_optuna(self) -> Candidate | None:
        """One of Optuna's samplers, seeded by the number of proposals so that a resumed search
        continues as it would have. None if the proposal is known; that trial does not count."""
        from optuna.trial import TrialState

        candidates = self.candidates()
        known_ids = {item.arch.id for item in (*self.earlier(), *candidates)} | self._dropped()
        self._study.sampler = optuna_sampler(self._config, self._proposals())
        trial = self._study.ask()
        self._asked(trial)
        arch = self.architecture(trial.params)
        if arch.id in known_ids:
            trial.set_user_attr(NOT_COUNTED, "proposed before")
            self._study.tell(trial, state=TrialState.PRUNED)
            return None
        trial.set_user_attr(ARCH, arch.canonical)
        return Candidate(trial.number, arch, trial.params, skipped=trial.number - len(candidates))

    def _observation(self, item: Candidate, is_partial: bool = False) -> Observation:
        """A training that was stopped has no value, and no fault, in what comes after training."""
        objectives = self._config.objectives
        is_measured = is_partial or all(objective.name in item.values for objective in objectives)
        values = (
            tuple(
                o.minimised(item.values[o.name]) if o.name in item.values else math.nan
                for o in objectives
            )
            if is_measured and item.state != "failed"
            else None
        )
        return Observation(
            dict(item.params),
            values,
            is_partial or item.state == "complete",
            self.features_of(item.params, item.values),
            is_partial,
            barred_fronts(self._config, item.values),
        )

    def features_of(
        self, params: Mapping[str, Any], values: Mapping[str, float]
    ) -> dict[str, float]:
        """What the sampler may learn from besides parameters and objectives."""
        screened = {name: values[name] for name in self.features if name in values}
        return {**screened, **self.hints(params)}

    def _proposals(self) -> int:
        """Their number, without trials that a kill cut off: the next proposal is then the same."""
        marks = (ARCH, NOT_COUNTED)
        own_trials = (trial for trial in self._trials() if EARLIER not in trial.user_attrs)
        return sum(any(key in trial.user_attrs for key in marks) for trial in own_trials)

    def _trials(self) -> Sequence[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)


def barred_fronts(config: SearchConfig, values: Mapping[str, float]) -> tuple[int, ...]:
    """The places of the fronts whose chips have limits that these values violate."""
    barred = barred_devices(values, config.constraints)
    return tuple(place for place, front in enumerate(config.fronts) if front.name in barred)


def is_begun(storage: optuna.storages.BaseStorage, config: SearchConfig) -> bool:
    """Whether a candidate was ever proposed. A search that failed before that, because of a missing
    dataset or a wrong value, is empty: a corrected one replaces it."""
    import optuna

    if config.name not in optuna.study.get_all_study_names(storage):
        return False
    study = optuna.load_study(study_name=config.name, storage=storage)
    if any(EARLIER not in trial.user_attrs for trial in study.get_trials(deepcopy=False)):
        return True
    if study.user_attrs.get("search") != _identity(config):
        optuna.delete_study(study_name=config.name, storage=storage)
    return False


def _counts(trial: FrozenTrial) -> bool:
    """Whether it is a candidate of this search."""
    about = trial.user_attrs
    return ARCH in about and NOT_COUNTED not in about and EARLIER not in about


def _identity(config: SearchConfig) -> object:
    return json.loads(json.dumps(config.identity()))


def _same_search(study: optuna.Study, config: SearchConfig) -> None:
    """A search can only be continued as what it was; the error names what differs."""
    mine = _identity(config)
    assert isinstance(mine, dict)
    stored = study.user_attrs.get("search")
    if stored is None:
        study.set_user_attr("search", mine)
        return
    differing = [key for key in mine if mine[key] != stored.get(key)]
    if differing:
        raise BadSetting(
            where=f"search {config.name!r}",
            reason=f"it was started with another {', '.join(differing)}: change that back to "
            "continue, or give this one another search.name",
        )


def _candidate(trial: FrozenTrial, skipped: int) -> Candidate:
    states: dict[str, Progress] = {
        "COMPLETE": "complete",
        "PRUNED": "screened",
        "FAIL": "failed",
        "RUNNING": "running",
    }
    attributes = trial.user_attrs
    is_stopped = STOPPED in attributes and trial.state.is_finished()
    earlier = str(attributes.get(EARLIER, ""))
    return Candidate(
        trial.number,
        Architecture.from_json(attributes[ARCH]),
        trial.params,
        state="stopped" if is_stopped else states[trial.state.name],
        values=attributes.get(VALUES, {}),
        reason=attributes.get(REASON, "") or (f"from {earlier}" if earlier else ""),
        skipped=skipped,
        ended_at=trial.datetime_complete.timestamp() if trial.datetime_complete else 0.0,
        rungs={int(at): values for at, values in attributes.get(RUNGS, {}).items()},
        promoted=int(attributes.get(PROMOTED, 0)),
        earlier=earlier,
        basis=str(attributes.get(BASIS, "")),
    )


# Starting from earlier searches: what they found is not found again.
#
# A result of the same network counts as one of this search if its values were obtained under the
# same conditions: the same dataset and training, and for cheap values the same compiler and chip.
# A cheap value that is missing, such as the latency on another chip, is computed. These results
# are stored in the study: they are the sampler's history and may be on the front, cost nothing of
# the budget, and a search that is resumed has them.
#
# A score of another training, of more epochs or other images, is not comparable. All such scores
# of one kind are learnt by a model of their own, whose prediction for a network is a feature
# beside its parameters: the sampler finds out by itself how much it says about the scores of this
# search.
#
# Networks are the same if the space, the text of its file, the size of the image and the classes
# are.


_SAME = ("space", "size", "classes")
_MOST_SCORES = 500  # of one kind, from one search
_LEAST_SCORES, _MOST_KINDS = 8, 3
_FITTED_TO = 120  # scores that a kernel is fitted to
_LOOK_S = 1.0

Tell = Callable[[str], None]
Found = TypeVar("Found")
OpenMember = tuple[ProposalTrial, dict[str, float], Architecture]


@dataclass(frozen=True)
class EarlierSearch:
    """Where an earlier search is: its study, and its folder if there is one here."""

    name: str
    storage: BaseStorage
    study: str
    folder: Path | None = None


@dataclass
class TakenOver:
    """What was taken over from one search, and why the rest was not."""

    name: str
    results: int = 0
    known: int = 0  # results that this search had already
    scores: int = 0
    members: int = 0  # screened, not trained
    left: Counter[str] = field(default_factory=Counter)  # candidates by the reason
    faults: int = 0  # results whose missing values this machine could not find
    fault: str = ""  # the first of them

    def __str__(self) -> str:
        parts = [f"took over {plural(self.results, 'result')}"]
        if self.known:
            parts.append(f"{plural(self.known, 'result')} were here already")
        if self.members:
            parts.append(plural(self.members, "screened network"))
        if self.scores:
            parts.append(f"learns from {plural(self.scores, 'score')} of other trainings")
        parts += [f"{number} not used: {reason}" for reason, number in self.left.items()]
        if self.faults:
            what = f"{self.faults} could not be screened on this machine ({self.fault.rstrip('.')})"
            parts.append(f"{what}: --resume tries again")
        return f"From {self.name}: {'; '.join(parts)}"


def basis_of(
    evaluators: Sequence[Evaluator], config: SearchConfig, project: Path
) -> dict[str, object]:
    """What the results of a search depend on besides the architecture."""
    values = {
        name: evaluator.depends_on(name)
        for evaluator in evaluators
        for name in (*evaluator.gives, *evaluator.beside)
    }
    return {"space": space_text(config.space, project), "values": values}


def space_text(space: str, project: Path) -> str:
    """A digest of the file of a user's space; empty for a built-in one."""
    file, colon, _ = space.rpartition(":")
    try:
        return sha256((project / file).read_bytes()).hexdigest()[:16] if colon else ""
    except OSError:
        return "missing"


def start_from_earlier(
    config: SearchConfig,
    settings: Settings,
    study: Study,
    evaluators: Sequence[Evaluator],
    bank: Bank,
    tell: Tell,
) -> None:
    """Results of earlier searches join the study, and what they screened joins the bank, before
    anything is proposed. All are read before anything is taken over: if one cannot be, nothing is.
    A search that is not there any more may have been taken over before."""
    basis = basis_of(evaluators, config, settings.project)
    patiently(lambda: study.keep_basis(basis))
    results = EarlierResults(config, study, evaluators, basis)
    searches: list[EarlierSearch] = []
    for name in config.earlier:
        try:
            searches.append(_readable(name, partial(find_earlier, name, config, settings)))
        except BadInput:
            if name not in study.taken:
                raise
    read = [_readable(one.name, partial(results.read, one)) for one in searches]
    for earlier, content in zip(searches, read, strict=True):
        taken = results.store(content)
        if earlier.folder is not None:
            taken.members = bank.adopt(earlier.folder / BANK)
        tell(str(taken))
    study.hints = EarlierScores(study)


def _readable(name: str, read: Callable[[], Found]) -> Found:
    """What `read` returns; whatever is wrong with the files of another search is one sentence."""
    try:
        return read()
    except EdgeloopError:
        raise
    except Exception as error:  # noqa: BLE001 - a database or its content may be anything
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        reason = f"nothing was taken over: the search {name!r} cannot be read: {redact(first)}"
        raise BadInput(reason=reason) from None


def find_earlier(name: str, config: SearchConfig, settings: Settings) -> EarlierSearch:
    """A search by its folder, which may be another project's, by its name in the store, or by the
    job that ran it."""
    import optuna

    own_storage = open_storage(settings.location)
    if not (Path(name) / KEPT_CONFIG).is_file() and name in optuna.study.get_all_study_names(
        own_storage
    ):
        earlier = EarlierSearch(name, own_storage, name, found_searches(settings.project).get(name))
    else:
        folder = find_search(name, settings.project)
        kept_config = kept_search(folder, settings.project)
        there = Settings.load(folder, store=kept_config.store or None)
        storage = (
            own_storage if there.location == settings.location else open_storage(there.location)
        )
        names = optuna.study.get_all_study_names(storage)
        if kept_config.name not in names:
            hint = suggestion(kept_config.name, names, "there are") if names else "it has none"
            reason = f"the search in {folder} is not in the store {there.location}: {hint}"
            raise BadInput(reason=f"{reason}. Start Edgeloop with the store it was run with")
        earlier = EarlierSearch(name, storage, kept_config.name, folder)
    if earlier.storage is own_storage and earlier.study == config.name:
        raise BadInput(reason=f"the search {config.name!r} cannot start from itself")
    return earlier


@dataclass(frozen=True)
class ReadSearch:
    """What there is to take over from one search, before any of it is stored."""

    earlier: EarlierSearch
    taken: TakenOver
    members: Sequence[OpenMember]
    scores: Mapping[str, list[list[object]]]


class EarlierResults:
    """Takes over what earlier searches found, for a search with these evaluators and this basis."""

    def __init__(
        self,
        config: SearchConfig,
        study: Study,
        evaluators: Sequence[Evaluator],
        basis: Mapping[str, object],
    ) -> None:
        self._config, self._study, self._evaluators = config, study, list(evaluators)
        self._basis = basis
        self._expensive = {name for e in evaluators if e.cost > 0 for name in e.gives}
        self._cheap = {name for e in evaluators if e.cost == 0 for name in e.gives}
        self._read: set[str] = set()  # architectures that were read and may not be stored yet

    def read(self, earlier: EarlierSearch) -> ReadSearch:
        """What can be used of a search, complete with cheap values that were missing."""
        import optuna

        earlier_study = optuna.load_study(study_name=earlier.study, storage=earlier.storage)
        self._check_space(earlier, earlier_study.user_attrs)
        taken = TakenOver(earlier.name)
        own_candidates = (*self._study.earlier(), *self._study.candidates())
        have = self._read | {item.arch.id for item in own_candidates}
        open_members: list[OpenMember] = []
        scores: dict[str, list[list[object]]] = {}
        for trial in earlier_study.get_trials(deepcopy=False):
            if ARCH not in trial.user_attrs:
                continue
            arch = Architecture.from_json(trial.user_attrs[ARCH])
            member, reason = self._usable(trial, arch, earlier_study.user_attrs)
            if member is None:
                taken.left[reason] += 1
                continue
            basis = earlier_study.user_attrs[f"{BASIS}:{trial.user_attrs[BASIS]}"]["values"]
            values = self._same_values(trial.user_attrs[VALUES], basis)
            if arch.id in have:
                taken.known += 1
            elif self._expensive <= set(values):
                open_members.append((member, values, arch))
                have.add(arch.id)
            else:
                taken.scores += self._add_scores(scores, trial, basis)
        complete = self._completed(open_members, taken)
        self._read |= {arch.id for _, _, arch in complete}
        return ReadSearch(earlier, taken, complete, scores)

    def store(self, content: ReadSearch) -> TakenOver:
        """Results join the study; what is there already stays."""
        earlier, taken = content.earlier, content.taken
        for member, values, _ in content.members:
            self._study.take_over(member, values, earlier.name)
            taken.results += 1
        about = {"folder": str(earlier.folder or ""), "scores": content.scores}
        self._study.keep_taken(earlier.name, about)
        return taken

    def _check_space(self, earlier: EarlierSearch, attributes: Mapping[str, Any]) -> None:
        theirs, mine = attributes.get("search") or {}, self._config.identity()
        for key in _SAME:
            if theirs.get(key) != mine[key]:
                reason = f"it has another {key}, {theirs.get(key)} and not {mine[key]}"
                raise BadInput(
                    reason=f"nothing of the search {earlier.name!r} can be used: {reason}"
                )

    def _usable(
        self, trial: FrozenTrial, arch: Architecture, attributes: Mapping[str, Any]
    ) -> tuple[ProposalTrial | None, str]:
        """The member of this space that a candidate is, or why it cannot be used."""
        if trial.state.name != "COMPLETE":
            return None, "without a result"
        basis = attributes.get(f"{BASIS}:{trial.user_attrs.get(BASIS)}")
        if not isinstance(basis, Mapping):
            return None, "of a version that did not keep the conditions of results"
        if basis.get("space") != self._basis["space"]:
            return None, f"{self._config.space.rpartition(':')[0]} was another one then"
        try:
            member = self._study.member(arch.params)
        except (BadSpace, BadInput):
            member = None
        if member is None:
            return None, "not in this space"
        return member, ""

    def _same_values(
        self, values: Mapping[str, float], basis: Mapping[str, str]
    ) -> dict[str, float]:
        """Those of this search's values that were obtained under its conditions. A chip may have
        been the only one, and is then not in the name."""
        mine = self._basis["values"]
        assert isinstance(mine, Mapping)
        by_conditions = {(value_of(n), basis[n]): values[n] for n in values if n in basis}
        return {
            name: by_conditions[value_of(name), conditions]
            for name, conditions in mine.items()
            if (value_of(name), conditions) in by_conditions
        }

    def _add_scores(
        self, scores: dict[str, list[list[object]]], trial: FrozenTrial, basis: Mapping[str, str]
    ) -> int:
        """Remember what another training said of a network; returns whether it said anything."""
        values, added = trial.user_attrs[VALUES], 0
        for name in (objective.name for objective in self._config.objectives):
            if name in self._expensive and name in values and name in basis:
                key = f"{name} {sha256(basis[name].encode()).hexdigest()[:8]}"
                points = scores.setdefault(key, [])
                if len(points) < _MOST_SCORES:
                    points.append([dict(trial.params), values[name]])
                    added = 1
        return added

    def _completed(self, several: Sequence[OpenMember], taken: TakenOver) -> list[OpenMember]:
        """With cheap values that were missing, and without those that violate a limit. What this
        machine could not screen has not failed: it is not stored, and the next run tries again."""
        lacking = [arch for _, values, arch in several if not self._cheap <= set(values)]
        more, faults = self._screened(lacking)
        taken.faults, taken.fault = len(faults), next(iter(faults.values()), "")
        complete = []
        for member, values, arch in several:
            all_values = {**values, **more.get(arch.id, {})}
            if arch.id in faults:
                continue
            if not {objective.name for objective in self._config.objectives} <= set(all_values):
                taken.left["cannot be built or compiled"] += 1
            elif broken_constraint(all_values, self._config.constraints):
                taken.left["not within the limits of this search"] += 1
            else:
                complete.append((member, all_values, arch))
        return complete

    def _screened(
        self, archs: Sequence[Architecture]
    ) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """Values by the id of an architecture, and what the machine could not do."""
        values_by_id: dict[str, dict[str, float]] = {}
        faults: dict[str, str] = {}
        for evaluator in self._evaluators:
            if evaluator.cost > 0:
                continue
            waiting, asked = {arch.id: arch for arch in archs}, Counter[str]()
            evaluator.send_all([(arch, {}) for arch in archs])
            while waiting:
                for evaluation in evaluator.collect(_LOOK_S):
                    arch_id = evaluation.arch_id
                    is_fault = bool(evaluation.error) and not evaluation.is_final
                    asked[arch_id] += 1
                    if is_fault and asked[arch_id] <= self._config.retries:
                        evaluator.send(waiting[arch_id])
                        continue
                    del waiting[arch_id]
                    values_by_id.setdefault(arch_id, {}).update(evaluation.values)
                    if is_fault or evaluation.is_unjudged:
                        faults[arch_id] = evaluation.error
        return values_by_id, faults


class EarlierScores:
    """Predicts what earlier trainings of other conditions would say of a network, as features.

    A kind of score has a model if there are enough scores of it. It is fitted once; features are
    multiples of the spread of the scores.
    """

    def __init__(self, study: Study) -> None:
        self._models: dict[str, ScoreModel] = {}
        kinds = sorted(_scores_in(study.taken).items(), key=lambda item: -len(item[1]))
        for name, points in kinds[:_MOST_KINDS]:
            members = [(study.member(params), score) for params, score in points]
            scored_members = [(member, score) for member, score in members if member is not None]
            if len(scored_members) >= _LEAST_SCORES:
                self._models[name] = ScoreModel(*zip(*scored_members, strict=True))
        self._known: dict[str, dict[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._models)

    def __call__(self, params: Mapping[str, Any]) -> Mapping[str, float]:
        key = key_of(dict(params))
        if key not in self._known:
            self._known[key] = {
                f"earlier {name}": model.predict(params) for name, model in self._models.items()
            }
        return self._known[key]


class ScoreModel:
    """A Gaussian process over the members of a space, fitted to scores."""

    def __init__(self, members: Sequence[ProposalTrial], scores: Sequence[float]) -> None:
        from threadpoolctl import threadpool_limits

        self._encoding = SpaceEncoding.of(member.distributions for member in members)
        encoded = self._encoding.encode([member.params for member in members])
        score_array = np.array(scores, dtype=np.float64)
        targets = (score_array - score_array.mean()) / (float(score_array.std()) or 1.0)
        names, groups = self._encoding.names, self._encoding.groups
        with threadpool_limits(1, user_api="blas"):
            kernel = fit_kernel(names, encoded[:_FITTED_TO], groups, targets[:_FITTED_TO])
            self._surrogate = Surrogate(kernel, names, groups, encoded, targets)

    def predict(self, params: Mapping[str, Any]) -> float:
        mean, _ = self._surrogate.predict(self._encoding.encode([params]))
        return float(mean[0])


def _scores_in(taken: Mapping[str, Any]) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """Scores of other trainings by their kind, of all earlier searches."""
    by_kind: dict[str, list[tuple[dict[str, Any], float]]] = {}
    for about in taken.values():
        for name, points in dict(about).get("scores", {}).items():
            by_kind.setdefault(name, []).extend((dict(params), float(v)) for params, v in points)
    return by_kind


# Where studies are stored: beside the store, so that any machine that can open the store can
# continue them.
#
# SQLite and PostgreSQL hold Optuna's own tables, which its dashboard can open. On an Azure
# account a study is a journal of small blobs with create-if-absent, which is all that Optuna needs.


STUDIES_FILE = "studies.db"
_READERS = 16
_CONNECT_S = 5
_BUSY_S = 30.0
_PREFIX = "_search/log/"
PATIENCE_S = 600.0

Result = TypeVar("Result")


def open_storage(location: Location) -> BaseStorage:
    """Optuna's storage beside a store."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra(what="A search", extra="train") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a search reports trials itself

    if isinstance(location, SqliteLocation):
        make_folder(location.folder)
        return _tables(f"sqlite:///{location.folder / STUDIES_FILE}", timeout=_BUSY_S)
    if isinstance(location, PostgresLocation):
        url = location.url.replace("postgresql:", "postgresql+psycopg:", 1)
        return _tables(url, connect_timeout=_CONNECT_S)
    return optuna.storages.JournalStorage(_journal(open_blobs(location)))


def _tables(url: str, **connecting: float) -> BaseStorage:
    import optuna

    return optuna.storages.RDBStorage(
        url,
        engine_kwargs={"pool_pre_ping": True, "connect_args": connecting},
        skip_compatibility_check=False,
    )


def _journal(blobs: Blobs) -> Any:
    from optuna.storages.journal import BaseJournalBackend

    class BlobJournal(BaseJournalBackend):
        """One blob per batch of entries, numbered consecutively."""

        def __init__(self) -> None:
            self._entries: list[dict[str, Any]] = []
            self._files = 0

        def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
            self._catch_up()
            return iter(self._entries[log_number_from:])

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            content = json.dumps(logs).encode()
            while not blobs.create(f"{_PREFIX}{self._files:09d}.json", content):
                self._catch_up()
            self._entries += json.loads(content)
            self._files += 1

        def _catch_up(self) -> None:
            """Blobs never change and leave no gaps, so only those after the last one are read."""
            keys = sorted(info.key for info in blobs.list(_PREFIX))[self._files :]
            with ThreadPoolExecutor(_READERS) as pool:
                for content in pool.map(blobs.read, keys):
                    self._entries += json.loads(content)
                    self._files += 1

    return BlobJournal()


def patiently(action: Callable[[], Result], patience_s: float = PATIENCE_S) -> Result:
    """Retry while the store is away: a search lasts longer than the restart of a database."""

    def attempt() -> Result:
        try:
            return action()
        except StoreUnavailable:
            raise
        except Exception as error:
            if not _is_away(error):
                raise
            reason = "its database does not answer"
            raise StoreUnavailable(store="with the study", reason=reason) from None

    return retry(attempt, StoreUnavailable, patience_s, longest_s=10.0)


def _is_away(error: Exception) -> bool:
    """Our stores raise StoreUnavailable; Optuna lets the errors of its database through."""
    from sqlalchemy.exc import DBAPIError, OperationalError

    return any(
        isinstance(cause, OperationalError)
        or (isinstance(cause, DBAPIError) and cause.connection_invalidated)
        for cause in (error, error.__cause__)
    )


def optuna_sampler(config: SearchConfig, number: int) -> BaseSampler:
    """One of Optuna's own, for the proposal of this number."""
    import warnings

    import optuna

    seed = (config.seed * 1_000_003 + number) % (2**31)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate TPE is experimental, and the best
        if config.sampler == "tpe":
            return optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed)
        if config.sampler == "nsga2":
            return optuna.samplers.NSGAIISampler(population_size=20, seed=seed)
        if config.sampler == "gp":
            return optuna.samplers.GPSampler(seed=seed)
        return optuna.samplers.RandomSampler(seed=seed)


def optuna_distributions(distributions: Mapping[str, Distribution]) -> dict[str, Any]:
    """As Optuna writes them."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    converted: dict[str, Any] = {}
    for name, asked in distributions.items():
        if isinstance(asked, Choice):
            converted[name] = CategoricalDistribution(list(asked.choices))
        elif asked.whole:
            step = int(asked.step or 1)
            converted[name] = IntDistribution(int(asked.low), int(asked.high), asked.log, step)
        else:
            converted[name] = FloatDistribution(asked.low, asked.high, asked.log, asked.step)
    return converted


# Where the files of searches are: in a folder each, or among the results of a job that ran one.


SEARCHES, KEPT_CONFIG, LOCK = "searches", "search.yaml", ".lock"
CANDIDATES, PARETO = "candidates.csv", "pareto"
BANK = "bank.jsonl"  # what was screened
UTILISATION = "utilisation.json"  # of `trainers` and `gpu`, from 0 to 1, as far as it is known
_OUTPUTS = "outputs"


def found_searches(project: Path) -> dict[str, Path]:
    """The folders of searches by their names; those of jobs, whose results were fetched, by the
    names of the jobs."""
    fetched = sorted(runs_folder(project).glob(f"*/{_OUTPUTS}/{KEPT_CONFIG}"))
    run_here = sorted(project.glob(f"{SEARCHES}/*/{KEPT_CONFIG}"))
    return {
        **{file.parents[1].name: file.parent for file in fetched},
        **{file.parent.name: file.parent for file in run_here},
    }


def find_search(name: str, project: Path) -> Path:
    """The folder of a search, by its name, by the name of the job that ran it, or by itself."""
    for folder in (Path(name), Path(name) / _OUTPUTS):
        if (folder / KEPT_CONFIG).is_file():
            return folder.resolve()
    folders = found_searches(project)
    folder_found = folders.get(name) or fetched_search(name, project)
    if folder_found is not None:
        return folder_found
    if (runs_folder(project) / name).is_dir():
        reason = f"the results of the search {name!r} are not here: fetch them with "
        raise BadInput(reason=f"{reason}'edgeloop job results {name}'")
    there = (
        suggestion(name, sorted(folders), "there are") if folders else "none was run or fetched yet"
    )
    raise BadInput(reason=f"there is no search {name!r} in {project.absolute()}: {there}")


def fetched_search(name: str, project: Path) -> Path | None:
    """The newest fetched results of a search that ran as a job."""
    files = runs_folder(project).glob(f"*/{_OUTPUTS}/{KEPT_CONFIG}")
    matching = [file for file in files if _name_in(file) == name]
    return max(matching, key=lambda file: file.stat().st_mtime).parent if matching else None


def kept_search(folder: Path, project: Path, overrides: Sequence[str] = ()) -> SearchConfig:
    """The configuration of a search that was run. It continues in its own folder; one whose
    results were fetched from a job continues in `searches/`."""
    config = read_config(folder / KEPT_CONFIG, overrides, any_folder=True)
    is_fetched = runs_folder(project).resolve() in folder.resolve().parents
    return replace(config, folder="" if is_fetched else str(folder.resolve()))


def arch_ids(folder: Path) -> set[str]:
    """The architectures that a search has evaluated."""
    ids = {file.stem for file in (folder / PARETO).glob("id_*.json")}
    with suppress(OSError), (folder / CANDIDATES).open(newline="", encoding="utf-8") as file:
        ids |= {row.get("arch_id") or "" for row in csv.DictReader(file)}
    return ids - {""}


def adopt(folder: Path, name: str, project: Path) -> None:
    """Start from the results of a job, if the search was run as one and not here yet."""
    fetched = None if (folder / KEPT_CONFIG).is_file() else fetched_search(name, project)
    if fetched is not None and fetched.resolve() != folder.resolve():
        shutil.copytree(fetched, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK))


def _name_in(file: Path) -> str:
    try:
        document = parse_yaml(file.read_text(encoding="utf-8")).value
    except (OSError, UnicodeDecodeError, NotYaml):
        return ""
    search = document.get("search") if isinstance(document, dict) else None
    return str(search.get("name") or "") if isinstance(search, dict) else ""
