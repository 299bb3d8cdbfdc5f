"""Screening: what is known before training, and nets that do their worst."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from edgeloop._util.system import announced_niceness, limited_memory
from edgeloop.errors import BadInput, BadSetting, ModelFailed
from edgeloop.platforms import find_platform
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.latency import built_in_profiles, calibrated
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from edgeloop.search.base import expected
from edgeloop.search.config import config_of
from edgeloop.search.evaluators import Screening
from edgeloop.search.evaluators import screening as screening_module
from edgeloop.search.evaluators.screening import (
    ScreeningPlan,
    check_devices,
    chip_values,
    open_estimators,
)
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.export import architecture_in
from edgeloop.search.nets.spaces import find_space
from edgeloop.settings import Settings
from edgeloop.testing.contracts.evaluator import EvaluatorContract, collect_all
from tests.nets import with_scatter
from tests.search.conftest import net

pytestmark = pytest.mark.slow


@pytest.fixture
def make(closing, project, tmp_path):
    def make(**options):
        folder, settings = options.pop("folder", None), options.pop("settings", None)
        plan = ScreeningPlan(**{"repeats": 3, "warm_up": 1, **options})
        return closing(Screening(plan, folder=folder, project=project, settings=settings))

    return make


@pytest.fixture
def bad():
    return net("large")


class TestScreening(EvaluatorContract):
    pass


def test_its_numbers_are_those_of_the_graph_and_of_the_compiler(make, tmp_path: Path):
    arch = find_space("hourglass", {"base_channels": (8,)}).sample(3, (1, 3, 64, 64), 19)
    device = "htp:sa8295p"
    screening = make(device=device, folder=tmp_path / "kept")
    screening.send(arch)
    answer = collect_all(screening, 1)[arch.id]
    assert not answer.error
    file = answer.files["untrained.onnx"]
    assert file.is_relative_to(tmp_path / "kept")
    assert architecture_in(file) == arch
    graph = onnx.load(file).graph
    weights = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    used = {name for node in graph.node if node.op_type == "Conv" for name in node.input[1:]}
    assert answer.values["params"] == sum(weights[name] for name in used)
    assert answer.values["macs"] > answer.values["params"]
    assert answer.values["host_latency_ms"] > 0
    with QnnToolchain() as toolchain:
        estimate = toolchain.screen(file, find_chip("sa8295p"))
    profile = built_in_profiles()["sa8295p"]
    expected = calibrated(estimate.raw_us, profile, estimate.features) / 1000
    assert answer.values["chip_latency_ms"] == pytest.approx(expected)
    assert answer.values["ddr_bytes"] == estimate.ddr_bytes > 0
    low, high = (answer.values[f"chip_latency_{end}_ms"] for end in ("low", "high"))
    assert low < expected < high
    assert "sa8295p" in screening.conditions and f"{profile.b:g}" in screening.conditions


def test_a_latency_that_leaves_out_steps_is_an_error_of_the_candidate(tmp_path: Path, closing):
    model = with_scatter(tmp_path / "scatter.onnx")
    chip = closing(find_platform("qnn").open_estimator("htp", Settings.load(tmp_path), 60))
    with pytest.raises(ModelFailed, match=r"no cost for 1 step.*farm_latency_ms"):
        chip_values(chip, model)


def test_nets_that_crash_or_never_end_are_errors_and_the_next_is_screened(make):
    screening = make(wanted=("params",), limit_s=3.0)
    bad = {"crash": "SIGABRT", "endless": "did not end within 15 s"}
    for what in (*bad, "good"):
        screening.send(net(what))
    answers = collect_all(screening, 3)
    for what, words in bad.items():
        answer = answers[net(what).id]
        assert words in answer.error and answer.is_final
        assert answer.is_unjudged == (what == "endless")
    assert answers[net().id].values["params"] > 0


def test_what_needs_more_time_than_usual_gets_it(make):
    screening = make(wanted=("params",), limit_s=0.5)
    screening.warm()
    screening.send(net("slow"))  # a second
    answer = collect_all(screening, 1)[net("slow").id]
    assert not answer.error and answer.values["params"] > 0


def test_counts_need_neither_an_export_nor_the_memory_of_the_model(make):
    screening = make(wanted=("params", "macs", "memory_bytes"))
    screening._builder.build = None  # calling it is an error of the candidate
    for what in ("good", "large"):
        screening.send(net(what))
    answers = collect_all(screening, 2)
    large = answers[net("large").id]
    assert not large.files and large.values == answers[net().id].values


UNCERTAIN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        from constants import SCALE
        self.scale, self.size = nn.Parameter(SCALE.clone()), size
        self.net = nn.Conv2d(3, classes, 3, 1, 1)

    def forward(self, x):
        return torch.softmax(self.net(x) * self.scale, 1)


def build(trial, shape, classes):
    return Net(trial.suggest_int("size", 1, 2), classes)
"""


def test_a_space_that_only_the_exporter_can_count_is_exported_with_its_own_constants(make, project):
    (project / "constants.py").write_text("import torch\nSCALE = torch.ones(1)\n")
    (project / "uncertain.py").write_text(UNCERTAIN)
    screening = make(wanted=("params",))
    archs = [
        Architecture("uncertain.py:build", {"size": size}, (1, 3, 32, 32), 19) for size in (1, 2)
    ]
    for arch in archs:
        screening.send(arch)
    for answer in collect_all(screening, 2).values():
        assert answer.values == {"params": 27 * 19 + 19 + 1} and answer.files


def test_its_processes_step_back_and_one_without_enough_memory_says_little_about_the_model(make):
    """The compiler's process alone has more than a MB."""
    screening = make(wanted=("params",))
    with announced_niceness(7):
        screening.warm()
    processes = (screening._builder._process.pid, screening._graphs._process.pid)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in processes} == {min(19, mine + 7)}
    with limited_memory(1 << 20):
        screening.send(net("slow"))
        answer = collect_all(screening, 1)[net("slow").id]
    assert "needed more than 1" in answer.error
    assert (answer.lacks_memory, answer.is_final) == (True, False)


def test_a_space_that_is_not_there_is_one_sentence(make):
    screening = make(wanted=("params",))
    lost = Architecture("lost.py:build", {}, (1, 3, 32, 32), 19)
    screening.send(lost)
    assert "there is no file 'lost.py'" in collect_all(screening, 1)[lost.id].error


def test_what_can_never_be_screened_is_said_at_once(make):
    with pytest.raises(BadInput, match="has no value 'latency'"):
        make(wanted=("latency",))
    with pytest.raises(BadInput, match="needs at least one value"):
        make(wanted=())
    with pytest.raises(BadInput, match="host cannot estimate the latency"):
        make(device="host")


def test_chips_of_several_platforms_are_opened_by_their_own(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, list[str]]] = []

    def platform_of(device: str) -> object:
        def opened(devices: list[str], settings: object, limit_s: float) -> dict[str, str]:
            asked.append((name, devices))
            return {device: f"{name} estimates {device}" for device in devices}

        name = device.partition(":")[0]
        return SimpleNamespace(name=name, open_estimators=opened)

    monkeypatch.setattr(screening_module, "platform_of", platform_of)
    found = open_estimators(["htp:a", "npu:x", "htp:b"], Settings.load(), 60)
    assert list(found.items()) == [
        (device, f"{device[:3]} estimates {device}") for device in ("htp:a", "npu:x", "htp:b")
    ]
    assert asked == [("htp", ["htp:a", "htp:b"]), ("npu", ["npu:x"])]


def test_a_device_that_estimates_nothing_beside_one_that_does_is_said_before_the_search():
    objectives = {"chip_latency_ms": {"devices": ["htp:qcs8550", "host"]}}
    config = config_of({"objectives": objectives}, "x.yaml")
    said = (
        r"objectives\.chip_latency_ms\.devices cannot be used: .*host cannot estimate the latency"
    )
    with pytest.raises(BadSetting, match=said):
        check_devices(config, Settings.load())


def test_only_what_a_result_depends_on_is_in_its_conditions(make):
    counts = make(wanted=("params", "macs"))
    assert counts.gives == ("params", "macs")
    other = make(wanted=("params", "macs"), device="htp:sa8295p")
    assert counts.conditions == other.conditions
    chip = (
        make(wanted=("chip_latency_ms",)),
        make(wanted=("chip_latency_ms",), device="htp:x-elite"),
    )
    assert chip[0].conditions != chip[1].conditions


def test_it_stops_at_the_first_broken_constraint_and_measures_nothing_more(make):
    screening = make(
        wanted=("params", "macs", "host_latency_ms"), constraints={"params": (0.0, 1.0)}
    )
    screening._builder.host_latency_ms = lambda *_: pytest.fail("it was measured")
    arch = net(width=8)
    screening.send(arch)
    answer = collect_all(screening, 1)[arch.id]
    assert (sorted(answer.values), answer.error) == (["macs", "params"], "")


FROZEN = """
import time
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, what, classes):
        super().__init__()
        self.what = what
        self.net = nn.Conv2d(3, classes, 3, 1, 1)

    def forward(self, x):
        if self.training and self.what == "killed":
            import os
            os.kill(os.getpid(), 9)
        with torch.no_grad():
            return self.net(x)


def build(trial, shape, classes):
    return Net(trial.suggest_categorical("what", ["frozen", "killed"]), classes)
"""


def test_proxies_come_along_and_a_model_without_any_has_not_failed(make, project):
    (project / "frozen.py").write_text(FROZEN)
    screening = make(wanted=("params",), proxies=("synflow", "naswot"))
    assert screening.gives == ("params",)
    assert expected([screening]) == ("params",)  # they are no results
    archs = [net(width=8), net(width=16)]
    without = [
        Architecture("frozen.py:build", {"what": what}, (1, 3, 32, 32), 19)
        for what in ("frozen", "killed")
    ]
    for arch in (*without, *archs):
        screening.send(arch)
    answers = collect_all(screening, 4)
    for arch in archs:
        assert set(answers[arch.id].values) == {"params", "proxy_synflow", "proxy_naswot"}
    first, second = (answers[arch.id].values for arch in archs)
    assert all(first[name] != second[name] for name in first)
    for arch in without:
        answer = answers[arch.id]
        assert set(answer.values) == {"params"} and not answer.error
