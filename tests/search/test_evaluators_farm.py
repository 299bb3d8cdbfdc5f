"""The farm as an evaluator: a real runner, and tables that never answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.errors import BadInput
from edgeloop.models.catalog import Candidates
from edgeloop.models.runners import DEAD_S, Registry, RunnerDevice, RunnerEntry
from edgeloop.search.evaluators import RemoteBenchmark, farm
from edgeloop.search.evaluators.screening import ModelBuilder
from edgeloop.search.nets.architecture import Architecture
from edgeloop.settings import Settings
from edgeloop.testing.contracts.evaluator import EvaluatorContract, collect_all
from edgeloop.workspace import Workspace
from tests.graph.odd_models import no_number
from tests.jobs.waiting import eventually
from tests.search.conftest import SPACE, net

pytestmark = pytest.mark.slow

DONE = {"total_inference_avg": "[0.002, 0.004]", "mean": 0.003, "stdev": 1.0, "device": "host"}


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Architecture], dict[str, Path]]:
    """Nets as Screening leaves them; the bad one takes two images, which no runner can."""
    folder = tmp_path_factory.mktemp("nets")
    (folder / "nets.py").write_text(SPACE)
    builder = ModelBuilder(60.0, folder)

    def file_of(arch: Architecture) -> dict[str, Path]:
        path = folder / f"{arch.id}.onnx"
        if not path.exists():
            no_number(path) if arch.params["what"] == "huge" else builder.build(arch, path)
        return {"untrained.onnx": path}

    file_of(net())
    file_of(net(width=16))
    builder.close()
    return file_of


@pytest.fixture
def files_of(nets):
    return nets


@pytest.fixture
def workspace(project: Path) -> Iterator[Workspace]:
    with Workspace(Settings.load(project)) as workspace:
        yield workspace


@pytest.fixture
def make(closing, workspace):
    def make(**options):
        return closing(RemoteBenchmark(workspace, **options))

    return make


@pytest.fixture
def runner(project: Path, faces: Path) -> Iterator[None]:
    """Until the end of the test, with this machine as its device."""
    sizes = ("--calibration-images", "8", "--quick-images", "8", "--thorough-images", "8")
    command = [sys.executable, "-m", "edgeloop", "runner", "--device", "host", *sizes]
    process = subprocess.Popen(
        [*command, "--dataset", faces], cwd=project, stdout=subprocess.DEVNULL
    )
    yield
    process.kill()
    process.wait()


class TestRemoteBenchmark(EvaluatorContract):
    @pytest.fixture
    def good(self):
        return [net(), net(width=16)]

    @pytest.fixture
    def bad(self, runner: None):
        """With a runner, which the tests without a bad model do not need."""
        return net("huge")

    def test_closed_in_the_middle_of_work_it_leaves_nothing_behind(
        self, make, good, files_of, workspace
    ):
        """It has no process here; its model stays in the farm, where the next one finds it."""
        evaluator = make()
        evaluator.send(good[0], files_of(good[0]))
        eventually(lambda: is_uploaded(workspace, good[0].id))
        evaluator.close()
        evaluator.close()
        with pytest.raises(BadInput, match="closed"):
            evaluator.send(good[0])
        assert workspace.model(name_in(workspace, good[0].id)).row["benchmark_only"] == 1


def name_in(workspace: Workspace, arch_id: str) -> str:
    """Of an architecture in the status table."""
    models = workspace.store.models(workspace.experiment)
    return Candidates(models, workspace.experiment).name_of(arch_id)


def fill(workspace: Workspace, arch_id: str, values: dict) -> None:
    """What a runner would write."""
    table = workspace.store.models(workspace.experiment)
    row = table.get(name_in(workspace, arch_id))
    assert row is not None
    table.update(row, values)


def is_uploaded(workspace: Workspace, arch_id: str) -> bool:
    row = workspace.store.models(workspace.experiment).get(name_in(workspace, arch_id))
    return row is not None and row.values.get("status") not in ("candidate", "uploading")


def test_f1_of_a_trained_net_comes_from_the_runner(make, runner, nets, workspace, tmp_path):
    arch, trained = net(), tmp_path / "model.onnx"
    shutil.copyfile(nets(arch)["untrained.onnx"], trained)
    benchmark = make(gives=("farm_f1", "farm_latency_ms"), device="host", trained_with="a plan")
    assert benchmark.cost == 2 and "a plan" in benchmark.conditions
    benchmark.send(arch, {"model.onnx": trained})
    answer = collect_all(benchmark, 1)[arch.id]
    row = workspace.model(f"{name_in(workspace, arch.id)}.trained").row
    assert answer.values == {
        "farm_f1": row["f1_1k"],
        "farm_latency_ms": pytest.approx(1000 * row["mean"]),
    }
    assert not row.get("benchmark_only")


def test_a_model_that_is_there_is_attached_to_and_not_uploaded_again(make, workspace, nets):
    arch = net()
    Candidates(workspace.store.models(workspace.experiment), workspace.experiment).note(
        arch.id, arch.canonical, "screened", {"params": 1.0}
    )
    first = make()
    first.send(arch, nets(arch))
    eventually(lambda: is_uploaded(workspace, arch.id))
    date = workspace.model(name_in(workspace, arch.id)).row["model_date"]
    fill(workspace, arch.id, DONE)
    second = make()
    second.send(arch, nets(net(width=16)))  # other weights, the same architecture
    for each in (first, second):
        assert collect_all(each, 1)[arch.id].values == {"farm_latency_ms": pytest.approx(3.0)}
    row = workspace.model(name_in(workspace, arch.id)).row
    assert row["model_date"] == date and "screened" in row["results"]


def test_a_net_that_was_trained_otherwise_is_another_model(make, workspace, nets):
    arch, contents = net(), set()
    for source in (arch, net(width=16)):
        benchmark = make(gives=("farm_f1",))
        benchmark.send(arch, {"model.onnx": nets(source)["untrained.onnx"]})
        eventually(lambda: {row["content"] for row in workspace.status()} - contents)  # noqa: B023
        contents |= {row["content"] for row in workspace.status()}
    assert len(contents) == 2
    names = sorted(str(row["name"]) for row in workspace.status())
    assert names[0] == f"{name_in(workspace, arch.id)}.trained" and names[1].startswith(
        f"{names[0]}."
    )


def test_without_a_file_the_net_is_made_here_for_latency_and_refused_for_f1(make, workspace):
    latency, f1 = make(), make(gives=("farm_f1",))
    for each in (latency, f1):
        each.send(net())
    refused = collect_all(f1, 1)[net().id]
    assert "is not trained" in refused.error and refused.is_final
    eventually(lambda: is_uploaded(workspace, net().id))


def test_numbers_of_another_device_and_models_that_vanish_are_errors(make, workspace, nets):
    arch, other = net(), net(width=16)
    benchmark = make(device="htp:snapdragon-888")
    for each in (arch, other):
        benchmark.send(each, nets(each))
        eventually(lambda: is_uploaded(workspace, each.id))  # noqa: B023
    fill(workspace, arch.id, DONE)
    workspace.catalog.delete(name_in(workspace, other.id))
    answers = collect_all(benchmark, 2)
    assert "was measured on host, not on htp:snapdragon-888" in answers[arch.id].error
    assert answers[arch.id].is_final
    assert "removed from the status table" in answers[other.id].error
    assert not answers[other.id].is_final


def test_a_farm_that_never_answers_is_an_error_with_what_the_table_showed_last(make, nets):
    benchmark = make(timeout_s=1.0)
    benchmark.send(net(), nets(net()))
    answer = collect_all(benchmark, 1)[net().id]
    assert "not measured within 1 s; its row when last read: status new" in answer.error
    assert not answer.is_final


def test_a_store_that_is_away_for_a_while_is_waited_for(closing, nets, project, tmp_path):
    from tests.peers.postgres import Postgres

    with Postgres() as server:
        url = f"{server.url_of(server.make_database())}?blobs=file://{tmp_path / 'files'}"
        settings = Settings.load(project, {**os.environ, "EDGELOOP_STORE": url})
        with Workspace(settings) as workspace:
            workspace.status()
            server.kill()
            benchmark = closing(RemoteBenchmark(workspace))
            hopeless = closing(RemoteBenchmark(workspace, timeout_s=0.5))
            for each in (benchmark, hopeless):
                each.send(net(), nets(net()))
            answer = collect_all(hopeless, 1)[net().id]
            assert "cannot be reached" in answer.error and not answer.is_final
            assert benchmark.collect(0) == []
            server.start()
            eventually(lambda: is_uploaded(workspace, net().id))
            fill(workspace, net().id, DONE)
            assert collect_all(benchmark, 1)[net().id].values["farm_latency_ms"] == 3.0
            benchmark.close()
            hopeless.close()


def test_useless_arguments_are_said_at_once(make):
    with pytest.raises(BadInput, match="gives farm_latency_ms and farm_f1"):
        make(gives=("latency",))
    with pytest.raises(BadInput, match="there is no stage 'f2'"):
        make(gives=("farm_f1",), stage="f2")


def test_a_farm_without_a_live_runner_is_told_and_so_is_the_first_that_comes(
    make, workspace, nets, monkeypatch
):
    assert farm.PATIENCE_S + farm.CHECK_S + DEAD_S <= 60
    monkeypatch.setattr(farm, "PATIENCE_S", 0.0)
    monkeypatch.setattr(farm, "CHECK_S", 0.0)
    told: list[str] = []
    registry = Registry(workspace.store)
    can = ("device", "device@host")
    elsewhere = RunnerEntry("b|1", "lab-2", "other", devices=(RunnerDevice("host", can=can),))
    registry.write(elsewhere)
    make(tell=told.append).send(net(), nets(net()))
    eventually(lambda: told)
    place = f"experiment {workspace.experiment!r} of {workspace.store.description}"
    assert told == [
        f"1 model waits to be measured, but no live runner serves {place}. Start one: edgeloop "
        f"runner --experiment {workspace.experiment} --device NAME. "
        "Runners of other experiments: lab-2 (other)."
    ]
    registry.write(replace(elsewhere, id="a|1", node="lab-1", experiment=workspace.experiment))
    eventually(lambda: len(told) > 1)
    assert told[1:] == [f"A runner serves experiment {workspace.experiment!r} now."]
