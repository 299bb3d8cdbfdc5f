"""Training as jobs, found again by whoever comes later: with a trainer that takes no time, and with
the real one here and on a Ray cluster."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeloop.errors import BadInput, EdgeloopError, NoSuchDataset
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.watch import outputs_of
from edgeloop.node.ticket import Resources
from edgeloop.search.evaluators import PartialTraining
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.plan import TrainingPlan
from edgeloop.settings import Settings
from edgeloop.testing.contracts.compute import processes_with
from edgeloop.testing.contracts.evaluator import EvaluatorContract, collect_all
from tests.jobs.waiting import end_all, eventually
from tests.search.conftest import SPACE, net

if TYPE_CHECKING:
    from tests.peers.ray import RayCluster

pytestmark = pytest.mark.slow

PLAN = TrainingPlan(epochs=2, batch=8, device="cpu")
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def jobs(
    project: Path, faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Jobs]:
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    shutil.copytree(faces, project / "data/working/faces")
    jobs = Jobs(Settings.load(project))
    yield jobs
    end_all(jobs)


@pytest.fixture
def make(closing, jobs):
    def make(plan=PLAN, jobs=jobs, **options):
        options = {"search": "tiny", "resources": Resources(cpus=0.5), **options}
        return closing(PartialTraining(jobs, "working/faces", plan, **options))

    return make


@pytest.fixture
def processes(tmp_path: Path) -> Callable[[], set[int]]:
    """Jobs are nobody's children; their commands name this test's folder."""
    return lambda: set(processes_with(str(tmp_path / "cache")))


@pytest.mark.usefixtures("quick")
class TestPartialTraining(EvaluatorContract):
    pass


def names(jobs: Jobs) -> list[str]:
    return [run.name for run in jobs.select(()).runs]


def test_whoever_comes_later_waits_for_the_job_that_is_there(make, jobs: Jobs, quick: Path):
    quick.touch()
    arch = net()
    first = make()
    first.send(arch)
    eventually(lambda: names(jobs))
    second = make(search="other")  # as after a kill: it knows nothing of the first
    second.send(arch)
    eventually(second._waiting)
    quick.unlink()
    answers = [collect_all(each, 1)[arch.id] for each in (first, second)]
    third = make()
    third.send(arch)
    answers.append(collect_all(third, 1)[arch.id])
    assert len(names(jobs)) == 1 and names(jobs)[0].startswith(f"tiny-{arch.id}-")
    metrics = json.loads(answers[0].files["metrics.json"].read_text())
    for answer in answers:
        assert answer.values["val_f1"] == metrics["f1"]
        assert answer.files["model.onnx"].is_file()


@pytest.mark.usefixtures("quick")
def test_an_architecture_is_an_object_its_json_or_a_file_with_that(
    make, jobs: Jobs, tmp_path: Path
):
    arch, file = net(), tmp_path / "arch.json"
    file.write_text(json.dumps(json.loads(arch.canonical), indent=2))
    training = make({"epochs": 2, "batch": 8, "device": "cpu"}, resources={"cpus": 0.5})
    for form in (arch.canonical, json.loads(arch.canonical), str(file), file, arch):
        training.send(form)
    answers = collect_all(training, 1)
    assert answers[arch.id].values and training.collect(0) == []
    assert [jobs.spec(run).resources.cpus for run in jobs.select(()).runs] == [0.5]
    assert make().conditions == training.conditions


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"params": {}}, "the keys? .* is missing"),
        ('{"space": ', "it is no JSON"),
        ("no/such/file.json", "No such file or directory"),
        (7, "it is neither an architecture nor its JSON nor the path of a file with that"),
        (None, "it is neither an architecture nor its JSON nor the path of a file with that"),
    ],
)
def test_anything_else_is_refused_at_once_with_one_sentence(make, form: object, says: str):
    with pytest.raises(EdgeloopError, match=says) as refused:
        make().send(form)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"plan": {"epoch": 3}}, "a training plan has no 'epoch': did you mean 'epochs'?"),
        ({"plan": {"epochs": "3"}}, "the training plan cannot be read: "),
        ({"resources": {"gpu": 1}}, "did you mean 'resources.gpus'?"),
        ({"environment": "none.yaml"}, "names 'none.yaml', which is not in "),
    ],
)
def test_a_misspelt_argument_is_named(make, wrong: dict[str, object], says: str):
    with pytest.raises(BadInput) as refused:
        make(**wrong)
    assert says in str(refused.value)


def test_a_job_that_was_canceled_may_be_asked_for_again_and_is_another_attempt(
    make, jobs: Jobs, quick: Path
):
    quick.touch()
    arch = net()
    training = make()
    training.send(arch)
    eventually(lambda: names(jobs))
    jobs.cancel(jobs.select(()).runs)
    answer = collect_all(training, 1)[arch.id]
    assert "was canceled" in answer.error and not answer.is_final
    quick.unlink()
    training.send(arch)
    again = collect_all(training, 1)[arch.id]
    assert not again.error
    assert [run.record.parent for run in jobs.select(()).runs] == [None, names(jobs)[0]]


@pytest.mark.usefixtures("quick")
def test_a_batch_is_one_job_and_each_of_its_nets_has_its_own_end(make, jobs: Jobs):
    training = make(batch=3)
    archs = [net(width=8), net("huge"), net(width=16)]
    for arch in archs:
        training.send(arch)
    answers = collect_all(training, 3)
    assert len(names(jobs)) == 1
    assert "does not fit into the memory" in answers[archs[1].id].error
    assert answers[archs[0].id].values["val_f1"] != answers[archs[2].id].values["val_f1"]
    single = make()
    single.send(archs[0])  # found in the batch
    assert collect_all(single, 1)[archs[0].id].values == answers[archs[0].id].values
    assert len(names(jobs)) == 1


@pytest.mark.usefixtures("quick")
def test_a_rung_that_fails_is_one_failure_whatever_the_rung_before_has_left(make, jobs: Jobs):
    arch, training = net("crash"), make(replace(PLAN, epochs=3), retries=0)
    for until, count in ((1, 1), (2, 2), (2, 3)):
        training.pause(arch, until)
        training.send(arch)
        answer = collect_all(training, 1)[arch.id]
        assert len(names(jobs)) == count, "one job for each time that it is asked for"
        assert ("SIGKILL" in answer.error, answer.is_final) == (until == 2, False)
    assert (jobs.outputs(jobs.select(()).runs[-1]) / "outcome.json").is_file()


@pytest.mark.usefixtures("quick")
def test_whole_trainings_take_no_rung_for_a_result_and_stopped_ones_leave_no_checkpoint(
    make, jobs: Jobs
):
    arch, training = net(), make(search="stopping")
    training.pause(arch, 1)
    training.send(arch)
    assert collect_all(training, 1)[arch.id].paused_at == 1
    whole = make(search="whole")
    whole.send(arch)
    answer = collect_all(whole, 1)[arch.id]
    assert not answer.paused_at and answer.values["val_f1"] == 1 - 1 / 16
    assert [name.partition("-")[0] for name in sorted(names(jobs))] == ["stopping", "whole"]
    [run] = [run for run in jobs.select(()).runs if run.name.startswith("stopping")]
    kept = outputs_of(jobs.blobs, run.record.id)[0]
    assert "checkpoint.pt" in kept
    training.discard(arch)
    training.close()
    left = outputs_of(jobs.blobs, run.record.id)[0]
    assert left.keys() == kept.keys() - {"checkpoint.pt"}


@pytest.mark.usefixtures("quick")
def test_results_of_earlier_jobs_are_fetched_once_and_a_damaged_one_harms_no_other(
    make, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
):
    plan, archs = replace(PLAN, epochs=3), [net(width=8), net(width=16)]
    first = make(plan)
    for arch in archs:
        first.pause(arch, 1)
        first.send(arch)
    collect_all(first, 2)
    damaged, sound = (
        next(run for run in jobs.select(()).runs if arch.id in run.name) for arch in archs
    )
    shutil.rmtree(jobs.outputs(damaged))
    jobs.outputs(damaged).write_text("not a folder")
    fetched, told = list[str](), list[str]()
    real = Jobs.fetch
    monkeypatch.setattr(
        Jobs,
        "fetch",
        lambda self, run, **named: (fetched.append(run.name), real(self, run, **named)),
    )
    later = make(plan, search="later", batch=4, tell=told.append)
    for arch in archs:
        later.pause(arch, 2)
        later.send(arch)
    answers = collect_all(later, 2)
    assert {answer.paused_at for answer in answers.values()} == {2}, answers
    assert fetched.count(sound.name) == fetched.count(damaged.name) == 1
    assert [line.partition(":")[0] for line in told] == [f"The job {damaged.name} is left out"]
    history = answers[archs[1].id].files["metrics.jsonl"].read_text().splitlines()
    assert len(history) == 2 and history[0] == (
        (jobs.outputs(sound) / "metrics.jsonl").read_text().strip()
    ), "it continued"


@pytest.mark.usefixtures("quick")
def test_the_same_on_a_ray_cluster(make, project: Path, jobs: Jobs, ray_cluster: RayCluster):
    settings = {"computes": {"cluster": {"kind": "ray", "address": ray_cluster.address}}}
    (project / "edgeloop.yaml").write_text(json.dumps(settings))
    there = Jobs(Settings.load(project))
    variables = {"PYTHONPATH": str(REPOSITORY)}  # the nodes find the quick trainer
    training = make(jobs=there, compute="cluster", variables=variables)
    training.send(net("nan"))
    failed = collect_all(training, 1)[net("nan").id]
    assert "diverged" in failed.error and failed.is_final
    for until in (1, 2):  # another one in two rungs
        training.pause(net(width=24), until)
        training.send(net(width=24))
        rung = collect_all(training, 1)[net(width=24).id]
        assert not rung.error and rung.paused_at == (1 if until == 1 else 0)
    assert len((rung.files["metrics.jsonl"]).read_text().splitlines()) == 2
    assert {run.record.compute for run in there.select(()).runs} == {"cluster"}


def trained_in_rungs(
    training: PartialTraining, archs: list[Architecture]
) -> dict[str, list[float]]:
    """The scores of each at the pauses and at the end."""
    found: dict[str, list[float]] = {arch.id: [] for arch in archs}
    for until in (1, 2, 3):
        for arch in archs:
            training.pause(arch, until)
            training.send(arch)
        for name, answer in collect_all(training, len(archs)).items():
            assert not answer.error, answer.error
            assert answer.paused_at == (until if until < 3 else 0)
            assert ("model.onnx" in answer.files) == (until == 3)
            found[name].append(answer.values["val_f1"])
    return found


@pytest.mark.usefixtures("quick")
def test_a_rung_is_a_job_that_continues_from_the_one_before(make, jobs: Jobs):
    plan, archs = replace(PLAN, epochs=3), [net(width=8), net(width=16), net(width=24)]
    training = make(plan, batch=2)
    scores = trained_in_rungs(training, archs)
    runs = jobs.select(()).runs
    assert len(runs) == 6  # two per rung
    for run in runs:
        jobs.fetch(run)
    for arch in archs:  # a later job has the earlier epochs as they were, to the millisecond
        found = [path for run in runs for path in jobs.outputs(run).rglob("metrics.jsonl")]
        files = [path for path in found if Architecture.load(path.parent / "arch.json") == arch]
        lines = [line for path in files for line in path.read_text().splitlines()]
        assert len(lines) == 6 and len(set(lines)) == 3
    later = make(plan, search="later")  # as after a kill: everything is found
    later.pause(archs[0], 1)
    later.send(archs[0])
    answer = collect_all(later, 1)[archs[0].id]
    assert not answer.paused_at and answer.values["val_f1"] == scores[archs[0].id][-1]
    assert len(jobs.select(()).runs) == 6


@pytest.mark.soak
def test_a_real_training_in_rungs_is_the_training_at_one_go(make, jobs: Jobs):
    arch, training = net(), make()
    for until in (1, 2):
        training.pause(arch, until)
        training.send(arch)
        rung = collect_all(training, 1)[arch.id]
        assert not rung.error, rung.error
    (jobs.settings.project / "nets.py").write_text(SPACE + "# another key\n")
    whole = make(search="whole")
    whole.send(arch)
    assert collect_all(whole, 1)[arch.id].values["val_f1"] == rung.values["val_f1"]


def test_its_conditions_follow_the_content_of_the_dataset_and_the_plan(make, project: Path):
    first = make().conditions
    assert make(replace(PLAN, learning_rate=1e-3)).conditions != first
    picture = sorted((project / "data/working/faces").glob("*.png"))[0]
    picture.write_bytes(picture.read_bytes() + b" ")
    assert make().conditions != first


def test_what_can_never_be_submitted_is_said_at_once(jobs: Jobs, make):
    with pytest.raises(NoSuchDataset):
        PartialTraining(jobs, "working/nothing", PLAN)
    with pytest.raises(BadInput, match="cannot be called 'a b'"):
        make(search="a b")
    hungry = make(resources=Resources(gpus=99))
    hungry.send(net())
    answer = collect_all(hungry, 1)[net().id]
    assert "can never run this job" in answer.error and answer.is_final
