"""Training here: a process a candidate, killed and resumed, and nets that cannot be trained. The
trainer takes no time; a search with the real one is in test_campaign.py."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.errors import BadInput, LocalFileError
from edgeloop.search.evaluators import LocalTraining
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan
from edgeloop.testing.contracts.evaluator import EvaluatorContract, collect_all
from tests.jobs.waiting import eventually
from tests.search.conftest import below, net

pytestmark = pytest.mark.slow

PLAN = TrainingPlan(epochs=2, batch=8, device="cpu")


@pytest.fixture
def make(closing, project, faces, cache):
    def make(plan=PLAN, dataset=faces, **options):
        paths = TrainingPaths(dataset, project / "search", cache, project)
        return closing(LocalTraining(paths, plan, **{"at_once": 2, **options}))

    return make


@pytest.mark.usefixtures("quick")
class TestLocalTraining(EvaluatorContract):
    pass


def test_a_training_that_was_killed_goes_on_and_one_that_is_done_is_the_answer(
    make, project, processes, quick
):
    quick.touch()
    arch, plan = net("halt"), replace(PLAN, epochs=4)
    first = make(plan)
    first.send(arch)
    folder = project / "search" / arch.id
    # the first of four epochs
    eventually(lambda: any(path.stat().st_size for path in folder.glob("*/metrics.jsonl")))
    first.close()
    history = next(folder.glob("*/metrics.jsonl"))
    before = history.read_text().splitlines()
    assert len(before) == 1 and not list(folder.glob("*/outcome.json"))

    quick.unlink()
    second = make(plan)
    second.send(arch)
    answer = collect_all(second, 1)[arch.id]
    assert not answer.error
    after = history.read_text().splitlines()
    assert after[0] == before[0] and len(after) == 4  # its times tell that it is the same

    metrics = json.loads(answer.files["metrics.json"].read_text())
    assert answer.values == {
        "val_iou": metrics["miou"],
        "val_f1": metrics["f1"],
        "training_time": metrics["seconds"],
    }
    assert answer.files["model.onnx"].is_file()

    running = processes()
    third = make(plan)
    third.send(arch)
    assert collect_all(third, 1)[arch.id].values == answer.values
    assert processes() == running


@pytest.mark.usefixtures("quick")
def test_another_plan_or_an_edited_space_is_another_training(make, project):
    arch, training = net(), make()
    training.send(arch)
    first = collect_all(training, 1)[arch.id]
    other = make(replace(PLAN, seed=1))
    assert other.conditions != training.conditions
    assert make(replace(PLAN, threads=2)).conditions == training.conditions
    (project / "nets.py").write_text((project / "nets.py").read_text().replace("ReLU", "SiLU"))
    training.send(arch)
    second = collect_all(training, 1)[arch.id]
    assert second.files["metrics.json"] != first.files["metrics.json"]


def test_the_same_pictures_elsewhere_are_the_same_dataset_and_changed_ones_are_not(
    make, faces, tmp_path
):
    copy = tmp_path / "copy"
    shutil.copytree(faces, copy, copy_function=shutil.copyfile)
    conditions = make().conditions
    assert make(dataset=copy).conditions == conditions
    picture = sorted(copy.glob("*.png"))[0]
    picture.write_bytes(picture.read_bytes() + b" ")
    assert make(dataset=copy).conditions != conditions


@pytest.mark.usefixtures("quick")
def test_nets_that_cannot_be_trained_are_one_sentence_each_and_final(make):
    training = make()
    bad = {
        "huge": "does not fit into the memory",
        "killed": "killed, most likely because memory ran out",
        "nan": "diverged: the loss was not finite at step 1",
    }
    for what in bad:
        training.send(net(what))
    answers = collect_all(training, 3)
    for what, words in bad.items():
        answer = answers[net(what).id]
        assert words in answer.error and answer.is_final and not answer.values


def test_a_training_over_its_time_is_stopped_for_good(make, processes, quick):
    quick.touch()
    before, training = processes(), make(limit_s=1.0)
    training.send(net())
    answer = collect_all(training, 1)[net().id]
    assert "not done after 1 s and was stopped" in answer.error and answer.is_final
    assert not processes() - before


# A search that waits for a training which never begins.
SEARCH = """
import sys, time
from pathlib import Path
from edgeloop.search.evaluators import LocalTraining, local
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan
from tests.search.conftest import net
local._MODULE = "tests.search.quick_trainer"
faces, cache, project = map(Path, sys.argv[1:])
paths = TrainingPaths(faces, project / "search", cache, project)
LocalTraining(paths, TrainingPlan(batch=8, device="cpu")).send(net())
time.sleep(600)
"""


def test_when_the_search_is_killed_its_trainings_end_too(project, faces, cache, quick):
    quick.touch()
    search = subprocess.Popen([sys.executable, "-c", SEARCH, faces, cache, project])
    try:
        eventually(lambda: below(search.pid))
        children = below(search.pid)
    finally:
        search.send_signal(signal.SIGKILL)
        search.wait()
    eventually(lambda: not any(_lives(pid) for pid in children))


def test_a_training_that_never_continues_leaves_no_checkpoint(make):
    training = make()
    for arch in (net(), net(width=16)):
        folder = training._place(arch)[1]
        folder.mkdir(parents=True)
        (folder / "checkpoint.pt").touch()
        (folder / "metrics.json").touch()
    training.discard(net())
    training.discard(net(width=32))  # it has none
    left = [len(list(training._place(arch)[1].iterdir())) for arch in (net(), net(width=16))]
    assert left == [1, 2]


def test_a_dataset_that_is_not_there_and_useless_numbers_are_said_at_once(make, tmp_path):
    with pytest.raises(LocalFileError, match="there is no such folder of images"):
        make(dataset=tmp_path / "nowhere")
    with pytest.raises(BadInput, match="at_once must be 1 or more"):
        make(at_once=0)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
