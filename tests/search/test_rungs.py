"""Candidates on their rungs, with trainings that take no time: who continues, and kills."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from edgeloop.models.catalog import Candidates
from edgeloop.pareto import non_dominated
from edgeloop.search.base import Evaluation, Observation
from edgeloop.search.config import SearchConfig, config_of
from edgeloop.search.loop import Event, SearchListener, SearchLoop
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.results import front_of
from edgeloop.search.sampler.bank import outcomes
from edgeloop.search.sampler.members import key_of
from edgeloop.search.sampler.proposer import Proposer
from edgeloop.search.sampler.surrogate import eligibility
from edgeloop.search.study import Candidate, Study
from tests.search.toy import Place, Worked, cost_of, in_a_child, quality_of

pytestmark = pytest.mark.slow

PAUSES = (1, 3, 6)


def config_with(**search: object) -> SearchConfig:
    train = {"epochs": 9, "early_stopping": True}
    return config_of(
        {
            "search": {
                "name": "toy",
                "space": "toy.py:build",
                "size": 8,
                "budget": 18,
                "pool": 0,
                **search,
            },
            "objectives": {"params": {}, "val_iou": {"train": train}},
            "data": "working/none",
        },
        "toy.yaml",
    )


class Staged(Worked):
    """Trains in no time; writes down every epoch from where its checkpoint stands. Scores at a
    pause are a share of the final ones."""

    can_pause = True

    def __init__(self, asked: Callable[[str], None], folder: Path, together: int = 1) -> None:
        super().__init__("val_iou", 1, quality_of, asked)
        self.together, self._folder, self._until = together, folder, dict[str, int | None]()
        self.groups: list[int] = []
        self.faults = Counter[str]()
        folder.mkdir(exist_ok=True)

    def pause(self, arch: Architecture, until: int | None) -> None:
        self._until[arch.id] = until

    def discard(self, arch: Architecture) -> None:
        (self._folder / arch.id).unlink()

    def send_all(self, several: Sequence[tuple[Architecture, Mapping[str, Path]]]) -> None:
        self.groups.append(len(several))
        super().send_all(several)

    def send(self, arch: Architecture, files: Mapping[str, Path] | None = None) -> None:
        until = self._until.get(arch.id) or 9
        checkpoint = self._folder / arch.id
        done = int(checkpoint.read_text()) if checkpoint.exists() else 0
        for epoch in range(done + 1, until + 1):
            self._asked(f"{arch.id} {epoch}")
            checkpoint.write_text(str(epoch))
            if self.faults[arch.id] and epoch == 2:
                self.faults[arch.id] -= 1
                self._answers.append(Evaluation(arch.id, error="the node died"))
                return
        score = quality_of(arch) * (0.5 + until / 18)
        paused_at = until if until < 9 else 0
        self._answers.append(Evaluation(arch.id, {"val_iou": score}, paused_at=paused_at))


class Stair(Place):
    """A search with rungs in a folder; with all in files if it is to be killed (`is_kept`)."""

    def __init__(self, folder: Path, is_kept: bool = False) -> None:
        super().__init__(folder if is_kept else None)
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.asked: list[str] = []
        self.events: list[Event] = []
        self.training = Staged(self.asked.append, folder / "checkpoints")

    def search(self, config: SearchConfig, *more: Worked) -> list[Candidate]:
        chosen = [Worked("params", 0, cost_of), self.training, *more]
        study, listener = self.study(config), SearchListener(self.events.append)
        return SearchLoop(config, study, chosen, self.table(), listener).run()

    @property
    def epochs(self) -> int:
        return len(self.asked)


@pytest.fixture
def stair(tmp_path: Path) -> Stair:
    return Stair(tmp_path / "one")


@pytest.mark.parametrize("search", [{"workers": 4, "pool": 4}, {"batch": 5, "sampler": "random"}])
def test_trainings_pause_and_the_front_is_that_of_full_trainings(stair: Stair, search):
    config = config_with(**search)
    found = stair.search(config)
    states = Counter(item.state for item in found)
    assert states["complete"] and states["stopped"] and states.total() == 18
    assert max(Counter(stair.asked).values()) == 1, "no epoch is trained twice"
    assert stair.epochs < 18 * 9
    points = [(item.values["params"], -quality_of(item.arch)) for item in found]
    true = {point for point, stays in zip(points, non_dominated(points), strict=True) if stays}
    front = {(item.values["params"], -quality_of(item.arch)) for item in front_of(config, found)}
    assert front == true
    for item in found:
        if item.state == "stopped":
            reached = max(item.rungs)
            assert reached in PAUSES and f"after {reached} of 9 epochs" in item.reason
            assert item.values == item.rungs[reached]
    kept = {path.name for path in (stair.folder / "checkpoints").iterdir()}
    assert kept == {item.arch.id for item in found if item.state == "complete"}


def test_a_paused_candidate_holds_no_worker_and_promotions_come_first(stair: Stair):
    stair.search(config_with(budget=9))
    under_way, most, paused = set(), 0, set()
    for event in stair.events:
        key = event.candidate.arch.id
        if event.what == "begun":
            under_way.add(key)
        else:
            under_way.discard(key)
        paused |= {key} if event.what == "paused" else set()
        most = max(most, len(under_way))
    assert most == 1 and len(paused) == 9
    first_of_second_rung = next(line for line in stair.asked if line.endswith(" 2"))
    begun_before = stair.asked.index(first_of_second_rung)
    assert begun_before == 8, "with eight at the first rung, the best of them continues"


def test_groups_are_filled_with_those_that_continue(tmp_path: Path):
    stair = Stair(tmp_path / "grouped")
    stair.training = Staged(stair.asked.append, tmp_path / "grouped/checkpoints", together=4)
    found = stair.search(config_with(budget=9, workers=4))
    assert max(stair.training.groups) == 4 and all(item.state != "running" for item in found)
    assert max(Counter(stair.asked).values()) == 1


def test_after_a_fault_of_the_machine_a_training_continues(stair: Stair):
    class All(Counter[str]):
        def __missing__(self, key: str) -> int:
            return 1

    stair.training.faults = All()
    found = stair.search(config_with(budget=6, retries=1))
    assert not [item for item in found if item.state == "failed"]
    assert max(Counter(stair.asked).values()) == 1


def test_a_limit_on_scores_holds_at_the_end_and_not_at_a_pause(stair: Stair):
    found = stair.search(config_with(budget=9, constraints={"val_iou": [0.7, 1.0]}))
    for item in found:
        if item.state == "screened":
            assert 9 not in item.rungs and item.values["val_iou"] < 0.7
    assert any(item.state == "complete" for item in found)


def test_the_sampler_learns_from_what_paused(stair: Stair, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[Observation]] = []
    real = Proposer.propose

    def propose(self: Proposer, number: int, history: list[Observation], pending=()) -> object:
        seen.append(list(history))
        return real(self, number, history, pending)

    monkeypatch.setattr(Proposer, "propose", propose)
    stair.search(config_with(budget=12))
    last = seen[-1]
    partial = [one for one in last if one.is_partial]
    assert len(last) == 11 and partial and all(one.measured for one in partial)
    whole = {tuple(one.params.items()): one.values for one in last if not one.is_partial}
    final = [-quality_of(arch(one.params)) for one in partial]
    assert max(abs(one.values[1] - value) for one, value in zip(partial, final, strict=True)) < 0.25
    assert whole and not any(one.eligible for one in partial)


@pytest.mark.parametrize("pool", [0, 4])
def test_a_stopped_training_is_no_failure_where_something_else_comes_after_training(
    stair: Stair, monkeypatch: pytest.MonkeyPatch, pool: int
):
    train = {"epochs": 9, "early_stopping": True}
    config = config_of(
        {
            "search": {"name": "toy", "space": "toy.py:build", "size": 8, "budget": 14}
            | {"pool": pool, "workers": 3},
            "objectives": {"params": {}, "val_iou": {"train": train}, "farm_f1": {}},
            "data": "working/none",
        },
        "toy.yaml",
    )
    stair.search(config, Worked("farm_f1", 2, quality_of))
    study = stair.study(config)
    found = study.candidates()
    history, pending = study._split(found)
    partial = {key_of(one.params) for one in history if one.is_partial}
    assert partial == {key_of(item.params) for item in found if item.state == "stopped"} != set()
    assert not pending and (outcomes(history) > 0).all() and (eligibility(history) > 0).all()
    assert not any(one.eligible for one in history if one.is_partial)


def arch(params: Mapping[str, object]) -> Architecture:
    return Architecture("toy.py:build", dict(params), (1, 3, 8, 8), 19)


def killed(folder: Path, config: SearchConfig, log: Path, fatal: int = 0) -> int:
    """The search as a child of its own, which kills itself before or after its nth step."""
    steps = (
        *((Study, name) for name in ("choose", "pause", "promote", "end")),
        *((Staged, "send"), (Candidates, "note_all")),
    )

    def search() -> None:
        with log.open("a", buffering=1) as file:
            stair = Stair(folder, is_kept=True)
            stair.training._asked = lambda line: file.write(f"{line}\n") and None
            stair.search(config)

    return in_a_child(search, steps, fatal)


def test_kills_change_nothing_and_no_epoch_is_trained_twice(tmp_path: Path):
    """Each kill loses the bank, too: it is in memory."""
    config = config_with(budget=9, pool=4)
    undisturbed = Stair(tmp_path / "undisturbed")
    whole = undisturbed.search(config)
    chance, log, folder = random.Random(7), tmp_path / "asked.txt", tmp_path / "killed"
    ends = [killed(folder, config, log, chance.randint(1, 24)) for _ in range(5)]
    assert set(ends) == {-signal.SIGKILL}
    assert killed(folder, config, log) == 0
    found = Stair(folder, is_kept=True).study(config).candidates()
    assert [(i.arch.id, i.state, i.rungs) for i in found] == [
        (i.arch.id, i.state, i.rungs) for i in whole
    ]
    assert log.read_text().splitlines() == undisturbed.asked
