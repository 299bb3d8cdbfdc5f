"""Searches that start from earlier ones: what is known is not found again, and only what holds."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from edgeloop.errors import BadInput
from edgeloop.platforms import find_platform
from edgeloop.search.config import SearchConfig
from edgeloop.search.evaluators.screening import chip_values
from edgeloop.search.loop import SearchLoop
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.export import export_onnx
from edgeloop.search.nets.spaces import build
from edgeloop.search.pool import Bank
from edgeloop.search.results import front_of
from edgeloop.search.study import (
    Candidate,
    EarlierResults,
    EarlierScores,
    EarlierSearch,
    Study,
    TakenOver,
    basis_of,
    find_earlier,
    start_from_earlier,
)
from edgeloop.settings import Settings
from tests.search.program import SIDE, Program
from tests.search.toy import Place, Worked, cost_of, quality_of, toy_config, toy_space

pytestmark = pytest.mark.slow

QUICK = {"steps": 4, "batch": 8, "learning_rate": 1e-2, "device": "cpu"}


class House(Place):
    """A project with searches of a space in a file; with the searches in its store if others are to
    find them (`is_kept`)."""

    def __init__(self, folder: Path, is_kept: bool = False) -> None:
        super().__init__(folder / ".edgeloop" if is_kept else None)
        self.folder = folder
        self.asked: list[str] = []
        folder.mkdir()
        (folder / "toy.py").write_text("# the first version")

    def evaluators(self, epochs: int = 1, chip: str = "") -> list[Worked]:
        cheap, dear = (
            Worked("params", 0, cost_of, self.asked.append),
            Worked("val_iou", 1, quality_of, self.asked.append),
        )
        dear.conditions = f"trained for {epochs} epochs"
        cheap.conditions += chip
        return [cheap, dear]

    def search(
        self,
        name: str,
        earlier: Sequence[str] = (),
        chosen: Sequence[Worked] = (),
        **search: object,
    ) -> tuple[Study, list[TakenOver], list[Candidate]]:
        config = toy_config(name=name, **search)
        study = self.study(config)
        evaluators = list(chosen) or self.evaluators()
        basis = basis_of(evaluators, config, self.folder)
        study.keep_basis(basis)
        results = EarlierResults(config, study, evaluators, basis)
        read = [results.read(EarlierSearch(one, self.storage, one)) for one in earlier]
        taken = [results.store(one) for one in read]
        return study, taken, SearchLoop(config, study, evaluators, self.table(name)).run()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "house")


@pytest.fixture
def kept(tmp_path: Path) -> House:
    return House(tmp_path / "kept", is_kept=True)


def ids(candidates: Sequence[Candidate]) -> set[str]:
    return {item.arch.id for item in candidates}


def test_results_of_an_earlier_search_are_history_and_on_the_front_and_cost_no_budget(house: House):
    _, _, first = house.search("first", budget=12)
    house.asked.clear()
    study, [taken], found = house.search("second", ["first"], budget=6, seed=5)
    assert (taken.results, str(taken)) == (12, "From first: took over 12 results")
    assert ids(study.earlier()) == ids(first)
    assert len(found) == 6 and not ids(found) & ids(first)
    assert len(house.asked) == 12, "two values of each of six"
    assert [item.place for item in found] == list(range(6))
    assert {(item.place, item.reason) for item in study.earlier()} == {(-1, "from first")}
    front = front_of(toy_config(), [*study.earlier(), *found])
    assert {item.earlier for item in front} == {"first", ""}
    _, [chained], _ = house.search("third", ["second"], budget=1)
    assert chained.results == 18, "with those that it had taken over itself"


def test_other_samplers_learn_from_them_too(house: House, sampler: str = "tpe"):
    _, _, first = house.search("first", budget=12)
    _, [taken], found = house.search("second", ["first"], budget=8, sampler=sampler)
    assert taken.results == 12 and len(found) == 8 and not ids(found) & ids(first)


def test_taking_over_twice_changes_nothing_and_a_resumed_search_needs_no_second_time(house: House):
    house.search("first", budget=8)
    whole = house.search("whole", ["first"], budget=9)[2]
    house.search("parts", ["first"], budget=3)
    assert len(house.search("parts", budget=6)[0].earlier()) == 8
    study, [again], found = house.search("parts", ["first"], budget=9)
    assert (again.results, again.known, len(study.earlier())) == (0, 8, 8)
    assert [item.arch.id for item in found] == [item.arch.id for item in whole]


def test_a_kill_while_results_are_taken_over_loses_none(kept: House):
    house = kept
    house.search("first", budget=12)
    for fatal in (1, 12):
        child = os.fork()
        if child == 0:
            calls, real = iter(range(1, 100)), Study.take_over

            def deadly(*arguments: object, calls=calls, real=real, fatal=fatal) -> None:
                if next(calls) == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                real(*arguments)  # type: ignore[arg-type]

            Study.take_over = deadly  # type: ignore[method-assign,assignment]
            try:
                house.search("second", ["first"], budget=4)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (-signal.SIGKILL, 1)
    study, _, found = house.search("second", ["first"], budget=4)
    assert len(study.earlier()) == len(ids(study.earlier())) == 12 and len(found) == 4


def test_a_cheap_value_of_other_conditions_is_computed_and_nothing_is_trained_again(house: House):
    _, _, first = house.search("first", budget=10)
    house.asked.clear()
    other_chip = house.evaluators(chip=" on another chip")
    study, [taken], _ = house.search("second", ["first"], other_chip, budget=1)
    assert taken.results == len(study.earlier()) == 10
    screened = {line.split()[1] for line in house.asked if line.startswith("params")}
    trained = {line.split()[1] for line in house.asked if line.startswith("val_iou")}
    assert ids(first) < screened and not ids(first) & trained


def test_scores_of_another_training_are_no_results_but_a_model_of_them_is_a_feature(house: House):
    _, _, first = house.search("first", budget=30)
    study, [taken], _ = house.search("second", ["first"], house.evaluators(epochs=9), budget=5)
    assert (taken.results, taken.scores, study.earlier()) == (0, 30, [])
    assert str(taken) == "From first: took over 0 results; learns from 30 scores of other trainings"
    hints = EarlierScores(study)
    space, config = toy_space(), toy_config()
    members = [space.sample(seed, (1, 3, *config.size), config.classes) for seed in range(60)]
    unseen = [
        arch for arch in {one.id: one for one in members}.values() if arch.id not in ids(first)
    ]
    guesses = [next(iter(hints(arch.params).values())) for arch in unseen]
    truths = [quality_of(arch) for arch in unseen]
    assert np.corrcoef(guesses, truths)[0, 1] > 0.8
    assert not EarlierScores(house.search("third", budget=1)[0])


def test_only_what_holds_here_is_taken_over_and_the_rest_is_counted_by_its_reason(house: House):
    def quality(arch: Architecture) -> float:
        if arch.params["width"] == 13:
            raise ValueError("it diverged")
        return quality_of(arch)

    chosen = house.evaluators()
    chosen[1]._function = quality
    _, _, first = house.search("first", chosen=chosen, budget=24, failures=100)
    failed = sum(item.state == "failed" for item in first)
    large = sum(item.values["params"] > 9 for item in first if item.state == "complete")
    _, [taken], _ = house.search("second", ["first"], budget=1, constraints={"params": [0, 9]})
    assert taken.left == {"without a result": failed, "not within the limits of this search": large}
    assert taken.results == 24 - failed - large
    (house.folder / "toy.py").write_text("# another network for the same parameters")
    _, [edited], _ = house.search("third", ["first"], budget=1)
    assert edited.results == edited.scores == 0
    assert edited.left["toy.py was another one then"] == 24 - failed


@pytest.mark.parametrize(("search", "what"), [({"size": 16}, "size"), ({"classes": 3}, "classes")])
def test_networks_of_another_kind_are_an_error_and_not_a_surprise(house: House, search, what: str):
    house.search("first", budget=2)
    said = f"nothing of the search 'first' can be used: it has another {what}"
    with pytest.raises(BadInput, match=said):
        house.search("second", ["first"], budget=2, **search)


def test_a_search_that_is_not_there_is_said(kept: House, monkeypatch: pytest.MonkeyPatch):
    house = kept
    monkeypatch.chdir(house.folder)
    (house.folder / "edgeloop.yaml").write_text("{}")
    house.search("first", budget=2)
    settings = Settings.load()
    found = find_earlier("first", named("second"), settings)
    assert (found.study, found.folder) == ("first", None)
    (house.folder / "first").mkdir()  # not a search: its name is no reason to look there
    assert find_earlier("first", named("second"), settings).folder is None
    with pytest.raises(BadInput, match="there is no search 'frist' in "):
        find_earlier("frist", named("second"), settings)
    with pytest.raises(BadInput, match="'first' cannot start from itself"):
        find_earlier("first", named("first"), settings)


def named(name: str) -> SearchConfig:
    return toy_config(name=name)


def test_of_several_searches_all_can_be_read_or_nothing_is_taken_over(
    kept: House, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(kept.folder)
    kept.search("first", budget=3)
    other = kept.folder / "other/searches/broken"
    other.mkdir(parents=True)
    store = kept.folder / "other/store"
    store.mkdir()
    (store / "studies.db").write_bytes(b"this is no database" * 100)
    document = {**named("broken").document, "store": f"sqlite:{store}"}
    (other / "search.yaml").write_text(yaml.safe_dump(document))
    config = replace(named("second"), earlier=("first", str(other)))
    study, told = kept.study(config), list[str]()

    def start(config: SearchConfig) -> None:
        bank = Bank("toy", study.architecture)
        start_from_earlier(config, Settings.load(), study, kept.evaluators(), bank, told.append)

    with pytest.raises(BadInput, match=r"nothing was taken over: .*broken.* cannot be read"):
        start(config)
    assert study.earlier() == [] and study.taken == {} and told == []
    start(replace(config, earlier=("first",)))
    assert told == ["From first: took over 3 results"] and len(study.earlier()) == 3


def test_what_this_machine_cannot_screen_has_not_failed_and_is_tried_again_later(house: House):
    _, _, first = house.search("first", budget=6)
    kinds, asked = [item.arch.params["kind"] for item in first], Counter[str]()
    assert len(set(kinds)) > 1

    def cost(arch: Architecture) -> float:
        asked[arch.id] += 1
        if arch.params["kind"] == kinds[0]:
            raise OSError("no space left on device.")
        if asked[arch.id] == 1:
            raise OSError("this machine is too busy")
        return cost_of(arch)

    chosen = house.evaluators(chip=" on another chip")
    chosen[0]._function = cost
    faults = kinds.count(kinds[0])
    config = toy_config(name="second")
    study = house.study(config)
    results = EarlierResults(config, study, chosen, basis_of(chosen, config, house.folder))
    study.keep_basis(basis_of(chosen, config, house.folder))
    taken = results.store(results.read(EarlierSearch("first", house.storage, "first")))
    assert (taken.results, taken.faults, taken.left) == (6 - faults, faults, {})
    assert "could not be screened on this machine (no space left on device): --res" in str(taken)
    chosen[0]._function = cost_of
    again = EarlierResults(config, study, chosen, basis_of(chosen, config, house.folder))
    later = again.store(again.read(EarlierSearch("first", house.storage, "first")))
    assert (later.results, later.known, len(study.earlier())) == (faults, 6 - faults, 6)


@pytest.mark.usefixtures("quick")
def test_a_search_for_two_chips_starts_from_one_for_one_chip_in_another_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    one, two = (Program(tmp_path / name, monkeypatch, capfd) for name in ("one", "two"))
    trained, (chip, other) = {"val_iou": {"train": QUICK}}, ("htp:qcs8550", "htp:sa8295p")
    file = one.write("laptop", {"chip_latency_ms": {}, **trained}, budget=2)
    assert one("search", file).code == 0
    both = {"chip_latency_ms": {"devices": [chip, other]}, "ddr_bytes": {}, **trained}
    file = two.write("both", both, budget=1)
    done = two("search", file, "--from", one.folder / "searches/laptop")
    assert done.code == 0, done.err
    assert f"From {one.folder}/searches/laptop: took over 2 results" in done.err
    assert "1 candidate " in done.out and "2 taken over" in done.out
    assert f"{chip}: " in done.out and f"{other}: " in done.out
    assert len(two.trainings("both")) == 1, "models of the front are copied"
    earlier = {row["arch_id"]: row for row in one.table("laptop")}
    rows = two.table("both")
    assert {row["arch_id"] for row in rows if row["iteration"] == "-1"} == set(earlier)
    for row in rows:
        known = earlier.get(row["arch_id"])
        assert known is None or row["val_iou"] == known["val_iou"]
        assert known is None or row[f"chip_latency_ms@{chip}"] == known["chip_latency_ms"]
    front = {row["arch_id"]: row["fronts"].split() for row in two.table("both", "front.csv")}
    assert {name for names in front.values() for name in names} == {chip, other}
    for arch_id in front.keys() & earlier.keys():
        mine = two.folder / f"searches/both/pareto/{arch_id}.onnx"
        theirs = one.folder / f"searches/laptop/nets/{arch_id}.onnx"
        assert mine.read_bytes() == theirs.read_bytes()

    # what the estimate for each chip alone says of the same networks
    nets = [exported(row, tmp_path) for row in rows]
    for name in (chip, other):
        alone = find_platform("qnn").open_estimator(name, Settings.load(tmp_path), 120)
        for row, net in zip(rows, nets, strict=True):
            expected = chip_values(alone, net)
            assert set(expected) > {"chip_latency_ms", "chip_latency_low_ms", "ddr_bytes"}
            for value, number in expected.items():
                assert float(row[f"{value}@{name}"]) == pytest.approx(number)
        alone.close()


def exported(row: Mapping[str, str], folder: Path) -> Path:
    """The network of a candidate, untrained."""
    arch = Architecture("hourglass", json.loads(row["parameters"]), (1, 3, SIDE, SIDE), 19)
    assert arch.id == row["arch_id"]
    export_onnx(build(arch), arch, folder / f"{arch.id}.onnx")
    return folder / f"{arch.id}.onnx"
