"""Starting from earlier searches: what they found is not found again.

A result of the same network counts as one of this search if its values were obtained under the same
conditions: the same dataset and training, and for cheap values the same compiler and chip. A cheap
value that is missing, such as the latency on another chip, is computed. These results are stored in
the study: they are the sampler's history and may be on the front, cost nothing of the budget, and
a search that is resumed has them.

A score of another training, of more epochs or other images, is not comparable. All such scores of
one kind are learnt by a model of their own, whose prediction for a network is a feature beside its
parameters: the sampler finds out by itself how much it says about the scores of this search.

Networks are the same if the space, the text of its file, the size of the image and the classes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edgeloop._util.redact import redact
from edgeloop._util.values import suggestion
from edgeloop.errors import BadInput, BadSpace, EdgeloopError
from edgeloop.search.base import Evaluator, broken_constraint, value_of
from edgeloop.search.config import SearchConfig
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.pool import BANK, Bank
from edgeloop.search.sampler.surrogate import SpaceEncoding, Surrogate, fit_kernel
from edgeloop.search.sampler.trial import ProposalTrial, key_of
from edgeloop.search.storage import (
    KEPT_CONFIG,
    find_search,
    found_searches,
    kept_search,
    open_storage,
    patiently,
)
from edgeloop.search.study import ARCH, BASIS, VALUES, Study
from edgeloop.settings import Settings

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

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
        parts = [f"took over {_count(self.results, 'result')}"]
        if self.known:
            parts.append(f"{_count(self.known, 'result')} were here already")
        if self.members:
            parts.append(f"{_count(self.members, 'screened network')}")
        if self.scores:
            parts.append(f"learns from {_count(self.scores, 'score')} of other trainings")
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
    found: list[EarlierSearch] = []
    for name in config.earlier:
        try:
            found.append(_readable(name, partial(find_earlier, name, config, settings)))
        except BadInput:
            if name not in study.taken:
                raise
    read = [_readable(one.name, partial(results.read, one)) for one in found]
    for earlier, content in zip(found, read, strict=True):
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

    own = open_storage(settings.location)
    if not (Path(name) / KEPT_CONFIG).is_file() and name in optuna.study.get_all_study_names(own):
        found = EarlierSearch(name, own, name, found_searches(settings.project).get(name))
    else:
        folder = find_search(name, settings.project)
        kept = kept_search(folder, settings.project)
        there = Settings.load(folder, store=kept.store or None)
        storage = own if there.location == settings.location else open_storage(there.location)
        names = optuna.study.get_all_study_names(storage)
        if kept.name not in names:
            hint = suggestion(kept.name, names, "there are") if names else "it has none"
            reason = f"the search in {folder} is not in the store {there.location}: {hint}"
            raise BadInput(reason=f"{reason}. Start Edgeloop with the store it was run with")
        found = EarlierSearch(name, storage, kept.name, folder)
    if found.storage is own and found.study == config.name:
        raise BadInput(reason=f"the search {config.name!r} cannot start from itself")
    return found


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
        self._dear = {name for e in evaluators if e.cost > 0 for name in e.gives}
        self._cheap = {name for e in evaluators if e.cost == 0 for name in e.gives}
        self._read: set[str] = set()  # architectures that were read and may not be stored yet

    def read(self, earlier: EarlierSearch) -> ReadSearch:
        """What can be used of a search, complete with cheap values that were missing."""
        import optuna

        found = optuna.load_study(study_name=earlier.study, storage=earlier.storage)
        self._check_space(earlier, found.user_attrs)
        taken = TakenOver(earlier.name)
        own = (*self._study.earlier(), *self._study.candidates())
        have = self._read | {item.arch.id for item in own}
        open_members: list[OpenMember] = []
        scores: dict[str, list[list[object]]] = {}
        for trial in found.get_trials(deepcopy=False):
            if ARCH not in trial.user_attrs:
                continue
            arch = Architecture.from_json(trial.user_attrs[ARCH])
            member, reason = self._usable(trial, arch, found.user_attrs)
            if member is None:
                taken.left[reason] += 1
                continue
            basis = found.user_attrs[f"{BASIS}:{trial.user_attrs[BASIS]}"]["values"]
            values = self._same_values(trial.user_attrs[VALUES], basis)
            if arch.id in have:
                taken.known += 1
            elif self._dear <= set(values):
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
            if name in self._dear and name in values and name in basis:
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
            found = {**values, **more.get(arch.id, {})}
            if arch.id in faults:
                continue
            if not {objective.name for objective in self._config.objectives} <= set(found):
                taken.left["cannot be built or compiled"] += 1
            elif broken_constraint(found, self._config.constraints):
                taken.left["not within the limits of this search"] += 1
            else:
                complete.append((member, found, arch))
        return complete

    def _screened(
        self, archs: Sequence[Architecture]
    ) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """Values by the id of an architecture, and what the machine could not do."""
        found: dict[str, dict[str, float]] = {}
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
                    found.setdefault(arch_id, {}).update(evaluation.values)
                    if is_fault or evaluation.lacks_memory:
                        faults[arch_id] = evaluation.error
        return found, faults


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
            kept = [(member, score) for member, score in members if member is not None]
            if len(kept) >= _LEAST_SCORES:
                self._models[name] = ScoreModel(*zip(*kept, strict=True))
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
        found = np.array(scores, dtype=np.float64)
        targets = (found - found.mean()) / (float(found.std()) or 1.0)
        names, groups = self._encoding.names, self._encoding.groups
        with threadpool_limits(1, user_api="blas"):
            kernel = fit_kernel(names, encoded[:_FITTED_TO], groups, targets[:_FITTED_TO])
            self._surrogate = Surrogate(kernel, names, groups, encoded, targets)

    def predict(self, params: Mapping[str, Any]) -> float:
        mean, _ = self._surrogate.predict(self._encoding.encode([params]))
        return float(mean[0])


def _scores_in(taken: Mapping[str, Any]) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """Scores of other trainings by their kind, of all earlier searches."""
    found: dict[str, list[tuple[dict[str, Any], float]]] = {}
    for about in taken.values():
        for name, points in dict(about).get("scores", {}).items():
            found.setdefault(name, []).extend((dict(params), float(v)) for params, v in points)
    return found


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
