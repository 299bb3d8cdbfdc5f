"""The walk of candidates through a search, with evaluators that take no time."""

from __future__ import annotations

import itertools
import random
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from edgeloop.errors import BadInput, BadSetting, SearchFailed, StoreUnavailable
from edgeloop.models.catalog import Candidates
from edgeloop.search.base import Evaluation
from edgeloop.search.config import SearchConfig
from edgeloop.search.loop import Event, SearchListener, SearchLoop
from edgeloop.search.results import front_of
from edgeloop.search.study import NOT_COUNTED, Candidate, Study, open_storage
from edgeloop.store import Store
from tests.conftest import StoreUnderTest
from tests.search.toy import (
    SIZE,
    Grouped,
    Place,
    Worked,
    cost_of,
    evaluators,
    in_a_child,
    quality_of,
    toy_config,
    toy_space,
)

pytestmark = pytest.mark.slow


class Yard(Place):
    """Searches on one place; in files if they are to be killed."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self.asked: list[str] = []
        self.events: list[Event] = []

    def search(self, config: SearchConfig, chosen: list[Worked] | None = None) -> list[Candidate]:
        return SearchLoop(
            config,
            self.study(config),
            chosen or evaluators(self.asked.append),
            self.table(),
            SearchListener(self.events.append),
        ).run()


@pytest.fixture
def yard() -> Yard:
    return Yard()


def test_the_budget_is_met_exactly_and_nothing_is_evaluated_twice(yard: Yard):
    found = yard.search(toy_config(budget=15))
    assert [item.state for item in found] == ["complete"] * 15
    assert len({item.arch.id for item in found}) == 15
    assert max(Counter(yard.asked).values()) == 1 and len(yard.asked) == 30


@pytest.mark.parametrize("sampler", ["default", "tpe", "nsga2", "gp", "random"])
def test_every_sampler_makes_new_candidates_only(yard: Yard, sampler: str):
    found = yard.search(toy_config(budget=12, sampler=sampler))
    assert len({item.arch.id for item in found}) == len(found) == 12


def test_a_space_that_is_smaller_than_the_budget_is_searched_whole(yard: Yard):
    config = toy_config(budget=1000)
    search = SearchLoop(config, yard.study(config), evaluators(), yard.table())
    assert len(search.run()) == SIZE
    assert search.is_exhausted


def test_what_breaks_a_constraint_is_never_sent_to_the_dear_evaluator(yard: Yard):
    found = yard.search(toy_config(budget=30, constraints={"params": [3, 20]}))
    screened = {item.arch.id for item in found if item.state == "screened"}
    trained = {line.split()[1] for line in yard.asked if line.startswith("val_iou")}
    assert screened and trained and not screened & trained
    assert all(3 <= item.values["params"] <= 20 for item in found if item.state == "complete")
    reason = next(item.reason for item in found if item.state == "screened")
    assert "params is" in reason and "not within 3 to 20" in reason


def test_an_evaluator_may_stop_at_a_broken_constraint(yard: Yard):
    class Stopping(Worked):
        def collect(self, timeout_s: float) -> list[Evaluation]:
            return [
                replace(e, values={**e.values, "macs": 1.0}) if e.values["params"] <= 20 else e
                for e in super().collect(timeout_s)
            ]

    cheap = Stopping("params", 0, cost_of)
    cheap.gives = ("params", "macs")
    chosen = [cheap, Worked("val_iou", 1, quality_of)]
    found = yard.search(toy_config(budget=20, constraints={"params": [0, 20]}), chosen)
    assert {item.state for item in found} == {"complete", "screened"}


def test_constraints_that_nothing_meets_are_said_after_a_while(yard: Yard):
    with pytest.raises(SearchFailed, match="none of 60 candidates in a row met the constraints"):
        yard.search(toy_config(budget=500, constraints={"params": [1000, 2000]}))


def test_a_failed_candidate_is_never_on_the_front(yard: Yard):
    def diverges(arch) -> float:
        if arch.params["kind"] == "b":
            raise ValueError("the loss is NaN at step 3")
        return quality_of(arch)

    config = toy_config(budget=20, failures=20)
    found = yard.search(config, [Worked("params", 0, cost_of), Worked("val_iou", 1, diverges)])
    failed = [item for item in found if item.state == "failed"]
    assert failed and {item.reason for item in failed} == {"the loss is NaN at step 3"}
    assert all(item.arch.params["kind"] != "b" for item in front_of(config, found))


def test_too_many_failures_end_the_search_with_the_reason(yard: Yard):
    def fails(arch) -> float:
        raise ValueError("does not fit in memory")

    config = toy_config(budget=20, failures=3)
    with pytest.raises(SearchFailed, match=r"4 candidates failed.*does not fit in memory"):
        yard.search(config, [Worked("params", 0, cost_of), Worked("val_iou", 1, fails)])


def test_candidates_that_failed_in_training_are_not_blamed_on_constraints(yard: Yard):
    def fails(arch) -> float:
        raise ValueError("No module named 'torch'")

    trained = Worked("val_iou", 1, fails)
    trained.label = "in training"
    config = toy_config(budget=12, failures=12, constraints={"params": [3, 20]})
    with pytest.raises(SearchFailed) as ended:
        yard.search(config, [Worked("params", 0, cost_of), trained])
    counts = re.search(r"(\d+) failed in training and (\d+) did not meet", str(ended.value))
    assert counts and int(counts[1]) + int(counts[2]) == 12 and int(counts[1]) and int(counts[2])
    assert "the last error: No module named 'torch'. Fix that first" in str(ended.value)
    assert "Relax" not in str(ended.value)


@pytest.mark.parametrize(
    ("search", "groups"),
    [
        ({"budget": 12, "workers": 4}, [4, 4, 4]),
        ({"budget": 12, "workers": 1}, [4, 4, 4]),  # as many at a time as belong together
        ({"budget": 11, "workers": 9}, [4, 4, 3]),
        ({"budget": 12, "batch": 6}, [4, 2, 4, 2]),
        ({"budget": 24, "workers": 4, "constraints": {"params": [3, 20]}}, None),
    ],
)
def test_what_belongs_together_is_sent_together_after_screening(yard: Yard, search, groups):
    trained = Grouped("val_iou", 1, quality_of)
    found = yard.search(toy_config(**search), [Worked("params", 0, cost_of), trained])
    complete = [item for item in found if item.state == "complete"]
    assert sum(trained.groups) == len(complete)
    if groups is None:  # what is screened out is replaced before the group is sent
        assert len(complete) < 24
        groups = [4] * (len(complete) // 4) + [len(complete) % 4] * bool(len(complete) % 4)
    assert trained.groups == groups


def test_a_candidate_that_fails_elsewhere_leaves_its_group(yard: Yard):
    def fails(arch) -> float:
        if arch.params["kind"] == "b":
            raise ValueError("no board has this operator")
        return 1.0

    trained = Grouped("val_iou", 1, quality_of)
    farm = Worked("farm_latency_ms", 1, fails)
    found = yard.search(
        toy_config(budget=12, failures=12), [Worked("params", 0, cost_of), farm, trained]
    )
    assert any(item.state == "failed" for item in found)
    assert sum(trained.groups) <= 12 and all(item.state != "running" for item in found)


def test_trouble_is_tried_again_as_often_as_allowed(yard: Yard):
    troubled: Counter[str] = Counter()

    def now_and_then(arch) -> float:
        troubled[arch.id] += 1
        if troubled[arch.id] == 1:
            raise OSError("the node died")
        return quality_of(arch)

    dear = Worked("val_iou", 1, now_and_then)
    found = yard.search(toy_config(budget=6, retries=1), [Worked("params", 0, cost_of), dear])
    assert {item.state for item in found} == {"complete"}
    assert set(troubled.values()) == {2}


class Slow(Worked):
    """Ends some at a time limit of this machine."""

    def collect(self, timeout_s: float) -> list[Evaluation]:
        return [
            replace(each, values={}, error="it did not end within 60 s.", overran=True)
            if each.error
            else each
            for each in super().collect(timeout_s)
        ]


@pytest.mark.parametrize("sampler", ["default", "tpe"])
def test_what_a_limit_of_this_machine_ends_costs_no_budget_and_is_no_failure(
    yard: Yard, sampler: str
):
    def only_small(arch) -> float:
        if cost_of(arch) > 20:
            raise OSError("slow")
        return cost_of(arch)

    config = toy_config(budget=10, failures=0, retries=2, sampler=sampler)
    for _ in range(2):  # and again, with what the study says
        chosen = [Slow("params", 0, only_small, yard.asked.append), evaluators()[1]]
        candidates = yard.search(config, chosen)
        assert [item.state for item in candidates] == ["complete"] * 10
        assert all(cost_of(item.arch) <= 20 for item in candidates)
    dropped = [event.candidate.arch for event in yard.events if event.what == "dropped"]
    assert dropped and len({arch.id for arch in dropped}) == len(dropped)
    asked = Counter(yard.asked)
    assert all(asked[f"params {arch.id}"] == 3 for arch in dropped)
    assert [item.place for item in candidates] == list(range(10))


def test_a_machine_that_can_evaluate_nothing_ends_the_search_with_the_reason(yard: Yard):
    def never(arch) -> float:
        raise OSError("slow")

    chosen = [Slow("params", 0, never), evaluators()[1]]
    said = "5 candidates in a row could not be evaluated on this machine; the last one: it did not"
    with pytest.raises(SearchFailed, match=said):
        yard.search(toy_config(budget=10), chosen)
    assert len(yard.search(toy_config(budget=10))) == 10


def test_another_search_of_the_same_table_reuses_what_is_known(yard: Yard):
    first = yard.search(toy_config(budget=12))
    before = len(yard.asked)
    again = yard.search(toy_config(name="second", budget=12))
    assert {item.arch.id for item in again} == {item.arch.id for item in first}
    assert len(yard.asked) == before


def test_results_under_other_conditions_are_not_reused(yard: Yard):
    yard.search(toy_config(budget=12))
    other = evaluators(yard.asked.append)
    other[1].conditions = "trained longer"
    before = len(yard.asked)
    yard.search(toy_config(name="second", budget=12), other)
    assert len(yard.asked) == before + 12


def test_a_search_is_not_gone_on_with_by_mistake(yard: Yard):
    yard.search(toy_config(budget=3))
    with pytest.raises(BadInput, match="--resume"):
        yard.study(toy_config(budget=3), resume=False)
    with pytest.raises(BadSetting, match="another seed"):
        yard.study(toy_config(budget=3, seed=9))
    assert len(yard.search(toy_config(budget=5))) == 5


def test_batches_wait_for_each_other(yard: Yard):
    yard.search(toy_config(budget=9, batch=3))
    walk = ["begun" if event.what == "begun" else "ended" for event in yard.events]
    assert walk == (["begun"] * 3 + ["ended"] * 3) * 3


def test_several_workers_have_one_more_under_way(yard: Yard):
    under_way, most = 0, 0
    yard.search(toy_config(budget=12, workers=3))
    for event in yard.events:
        under_way += 1 if event.what == "begun" else -1
        most = max(most, under_way)
    assert most == 4


@pytest.mark.parametrize(("screening_s", "ahead"), [(0.001, 1), (60.0, 3)])
def test_the_longer_screening_takes_the_more_candidates_are_ready_for_workers(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, screening_s: float, ahead: int
):
    class Trained(Worked):
        def collect(self, timeout_s: float) -> list[Evaluation]:
            return [replace(each, seconds=10.0) for each in super().collect(timeout_s)]

    ticks = (screening_s * number for number in itertools.count())
    monkeypatch.setattr("edgeloop.search.loop.time.monotonic", lambda: next(ticks))
    under_way, most = 0, 0
    chosen = [evaluators()[0], Trained("val_iou", 1, quality_of)]
    yard.search(toy_config(budget=24, workers=3), chosen)
    for event in yard.events:
        under_way += 1 if event.what == "begun" else -1
        most = max(most, under_way)
    assert most == 3 + ahead


def test_a_store_that_is_away_for_a_while_delays_and_loses_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    config, table = toy_config(budget=8), yard.table()
    troubles = iter([True, True, False] * 100)
    real = table.note_all

    def note(*arguments: object) -> None:
        if next(troubles):
            raise StoreUnavailable(store="x", reason="gone")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(table, "note_all", note)
    monkeypatch.setattr("edgeloop._util.retry.time.sleep", lambda _: None)
    found = SearchLoop(config, yard.study(config), evaluators(yard.asked.append), table).run()
    assert {item.state for item in found} == {"complete"}
    assert max(Counter(yard.asked).values()) == 1


# Kills


def run_in_a_process(yard: Yard, config: SearchConfig, log: Path, fatal: int = 0) -> int:
    """The search as a child of its own, which writes down what its evaluators were asked, and kills
    itself before or after its nth step: a proposal, an evaluation, a note, an end."""
    steps = ((Study, "propose"), (Worked, "send"), (Candidates, "note_all"), (Study, "end"))

    def search() -> None:
        with log.open("a", buffering=1) as file:
            chosen = evaluators(lambda line: file.write(f"{line}\n") and None)
            SearchLoop(config, yard.study(config), chosen, yard.table()).run()

    return in_a_child(search, steps, fatal)


def test_kills_change_nothing_but_the_time(tmp_path: Path):
    config, yard = toy_config(budget=12), Yard(tmp_path / "store")
    undisturbed = Yard().search(config)
    chance, log = random.Random(5), tmp_path / "asked.txt"
    ends = [run_in_a_process(yard, config, log, chance.randint(1, 14)) for _ in range(4)]
    assert ends == [-signal.SIGKILL] * 4
    assert run_in_a_process(yard, config, log) == 0
    found = yard.study(config).candidates()
    assert [item.state for item in found] == ["complete"] * 12
    assert [item.arch.id for item in found] == [item.arch.id for item in undisturbed]
    front = [item.arch.id for item in front_of(config, found)]
    assert front == [item.arch.id for item in front_of(config, undisturbed)]
    asked = Counter(log.read_text().splitlines())
    assert len(asked) == 24
    again = sum(count - 1 for count in asked.values())
    assert again <= 4, "a kill may cut one evaluation off; nothing that was noted is asked again"


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_a_kill_while_optuna_proposes_changes_nothing(yard: Yard, sampler: str):
    """It writes a trial down before anybody knows which architecture that is."""
    undisturbed = Yard().search(toy_config(sampler=sampler, budget=24))
    for budget in (4, 9, 17, 24):
        config = toy_config(sampler=sampler, budget=budget)
        found = yard.search(config)
        cut_off(yard, config)
    assert [item.arch.id for item in found] == [item.arch.id for item in undisturbed]


def test_a_repeat_that_was_cut_off_is_a_repeat(yard: Yard):
    config = toy_config(sampler="random", budget=4)
    yard.search(config)
    cut_off(yard, config).set_user_attr(NOT_COUNTED, "proposed before")
    assert yard.study(config).unfinished() == []
    last = optuna.load_study(study_name="toy", storage=yard.storage).trials[-1]
    assert last.state is optuna.trial.TrialState.PRUNED


def test_repeats_and_what_was_cut_off_make_no_iteration_longer(yard: Yard):
    for budget in (3, 6):
        config = toy_config(sampler="random", budget=budget, iteration=3)
        found = yard.search(config)
        cut_off(yard, config)
    assert [item.number for item in found] == [0, 1, 2, 4, 5, 6]
    assert [item.place for item in found] == [0, 1, 2, 3, 4, 5]
    assert {event.candidate.place for event in yard.events} == {0, 1, 2, 3, 4, 5}


def cut_off(yard: Yard, config: SearchConfig) -> optuna.Trial:
    """A trial that was begun and nothing more."""
    trial = optuna.load_study(study_name=config.name, storage=yard.storage).ask()
    toy_space().ask(trial, (1, 3, 8, 8), 19)
    return trial


@pytest.mark.parametrize("kind", ["postgresql", "azure"])
def test_a_study_lives_beside_every_store(
    kind: str,
    make_place: Callable[[str], StoreUnderTest],
    make_store: Callable[[StoreUnderTest], Store],
):
    from edgeloop.store import parse_location

    place = make_place(kind)
    location = parse_location(place.url)
    config = toy_config(budget=6)
    table = Candidates(make_store(place).models("toys"), "toys")
    for budget in (3, 6):
        config = toy_config(budget=budget)
        study = Study.open(config, toy_space(), open_storage(location), resume=True)
        found = SearchLoop(config, study, evaluators(), table).run()
        assert len(found) == budget
    assert len({item.arch.id for item in found}) == 6
