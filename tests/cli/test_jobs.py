"""The verbs on jobs, as a person types them, on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeloop.jobs.client import Jobs
from tests.cli.conftest import Edgeloop
from tests.cli.running import run_command, start_command
from tests.conftest import clean_environ
from tests.jobs.waiting import end_all, eventually

pytestmark = pytest.mark.slow

ECHO = "import json, sys; json.dump(sys.argv[1:], open('outputs/arguments.json', 'w'))"
ODD_ARGUMENTS = [
    *("--lr", "1e-3", "SOLVER.IMS_PER_BATCH", "8", "-1", "--", "-", "", "a b", "it's", 'say "hi"'),
    *("grüße 🚀", "{outputs}x", "{lr}", "$HOME", "*", "a\nb", "--name", "--json", "{'a': 1}"),
]
SLEEPER = """
import os, pathlib, time
pathlib.Path("outputs/begun.txt").write_text(str(os.getpid()))
print("begun", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def no_job_outlives_its_test(project: Path) -> Iterator[None]:
    yield
    end_all(Jobs.open())


@pytest.fixture
def script(project: Path):
    def write(text: str, name: str = "train.py") -> Path:
        (project / name).write_text(text)
        return project / name

    return write


@pytest.fixture(scope="module")
def ended_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with three jobs that have ended: a-1, a-2 (which failed) and b."""
    folder = tmp_path_factory.mktemp("ended") / "project"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import sys; print('I am', *sys.argv); sys.exit(len(sys.argv) - 2)"
    )
    with pytest.MonkeyPatch.context() as patched:
        for name in os.environ.keys() - clean_environ().keys():
            patched.delenv(name)
        patched.setenv("EDGELOOP_STATE", str(folder.parent / "state"))
        patched.chdir(folder)
        jobs = Jobs.open()
        runs = []
        for name, words, tags in (
            ("a-1", ["1"], ["x"]),
            ("a-2", ["2", "fail"], []),
            ("b", ["3"], []),
        ):
            runs += jobs.submit("train.py", words, {"name": name, "tags": tags})
        jobs.wait(runs, timeout_s=60)
    return folder


@pytest.fixture
def ended_jobs(ended_project: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder one stands in has jobs that have ended; it is shared, so that only what a test
    adds may change."""
    monkeypatch.setenv("EDGELOOP_STATE", str(ended_project.parent / "state"))
    monkeypatch.chdir(ended_project)
    return ended_project


def states(edgeloop: Edgeloop, *patterns: str) -> dict[str, str]:
    return {
        row["name"]: row["state"] for row in edgeloop("job", "status", *patterns, "--json").json
    }


def begun(edgeloop: Edgeloop, *patterns: str) -> None:
    """Until all of these run, and the store has what they wrote first."""
    eventually(
        lambda: all(row["files"] for row in edgeloop("job", "results", *patterns, "--json").json)
    )


# run


def test_run_follows_fetches_and_ends_with_the_scripts_own_code(edgeloop: Edgeloop, script):
    script("print('hello'); open('outputs/a.txt', 'w').write('1'); raise SystemExit(3)")
    done = edgeloop("run", "train.py", "--name", "first")
    assert done.code == 3
    assert "hello" in done.out
    assert "failed in 0:0" in done.err and "exit code 3" in done.err
    assert Path("runs/first/outputs/a.txt").read_text() == "1"


def test_every_argument_after_the_dashes_arrives_as_it_was(edgeloop: Edgeloop, script):
    script(ECHO)
    assert edgeloop("run", "train.py", "--name", "odd", "--", *ODD_ARGUMENTS).code == 0
    assert json.loads(Path("runs/odd/outputs/arguments.json").read_text()) == ODD_ARGUMENTS


def test_arguments_without_the_dashes_are_explained(edgeloop: Edgeloop, script):
    script(ECHO)
    assert "goes after --" in edgeloop("run", "train.py", "8").sentence


def test_a_missing_script_is_named_and_nothing_is_made(edgeloop: Edgeloop, project: Path):
    assert "trian.py" in edgeloop("run", "trian.py").sentence
    assert list(project.iterdir()) == []


def test_run_json_is_the_record_of_the_job(edgeloop: Edgeloop, script):
    script("open('outputs/metrics.jsonl', 'w').write('{\"loss\": 0.25}\\n')")
    row = edgeloop("run", "train.py", "--tag", "a", "--json").json[0]
    assert (row["state"], row["exit_code"], row["tags"]) == ("completed", 0, ["a"])
    assert row["metrics"] == {"loss": 0.25}


def test_cpus_limit_the_threads_of_numerical_libraries(
    edgeloop: Edgeloop, script, project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (project / "edgeloop.yaml").write_text("computes: {local: {cpus: 4}}")
    script(
        "import os\n"
        "names = ('OMP', 'MKL', 'OPENBLAS', 'NUMEXPR')\n"
        "print([os.environ.get(f'{name}_NUM_THREADS') for name in names])"
    )
    given = edgeloop("run", "train.py", "--cpus", "3", "--env", "NUMEXPR_NUM_THREADS=2")
    assert "['3', '7', '3', '2']" in given.out
    edgeloop("job", "resubmit", "last")
    edgeloop("job", "wait", "last")
    assert "['3', '7', '3', '2']" in edgeloop("job", "logs", "last").out
    assert "[None, '7', None, None]" in edgeloop("run", "train.py").out


def test_a_shell_script_runs_too(edgeloop: Edgeloop, script):
    script('echo "$1" > "$EDGELOOP_OUTPUT_DIR/said.txt"', "say.sh")
    assert edgeloop("run", "say.sh", "--", "two words").code == 0
    assert Path("runs/say-1/outputs/said.txt").read_text() == "two words\n"


def test_data_here_is_pushed_and_laid_beside_the_code(edgeloop: Edgeloop, script, project: Path):
    """Data and code that did not change are not sent again."""
    (project / "data/working/faces").mkdir(parents=True)
    (project / "data/working/faces/1.txt").write_text("one")
    script("print(open('data/working/faces/1.txt').read())")
    done = edgeloop("run", "train.py", "--data", "faces")
    assert "data working/faces@1 (1 file sent)" in done.err and "one" in done.out
    assert "(sent)" in done.err
    again = edgeloop("run", "train.py", "--data", "faces").err
    assert "data working/faces@1 (unchanged)" in again and again.count("(unchanged)") == 2
    (project / "data/working/faces/1.txt").write_text("changed here")
    kept = edgeloop("run", "train.py", "--data", "faces", "--no-push")
    assert "one" in kept.out
    assert "one" in edgeloop("run", "train.py", "--data", "faces@1").out
    assert sorted(states(edgeloop)) == ["train-1", "train-2", "train-3", "train-4"]


def test_a_dataset_that_is_nowhere_is_named_before_anything_moves(
    edgeloop: Edgeloop, script, project: Path
):
    script("pass")
    assert "faecs" in edgeloop("run", "train.py", "--data", "faecs").sentence
    assert not (project / "runs").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--writes", "working/new", "--writes", "working/new"),
        ("--data", "faces", "--data", "working/faces"),
        ("--data", "faces", "--writes", "working/faces/small"),
    ],
)
def test_datasets_that_lie_in_one_another_are_refused_before_anything_runs(
    edgeloop: Edgeloop, script, project: Path, options: tuple[str, ...]
):
    script("pass")
    folder = project / "data/working/faces"
    folder.mkdir(parents=True)
    (folder / "x.txt").write_text("one")
    assert "among the datasets of this job" in edgeloop("run", "train.py", *options).sentence
    assert not (project / "runs").exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_dataset_in_the_store_is_found_whatever_else_has_its_name_here(
    edgeloop: Edgeloop, script, project: Path, kind: str
):
    folder = project / "data/working/made"
    folder.mkdir(parents=True)
    (folder / "x.txt").write_text("1")
    assert edgeloop("data", "push", "made").code == 0
    shutil.rmtree(project / "data")
    (project / "made").touch() if kind == "file" else (project / "made").mkdir()
    script("print('found', open('data/working/made/x.txt').read())")
    assert "found 1" in edgeloop("run", "train.py", "--data", "made").out


def test_a_script_that_would_stay_here_is_refused(edgeloop: Edgeloop, script, project: Path):
    script("pass")
    (project / ".edgeloopignore").write_text("train.*\n")
    assert "train.py: it would not be sent" in edgeloop("run", "train.py").sentence
    assert not (project / "runs").exists()


def test_a_job_makes_a_dataset_only_when_it_succeeds(edgeloop: Edgeloop, script, project: Path):
    script(
        "import sys, pathlib; folder = pathlib.Path('data/working/made');"
        "(folder / 'x.txt').write_text(sys.argv[1]); sys.exit(sys.argv[1] == 'bad')"
    )
    assert edgeloop("run", "train.py", "--writes", "working/made", "--", "bad").code == 1
    assert edgeloop("data", "list", "--json").json == []
    done = edgeloop("run", "train.py", "--writes", "working/made", "--", "good")
    assert "made working/made@1" in done.err
    assert edgeloop("data", "pull", "working/made").code == 0
    assert (project / "data/working/made/x.txt").read_text() == "good"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_detaches_and_a_second_one_cancels(
    edgeloop: Edgeloop, script, project: Path, times: int
):
    script(SLEEPER)
    process = start_command(["run", "train.py", "--name", "long"], project, {})
    assert process.stdout.readline() == "begun\n"
    said = ""
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        while "To cancel" not in said:
            said += process.stderr.readline()
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "edgeloop job logs long -f" in said and "edgeloop job abort long" in said
    expected = {1: "running", 2: "canceled"}[times]
    assert states(edgeloop, "long") == {"long": expected}
    if times == 2:
        assert "long: canceled" in err and Path("runs/long/outputs/begun.txt").is_file()


# submit


def test_submit_returns_while_the_job_runs_and_status_sees_it_end(
    edgeloop: Edgeloop, script, project: Path
):
    go = project.parent / "go"
    script(f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)")
    assert edgeloop("job", "submit", "train.py").code == 0
    eventually(lambda: states(edgeloop, "last") == {"train-1": "running"})
    go.touch()
    done = edgeloop("job", "wait", "last", "--timeout", "60s")
    assert done.code == 0 and "completed" in done.out


def test_a_file_holds_the_job_and_words_change_it(edgeloop: Edgeloop, script, project: Path):
    script(ECHO)
    (project / "train.yaml").write_text(
        "script: train.py\nargs: [--lr, '{lr}']\nparams: {lr: 1e-3, epochs: 3}\ntags: [a]\n"
    )
    row = edgeloop("job", "submit", "train.yaml", "epochs=30", "--tag", "b", "--json").json[0]
    assert row["command"] == ["python", "train.py", "--lr", "1e-3", "--epochs", "30"]
    assert row["tags"] == ["b"]
    unknown = edgeloop("job", "submit", "train.yaml", "epoch=3").sentence
    assert "did you mean 'epochs'?" in unknown


def test_a_zero_that_is_typed_counts(edgeloop: Edgeloop, script, project: Path):
    script("pass")
    (project / "edgeloop.yaml").write_text("computes: {local: {gpus: 0}}")
    (project / "train.yaml").write_text("script: train.py\nresources: {gpus: 1}\n")
    assert "can never run" in edgeloop("run", "train.yaml").sentence
    assert edgeloop("run", "train.yaml", "--gpus", "0").code == 0
    assert "resources.cpus must be" in edgeloop("run", "train.py", "--cpus", "0").sentence


def test_the_code_that_is_typed_starts_from_here_and_not_from_the_file(
    edgeloop: Edgeloop, script, project: Path
):
    script(ECHO)
    (project / "jobs").mkdir()
    (project / "jobs/train.yaml").write_text("script: train.py\n")
    assert edgeloop("run", "jobs/train.yaml", "--code", ".").code == 0


def test_a_compute_nobody_named_and_a_machine_too_small_are_refused(
    edgeloop: Edgeloop, script, project: Path
):
    script("pass")
    (project / "edgeloop.yaml").write_text("computes: {cluster: {kind: ray, address: 'http://x'}}")
    said = edgeloop("job", "submit", "train.py", "--compute", "clustre").sentence
    assert "did you mean 'cluster'?" in said
    said = edgeloop("job", "submit", "train.py", "--cpus", "5000").sentence
    assert "local can never run this job" in said
    assert not (project / "runs").exists()


def test_of_two_submissions_of_one_name_one_wins(edgeloop: Edgeloop, script, project: Path):
    script("pass")
    submit = ["job", "submit", "train.py", "--name", "same", "--json"]
    found: list[int] = []
    lock = threading.Lock()

    def try_it() -> None:
        code = run_command(submit, project, {}).code
        with lock:
            found.append(code)

    threads = [threading.Thread(target=try_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1, 1, 1]
    assert "taken" in edgeloop(*submit).sentence
    assert edgeloop("job", "wait", "same", "--json").json[0]["name"] == "same"


def test_a_sweep_makes_a_job_each_and_a_table_of_results(edgeloop: Edgeloop, script):
    script(
        "import sys, json; lr = float(sys.argv[2]);"
        "open('outputs/metrics.jsonl', 'w').write(json.dumps({'loss': lr * 2}) + '\\n')"
    )
    done = edgeloop("run", "train.py", "--sweep", "lr=1e-1,1e-2,1e-3", "--name", "sweep")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[-4][:3] == ["name", "lr", "state"] and "loss" in lines[-4]
    assert [line[0] for line in lines[-3:]] == ["sweep-1", "sweep-2", "sweep-3"]
    assert [(line[1], line[-1]) for line in lines[-3:]] == [
        ("1e-1", "0.2"),
        ("1e-2", "0.02"),
        ("1e-3", "0.002"),
    ]
    assert len(edgeloop("job", "status", "sweep-*", "--json").json) == 3


# looking


def test_selectors_choose_by_prefix_glob_tag_state_folder_and_last(
    edgeloop: Edgeloop, ended_jobs: Path
):
    assert sorted(states(edgeloop, "a-")) == ["a-1", "a-2"]
    assert sorted(states(edgeloop, "*-2", "b")) == ["a-2", "b"]
    assert sorted(states(edgeloop, "all")) == ["a-1", "a-2", "b"]
    assert sorted(states(edgeloop, "last")) == ["b"]
    assert sorted(states(edgeloop, "runs/a-1/")) == ["a-1"]
    assert sorted(states(edgeloop, "all", "--tag", "x")) == ["a-1"]
    assert sorted(states(edgeloop, "all", "--state", "failed")) == ["a-2"]
    assert "no job 'c'" in edgeloop("job", "status", "c").sentence


def test_logs_of_several_jobs_have_names_in_front(edgeloop: Edgeloop, ended_jobs: Path):
    said = edgeloop("job", "logs", "a-1", "b").out.splitlines()
    assert "a-1 │ I am train.py 1" in said and "b │ I am train.py 3" in said
    assert edgeloop("job", "logs", "b", "-n", "1").out.splitlines() != []


def test_following_goes_on_after_the_laptop_slept(edgeloop: Edgeloop, script, project: Path):
    script(
        "import pathlib, time\n"
        "print('one', flush=True)\n"
        "while not pathlib.Path(pathlib.os.environ['GO']).exists(): time.sleep(0.05)\n"
        "print('two', flush=True)\n"
    )
    go = project.parent / "go"
    edgeloop("job", "submit", "train.py", "--name", "nap", "--env", f"GO={go}")
    follower = start_command(["job", "logs", "nap", "-f"], project, {})
    assert follower.stdout.readline() == "one\n"
    os.kill(follower.pid, signal.SIGSTOP)
    go.touch()
    assert edgeloop("job", "wait", "nap", "--timeout", "60s").code == 0
    os.kill(follower.pid, signal.SIGCONT)
    out, err = follower.communicate(timeout=60)
    assert follower.returncode == 0, err
    assert "two\n" in out


def test_results_of_a_running_job_come_too(edgeloop: Edgeloop, script):
    script(SLEEPER)
    edgeloop("job", "submit", "train.py", "--name", "long")
    begun(edgeloop, "long")
    done = edgeloop("job", "results", "long")
    assert "more may follow" in done.out
    assert Path("runs/long/outputs/begun.txt").read_text().isdigit()


def test_a_job_of_another_store_says_so(edgeloop: Edgeloop, ended_jobs: Path, project: Path):
    said = edgeloop("job", "results", "last", "--store", f"sqlite:{project}/other").sentence
    assert "was submitted to the store" in said


def test_a_name_nobody_has_and_a_job_of_another_store_hide_no_other(
    edgeloop: Edgeloop, script, project: Path
):
    script("print('I am here')")
    other = ("--store", f"sqlite:{project}/other")
    edgeloop("run", "train.py", "--name", "far", *other)
    edgeloop("run", "train.py", "--name", "near")
    logs = edgeloop("job", "logs", "typo", "far", "near")
    assert logs.code == 1 and "near │ I am here" in logs.out
    first, second = logs.err.splitlines()
    assert "no job 'typo'" in first and "far was submitted to the store" in second
    fetched = edgeloop("job", "results", "far", "near", "--json")
    assert fetched.code == 1 and [row["name"] for row in json.loads(fetched.out)] == ["near"]
    seen = edgeloop("job", "status", "typo", "near", "--json")
    assert seen.code == 1 and [row["name"] for row in json.loads(seen.out)] == ["near"]
    assert edgeloop("job", "wait", "near", "typo").code == 1
    removed = edgeloop("job", "remove", "far", "near", "typo")
    assert removed.code == 1 and removed.out == "near: removed\n"


def test_logs_are_saved_beside_the_results(edgeloop: Edgeloop, ended_jobs: Path):
    assert edgeloop("job", "logs", "a-1", "b", "--save").out.splitlines() == [
        "a-1: runs/a-1/log.txt",
        "b: runs/b/log.txt",
    ]
    assert Path("runs/b/log.txt").read_text().startswith("I am train.py 3\n")
    assert sorted(path.name for path in Path("runs/b").glob("*log*")) == ["log.txt"]


def test_the_store_lists_the_jobs_of_everybody_who_uses_the_experiment(
    edgeloop: Edgeloop, script, project: Path
):
    script("import sys; sys.exit(int(sys.argv[1]))")
    mine = ("run", "train.py", "--name", "mine", "-e", "faces", "--", "0")
    assert edgeloop(*mine).code == 0
    elsewhere = project.parent / "another machine"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text((project / "train.py").read_text())
    store = ("--store", f"sqlite:{project}/.edgeloop")
    ada = {"LOGNAME": "ada"}
    theirs = ["run", "train.py", "--name", "theirs", "-e", "faces", *store, "--", "3"]
    assert run_command(theirs, elsewhere, ada).code == 3
    theirs[3], theirs[5] = "other", "hands"
    assert run_command(theirs, elsewhere, ada).code == 3
    rows = edgeloop("job", "list", "--all-users", "-e", "faces", "--json").json
    assert [(row["name"], row["state"]) for row in rows] == [
        ("mine", "completed"),
        ("theirs", "failed"),
    ]
    assert rows[1]["user"].startswith("ada@") and rows[1]["exit_code"] == 3
    failed = edgeloop("job", "list", "--all-users", "-e", "faces", "--state", "failed").out
    assert "theirs" in failed and "ada@" in failed and "mine" not in failed
    assert [row["name"] for row in edgeloop("job", "list", "--json").json] == ["mine"]
    edgeloop("job", "remove", "mine")
    listing = ["job", "list", "--all-users", "-e", "faces", *store, "--json"]
    seen = run_command(listing, elsewhere, ada)
    assert [row["name"] for row in seen.json] == ["theirs"]


# ending


def test_abort_waits_until_it_is_true(edgeloop: Edgeloop, script):
    script(SLEEPER)
    edgeloop("job", "submit", "train.py", "--name", "long")
    begun(edgeloop, "long")
    done = edgeloop("job", "abort", "long")
    assert done.out == "long: canceled\n"
    pid = int(Path("runs/long/outputs/begun.txt").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "had already ended (canceled)" in edgeloop("job", "abort", "long").out
    assert edgeloop("job", "status", "long").out.count("canceled") == 1


def test_a_change_to_several_jobs_shows_them_and_asks(command: Edgeloop, script, project: Path):
    script(SLEEPER)
    command("job", "submit", "train.py", "--sweep", "lr=1,2", "--name", "s")
    refused = command("job", "abort", "s-*", stdin="n\n")
    assert refused.code == 1 and "s-1" in refused.err and "Continue?" in refused.err
    ended = command("job", "abort", "s-*", stdin="y\n")
    assert ended.out.splitlines() == ["s-1: canceled", "s-2: canceled"]


def test_jobs_named_one_by_one_end_without_a_question(edgeloop: Edgeloop, script):
    script(SLEEPER)
    edgeloop("job", "submit", "train.py", "--sweep", "lr=1,2", "--name", "s")
    assert edgeloop("job", "abort", "s-1").code == 0
    edgeloop("job", "resubmit", "s-1")
    ended = edgeloop("job", "abort", "s-1", "s-2", "s-1.2", "--json").json
    assert [(row["name"], row["state"]) for row in ended] == [
        ("s-1", "canceled"),
        ("s-2", "canceled"),
        ("s-1.2", "canceled"),
    ]


def test_an_attempt_cannot_be_given_another_name(edgeloop: Edgeloop, ended_jobs: Path):
    assert "named after b" in edgeloop("job", "resubmit", "b", "--set", "name=c").sentence


@pytest.mark.soak
def test_a_hundred_jobs_abort_together_and_none_runs_on(edgeloop: Edgeloop, script, project: Path):
    script(SLEEPER)
    values = ",".join(str(number) for number in range(100))
    edgeloop("job", "submit", "train.py", "--sweep", f"n={values}", "--name", "many")
    rows = edgeloop("job", "abort", "all", "--yes", "--json").json
    assert [row["state"] for row in rows] == ["canceled"] * 100
    eventually(lambda: processes_in(project.parent) == [])  # those that waited, too
    assert set(states(edgeloop, "all").values()) == {"canceled"}


def processes_in(folder: Path) -> list[str]:
    """Processes other than ours whose working folder is below this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                where = (entry / "cwd").readlink()
            except OSError:
                continue
            if where.is_relative_to(folder):
                found.append(f"{entry.name} {where}")
    return found


def test_resubmit_makes_a_linked_attempt_and_leaves_the_old_results(edgeloop: Edgeloop, script):
    script(ECHO)
    edgeloop("run", "train.py", "--name", "lr", "--", "--lr", "1")
    row = edgeloop("job", "resubmit", "lr", "--set", "retries=2", "--json", "--", "--lr", "2").json[
        0
    ]
    assert (row["name"], row["parent"], row["attempt"]) == ("lr.2", "lr", 2)
    assert edgeloop("job", "wait", "all").code == 0
    edgeloop("job", "results", "all")
    assert json.loads(Path("runs/lr/outputs/arguments.json").read_text()) == ["--lr", "1"]
    assert json.loads(Path("runs/lr.2/outputs/arguments.json").read_text()) == ["--lr", "2"]
    again = edgeloop("job", "resubmit", "lr.2", "--json").json[0]
    assert (again["name"], again["parent"], again["command"][-1]) == ("lr.3", "lr.2", "2")
    assert "its newest attempt is lr.3" in edgeloop("job", "status", "lr").err
    rows = edgeloop("job", "status", "lr", "lr.2", "lr.3", "--json").json
    assert [row["newest_attempt"] for row in rows] == ["lr.3", "lr.3", None]
    assert edgeloop("job", "status", "lr", "lr.3").err == ""


def test_an_attempt_may_begin_with_what_the_old_one_wrote(edgeloop: Edgeloop, script):
    script(
        "import pathlib, os; file = pathlib.Path('outputs/checkpoint.txt');"
        "before = file.read_text() if file.exists() else '';"
        "file.write_text(before + os.environ['EDGELOOP_ATTEMPT'])"
    )
    edgeloop("run", "train.py", "--name", "resume")
    edgeloop("job", "resubmit", "resume", "--with-outputs")
    assert edgeloop("job", "wait", "all").code == 0
    edgeloop("job", "results", "resume.2")
    assert Path("runs/resume.2/outputs/checkpoint.txt").read_text() == "12"


def test_remove_takes_jobs_that_are_over_and_only_those(edgeloop: Edgeloop, script, project: Path):
    script("pass")
    edgeloop("run", "train.py", "--name", "done")
    script(SLEEPER)
    edgeloop("job", "submit", "train.py", "--name", "alive")
    assert "because still running: alive" in edgeloop("job", "remove", "alive").sentence
    assert edgeloop("job", "remove", "done").out == "done: removed\n"
    assert [path.name for path in (project / "runs").iterdir()] == ["alive"]
    left = Jobs.open().blobs.list("_jobs/")
    assert all("/_jobs/done-" not in f"/{info.key}" for info in left)


def test_jobs_wait_their_turn_by_priority(edgeloop: Edgeloop, script, project: Path):
    (project / "edgeloop.yaml").write_text("computes: {local: {cpus: 1}}")
    order = project.parent / "order.txt"
    script(
        "import os, sys, time, pathlib\n"
        "with open(os.environ['ORDER'], 'a') as file: file.write(sys.argv[1] + '\\n')\n"
        "while sys.argv[1] == 'first' and not pathlib.Path(os.environ['ORDER'] + '.go').exists():\n"
        "    time.sleep(0.05)\n"
    )
    submit = ["job", "submit", "train.py", "--env", f"ORDER={order}"]
    edgeloop(*submit, "--name", "first", "--", "first")
    eventually(order.exists)
    edgeloop(*submit, "--name", "later", "--", "later")
    edgeloop(*submit, "--name", "sooner", "--priority", "1", "--", "sooner")
    assert states(edgeloop, "later", "sooner") == {"later": "queued", "sooner": "queued"}
    Path(f"{order}.go").touch()
    assert edgeloop("job", "wait", "all", "--timeout", "60s").code == 0
    assert order.read_text().split() == ["first", "sooner", "later"]


def test_a_damaged_record_is_named_and_hides_no_other(edgeloop: Edgeloop, ended_jobs: Path):
    (ended_jobs / "runs/bad").mkdir()
    (ended_jobs / "runs/bad/job.json").write_text("{")
    done = edgeloop("job", "list")
    shutil.rmtree(ended_jobs / "runs/bad")
    assert "a-1" in done.out and "runs/bad/job.json" in done.err


# a store that is not a folder


def test_jobs_and_data_live_in_a_database_beside_a_folder(command: Edgeloop, script, make_place):
    place = make_place("postgresql")
    run_far(command, script, place.environ)
    said = command("job", "results", "far", "--link", environ=place.environ)
    assert "no links" in said.sentence


def test_a_link_gives_an_output_to_anybody(command: Edgeloop, script, make_place):
    place = make_place("azure")
    run_far(command, script, place.environ)
    assert "AccountKey" not in Path("runs/far/job.json").read_text()
    rows = command("job", "results", "far", "--link", "--json", environ=place.environ).json
    assert [row["file"] for row in rows] == ["the out.txt"]
    with urllib.request.urlopen(rows[0]["link"], timeout=30) as answer:
        assert answer.read() == b"kept"


def run_far(command: Edgeloop, script, environ: dict[str, str]) -> None:
    """With data, and to its results."""
    script("print(open('data/raw/d/x').read()); open('outputs/the out.txt', 'w').write('kept')")
    Path("data/raw/d").mkdir(parents=True)
    Path("data/raw/d/x").write_text("content")
    done = command("run", "train.py", "--data", "raw/d", "--name", "far", environ=environ)
    assert done.code == 0, done.err
    assert "content" in done.out
    assert Path("runs/far/outputs/the out.txt").read_text() == "kept"


def test_jobs_reach_files_in_s3_by_their_environment(command: Edgeloop, script, s3):
    """No database is asked for jobs and data, so a PostgreSQL that is not there does not matter."""
    address = f"postgresql://nobody@127.0.0.1:1/none?blobs=s3://{s3.make_bucket()}/team"
    environ = {**s3.environ, "EDGELOOP_STORE": address}
    script("open('outputs/out.txt', 'w').write('kept')")
    done = command("run", "train.py", "--name", "far", environ=environ)
    assert done.code == 0, done.err
    assert Path("runs/far/outputs/out.txt").read_text() == "kept"
    links = command("job", "results", "far", "--link", "--json", environ=environ).json
    with urllib.request.urlopen(links[0]["link"], timeout=30) as answer:
        assert answer.read() == b"kept"
