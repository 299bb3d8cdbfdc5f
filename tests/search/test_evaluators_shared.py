"""Candidates that share one process: none of them pays for what another one does."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from edgeloop.search.evaluators import LocalTraining, local
from edgeloop.search.evaluators.threads import BusyTime
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan
from edgeloop.testing.contracts.evaluator import EvaluatorContract, collect_all
from tests.jobs.waiting import eventually
from tests.search.conftest import net

pytestmark = pytest.mark.slow

PLAN = TrainingPlan(epochs=2, batch=8, device="cpu")
LONG = replace(PLAN, epochs=25, checkpoint_s=0.01)


@pytest.fixture
def make(closing, project, faces, cache):
    """On a CPU, where the threads are the same and only the streams are missing."""

    def make(plan=PLAN, **options):
        paths = TrainingPaths(faces, project / "search", cache, project)
        return closing(LocalTraining(paths, plan, **{"at_once": 3, "cards": ("",), **options}))

    return make


class TestSharedTraining(EvaluatorContract):
    pass


def test_all_share_one_process_that_stays_and_what_is_wrong_with_one_is_its_own(make, processes):
    before, training = processes(), make(per_card=3)
    words = {
        "huge": "does not fit into the memory",
        "nan": "diverged: the loss was not finite at step 1",
        "good": "",
    }
    for what in words:
        training.send(net(what))
    answers = collect_all(training, 3)
    stayed = processes() - before
    assert len(stayed) == 1
    for what, text in words.items():
        answer = answers[net(what).id]
        assert text in answer.error and bool(answer.values) == (what == "good")
        assert answer.is_final == (what != "good")
    training.send(net(width=32))
    assert collect_all(training, 1)[net(width=32).id].values
    assert processes() - before == stayed
    training.close()
    assert not processes() - before


def test_a_process_that_was_started_early_trains_the_first_candidate(make, processes):
    before, training = processes(), make(per_card=3)
    training.warm()
    (started,) = processes() - before
    training.send(net())
    assert collect_all(training, 1)[net().id].values
    assert processes() - before == {started}


def test_one_that_ends_the_process_is_to_blame_and_the_others_continue(make, project):
    """The others had begun long before it came; each has the history of one training."""
    training = make(LONG, per_card=3)
    good = [net(width=8), net(width=16)]
    for arch in good:
        training.send(arch)
    for arch in good:  # an epoch of twenty-five, saved
        history = f"search/{arch.id}/*/metrics.jsonl"
        eventually(lambda h=history: any(path.stat().st_size for path in project.glob(h)))
    first = {arch.id: _history(project, arch)[0] for arch in good}
    training.send(net("killed"))
    answers = collect_all(training, 3)
    guilty = answers.pop(net("killed").id)
    assert "killed, most likely because memory ran out" in guilty.error and guilty.is_final
    for arch in good:
        assert answers[arch.id].values, answers[arch.id].error
        lines = _history(project, arch)
        assert len(lines) == 25 and lines[0] == first[arch.id]


# Speaks like the process of a card. What is in `endless` never ends and never listens; as long as
# it is there nothing else ends either.
STUBBORN = """
import json, os, sys
from pathlib import Path
say = lambda **more: print(json.dumps({"gpu": None, **more}), flush=True)
say(number=0, what="ready")
for line in sys.stdin:
    call = json.loads(line)
    if "train" in call:
        say(number=call["train"], what="begun")
        is_stuck = Path(call["folder"]).name == "endless" or "is_stuck" in globals() and is_stuck
        if not is_stuck:
            say(number=call["train"], what="ended", code=0, text="")
"""


def test_one_that_never_ends_is_stopped_and_those_that_waited_for_it_are_not(monkeypatch, tmp_path):
    monkeypatch.setattr(local, "_GRACE_S", 0.2)

    class Stubborn(local.TrainerCommand):
        def words(self):
            return [sys.executable, "-c", STUBBORN]

    command = Stubborn(TrainingPaths(tmp_path, tmp_path))
    trainers = local.SharedTrainers(["", ""], command, tmp_path)
    folders = [tmp_path / name for name in ("endless", "good", "better", "best")]
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda folder: trainers.train(folder, 1.0), folders))
    finally:
        trainers.close()
    assert found == [("it was not done after 1 s and was stopped", True), None, None, None]


# Its first process dies of two that have begun; the next one's first training never ends.
DYING = """
import json, sys
from pathlib import Path
say = lambda **more: print(json.dumps({"gpu": None, **more}), flush=True)
say(number=0, what="ready")
begun = 0
for line in sys.stdin:
    call = json.loads(line)
    if "train" in call:
        folder, begun = Path(call["folder"]), begun + 1
        say(number=call["train"], what="begun")
        if begun == 2:
            (folder.parent / "died").touch()
            sys.exit(3)
        if folder.name == "good" and (folder.parent / "died").exists():
            say(number=call["train"], what="ended", code=0, text="")
            begun = 0
"""


def test_one_that_is_tried_alone_has_its_time_limit_too(monkeypatch, tmp_path):
    monkeypatch.setattr(local, "_GRACE_S", 0.2)

    class Dying(local.TrainerCommand):
        def words(self):
            return [sys.executable, "-c", DYING]

    trainers = local.SharedTrainers([""], Dying(TrainingPaths(tmp_path, tmp_path)), tmp_path)
    try:
        with ThreadPoolExecutor(2) as pool:
            folders = [tmp_path / name for name in ("endless", "good")]
            found = list(pool.map(lambda folder: trainers.train(folder, 1.0), folders))
    finally:
        trainers.close()
    assert (tmp_path / "died").exists()
    assert found == [("it was not done after 1 s and was stopped", True), None]


def test_a_training_over_its_time_is_stopped_and_its_process_stays(make, processes):
    before, training = processes(), make(replace(PLAN, epochs=10**6), limit_s=2.0)
    training.send(net())
    answer = collect_all(training, 1)[net().id]
    assert "not done after 2 s and was stopped" in answer.error
    assert len(processes() - before) == 1


def test_a_process_that_cannot_start_is_nobodys_fault(make):
    training = make(replace(PLAN, device="cuda"))
    training.send(net())
    answer = collect_all(training, 1)[net().id]
    assert "PyTorch finds no usable GPU" in answer.error and not answer.is_final


def _history(project, arch):
    [file] = project.glob(f"search/{arch.id}/*/metrics.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_trainers_are_busy_while_their_places_are_taken_until_the_last_candidate_began():
    busy = BusyTime()
    assert busy.share(2) is None
    for now, active in ((0, 1), (2, 2), (6, 1), (8, 2), (9, 3), (9.5, 4), (20, 3), (40, 0)):
        busy.note(active, now)
    assert busy.share(2) == pytest.approx((2 * 1 + 4 * 2 + 2 * 1 + 1 * 2 + 0.5 * 2) / (2 * 9.5))
