"""README's "Run a script somewhere else": the same commands here and on a real cluster."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from edgeloop.jobs.client import Jobs
from edgeloop.node.ticket import kept_folder
from edgeloop.settings import Settings
from edgeloop.workspace import Workspace
from tests.cli.running import Finished, run_command, run_main
from tests.jobs import planted
from tests.jobs.waiting import end_all, eventually

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples/jobs"
Command = Callable[..., Finished]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "my-project"
    shutil.copytree(EXAMPLES, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    yield folder
    end_all(Jobs.open())


@pytest.fixture(params=["local", pytest.param("cluster", marks=pytest.mark.soak)])
def compute(request: pytest.FixtureRequest, project: Path) -> str:
    """Both are named in the settings; only the cluster has to be started."""
    if request.param == "cluster":
        address = request.getfixturevalue("ray_cluster").address
        settings = {"computes": {"cluster": {"kind": "ray", "address": address}}}
        (project / "edgeloop.yaml").write_text(json.dumps(settings))
    return str(request.param)


@pytest.fixture
def edgeloop(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """The program's own `main` in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: run_main(arguments, monkeypatch, capfd)


def test_the_walk(edgeloop: Command, compute: str, project: Path) -> None:
    drawn = edgeloop("data", "faces", "data/working/faces64", "--count", 24, "--size", 32)
    assert drawn.code == 0, drawn.err
    assert "working/faces64@1" in edgeloop("data", "push", "working/faces64").out
    assert "nothing to do" in edgeloop("data", "push", "working/faces64").out

    to = ("--compute", compute, "--data", "working/faces64")
    words = ("run", "train.py", *to, "--name", "lr-3", "--", "--lr", "1e-3", "--epochs", "2")
    lr_3 = run_command(words, project, {})  # as a process of its own
    assert lr_3.code == 0, lr_3.err
    assert "epoch 2/2" in lr_3.out
    assert f"data working/faces64@1 (unchanged) · compute {compute}" in lr_3.err
    assert "exit code 0 · results in runs/lr-3/outputs" in lr_3.err
    assert (project / "runs/lr-3/outputs/net.pt").is_file()

    shell = edgeloop("run", "count.sh", *to)
    assert "24 faces in data/working/faces64" in shell.out

    sweep = edgeloop(
        *("run", "train.py", *to, "--sweep", "lr=1e-2,1e-3", "--name", "sweep"),
        *("--", "--epochs", "1"),
    )
    assert sweep.code == 0, sweep.err
    table = [line.split() for line in sweep.out.splitlines()[-3:]]
    assert table[0][:3] == ["name", "lr", "state"] and "accuracy" in table[0]
    assert [line[:3] for line in table[1:]] == [
        ["sweep-1", "1e-2", "completed"],
        ["sweep-2", "1e-3", "completed"],
    ]
    rows = edgeloop("job", "status", "sweep*", "--json").json
    assert [set(row["metrics"]) for row in rows] == [{"epoch", "loss", "accuracy"}] * 2
    assert all(row["compute"] == compute for row in rows)

    again = edgeloop("job", "resubmit", "lr-3", "--json", "--", "--lr", "5e-4", "--epochs", "1")
    assert again.json[0]["name"] == "lr-3.2"
    assert edgeloop("job", "wait", "lr-3.2", "--timeout", "2m").code == 0


def test_a_file_a_long_job_and_its_end(edgeloop: Command, compute: str, project: Path) -> None:
    (project / "wait.sh").write_text(
        'trap "echo saved > outputs/late.txt; exit 7" TERM\n'
        "echo early > outputs/early.txt; echo begun\n"
        "while true; do sleep 0.1; done\n"
    )
    (project / "wait.yaml").write_text("script: wait.sh\nparams: {}\ntags: [long]\ngrace: 20s\n")
    sent = edgeloop("job", "submit", "wait.yaml", "--compute", compute, "--name", "long")
    assert sent.code == 0, sent.err
    eventually(lambda: "begun" in edgeloop("job", "logs", "long").out)
    ended = edgeloop("job", "abort", "--tag", "long", "all", "--json")
    assert [row["state"] for row in ended.json] == ["canceled"]
    edgeloop("job", "results", "long")
    outputs = project / "runs/long/outputs"
    assert (outputs / "early.txt").read_text() == "early\n"
    assert (outputs / "late.txt").read_text() == "saved\n"


def test_a_script_that_fails_says_so_with_its_own_code(edgeloop: Command, compute: str) -> None:
    Path("fail.sh").write_text("echo so far > outputs/part.txt; exit 3\n")
    done = edgeloop("run", "fail.sh", "--compute", compute, "--name", "bad")
    assert done.code == 3
    assert Path("runs/bad/outputs/part.txt").read_text() == "so far\n"
    assert edgeloop("job", "status", "bad", "--json").json[0]["exit_code"] == 3


def test_what_no_machine_has_is_refused_with_what_there_is(edgeloop: Command, compute: str) -> None:
    refused = edgeloop("run", "count.sh", "--compute", compute, "--resource", "snapdragon999=1")
    assert "snapdragon999" in refused.sentence
    assert not Path("runs").exists()


BRACES = [
    "{epoch}_{job}",
    "{outputs}/{{data}}",
    "{input:cocoo}",
    "${HOME}",
    '{"a": {"b": 1}}',
    "{n}",
]


def test_words_after_the_dashes_arrive_as_they_were_typed(
    edgeloop: Command, compute: str, project: Path
) -> None:
    """From run, submit, a sweep, a job file and another attempt; values of a sweep, too."""
    echo = "import json, sys; json.dump(sys.argv[1:], open('outputs/words.json', 'w'))"
    (project / "echo.py").write_text(echo)
    (project / "echo.yaml").write_text("script: echo.py\nargs: ['{job}', '{{job}}']\n")
    to = ("--compute", compute)
    assert edgeloop("run", "echo.py", *to, "--name", "a", "--", *BRACES).code == 0
    swept = ("--name", "b", "--sweep", "n={step},2")
    assert edgeloop("job", "submit", "echo.py", *to, *swept, "--", *BRACES).code == 0
    placed = ("--arg", "--out", "--arg", "{outputs}")
    assert (
        edgeloop("job", "submit", "echo.py", *to, *placed, "--name", "c", "--", *BRACES).code == 0
    )
    assert edgeloop("job", "submit", "echo.yaml", *to, "--name", "d").code == 0
    assert edgeloop("job", "resubmit", "a").code == 0
    assert edgeloop("job", "resubmit", "d", "--", *BRACES).code == 0
    assert edgeloop("job", "wait", "all").code == 0
    edgeloop("job", "results", "all")
    arrived = {
        path.parts[-3]: json.loads(path.read_text())
        for path in project.glob("runs/*/outputs/words.json")
    }
    option, folder, *words = arrived.pop("c")
    assert (option, Path(folder).name, words) == ("--out", "outputs", BRACES)
    [job] = [row["id"] for row in edgeloop("job", "status", "d", "--json").json]
    assert arrived == {
        "a": BRACES,
        "a.2": BRACES,
        "b-1": [*BRACES, "--n", "{step}"],
        "b-2": [*BRACES, "--n", "2"],
        "d": [job, "{job}"],
        "d.2": BRACES,
    }
    rows = edgeloop("job", "status", "b-1", "--json").json
    assert rows[0]["params"] == {"n": "{step}"}


def test_an_unknown_placeholder_is_refused_before_anything_is_sent(
    edgeloop: Command, compute: str, project: Path
) -> None:
    refused = edgeloop("job", "submit", "count.sh", "--compute", compute, "--arg", "{input:faces}")
    assert "args has the unknown placeholder {input:faces}: there is none of this kind" in (
        refused.sentence
    )
    (project / "a.yaml").write_text("script: count.sh\nargs: '{atempt}'\n")
    refused = edgeloop("run", "a.yaml", "--compute", compute)
    assert "a.yaml, line 2: args has the unknown placeholder {atempt}: did you mean 'attempt'?" in (
        refused.sentence
    )
    assert not Path("runs").exists()


def test_results_outside_outputs_are_kept_fetched_and_collected(
    edgeloop: Command, compute: str, project: Path
) -> None:
    script = (
        "import os; os.makedirs('lightning_logs'); "
        "open('lightning_logs/best.ckpt', 'w').write('weights')"
    )
    (project / "elsewhere.py").write_text(script)
    to = ("--compute", compute)
    night = edgeloop("run", "elsewhere.py", *to, "--name", "night")
    assert night.code == 0, night.err
    sentence = "outputs/ is empty, but 1 file (7 B) created outside outputs/ is kept for 7 days"
    told = f"{sentence}: lightning_logs/best.ckpt (7 B); 'edgeloop job results --all night' fetches"
    assert told in night.err, "it can be typed as it is"
    assert sentence in edgeloop("job", "status", "night").out
    assert "results in" not in night.err, "there are none"
    [row] = json.loads(edgeloop("job", "status", "night", "--json").out)
    assert row["files"]["largest_kept"] == [{"name": "lightning_logs/best.ckpt", "size": 7}]

    plain = edgeloop("job", "results", "night")
    assert "1 file outside outputs/: edgeloop job results --all night" in plain.err
    fetched = edgeloop("job", "results", "--all", "night")
    assert fetched.out.splitlines()[1] == "night: 1 file, 1 new → runs/night/kept"
    kept = project / "runs/night/kept/lightning_logs/best.ckpt"
    assert kept.read_text() == "weights"
    [row] = edgeloop("job", "results", "--all", "night", "--json").json
    assert (row["kept_files"], row["kept_folder"]) == (1, str(project / "runs/night/kept"))

    [job] = [run.record.id for run in Jobs.open().runs.list().runs]
    Jobs.open().blobs.delete_folder(kept_folder(job))  # as gc does after a week
    late = edgeloop("job", "results", "--all", "night")
    assert "no longer in the store: they are kept for 7 days" in late.err and kept.is_file()

    words = (*to, "--name", "asked", "--outputs", "lightning_logs")
    asked = edgeloop("run", "elsewhere.py", *words)
    assert asked.code == 0 and "kept" not in asked.err
    assert (project / "runs/asked/outputs/lightning_logs/best.ckpt").read_text() == "weights"
    refused = edgeloop("run", "elsewhere.py", "--outputs", "../x")
    assert refused.code != 0 and "outputs has a pattern that may not hold '..'" in refused.err

    file = project / "edgeloop.yaml"
    settings = (yaml.safe_load(file.read_text()) if file.exists() else None) or {}
    file.write_text(json.dumps({**settings, "kept_limit_mb": 0.000001}))
    over = edgeloop("run", "elsewhere.py", *to, "--name", "over")
    assert "created outside outputs/ was not kept: lightning_logs/best.ckpt (7 B)" in over.err
    assert "not kept, because the limit is 1 B: lightning_logs/best.ckpt (7 B)" in over.out


def test_a_store_inside_the_project_is_no_code_and_secrets_are_named(
    edgeloop: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files grow with each submission; so would each snapshot."""
    (project / "edgeloop.yaml").write_text("store: sqlite:kept/here\ncode_limit_mb: 1\n")
    (project / ".env-prod").write_text("TOKEN=1")
    (project / "hello.py").write_text("print(1)")
    monkeypatch.setenv("EDGELOOP_STATE", str(project / "my/state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(project / "tmp"))
    said = [edgeloop("run", "hello.py").err for _ in range(3)]
    assert "(sent)" in said[0] and "(unchanged)" in said[1] and "(unchanged)" in said[2]
    assert all("without .env-prod, which may hold secrets" in line for line in said)
    assert (project / "kept/here/blobs").is_dir() and (project / "my/state").is_dir()


def test_secrets_stand_in_nothing_that_others_see(
    edgeloop: Command,
    compute: str,
    project: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in records, snapshots, logs, lists of processes, nor on the pages of Ray and ours."""
    (project / "look.py").write_text(planted.SCRIPT)
    (project / ".env").write_text(f"TOKEN={planted.WORD}")
    for name, value in planted.ENVIRON.items():
        monkeypatch.setenv(name, value)
    words = ("run", "look.py", "--compute", compute, "--name", "look", *planted.OPTIONS)
    done = run_command(words, project, {}, is_fresh=True)  # the list of processes has it
    assert done.code == 0, done.err
    again = edgeloop("job", "resubmit", "look", "--json")
    said = {"run": done.out + done.err, "resubmit": again.out + again.err}
    assert edgeloop("job", "wait", "look.2").code == 0
    said |= {"status": edgeloop("job", "status", "all", "--json").out}
    said |= {"list": edgeloop("job", "list").out, "pages": pages(project)}
    if compute == "cluster":
        said["dashboard"] = request.getfixturevalue("ray_cluster").shown()
        assert "look" in said["dashboard"] and "my-project/.edgeloop" not in said["dashboard"]
    assert "look" in said["pages"] and "processes" in said["pages"]
    assert planted.leaks(project, Jobs.open(), said) == []


def pages(project: Path) -> str:
    """What the portal shows of a job."""
    from starlette.testclient import TestClient

    from edgeloop.view.portal.app import create_app

    names = ["", "jobs", "jobs/look", "jobs/look/log", "jobs/look.2"]
    with (
        Workspace(Settings.load(project)) as workspace,
        TestClient(create_app(workspace), "http://127.0.0.1:8750") as client,
    ):
        found = [client.get(f"/api/v1/{name}") for name in names[1:]]
        found += [client.get(f"/{name}") for name in names]
        return "\n".join(answer.text for answer in found)
