"""Fleets on a real Ray cluster of two nodes, whose nodes have what the how-to page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from edgeloop.errors import StoreError
from edgeloop.jobs.bundle import edgeloop_requirements
from edgeloop.operate.fleet.ray.submit import start_supervisor
from edgeloop.operate.fleet.records import Fleets
from edgeloop.store import Values
from edgeloop.testing import wait_until
from edgeloop.testing.models import save_classification_model
from tests.cli.running import run_command
from tests.fleet.ray_lab import LIMIT_S, Lab, open_lab
from tests.peers.postgres import Postgres
from tests.peers.ray import RayNode

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/fleet.md"
WALK = "A cluster quantizes while other machines benchmark"
BOARD = "adb:8c2f11d0"
MODELS, RUNS = 60, 2
AUDIT = """
CREATE TABLE audit (number serial, key text, before text, after text);
CREATE FUNCTION note_it() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO audit (key, before, after) VALUES (NEW.key, OLD.data, NEW.data);
    RETURN NEW;
END $$;
CREATE TRIGGER audit AFTER UPDATE ON edgeloop_rows FOR EACH ROW
    WHEN (NEW.space = 'models/reach') EXECUTE FUNCTION note_it();
"""
# Asking the dashboard would keep a package alive.
UNTIL_GONE = """
import sys, time, ray
from ray.experimental import internal_kv
ray.init(address="127.0.0.1:6379", log_to_driver=False, logging_level="ERROR")
assert sys.argv[1:], "no job has started a supervisor"
while any(internal_kv._internal_kv_exists(name.encode()) for name in sys.argv[1:]):
    time.sleep(0.2)
print("gone")
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("lab"), nodes=2) as opened:
        yield opened


def commands_of(section: str) -> list[str]:
    """The commands that a section of the page shows, each after a `$`."""
    _, found, rest = PAGE.read_text().partition(f"\n## {section}\n")
    assert found, f"{PAGE.name} has no section {section!r}"
    shown = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return [line.removeprefix("$ ") for line in shown.splitlines() if line.startswith("$ ")]


@pytest.mark.timeout(900)
def test_the_page_s_walk(lab: Lab):
    """Every command of the page, in its order, as it stands there."""
    lab.write_settings()
    nets = lab.folder / "nets"
    nets.mkdir()
    for seed in range(2):
        save_classification_model(nets / f"net-{seed}.onnx", size=16, classes=4, seed=seed)
    commands = [line.partition(" #")[0].strip() for line in commands_of(WALK)]
    commands = [line for line in commands if not line.startswith("export EDGELOOP_STORE=")]
    printed = {}
    with ExitStack() as running:
        for line in commands:
            if line == "edgeloop status":
                wait_until(lambda: lab.is_complete("default", 2), LIMIT_S, "all models")
            if line.endswith(" &"):  # another machine: it has the store and nothing else
                running.enter_context(lab.background(line.removesuffix(" &")))
            else:
                printed[line] = lab.shell(line)
    assert "is up" in printed["edgeloop fleet up --compute cluster --runners 0:4"]
    assert printed["edgeloop status"].count("complete") == 2
    with lab.workspace("default") as workspace:
        rows = [row.values for row in workspace.find(())]
    assert {row["device"] for row in rows} == {"htp:qcs8550"}
    assert lab.shell("edgeloop fleet status").startswith("No fleet.")


def test_what_cannot_work_is_one_sentence_and_leaves_nothing(lab: Lab, tmp_path: Path):
    lab.write_settings()
    shutil.copy(lab.folder / "edgeloop.yaml", tmp_path)
    up = ["fleet", "up", "--compute", "cluster", "--name", "lost"]
    said = run_command(up, tmp_path, {}, limit_s=LIMIT_S).sentence
    assert "is a folder of this machine" in said and "use PostgreSQL" in said
    with Postgres() as elsewhere:  # the nodes do not reach it
        store = {"EDGELOOP_STORE": f"{elsewhere.url}?blobs=file://{tmp_path}/blobs"}
        said = run_command(up, tmp_path, store, limit_s=LIMIT_S).sentence
        assert "the supervisor does not start: it ended with exit code 1" in said
        assert f"{elsewhere.port}" in said and "refused" in said
        left = run_command(["fleet", "status"], tmp_path, store)
        assert left.out.startswith("No fleet.")


@pytest.mark.timeout(900)
def test_boards_are_placed_by_their_resource_and_secrets_are_nowhere(lab: Lab):
    """The node that has the board runs its runner, which says in one line what is wrong there. Ray
    lets what no node has wait for ever."""
    lab.write_settings()
    large = "--name large --runners 1 --cpus 64"
    lab.shell(f"edgeloop fleet up --compute cluster --device adb {large}")
    wait_until(lambda: note(lab), LIMIT_S, "the reason")
    assert "no node of the cluster has 64 × CPU" in lab.shell("edgeloop fleet status")
    machine = RayNode(lab.cluster, edgeloop_requirements("qnn"), 0, {BOARD: 1})
    with machine:
        check_board(lab)
        assert not lab.leaks(machine)
        assert lab.inside(UNTIL_GONE, *sent_orders(lab)) == "gone"
        check_end_without_record(lab)


def check_end_without_record(lab: Lab) -> None:
    """Runners, and what waits for a place, end with the record, and the supervisor after them."""
    with lab.workspace("default") as workspace:
        fleets = Fleets(workspace.store)
        wait_until(lambda: fleets.remove(fleets.named("large")), LIMIT_S, "its removal")
    wait_until(lambda: {actor["state"] for actor in lab.actors()} == {"DEAD"}, LIMIT_S, "the end")


def note(lab: Lab) -> str:
    with lab.workspace("default") as workspace:
        return Fleets(workspace.store).named("large").observed.note


def check_board(lab: Lab) -> None:
    """Whoever starts the fleet anew, perhaps with another password, gets new runners."""

    def actors_of_board() -> list[dict[str, Any]]:
        alive = [actor for actor in lab.actors() if actor["state"] == "ALIVE"]
        return [actor for actor in alive if BOARD in actor["required_resources"]]

    wait_until(actors_of_board, LIMIT_S, "the board's actor")
    [first] = actors_of_board()
    [node] = [n for n in lab.cluster.nodes() if BOARD in n["resources_total"]]
    assert first["node_id"] == node["node_id"]
    with lab.workspace("default") as workspace:
        record = Fleets(workspace.store).named("large")
        start_supervisor(workspace.settings, "cluster", record)

    def is_replaced() -> bool:
        found = {actor["actor_id"] for actor in actors_of_board()}
        return bool(found) and first["actor_id"] not in found

    wait_until(is_replaced, LIMIT_S, "another actor for the board")


def sent_orders(lab: Lab) -> list[str]:
    """The packages that held what opens the store."""
    jobs = json.loads(lab.dashboard("/api/jobs/"))
    ours = [job for job in jobs if (job["submission_id"] or "").startswith("edgeloop-fleet-")]
    return [str(job["runtime_env"]["working_dir"]) for job in ours]


@pytest.mark.timeout(900)
def test_sixty_models_are_done_once_each_while_actors_a_node_and_the_store_die(lab: Lab):
    lab.write_settings(
        lease_seconds=10,
        clock_margin_seconds=2,
        benchmark_runs=RUNS,
        fleet={"devices": ["host"], "options": ["--benchmark-only"]},
    )
    nets = lab.folder / "sixty"
    nets.mkdir()
    for seed in range(MODELS):
        save_classification_model(nets / f"net-{seed}.onnx", size=16, classes=4, seed=seed)
    lab.shell("edgeloop experiment list")  # creates the tables
    with psycopg.connect(lab.postgres.url_of(lab.database), autocommit=True) as link:
        link.execute(AUDIT)
    lab.shell("edgeloop fleet up --compute cluster --name reach --runners 4 -e reach")
    wait_until(lambda: len(runners(lab)) == 4, LIMIT_S, "four runners")
    lab.shell("edgeloop upload sixty -e reach --benchmark-only")
    with lab.workspace("reach") as workspace:

        def rows() -> list[Values]:
            with suppress(StoreError):
                return [row.values for row in workspace.store.models("reach").query()]
            return []

        def done() -> int:
            return sum(row["status"] == "complete" for row in rows())

        def kill_one_at_work() -> None:
            wait_until(lambda: at_work(rows(), runners(lab)), LIMIT_S, "a runner at work")
            kill_actor_of(next(iter(at_work(rows(), runners(lab)))))

        def kill_the_supervisor() -> None:
            wait_until(lambda: supervisors(lab), LIMIT_S, "the supervisor")
            kill_actor_of(supervisors(lab)[0])

        for count, deed in (
            (3, kill_one_at_work),
            (8, kill_the_supervisor),
            (12, lab.postgres.kill),
            (12, lab.postgres.start),
            (20, kill_one_at_work),
            (28, lab.others[0].kill),
        ):
            if deed != lab.postgres.start:
                wait_until(lambda least=count: done() >= least, LIMIT_S, f"{count} models")
            deed()
        wait_until(lambda: done() == MODELS, LIMIT_S, "all models")
    lab.shell("edgeloop fleet down --name reach")
    with psycopg.connect(lab.postgres.url_of(lab.database)) as link:
        log = link.execute("SELECT key, before, after FROM audit ORDER BY number").fetchall()
    results = results_in(log)
    assert len(results) == MODELS
    assert {tuple(each) for each in results.values()} == {("convert", *["benchmark"] * RUNS)}


def results_in(log: list[tuple[str, str, str]]) -> dict[str, list[str]]:
    """The results of each model in the order in which the database took them in."""
    found: dict[str, list[str]] = {}
    for key, before, after in log:
        old, new = json.loads(before), json.loads(after)
        results = found.setdefault(key, [])
        if "macs" in new and "macs" not in old:
            results.append("convert")
        runs = [json.loads(str(v.get("total_inference_avg", "[]"))) for v in (old, new)]
        assert runs[1][: len(runs[0])] == runs[0], "a result was lost"
        results += ["benchmark"] * (len(runs[1]) - len(runs[0]))
    return found


def runners(lab: Lab) -> dict[int, str]:
    """The runner processes of the cluster: their names by process."""
    found = {}
    for process in processes_with(lab, b"\0-m\0edgeloop\0runner\0"):
        with suppress(OSError):
            environ = Path(f"/proc/{process}/environ").read_bytes()
            name = re.search(rb"EDGELOOP_NODE=([^\0]*)", environ)
            found[process] = name[1].decode() if name else ""
    return found


def supervisors(lab: Lab) -> list[int]:
    return processes_with(lab, b"\0-m\0edgeloop.operate.fleet.ray.supervise\0")


def processes_with(lab: Lab, words: bytes) -> list[int]:
    found = []
    for process in lab.cluster.processes():
        with suppress(OSError):
            if words in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def kill_actor_of(process: int) -> None:
    """The kernel then kills what the actor kept alive."""
    with suppress(OSError):  # it is dead already
        actor = parent_of(process)
        if Path(f"/proc/{actor}/cmdline").read_bytes().startswith(b"ray::ProcessActor"):
            os.kill(actor, signal.SIGKILL)
    wait_until(lambda: not is_running(process), LIMIT_S, "its process to die with it")


def at_work(rows: list[Values], running: dict[int, str]) -> list[int]:
    held = {re.split("[:/]", str(row["node"]))[0] for row in rows if row.get("node")}
    return [process for process, name in running.items() if name in held]


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def is_running(process: int) -> bool:
    with suppress(OSError):
        return b"edgeloop" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False
