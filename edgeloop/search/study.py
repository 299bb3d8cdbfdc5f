"""The record of a search, an Optuna study: its candidates, and what became of each.

A candidate is proposed and stored as a running trial in one step, with its architecture. It ends as
complete, screened out, stopped early or failed, and stays that way. A search that was killed finds
its running trials again and continues with them. A proposal depends only on what has ended or
paused and on the number of proposals, so an interruption changes nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from edgeloop.errors import BadInput, BadSetting, BadSpace
from edgeloop.search.base import Observation, ScreenedMember, barred_devices
from edgeloop.search.config import SearchConfig
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.spaces import Space
from edgeloop.search.sampler.members import replayed
from edgeloop.search.sampler.proposer import Proposer
from edgeloop.search.sampler.trial import Distribution, Params, ProposalTrial, ask, key_of
from edgeloop.search.stopping import expected_values
from edgeloop.search.storage import optuna_distributions, optuna_sampler

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

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
        return [_candidate(trial, trial.number - place) for place, trial in enumerate(counting)]

    def earlier(self) -> list[Candidate]:
        """Results of earlier searches under the same conditions: they count for what is proposed
        and for the front, and not for the budget."""
        if self._earlier is None:
            found = [trial for trial in self._trials() if EARLIER in trial.user_attrs]
            every = [_candidate(trial, trial.number + 1) for trial in found]
            self._earlier = [item for item in every if item.state == "complete"]
        return self._earlier

    def unfinished(self) -> list[Candidate]:
        """What an earlier run left running. A running trial without an architecture was cut off
        before it was proposed, or was a repeat; it is ended."""
        from optuna.trial import TrialState

        for trial in self._trials():
            if trial.state is TrialState.RUNNING and ARCH not in trial.user_attrs:
                is_repeat = NOT_COUNTED in trial.user_attrs
                state = TrialState.PRUNED if is_repeat else TrialState.FAIL
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
        known = self.candidates()[:number]
        ended = number if ended is None else ended
        history, pending = self._split(known[:ended])
        pending += [dict(item.params) for item in known[ended:]]
        return self._proposer.batch(number, history, pending, bank, count)

    def choose(
        self, bank: Sequence[ScreenedMember], known: Mapping[str, Mapping[str, float]]
    ) -> Candidate | None:
        """The member of the bank to train next, stored with what is `known` of it by its id; None
        if no feasible one is left."""
        candidates = self.candidates()
        taken = {item.arch.id for item in (*self.earlier(), *candidates)}
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

    def keep_taken(self, name: str, found: object) -> None:
        self._study.set_user_attr(TAKEN, {**self.taken, name: found})

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
            found = [values[objective.name] for objective in self._config.objectives]
            self._study.tell(candidate.number, found)
            return
        if end == "stopped":
            trial.set_user_attr(STOPPED, value=True)
        state = TrialState.FAIL if end == "failed" else TrialState.PRUNED
        self._study.tell(candidate.number, state=state)

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
        known = self.candidates()
        ids = {item.arch.id for item in (*self.earlier(), *known)}
        number = self._proposals()
        history, pending = self._split(known)
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

    def _split(self, known: Sequence[Candidate]) -> tuple[list[Observation], list[Params]]:
        """The history of these candidates and before them, and those of them that are pending. A
        training that is paused or was stopped is a result already: of what it is heading for."""
        expected = expected_values(self._config, known)
        history = [self._observation(item) for item in self.earlier()]
        pending: list[Params] = []
        for item in known:
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

        own = self.candidates()
        known = {item.arch.id for item in (*self.earlier(), *own)}
        self._study.sampler = optuna_sampler(self._config, self._proposals())
        trial = self._study.ask()
        self._asked(trial)
        arch = self.architecture(trial.params)
        if arch.id in known:
            trial.set_user_attr(NOT_COUNTED, "proposed before")
            self._study.tell(trial, state=TrialState.PRUNED)
            return None
        trial.set_user_attr(ARCH, arch.canonical)
        return Candidate(trial.number, arch, trial.params, skipped=trial.number - len(own))

    def _observation(self, item: Candidate, is_partial: bool = False) -> Observation:
        """A training that was stopped has no value, and no fault, in what comes after training."""
        objectives = self._config.objectives
        known = is_partial or all(objective.name in item.values for objective in objectives)
        values = (
            tuple(
                o.minimised(item.values[o.name]) if o.name in item.values else math.nan
                for o in objectives
            )
            if known and item.state != "failed"
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
        known = {name: values[name] for name in self.features if name in values}
        return {**known, **self.hints(params)}

    def _proposals(self) -> int:
        """Their number, without trials that a kill cut off: the next proposal is then the same."""
        known = (ARCH, NOT_COUNTED)
        own = (trial for trial in self._trials() if EARLIER not in trial.user_attrs)
        return sum(any(key in trial.user_attrs for key in known) for trial in own)

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
    known = study.user_attrs.get("search")
    if known is None:
        study.set_user_attr("search", mine)
        return
    differing = [key for key in mine if mine[key] != known.get(key)]
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
        "stopped" if is_stopped else states[trial.state.name],
        attributes.get(VALUES, {}),
        attributes.get(REASON, "") or (f"from {earlier}" if earlier else ""),
        skipped,
        trial.datetime_complete.timestamp() if trial.datetime_complete else 0.0,
        {int(at): values for at, values in attributes.get(RUNGS, {}).items()},
        int(attributes.get(PROMOTED, 0)),
        earlier,
        str(attributes.get(BASIS, "")),
    )
