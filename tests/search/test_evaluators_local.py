"""Training here: a process a candidate, killed and resumed, and nets that cannot be trained."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.errors import BadInput, LocalFileError
from edgeloop.search.evaluators import LocalTraining
from edgeloop.testing.contracts.evaluator import EvaluatorContract, collect_all
from edgeloop.training import TrainingPlan
from tests.jobs.waiting import eventually
from tests.search.conftest import below, net

pytestmark = pytest.mark.slow

PLAN = TrainingPlan(epochs=2, batch=8, device="cpu")
LONG = replace(PLAN, epochs=40, checkpoint_s=0.01)


@pytest.fixture
def make(closing, project, faces, cache):
    def make(plan=PLAN, dataset=faces, **options):
        options = {"at_once": 2, "folder": project / "search", **options}
        return closing(LocalTraining(dataset, plan, cache=cache, project=project, **options))

    return make


@pytest.fixture
def bad():
    return net("nan")


class TestLocalTraining(EvaluatorContract):
    pass


def test_a_training_that_was_killed_goes_on_and_one_that_is_done_is_the_answer(
    make, project, processes
):
    arch = net()
    first = make(LONG)
    first.send(arch)
    folder = project / "search" / arch.id
    # the first of forty epochs, saved
    eventually(lambda: any(path.stat().st_size for path in folder.glob("*/metrics.jsonl")))
    first.close()
    history = next(folder.glob("*/metrics.jsonl"))
    before = history.read_text().splitlines()
    assert not list(folder.glob("*/outcome.json"))

    second = make(LONG)
    second.send(arch)
    answer = collect_all(second, 1)[arch.id]
    assert not answer.error
    after = history.read_text().splitlines()
    assert after[0] == before[0] and len(after) == 40  # its times tell that it is the same

    metrics = json.loads(answer.files["metrics.json"].read_text())
    assert answer.values == {
        "val_iou": metrics["miou"],
        "val_f1": metrics["f1"],
        "training_time": metrics["seconds"],
    }
    assert answer.files["model.onnx"].is_file()

    running = processes()
    third = make(LONG)
    third.send(arch)
    assert collect_all(third, 1)[arch.id].values == answer.values
    assert processes() == running


def test_another_plan_or_an_edited_space_is_another_training(make, project, faces, tmp_path):
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


def test_a_training_over_its_time_is_stopped_for_good(make, processes):
    before = processes()
    training = make(replace(PLAN, epochs=10**6), limit_s=6.0)
    training.send(net())
    answer = collect_all(training, 1)[net().id]
    assert "not done after 6 s and was stopped" in answer.error and answer.is_final
    assert not processes() - before


def test_when_the_search_is_killed_its_trainings_end_too(project, faces, cache, tmp_path):
    script = tmp_path / "search.py"
    script.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from edgeloop.search.evaluators import LocalTraining\n"
        "from edgeloop.training import TrainingPlan\n"
        "from tests.search.conftest import net\n"
        "faces, cache, project = map(Path, sys.argv[1:])\n"
        "plan = TrainingPlan(epochs=10**6, batch=8, device='cpu')\n"
        "training = LocalTraining(faces, plan, folder=project / 'search', cache=cache,"
        " project=project)\n"
        "training.send(net())\n"
        "time.sleep(600)\n"
    )
    search = subprocess.Popen(
        [sys.executable, script, faces, cache, project],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    try:
        eventually(lambda: list(project.glob("search/*/*/metrics.jsonl")))
        children = below(search.pid)
        assert children
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
