"""Candidates that are chosen from a pool of screened members, with evaluators that take no time."""

from __future__ import annotations

import itertools
import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from edgeloop._util.system import limited_memory, memory_share_bytes, native_memory_bytes
from edgeloop.errors import SearchFailed, StoreUnavailable
from edgeloop.models.catalog import Candidates
from edgeloop.search.base import Evaluation
from edgeloop.search.config import SearchConfig, config_of
from edgeloop.search.evaluators import EvaluatorGroup
from edgeloop.search.evaluators.threads import PoolEvaluator, Request
from edgeloop.search.loop import Event, SearchListener, SearchLoop
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.pool import ELSEWHERE, Bank
from edgeloop.search.sampler.members import ask, replayed
from edgeloop.search.study import Candidate, Study
from tests.search.toy import (
    SIZE,
    Place,
    Worked,
    cost_of,
    evaluators,
    in_a_child,
    quality_of,
    toy_config,
)

pytestmark = pytest.mark.slow

SEED = {"pool": 4, "budget": 13}
KILLS = 4


class Yard(Place):
    """Searches with a bank in a folder; with all in files if they are to be killed (`is_kept`)."""

    def __init__(self, folder: Path, is_kept: bool = False) -> None:
        super().__init__(folder / "store" if is_kept else None)
        self.file = folder / "bank.jsonl"
        folder.mkdir(exist_ok=True)
        self.asked: list[str] = []
        self.told: list[str] = []
        self.events: list[Event] = []

    def loop(self, config: SearchConfig, chosen: list[Worked] | None = None) -> SearchLoop:
        study = self.study(config)
        bank = Bank.open(self.file, "toy", study.architecture)
        chosen = chosen or evaluators(self.asked.append)
        told, table = self.told.append, self.table()
        listener = SearchListener(hear=self.events.append, tell=told)
        return SearchLoop(config, study, chosen, table, listener, bank)

    def search(self, config: SearchConfig, chosen: list[Worked] | None = None) -> list[Candidate]:
        return self.loop(config, chosen).run()


def ids(candidates: list[Candidate]) -> list[str]:
    return [item.arch.id for item in candidates]


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path / "yard")


@pytest.fixture
def kept(tmp_path: Path) -> Yard:
    return Yard(tmp_path / "kept", is_kept=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Candidate]:
    return Yard(tmp_path_factory.mktemp("undisturbed")).search(toy_config(**SEED))


def test_only_what_is_chosen_counts_and_nothing_is_screened_or_trained_twice(yard: Yard):
    limits = {"params": [3, 20]}
    loop = yard.loop(toy_config(pool=8, budget=13, constraints=limits))
    found = loop.run()
    assert [item.state for item in found] == ["complete"] * 13
    assert all(3 <= item.values["params"] <= 20 for item in found)
    asked = Counter(line.split()[0] for line in yard.asked)
    assert asked["val_iou"] == 13 and asked["params"] > 32, "FIRST times the pool, and more"
    assert max(Counter(yard.asked).values()) == 1
    screened, left_out = loop.screened
    assert screened == asked["params"] and 0 < left_out < screened


def test_values_of_a_chosen_candidate_are_stored_at_once(yard: Yard):
    def interrupted(arch: Architecture) -> float:
        raise KeyboardInterrupt

    chosen = [Worked("params", 0, cost_of), Worked("val_iou", 1, interrupted)]
    with pytest.raises(KeyboardInterrupt):
        yard.search(toy_config(**SEED), chosen)
    [item] = yard.study(toy_config(**SEED)).candidates()
    assert (item.state, item.values) == ("running", {"params": cost_of(item.arch)})
    assert yard.table().results(item.arch.id, "toy params") == {"params": cost_of(item.arch)}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_other_samplers_have_no_pool(yard: Yard, sampler: str):
    loop = yard.loop(toy_config(budget=4, pool=8, sampler=sampler))
    assert len(loop.run()) == 4 and loop.screened == (0, 0)


def test_what_costs_nothing_or_is_not_known_before_training_needs_no_pool(yard: Yard):
    cheap = [Worked("params", 0, cost_of), Worked("val_iou", 0, quality_of)]
    dear = [Worked("params", 1, cost_of), Worked("val_iou", 1, quality_of)]
    for name, chosen in (("cheap", cheap), ("dear", dear)):
        loop = yard.loop(toy_config(name=name, budget=4, pool=8), chosen)
        assert len(loop.run()) == 4 and loop.screened == (0, 0)


def test_several_dear_objectives_and_the_farm(yard: Yard):
    config = config_of(
        {
            "search": {"name": "toy", "space": "toy.py:build", "size": 8, "budget": 8, "pool": 4},
            "objectives": {"params": {}, "val_iou": {}, "farm_latency_ms": {}},
            "data": "working/none",
        },
        "toy.yaml",
    )
    farm = Worked("farm_latency_ms", 1, lambda arch: 2.0 * cost_of(arch))
    found = yard.search(config, [*evaluators(yard.asked.append), farm])
    assert [item.state for item in found] == ["complete"] * 8
    assert all(len(item.values) == 3 for item in found)


@pytest.mark.parametrize("search", [{}, {"workers": 3}, {"batch": 5}])
def test_a_space_that_is_smaller_than_the_pool_is_searched_whole(yard: Yard, search):
    limits = {"params": [0, 4]}
    loop = yard.loop(toy_config(budget=1000, pool=40, constraints=limits, **search))
    found = loop.run()
    assert loop.is_exhausted and {item.values["params"] for item in found} == {1, 2, 3, 4}
    assert loop.screened == (SIZE, SIZE - len(found))
    assert max(Counter(yard.asked).values()) == 1


@pytest.mark.parametrize("pool", [2, 40])
def test_constraints_that_nothing_meets_are_said_after_a_while(yard: Yard, pool: int):
    with pytest.raises(SearchFailed, match=r"none of .* met the constraints; the last one: params"):
        yard.search(toy_config(budget=500, pool=pool, constraints={"params": [1000, 2000]}))
    assert all(line.startswith("params") for line in yard.asked) and len(yard.asked) >= 60


def test_a_space_that_earlier_searches_covered_is_exhausted_and_no_failure(yard: Yard):
    limits = {"params": [0, 4]}
    first = yard.search(toy_config(budget=1000, pool=40, constraints=limits))
    again = toy_config(name="again", budget=1000, pool=40, constraints=limits)
    study = yard.study(again)
    for item in first:
        member = ask(study._asked, replayed(item.params))
        study.take_over(member, item.values, "first")
    yard.file.unlink()
    loop = yard.loop(again)
    assert loop.run() == [] and loop.is_exhausted
    assert len(study.earlier()) == len(first) > 0


def test_limits_that_nothing_else_meets_end_a_search_with_what_it_has(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("edgeloop.search.pool.HOPELESS", 10)

    def cost(arch: Architecture) -> float:
        return cost_of(arch) if len(yard.asked) <= 12 else 1000.0

    chosen = [Worked("params", 0, cost, yard.asked.append), Worked("val_iou", 1, quality_of)]
    loop = yard.loop(toy_config(budget=500, pool=4, constraints={"params": [0, 900]}), chosen)
    found = loop.run()
    assert found and {item.state for item in found} == {"complete"}
    assert any(line.startswith("No further candidate: none of") for line in yard.told)


def test_members_that_cannot_be_built_are_left_out(yard: Yard):
    def crashes(arch: Architecture) -> float:
        if arch.params["kind"] == "b":
            raise ValueError("build crashed its process with SIGABRT")
        return cost_of(arch)

    found = yard.search(
        toy_config(budget=1000, pool=40, failures=0, constraints={"params": [0, 4]}),
        [Worked("params", 0, crashes), Worked("val_iou", 1, quality_of)],
    )
    assert {item.state for item in found} == {"complete"}
    assert {item.arch.params["kind"] for item in found} == {"a", "c"}
    assert "SIGABRT" in yard.file.read_text()


def test_a_fault_of_the_machine_is_not_a_fault_of_the_members(yard: Yard):
    troubled: Counter[str] = Counter()

    def once(arch: Architecture) -> float:
        troubled[arch.id] += 1
        if troubled[arch.id] == 1:
            raise OSError("this machine is too busy")
        return cost_of(arch)

    def never(arch: Architecture) -> float:
        raise OSError("no space left on device")

    dear = Worked("val_iou", 1, quality_of)
    with pytest.raises(SearchFailed, match=r"on this machine; the last one: no space left"):
        yard.search(toy_config(**SEED), [Worked("params", 0, never), dear])
    assert "no space" not in yard.file.read_text()
    found = yard.search(toy_config(**SEED), [Worked("params", 0, once), dear])
    assert len(found) == 13


def test_several_workers_get_the_best_of_what_is_known_and_wait_for_no_batch(yard: Yard):
    """Screening stops after the first batch: the trainings do not."""

    class Slow(Worked):
        sent = 0

        def send(self, arch: Architecture, files: Mapping[str, Path] | None = None) -> None:
            self.sent += 1
            if self.sent <= 12:
                super().send(arch, files)

    slow = Slow("params", 0, cost_of)
    loop = yard.loop(toy_config(pool=4, budget=9, workers=3), [slow, evaluators()[1]])
    assert len(loop.run()) == 9 and slow.sent > 12


def test_latency_of_this_machine_is_measured_while_nothing_is_trained(yard: Yard):
    config = config_of(
        {
            "search": {"name": "toy", "space": "toy.py:build", "size": 8, "budget": 12, "pool": 4},
            "objectives": {"host_latency_ms": {}, "val_iou": {}},
            "data": "working/none",
        },
        "toy.yaml",
    )
    open_at: list[int] = []
    loop = yard.loop(
        config,
        [
            Worked("host_latency_ms", 0, cost_of, lambda _: open_at.append(len(loop._open))),
            Worked("val_iou", 1, quality_of),
        ],
    )
    assert len(loop.run()) == 12 and set(open_at) == {0}


@pytest.mark.parametrize(
    "batch", [3, 14], ids=["a batch is due at the 11th", "the first batch is too small for a round"]
)
def test_a_round_is_whole_whenever_a_batch_is_due_and_however_it_was_killed(
    yard: Yard, tmp_path: Path, batch: int
):
    config = toy_config(budget=18, batch=batch, pool=4)
    found = yard.search(config)
    walk = ["begun" if event.what == "begun" else "ended" for event in yard.events]
    sizes = [min(batch, 18 - done) for done in range(0, 18, batch)]
    assert walk == [what for size in sizes for what in ["begun"] * size + ["ended"] * size]
    killed, log = Yard(tmp_path / "killed", is_kept=True), tmp_path / "asked.txt"
    steps = ((Study, "choose"),)  # before and after the 13th
    assert run_in_a_process(killed, config, log, 26, steps) == -signal.SIGKILL
    assert ids(killed.search(config)) == ids(found)


def test_values_of_another_compiler_are_found_anew_after_a_resume(yard: Yard):
    def interrupted(arch: Architecture) -> float:
        raise KeyboardInterrupt

    config = toy_config(**SEED, workers=3)

    def search(compiler: str, dear: Callable[[Architecture], float], cost: float) -> Study:
        study = yard.study(config)
        study.keep_basis({"values": {"params": compiler}})
        screening = Worked("params", 0, lambda arch: cost + cost_of(arch), yard.asked.append)
        screening.conditions = compiler
        chosen = [screening, Worked("val_iou", 1, dear)]
        bank = Bank.open(yard.file, compiler, study.architecture)
        SearchLoop(config, study, chosen, yard.table(), bank=bank).run()
        return study

    with pytest.raises(KeyboardInterrupt):
        search("compiler 1", interrupted, 1000.0)
    [first] = yard.study(config).candidates()
    study = search("compiler 2", quality_of, 0.0)
    assert {item.values["params"] < 1000 for item in study.candidates()} == {True}
    assert yard.table().results(first.arch.id, "compiler 2") == {"params": cost_of(first.arch)}
    known = Bank.open(yard.file, "compiler 2", study.architecture).members
    assert all(member.values["params"] < 1000 for member in known if member.is_screened)


def test_a_store_that_is_away_for_a_while_loses_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, undisturbed: list[Candidate]
):
    monkeypatch.setattr("edgeloop._util.retry.time.sleep", lambda _: None)
    for name in ("batch", "choose", "candidates"):
        troubles, real = itertools.cycle([False, True, False]), getattr(Study, name)

        def troubled(*arguments, troubles=troubles, real=real):
            found = real(*arguments)
            if next(troubles):
                raise StoreUnavailable(store="x", reason="gone")
            return found

        monkeypatch.setattr(Study, name, troubled)
    found = yard.search(toy_config(**SEED))
    assert ids(found) == ids(undisturbed) and max(Counter(yard.asked).values()) == 1


# Kills


EVERY_STEP = (
    *((Study, "batch"), (Study, "choose"), (Study, "_stored"), (Study, "end")),
    *((Bank, "plan"), (Bank, "put"), (Bank, "begin")),
    *((Worked, "send"), (Candidates, "note_all")),
)


def run_in_a_process(
    yard: Yard,
    config: SearchConfig,
    log: Path,
    fatal: int = 0,
    steps: Iterable[tuple[type, str]] = EVERY_STEP,
) -> int:
    """The search as a child, which kills itself before or after its nth step."""

    def search() -> None:
        with log.open("a", buffering=1) as file:
            yard.search(config, evaluators(lambda line: file.write(f"{line}\n") and None))

    return in_a_child(search, steps, fatal)


@pytest.mark.parametrize("is_lost", [False, True])
def test_kills_change_nothing_but_the_time(
    kept: Yard, tmp_path: Path, undisturbed: list[Candidate], is_lost: bool
):
    config = toy_config(**SEED)
    chance, log = random.Random(5), tmp_path / "asked.txt"
    for _ in range(KILLS):
        end = run_in_a_process(kept, config, log, chance.randint(1, 150 if is_lost else 40))
        assert end == -signal.SIGKILL
        if is_lost:
            kept.file.unlink(missing_ok=True)
        elif kept.file.exists():
            with kept.file.open("ab") as file:
                file.write(b'{"member": "id_0000')
    assert run_in_a_process(kept, config, log) == 0
    found = kept.study(config).candidates()
    assert ids(found) == ids(undisturbed)
    assert [item.values for item in found] == [item.values for item in undisturbed]
    asked = Counter(log.read_text().splitlines())
    trained = sum(count for line, count in asked.items() if line.startswith("val_iou"))
    assert trained <= len(found) + KILLS, "a kill may cut a training off"
    if not is_lost:
        again = sum(count - 1 for line, count in asked.items() if line.startswith("params"))
        assert again <= KILLS * 16, "what a kill left in the queue"


def test_several_workers_continue_with_the_bank_after_kills(kept: Yard, tmp_path: Path):
    config, log = toy_config(**SEED, workers=3), tmp_path / "asked.txt"
    for fatal in (70, 50):
        assert run_in_a_process(kept, config, log, fatal) == -signal.SIGKILL
    known = Bank.open(kept.file, "toy", kept.study(config).architecture)
    before = Counter(log.read_text().splitlines())
    assert run_in_a_process(kept, config, log) == 0
    again = Counter(log.read_text().splitlines()) - before
    screened = {member.arch.id for member in known.members if member.is_screened}
    assert len(screened) > 5 and not screened & {line.split()[1] for line in again if "par" in line}
    found = kept.study(config).candidates()
    assert len(set(ids(found))) == 13 and {item.state for item in found} == {"complete"}


# The bank


def make(params: Mapping[str, object]) -> Architecture:
    return Architecture("toy.py:build", dict(params), (1, 3, 8, 8), 19)


def test_a_bank_is_read_back_whatever_else_is_in_its_file(tmp_path: Path):
    file = tmp_path / "bank.jsonl"
    bank = Bank.open(file, "c", make)
    bank.add({"x": 0}, {"params": 5.0})
    bank.begin(0)
    bank.plan(0, [{"x": 1}, {"x": 2}, {"x": 2.0}, {"x": 3}])
    bank.put(make({"x": 2}).id, {"params": 7.0})
    bank.put(make({"x": 1}).id, {}, "it crashed")
    strange = [b"\xff\xfe\n", b"[1, 2]\n", b'{"batch": "x", "members": 3}\n', b"[" * 9000 + b"\n"]
    strange += [b'{"batch": 1, "members": [{"x": [1]}, 4, {"x": 9}]}\n', b'{"member": 4}\n']
    strange += [b'{"member": "id_1", "values": {"params": "many"}}\n', b'{"member": "id_1", "val']
    with file.open("ab") as opened:
        opened.writelines(strange)
    again = Bank.open(file, "c", make)
    assert [(m.params["x"], m.batch) for m in again.members] == [
        *((0, ELSEWHERE), (1, 0), (2, 0), (3, 0), (9, 1))
    ]
    assert again.repeats == [{"x": 2.0}]
    zero, one, two, three, _ = again.members
    assert (zero.values, two.values, one.error) == ({"params": 5.0}, {"params": 7.0}, "it crashed")
    assert not three.is_screened
    again.put(three.arch.id, {"params": 1.0})
    assert Bank.open(file, "c", make).get(three.arch.id).values == {"params": 1.0}


def test_a_bank_adopts_what_another_has_screened_under_the_same_conditions(tmp_path: Path):
    other = Bank.open(tmp_path / "other.jsonl", "c", make)
    other.begin(0)
    members = [{"x": number} for number in range(4)]
    other.plan(0, members)
    for number in range(3):
        error = "it crashed" if number == 2 else ""
        other.put(make({"x": number}).id, {"params": float(number)}, error)
    file = tmp_path / "bank.jsonl"
    bank = Bank.open(file, "c", make)
    bank.begin(0)
    bank.plan(0, [{"x": 1}])
    bank.put(make({"x": 1}).id, {"params": 9.0})
    assert bank.adopt(tmp_path / "other.jsonl") == 2, "not what it had, nor what was only planned"
    assert bank.adopt(tmp_path / "other.jsonl") == 0
    for found in (bank, Bank.open(file, "c", make)):
        known = {m.params["x"]: (m.values.get("params"), m.error, m.batch) for m in found.members}
        assert known == {
            **{1: (9.0, "", 0), 0: (0.0, "", ELSEWHERE), 2: (2.0, "it crashed", ELSEWHERE)},
        }
    assert Bank.open(None, "another compiler", make).adopt(file) == 0
    assert bank.adopt(tmp_path / "none.jsonl") == 0


def test_a_bank_of_other_conditions_is_replaced(tmp_path: Path):
    file = tmp_path / "bank.jsonl"
    bank = Bank.open(file, "compiler 1", make)
    bank.begin(0)
    bank.plan(0, [{"x": 1}])
    other = Bank.open(file, "compiler 2", make)
    assert (other.first, other.members) == (None, [])
    other.begin(3)
    assert json.loads(file.read_text())["conditions"] == "compiler 2"


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"bank", b'{"bank": 9, "conditions": "c"}\n'])
def test_a_file_that_is_no_bank_is_no_bank(tmp_path: Path, content: bytes):
    file = tmp_path / "bank.jsonl"
    file.write_bytes(content)
    assert Bank.open(file, "c", make).first is None
    file.unlink()
    file.mkdir()
    assert Bank.open(file, "c", make).first is None


# Several evaluators as one


class Hungry(PoolEvaluator):
    """Has room for two at a time if each is small; keeps what it was asked."""

    gives, cost, conditions = ("params",), 0, "hungry"
    asked: ClassVar[list[str]] = []

    def _work(self, request: Request) -> Evaluation:
        size = cost_of(request.arch)
        self.asked.append(request.arch.id)
        if size > native_memory_bytes() >> 30:
            error = "it needs more memory"
            return Evaluation(request.arch.id, error=error, lacks_memory=True)
        return Evaluation(request.arch.id, {"params": size})


def test_what_lacks_memory_is_tried_alone_with_all_of_it_and_never_kept_as_a_fault_of_the_model(
    yard: Yard,
):
    """Four GiB are enough for some, 20 for others, and for a few nothing is."""
    Hungry.asked.clear()
    config = toy_config(budget=1000, pool=40, constraints={"params": [0, 1000]})
    with limited_memory(4 << 30):
        group = EvaluatorGroup([Hungry(), Hungry()], lambda: limited_memory(20 << 30))
        try:
            found = yard.search(config, [group, Worked("val_iou", 1, quality_of)])
        finally:
            group.close()
    sizes = {cost_of(item.arch) for item in found}
    assert max(sizes) == 20 and min(sizes) == 1
    asked = Counter(Hungry.asked)
    assert {asked[item.arch.id] for item in found if cost_of(item.arch) <= 4} == {1}
    assert {asked[item.arch.id] for item in found if cost_of(item.arch) > 4} == {2}
    assert len(asked) == SIZE > len(found) and max(asked.values()) == 2
    assert "memory" not in yard.file.read_text()


def test_the_memory_of_a_machine_is_shared_by_the_processes_that_screen(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("edgeloop._util.system.memory_bytes", lambda: 100 << 30)
    assert memory_share_bytes(1) == native_memory_bytes() == 60 << 30
    assert memory_share_bytes(8) == (60 << 30) // 8
    with limited_memory(5 << 30):
        assert (memory_share_bytes(1), memory_share_bytes(8)) == (5 << 30, 5 << 30)
        assert memory_share_bytes(20) == 3 << 30
    assert native_memory_bytes() == 60 << 30


class Halting(PoolEvaluator):
    gives, cost, conditions = ("params",), 0, "halting"

    def _work(self, request: Request) -> Evaluation:
        if request.arch.params["x"] == 0:
            self._closing.wait()
        return Evaluation(request.arch.id, {"params": 1.0})


def test_a_group_shares_work_and_a_slow_one_holds_up_nobody_else():
    several = [Halting(), Halting()]
    group = EvaluatorGroup(several)
    try:
        archs = [make({"x": number}) for number in range(20)]
        for arch in (*archs, *archs):
            group.send(arch)
        found: list[str] = []
        while len(found) < 18:  # one never ends, and has one more in its queue
            found += [evaluation.arch_id for evaluation in group.collect(60.0)]
        assert len(set(found)) == 18 and group.capacity == 2
    finally:
        group.close()
