"""A fleet on Ray: from an upload to the first claimed stage while there are no runners."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from bench.tables import markdown
from edgeloop.jobs.bundle import edgeloop_requirements
from edgeloop.operate.fleet.records import Fleets
from edgeloop.testing import wait_until
from edgeloop.testing.models import save_classification_model
from edgeloop.workspace import Workspace
from tests.fleet.ray_lab import LIMIT_S, Lab, open_lab
from tests.peers.wheels import make_wheels

REPEATS = 3
GOAL_S = 10.0
ACTOR = """
import time
import ray
ray.init(address="127.0.0.1:6379", log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1, runtime_env={"env_vars": {"FRESH": str(time.time())}})
class Actor:
    def answer(self):
        return 1

began = time.perf_counter()
actor = Actor.remote()
ray.get(actor.answer.remote())
print(time.perf_counter() - began)
"""


def run() -> str:
    with TemporaryDirectory() as name:
        folder = Path(name)
        with open_lab(folder) as lab:
            rows = list(_figures(lab))
        rows += _bare_figures(folder / "bare")
    return markdown(("what", "s", "goal, s"), rows)


def _figures(lab: Lab) -> Iterator[tuple[str, str, str]]:
    actors = [float(lab.inside(ACTOR)) for _ in range(REPEATS)]
    yield "Ray alone: a new actor with a worker of its own, until it answers", _median(actors), ""
    lab.write_settings(fleet={"idle_seconds": 1, "options": ["--benchmark-only"]})
    yield (
        "`edgeloop runner` alone on this machine, until its first claim",
        f"{_alone_s(lab):.1f}",
        "",
    )
    up = _seconds(lambda: lab.shell("edgeloop fleet up --compute cluster --runners 0:2"))
    yield "`edgeloop fleet up`, until its supervisor has reported", f"{up:.1f}", ""
    claims = [_claim_s(lab, number) for number in range(REPEATS)]
    goal = f"< {GOAL_S:g}"
    yield "no runners, `upload` done until a stage is claimed", _median(claims), goal
    yield "the slowest of them", f"{max(claims):.1f}", goal
    down = _seconds(lambda: lab.shell("edgeloop fleet down"))
    yield "`edgeloop fleet down` of an idle fleet", f"{down:.1f}", ""


def _bare_figures(folder: Path) -> list[tuple[str, str, str]]:
    """On nodes that have only Ray and build the rest once; pip takes it from this disk."""
    folder.mkdir()
    wheels = make_wheels(folder / "wheels", edgeloop_requirements("qnn"))
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    with patch.dict(os.environ, pip), open_lab(folder, requirements=()) as lab:
        lab.write_settings(fleet={"idle_seconds": 1, "options": ["--benchmark-only"]})
        up = _seconds(lambda: lab.shell("edgeloop fleet up --compute cluster --runners 0:2"))
        claims = [_claim_s(lab, number) for number in range(2)]
        lab.shell("edgeloop fleet down")
    return [
        ("`edgeloop fleet up`, nodes with only Ray (packages on disk)", f"{up:.1f}", ""),
        ("no runners, nodes with only Ray: first claim", f"{claims[0]:.1f}", ""),
        ("the next one", f"{claims[1]:.1f}", ""),
    ]


def _alone_s(lab: Lab) -> float:
    """Beside the fleet's own time: what of it is the runner's start."""
    with lab.workspace("alone") as workspace:
        name = _upload(lab, workspace, 100)
        began = time.perf_counter()
        with lab.background("edgeloop runner -e alone --benchmark-only"):
            _wait_for_claim(workspace, "alone", name)
            return time.perf_counter() - began


def _claim_s(lab: Lab, number: int) -> float:
    with lab.workspace("default") as workspace:
        _wait_for_none(workspace)
        name = _upload(lab, workspace, number)
        began = time.perf_counter()
        _wait_for_claim(workspace, "default", name)
        return time.perf_counter() - began


def _upload(lab: Lab, workspace: Workspace, seed: int) -> str:
    net = save_classification_model(lab.folder / f"net-{seed}.onnx", size=16, classes=4, seed=seed)
    return workspace.upload(net, benchmark_only=True).name


def _wait_for_claim(workspace: Workspace, experiment: str, name: str) -> None:
    table = workspace.store.models(experiment)

    def is_claimed() -> bool:
        row = table.get(name)
        return row is not None and bool(row.values.get("node"))

    wait_until(is_claimed, LIMIT_S, "the first claim")


def _wait_for_none(workspace: Workspace) -> None:
    """The fleet has shrunk to nothing."""
    fleets = Fleets(workspace.store)

    def is_empty() -> bool:
        seen = fleets.named("fleet").observed
        return not (seen.running or seen.waiting or seen.draining)

    wait_until(is_empty, LIMIT_S, "the fleet to have no runners")


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.1f}"


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
