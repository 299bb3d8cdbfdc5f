"""What goes wrong with a search, and what `edgeloop search` makes of it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from edgeloop.models.catalog import Candidates
from edgeloop.search.loop import Event, SearchListener, SearchLoop
from edgeloop.search.study import Study, open_storage
from edgeloop.store import open_store, parse_location
from edgeloop.testing.faces import make_faces
from tests.cli.conftest import Edgeloop, edgeloop, project  # noqa: F401 - fixtures
from tests.jobs.waiting import eventually
from tests.peers.ports import free_port
from tests.search.program import DATA, SIDE, TINY, Program
from tests.search.toy import Worked, cost_of, quality_of, toy_config, toy_space

if TYPE_CHECKING:
    from tests.peers.postgres import Postgres

pytestmark = pytest.mark.slow

QUICK = {"steps": 4, "batch": 8, "learning_rate": 1e-2, "device": "cpu"}
COUNTED = {"params": {"goal": "min"}}
TRAINED = {"params": {}, "val_iou": {"train": QUICK}}

# Of every kind two members: good ones, and one kind a misfortune. The quick trainer diverges for
# "nan".
FAULTY = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, what, width, classes):
        super().__init__()
        self.what = what
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        x = self.first(x)
        if self.what == "cannot be exported":
            x = torch.linalg.eigvals(x[0, 0] @ x[0, 0].T).real.sum() + x
        return self.last(x)


def build(trial, shape, classes):
    kinds = ["good", "nan", "cannot be exported", "raises"]
    what = trial.suggest_categorical("what", kinds)
    if what == "raises":
        raise ValueError("no such net")
    return Net(what, trial.suggest_categorical("width", [4, 8]), classes)
"""


@pytest.fixture
def counting(project: Path) -> Path:  # noqa: F811 - the fixture
    """A search that trains nothing."""
    file = project / "counting.yaml"
    search = {"size": 32, "budget": 3, "pool": 0, "options": TINY}
    file.write_text(json.dumps({"search": search, "objectives": COUNTED}))
    return file


# Said before anything is done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search.budgt=3"], "counting.yaml: unknown key 'search.budgt': did you mean 'search.bud"),
        (["search.space=hourglas"], "did you mean 'hourglass'?"),
        (["search.space=mine.py:build"], "there is no file 'mine.py'"),
        (["search.space=../mine.py:build"], "is not inside the project"),
        (["search.options.stem=[2]"], "has no option 'stem': did you mean 'stems'?"),
        (["search.size=18", "search.options={}"], "choose sides that are divisible by 8 or more"),
        (["objectives.chip_latency_ms.device=htp:nochip"], "nochip"),
        (
            [
                "objectives.ddr_bytes.device=htp:x-elite",
                "objectives.chip_latency_ms.device=htp:qcs8550",
            ],
            "objectives.ddr_bytes.device must be that of chip_latency_ms",
        ),
        (
            ["objectives.chip_latency_ms.devices=[htp:x-elite, htp:nochip]"],
            "objectives.chip_latency_ms.devices cannot be used: there is no chip 'nochip'",
        ),
        (
            ["objectives.chip_latency_ms.devices=[htp:qcs8550, htp]"],
            "names htp:qcs8550 and htp, which are the same chip",
        ),
        (
            ["objectives.chip_latency_ms.devices=[htp:qcs8550, host]"],
            "cannot be used: host cannot estimate the latency",
        ),
        (["objectives.val_iou.train.epochs=1", "data=working/none"], "working/none"),
        (["objectives.val_iou.train.compute=nowhere", f"data={DATA}"], "nowhere"),
    ],
)
def test_what_cannot_work_is_one_sentence(
    edgeloop: Edgeloop,  # noqa: F811
    counting: Path,
    words: list[str],
    said: str,
):
    make_faces(counting.parent / "data" / DATA, 2, SIDE, seed=3)
    assert said in edgeloop("search", counting, *words).sentence


def test_a_file_that_is_not_there_is_one_sentence(edgeloop: Edgeloop):  # noqa: F811
    assert "there is no file" in edgeloop("search", "none.yaml").sentence


def test_a_store_that_does_not_answer_is_one_sentence(
    edgeloop: Edgeloop,  # noqa: F811
    counting: Path,
    tmp_path: Path,
):
    store = f"postgresql://somebody:hush@127.0.0.1:{free_port()}/none?blobs=file://{tmp_path}"
    sentence = edgeloop("search", counting, "--store", store).sentence
    assert "cannot be reached" in sentence and "hush" not in sentence


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    edgeloop: Edgeloop,  # noqa: F811
    counting: Path,
):
    words = (
        *("search.budget=24", "search.constraints.params=[1e3, 1e6]", f"data={DATA}"),
        *("objectives.val_iou.train.steps=150", "objectives.farm_latency_ms.timeout=1h"),
    )
    said = edgeloop("search", counting, "--dry-run", *words)
    assert said.code == 0
    assert "24 candidates of the space hourglass, sampler default" in said.out
    assert "val_iou: training for 150 steps on this machine" in said.out
    assert "farm_latency_ms: runner time on the device" in said.out
    assert "left out where params is not within 1000 to 1e+06" in said.out
    plan = edgeloop("search", counting, "--dry-run", "--json", *words).json[0]
    assert (plan["name"], plan["experiment"], plan["budget"]) == ("counting", "counting", 24)
    assert set(plan["costs"]) == {"params", "val_iou", "farm_latency_ms"}
    assert [path.name for path in counting.parent.iterdir()] == ["counting.yaml"]


def test_a_search_that_never_began_is_not_in_the_way_of_its_correction(
    edgeloop: Edgeloop,  # noqa: F811
    counting: Path,
):
    training = "objectives.val_iou.train.steps=2"
    assert "working/none" in edgeloop("search", counting, training, "data=working/none").sentence
    done = edgeloop("search", counting)
    assert done.code == 0, done.err
    assert "3 candidates · 0 screened out · 3 measured" in done.out
    assert "--resume" in edgeloop("search", counting).sentence
    other = edgeloop("search", counting, "--resume", "search.seed=4").sentence
    assert "was started with another seed" in other
    more = edgeloop("search", counting, "--resume", "search.budget=5", "--json").json
    assert len(more) == 5


def test_a_front_is_needed_to_train_it(edgeloop: Edgeloop, counting: Path):  # noqa: F811
    assert "there is no search 'none' in " in edgeloop("search", "train", "none").sentence
    trained = ("objectives.val_iou.train.steps=2", "data=working/none")
    edgeloop("search", counting, *trained)
    assert "there is no front in" in edgeloop("search", "train", "counting").sentence


def test_constraints_that_nothing_meets_are_said(edgeloop: Edgeloop, counting: Path):  # noqa: F811
    done = edgeloop("search", counting, "search.constraints.params=[1, 2]")
    assert done.code == 1
    sentence = done.err.splitlines()[-1]
    assert "none of 3 candidates met the constraints; the last one: params is" in sentence
    assert "Relax search.constraints" in sentence
    assert sum("screened out: params is" in line for line in done.err.splitlines()) == 3


def test_a_space_of_which_nothing_can_be_built_says_why(
    edgeloop: Edgeloop,  # noqa: F811
    counting: Path,
):
    done = edgeloop("search", counting, "search.options={depth: 6}")
    assert done.code == 1
    sentence = done.err.splitlines()[-1]
    assert "none of 3 candidates has a result: 3 failed in screening" in sentence
    assert "32 × 32 is not divisible by" in sentence


# Candidates with faults


@pytest.mark.usefixtures("quick")
def test_faulty_members_of_a_space_fail_alone(program: Program):
    (program.folder / "my_space.py").write_text(FAULTY)
    file = program.write("faulty", TRAINED, space="my_space.py:build", budget=20, pool=3, workers=2)
    done = program("search", file)
    assert done.code == 0, done.err
    rows = program.table("faulty")
    space = {row["arch_id"]: row for row in rows}
    assert len(space) == len(rows) == 4, "what cannot be built is never trained"
    assert "Screened 7 members of the space; 3 cannot be trained." in done.err
    assert sum(row["state"] == "complete" for row in rows) == 2
    reasons = " | ".join(row["reason"] for row in rows)
    bank = (program.folder / "searches/faulty/bank.jsonl").read_text()
    assert "diverged" in reasons and "no such net" in bank and "eig" in bank
    front = {row["arch_id"] for row in rows if row["is_pareto"] == "1"}
    assert front and all(space[name]["state"] == "complete" for name in front)
    assert "2 failed" in done.out
    assert "The space has only these 4 members that can be trained." in done.err
    assert all("Traceback" not in row["reason"] for row in rows)


@pytest.mark.usefixtures("quick")
def test_failures_beyond_the_budget_end_the_search_with_the_last_reason(program: Program):
    (program.folder / "my_space.py").write_text(FAULTY)
    options = {"failures": 0, "retries": 0, "seed": 1, "pool": 3}
    file = program.write("doomed", TRAINED, space="my_space.py:build", budget=2, **options)
    done = program("search", file)
    assert done.code == 1
    sentence = done.err.splitlines()[-1]
    assert "1 candidates failed in " in sentence
    assert ", more than search.failures allows (0)" in sentence
    assert "--resume" in sentence
    assert program("search", file, "--resume", "search.failures=10").code == 0


def test_a_farm_that_never_answers_is_a_failure_of_the_candidate(program: Program):
    objectives = {"params": {}, "farm_latency_ms": {"timeout": "1s"}}
    file = program.write("lonely", objectives, failures=0, retries=0)
    done = program("search", file)
    assert done.code == 1
    assert "was not measured within 1 s; its row when last read: status new" in done.err
    assert [row["state"] for row in program.table("lonely")] == ["failed"]


@pytest.mark.usefixtures("quick")
def test_a_net_of_another_training_gets_a_name_of_its_own(program: Program):
    objectives = {"val_iou": {"train": QUICK}}
    for name, steps in (("first", 2), ("second", 3)):
        file = program.write(name, objectives, budget=1)
        steps_word = f"objectives.val_iou.train.steps={steps}"
        done = program("search", file, "-e", "shared", steps_word)
        assert done.code == 0, done.err
    (arch,) = {row["name"] for row in [*program.table("first"), *program.table("second")]}
    rows = program.status("shared")
    models = [name for name in rows if name.startswith(f"{arch}.trained")]
    assert len(models) == 2
    assert len({rows[name]["content"] for name in models}) == 2
    assert {rows[name]["val_iou"] for name in models} == {
        float(program.table(search)[0]["val_iou"]) for search in ("first", "second")
    }


# Kills, and a store that is away


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_ctrl_c_stops_and_says_how_to_go_on(program: Program):
    file = program.write("stopped", COUNTED, budget=12)
    process = program.start("search", file)
    assert process.stderr is not None
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), first + err
    assert err.splitlines()[-1] == "Stopped; results so far are kept. Continue with: --resume"
    done = program("search", file, "--resume", "--json")
    assert [item["state"] for item in done.json] == ["complete"] * 12
    assert first.split()[1] == done.json[0]["name"] and first.split()[1] not in done.err


@pytest.fixture
def quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Program:
    """Another project, where nothing is killed."""
    return Program(tmp_path / "quiet", monkeypatch, capfd)


def test_a_search_that_is_killed_in_a_training_goes_on_as_if_nothing_had_been(
    program: Program, quiet: Program, quick: Path, processes: list[subprocess.Popen[str]]
):
    for one in (program, quiet):
        file = one.write("killed", TRAINED, seed=7, budget=3)
    quick.touch()  # the first training begins and stays there
    killed = program.start("search", file, module="tests.search.quick_program")
    processes.append(killed)
    eventually(lambda: begun(program), 240)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, killed.communicate()
    quick.unlink()
    last, undisturbed = (one("search", file, "--resume") for one in (program, quiet))
    assert last.code == 0, last.err
    assert last.out == undisturbed.out
    assert without_times(program) == without_times(quiet)


@pytest.mark.soak
def test_a_killed_search_goes_on_as_if_nothing_had_been(
    program: Program, quiet: Program, processes: list[subprocess.Popen[str]]
):
    """Killed at chance in real trainings, three times."""
    for one in (program, quiet):
        file = one.write("killed", TRAINED, seed=7, pool=3)
    undisturbed = quiet.start("search", file)
    processes.append(undisturbed)

    chance, finished = random.Random(11), dict[str, int]()
    for kill in range(3):
        process = program.start("search", file, "--resume")
        processes.append(process)
        eventually(lambda kill=kill: begun(program) > kill, 240)
        time.sleep(chance.uniform(0.0, 1.0))  # anywhere in a candidate
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.communicate()
        known = program.trainings("killed")
        assert finished.items() <= known.items(), "what was finished is not trained again"
        finished = known
    last = program("search", file, "--resume")
    assert last.code == 0, last.err
    assert finished.items() <= program.trainings("killed").items()
    assert len(program.trainings("killed")) == 4

    out, err = undisturbed.communicate(timeout=240)
    assert undisturbed.returncode == 0, err
    assert last.out == out
    assert without_times(program) == without_times(quiet)


def begun(program: Program) -> int:
    """How many candidates are trained, or were."""
    return len(list((program.folder / "searches/killed/training").glob("id_*")))


def without_times(program: Program) -> list[dict[str, str]]:
    return [
        {key: value for key, value in row.items() if key != "training_time"}
        for row in program.table("killed")
    ]


@pytest.fixture
def server() -> Iterator[Postgres]:
    """One of its own: it is stopped while others use theirs."""
    from tests.peers.postgres import Postgres

    with Postgres() as postgres:
        yield postgres


def test_a_database_that_is_away_again_and_again_delays_and_loses_nothing(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Stopped before a proposal, before results are looked up, while they are written, and before
    the study is told: both our store and Optuna's meet it."""
    location = parse_location(f"{server.url}?blobs=file://{tmp_path / 'blobs'}")
    config, pauses, stops = toy_config(budget=9), [0], list[str]()

    def stop(when: str) -> None:
        stops.append(when)
        server.stop()

    def pause(_: float) -> None:
        pauses[0] += 1
        if pauses[0] % 2 == 0:
            server.start()

    monkeypatch.setattr(
        "edgeloop._util.retry.time", SimpleNamespace(monotonic=time.monotonic, sleep=pause)
    )

    def hear(event: Event) -> None:
        if event.what == "begun" and event.candidate.number == 2:
            stop("before results are looked up")
        if event.what == "complete" and event.candidate.number == 4:
            stop("before a proposal")

    def quality(arch: object) -> float:
        if len(asked) == 14:
            stop("before a result is written")
        return quality_of(arch)  # type: ignore[arg-type]

    asked: list[str] = []
    table = Candidates(open_store(location).models("toys"), "toys")
    real = table.note_all

    def note(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        if len(asked) == 18:
            stop("before the study is told")

    monkeypatch.setattr(table, "note_all", note)
    study = Study.open(config, toy_space(), open_storage(location), resume=False)
    evaluators = [
        Worked("params", 0, cost_of, asked.append),
        Worked("val_iou", 1, quality, asked.append),
    ]
    found = SearchLoop(config, study, evaluators, table, SearchListener(hear)).run()
    assert len(stops) == 4 and pauses[0] >= 8
    assert [item.state for item in found] == ["complete"] * 9
    assert len({item.arch.id for item in found}) == 9
    assert len(asked) == len(set(asked)) == 18, "nothing was evaluated twice"


def test_a_candidate_that_was_written_down_in_the_moment_the_database_went_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from edgeloop.errors import StoreUnavailable

    location = parse_location(f"sqlite:{tmp_path / 'store'}")
    config = toy_config(budget=6)
    study = Study.open(config, toy_space(), open_storage(location), resume=False)
    real, troubles = study.propose, iter([True, False, False, True])

    def propose() -> object:
        made = real()
        if next(troubles, False):
            raise StoreUnavailable(store="x", reason="gone before it could answer")
        return made

    monkeypatch.setattr(study, "propose", propose)
    monkeypatch.setattr(
        "edgeloop._util.retry.time",
        SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None),
    )
    table = Candidates(open_store(location).models("toys"), "toys")
    evaluators = [Worked("params", 0, cost_of), Worked("val_iou", 1, quality_of)]
    found = SearchLoop(config, study, evaluators, table).run()
    assert [item.state for item in found] == ["complete"] * 6
