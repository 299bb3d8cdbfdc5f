"""Samplers of Optuna and BoTorch. The libraries are imported when they are used: see
requirements.txt for those that the package itself does not need.

Optuna's samplers know neither objective before a member is trained. BoTorch's acquisition, the
expected hypervolume improvement in its logarithmic form (tables have no noise, so qNEHVI would be
the same at a higher price), runs in two variants: both objectives modelled, and with the exact
latency of every candidate, which is then also an input of the error's model, beside the counts that
a compiled network tells. That is what our sampler knows, too: this variant is the fair comparison.
"""

from __future__ import annotations

import warnings
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bench.samplers.problems import Problem
    from bench.samplers.samplers import Trainings

_START = 10  # random members before a model is fitted
_TPE_START = 20
_NEW = 32  # candidates for a training, as our sampler compiles
_FREE = 500  # candidates whose latency is modelled, too
_DRAWS = 64
_FIT_STEPS = 100
_ASKS = 20  # times the budget: who repeats itself more often is stopped


def optuna(kind: str, trainings: Trainings, seed: int, budget: int) -> None:
    import optuna as library

    library.logging.set_verbosity(library.logging.ERROR)
    warnings.simplefilter("ignore")
    samplers = library.samplers
    if kind == "tpe":
        # Conditional parameters need groups; without conditions there is one group.
        sampler = samplers.TPESampler(
            multivariate=True, group=True, n_startup_trials=_TPE_START, seed=seed
        )
    elif kind == "nsga2":
        sampler = samplers.NSGAIISampler(population_size=20, seed=seed)
    else:
        sampler = samplers.GPSampler(n_startup_trials=_START, seed=seed)
    study = library.create_study(directions=["minimize"] * 2, sampler=sampler)
    for _ in range(_ASKS * budget):
        trial = study.ask()
        trainings.task.space(trial)
        study.tell(trial, trainings.train(trial.params))
        if trainings.count == budget:
            break


def botorch(trainings: Trainings, seed: int, budget: int, *, knows_latency: bool) -> None:
    """The best of the candidates by the acquisition, after some random members.

    Who knows the latency beforehand gets as many new candidates for a training as our sampler, and
    keeps the old ones: each of them costs a compile. Otherwise candidates are free, and there are
    new ones each time. Half of the new ones are neighbours of the front, half are random."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng, cells = Random(seed), _Cells(trainings.task, knows_latency)
    trained = rng.sample(range(len(cells.rows)), _START)
    bank: dict[int, None] = dict.fromkeys(rng.sample(range(len(cells.rows)), 4 * _NEW))
    states: _States = {}
    for place in trained:
        trainings.train(cells.members[place])
    while trainings.count < budget:
        costs = np.array(list(trainings.costs.values()))
        if not knows_latency:
            bank = dict.fromkeys(rng.sample(range(len(cells.rows)), _FREE))
        bank |= dict.fromkeys(cells.new(trained, costs, _NEW, rng))
        candidates = [place for place in bank if place not in set(trained)]
        scores = _acquisition(cells, trained, costs, candidates, states)
        trained.append(candidates[int(scores.argmax())])
        trainings.train(cells.members[trained[-1]])


class _Cells:
    """All cells as rows: one-hot operations, then, where these are known beforehand, counts and the
    latency, between 0 and 1."""

    def __init__(self, task: Problem, knows_latency: bool) -> None:
        from bench.samplers.cells import CELLS
        from bench.samplers.problems import params_of

        if task.table is None:
            raise ValueError(f"BoTorch's variants need a table of cells, which {task.name} is not")
        self.knows_latency = knows_latency
        self.members = [params_of(cell) for cell in CELLS]
        self.letters = np.array([[int(letter) for letter in cell] for cell in CELLS])
        columns = [self.letters[:, edge, None] == np.arange(5) for edge in range(6)]
        if knows_latency:
            told = [task.features(params) for params in self.members]
            for name in told[0]:
                columns.append(_unit(np.log([one[name] for one in told]))[:, None])
            columns.append(_unit(task.table[:, 1])[:, None])
        self.rows = np.concatenate(columns, axis=1).astype(float)

    def new(self, trained: list[int], costs: np.ndarray, count: int, rng: Random) -> list[int]:
        from edgeloop.pareto import non_dominated

        near: set[int] = set()
        for index in np.flatnonzero(non_dominated(costs)):
            changed = (self.letters != self.letters[trained[index]]).sum(axis=1)
            near.update(np.flatnonzero(changed == 1).tolist())
        some = sorted(near.difference(trained))
        found = rng.sample(some, min(count // 2, len(some)))
        return found + rng.sample(range(len(self.rows)), count - len(found))


_States = dict[int, tuple[int, Any]]  # by objective: results that it was fitted to, and the fit


def _acquisition(
    cells: _Cells, trained: list[int], costs: np.ndarray, candidates: list[int], states: _States
) -> np.ndarray:
    import torch
    from botorch.acquisition.multi_objective.logei import qLogExpectedHypervolumeImprovement
    from botorch.models.deterministic import GenericDeterministicModel
    from botorch.models.model import ModelList
    from botorch.sampling import ListSampler, SobolQMCNormalSampler
    from botorch.sampling.index_sampler import IndexSampler
    from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning

    inputs = torch.tensor(cells.rows[trained])
    low, high = costs.min(axis=0), costs.max(axis=0)
    targets = torch.tensor(-(costs - low) / np.maximum(high - low, 1e-9))  # it maximises
    modelled = (0,) if cells.knows_latency else (0, 1)
    models: list[Any] = [_fitted(inputs, targets, place, states) for place in modelled]
    draws = torch.Size([_DRAWS])
    samplers: list[Any] = [SobolQMCNormalSampler(draws, seed=place) for place in modelled]
    if cells.knows_latency:
        # The last input is the latency over the whole table; here it is over what was trained.
        first, last = inputs[:, -1].min(), inputs[:, -1].max()
        span = max(float(last - first), 1e-9)
        models.append(GenericDeterministicModel(lambda rows: -(rows[..., -1:] - first) / span))
        samplers.append(IndexSampler(draws))
    reference = torch.tensor([-1.1, -1.1], dtype=targets.dtype)
    acquisition = qLogExpectedHypervolumeImprovement(
        ModelList(*models),
        ref_point=reference,
        partitioning=FastNondominatedPartitioning(reference, targets),
        sampler=ListSampler(*samplers),
    )
    rows = torch.tensor(cells.rows[candidates])
    with torch.no_grad():
        parts = [acquisition(part.unsqueeze(1)) for part in rows.split(512)]
    return torch.cat(parts).numpy()


def _fitted(inputs: Any, targets: Any, place: int, states: _States) -> Any:
    """BoTorch's standard model of one objective. Its hyperparameters are fitted again when there is
    a tenth more results, since a fit takes seconds."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Standardize
    from gpytorch.mlls import ExactMarginalLogLikelihood

    column = targets[:, place : place + 1]
    model = SingleTaskGP(inputs, column, outcome_transform=Standardize(1))
    count, state = states.get(place, (0, None))
    if state is not None:
        kept = {name: value for name, value in state.items() if "outcome_transform" not in name}
        model.load_state_dict(kept, strict=False)
    if len(inputs) >= 1.1 * count:
        settings = {"options": {"maxiter": _FIT_STEPS}}
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=settings
        )
        states[place] = len(inputs), model.state_dict()
    return model.eval()


def _unit(column: np.ndarray) -> np.ndarray:
    return (column - column.min()) / max(float(np.ptp(column)), 1e-9)
