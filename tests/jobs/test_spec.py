"""A job is checked to the last key before anything moves, and texts stay as they were typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeloop._util.values import bytes_of, seconds_of
from edgeloop.errors import BadInput, BadJob
from edgeloop.jobs.computes.base import Resources
from edgeloop.jobs.spec import (
    JobSpec,
    as_recorded,
    as_submitted,
    changed,
    read_spec,
    spec_of,
    spec_of_script,
    with_arguments,
)
from edgeloop.node.layout import JobFolders, fill
from edgeloop.node.ticket import Environment, Ticket

FULL = """
name: night-run
script: src/train.py
args: [--out, "{outputs}", --faces, "{input:faces}", --bs, "{bs}", "-1", yes, 010]
data: [working/faces@3, raw/hair]
writes: working/faces64
environment: requirements.txt
compute: gpu
resources: {cpus: 2.5, gpus: 1, memory: 4GB, custom: {board: 1}}
tags: [night, owner=me]
experiment: portraits
timeout: 1h30m
retries: 2
priority: 10
grace: 5s
params: {lr: 1e-3, bs: 8, flag: yes}
variables: {TOKEN: "${SECRET_TOKEN}", MODE: fast}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    for name in ("src/train.py", "train.py", "go.sh", "requirements.txt", "env.yaml", "notes.md"):
        (tmp_path / name).touch()
    (tmp_path / "tool").touch(mode=0o755)
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    return tmp_path


def read(project: Path, text: str, *overrides: str) -> JobSpec:
    (project / "job.yaml").write_text(text)
    return read_spec(project / "job.yaml", overrides)


def test_every_key_of_the_file_is_read(project: Path):
    spec = read(project, FULL)
    assert spec == JobSpec(
        code=project,
        stem="job",
        name="night-run",
        script="src/train.py",
        command=("python", "src/train.py"),
        args=("--out", "{outputs}", "--faces", "{input:faces}", "--bs", "{bs}", "-1", "yes", "010"),
        data=("working/faces@3", "raw/hair"),
        writes=("working/faces64",),
        environment=Environment("requirements", "requirements.txt"),
        compute="gpu",
        resources=Resources(2.5, 1, 4_000_000_000, {"board": 1}),
        cpus_given=True,
        tags=("night", "owner=me"),
        experiment="portraits",
        timeout_s=5400,
        retries=2,
        priority=10,
        grace_s=5,
        params={"lr": "1e-3", "bs": "8", "flag": "yes"},
        variables={"TOKEN": "${SECRET_TOKEN}", "MODE": "fast"},
    )


def test_params_fill_their_places_and_the_rest_become_options(project: Path):
    assert read(project, FULL).full_command() == (
        *("python", "src/train.py", "--out", "{outputs}", "--faces", "{input:faces}"),
        *("--bs", "8", "-1", "yes", "010", "--lr", "1e-3", "--flag", "yes"),
    )


def on_the_node(spec: JobSpec) -> list[str]:
    """The command as it is started."""
    folders = JobFolders(Path("/o"), Path("/d"), {"working/faces": Path("/f")}, {}, {})
    ticket = Ticket("job-1", "n", "default", spec.full_command(), "")
    return fill(ticket.command, ticket, 1, folders)


def test_braces_that_are_not_ours_stay(project: Path):
    text = """command: [echo, '{"a": {b}}', '{job}', '{}', 'x{b}y{b}', '{x:>3}', '{0}', '{{', '}}']
params: {b: '{{b}}', job: mine}"""
    assert on_the_node(read(project, text)) == [
        *("echo", '{"a": {b}}', "job-1", "{}", "x{b}y{b}", "{x:>3}", "{0}", "{{", "}}"),
        *("--job", "mine"),
    ]


def test_a_placeholder_with_one_more_pair_of_braces_is_text(project: Path):
    text = """command: [x, '{{outputs}}/{lr}', '{{lr}}', '{{epoch}}-{{job}}', '{{{lr}}}']
args: ['{{input:faces}}={input:faces}']
data: working/faces
params: {lr: 1e-3}"""
    assert on_the_node(read(project, text)) == [
        *("x", "{outputs}/1e-3", "{lr}", "{epoch}-{job}", "{{lr}}", "{input:faces}=/f"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "script: train.py\nargs: ['{input:cocoo}']\ndata: [raw/coco]",
            "job.yaml, line 2: args has the unknown placeholder {input:cocoo}: did you mean "
            "'input:coco'? To pass these characters themselves, write {{input:cocoo}}",
        ),
        (
            "command: x --out {output:faces}",
            "command has the unknown placeholder {output:faces}: there is none of this kind.",
        ),
        (
            "command: x --epochs {epohcs}\nsweep: {epochs: [1, 2]}",
            "command has the unknown placeholder {epohcs}: did you mean 'epochs'?",
        ),
        (
            "script: train.py\nparams: {name: 'net-{epoch}'}",
            "params.name has the unknown placeholder {epoch}: there is {outputs}, {data}, {job}, "
            "{attempt}. To pass these characters themselves, write {{epoch}}",
        ),
    ],
)
def test_a_placeholder_that_stands_for_nothing_is_refused(project: Path, text: str, says: str):
    with pytest.raises(BadJob) as refused:
        read(project, text)
    assert says in str(refused.value)


def test_a_folder_of_data_may_be_named_before_it_is_known(project: Path):
    read(project, "script: train.py\nargs: '{input:working/faces}'\ndata: faces")


PIECES = st.sampled_from(["{", "}", "{outputs}", "{job}", "{lr}", "{input:a}", "a", "-"])


@given(st.lists(st.lists(PIECES).map("".join), max_size=3))
def test_words_after_the_dashes_are_never_touched(words: list[str]):
    """Whatever braces they have, also in another attempt and beside params of the same names."""
    options = {"command": ["x"], "code": "/", "params": {"lr": "1"}}
    spec = spec_of(with_arguments(options, words), Path("/"), "test")
    for each in (spec, changed(spec), changed(spec, (), words)):
        assert on_the_node(each) == ["x", *words, "--lr", "1"]


OLD_RECORD = {
    "command": ["x", "{outputs}/{lr}", "{unknown}"],
    "args": ["{epoch}_{job}", "{{epoch}}", '{"a": 1}'],
    "params": {"lr": "1e-3", "format": "{step}"},
}


def test_a_job_of_an_older_version_runs_again_with_the_words_it_had():
    spec = spec_of(as_submitted(OLD_RECORD), Path("/"), "record")
    assert on_the_node(spec) == [
        *("x", "/o/1e-3", "{unknown}", "{epoch}_job-1", "{{epoch}}", '{"a": 1}'),
        *("--format", "{step}"),
    ]
    assert as_submitted(as_recorded(spec.document())) == spec.document()


def test_a_secret_reaches_the_job_and_no_record(project: Path):
    spec = read(project, FULL)
    assert spec.filled_variables() == {"TOKEN": "s3cret", "MODE": "fast"}
    assert "s3cret" not in repr(spec) + json.dumps(spec.document())


def test_a_variable_that_is_not_set_is_said_before_anything_moves(project: Path):
    for key in ("variables: {A: '${NOT_THERE}'}", "params: {a: '${NOT_THERE}'}"):
        with pytest.raises(BadInput, match="NOT_THERE is not set"):
            read(project, f"script: train.py\n{key}")


def test_variables_of_the_environment_stand_in_every_other_key(project: Path):
    spec = read(project, "script: train.py\nparams: {mode: 'a-${SECRET_TOKEN}'}")
    assert spec.params == {"mode": "a-s3cret"}


def test_a_record_reads_back_to_the_same_specification(project: Path):
    for text in (FULL, "command: python -c 'print(1)'", "script: tool\nenvironment: env.yaml"):
        spec = read(project, text)
        stored = json.loads(json.dumps(spec.document()))
        assert spec_of(stored, Path("/"), "record", spec.stem) == spec


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("train.py", ("python", "train.py")),
        ("./src/train.py", ("python", "src/train.py")),
        ("go.sh", ("bash", "go.sh")),
        ("tool", ("./tool",)),
    ],
)
def test_a_script_is_started_by_what_it_is(project: Path, script: str, command: tuple[str, ...]):
    assert spec_of_script(script, here=project).command == command
    assert read(project, f"script: {script}").command == command


def test_a_command_may_be_a_text_and_never_meets_a_shell(project: Path):
    spec = read(project, "command: python -c 'print(\"a b\")' ; rm $HOME")
    assert spec.command == ("python", "-c", 'print("a b")', ";", "rm", "$HOME")


ODD = ["-1", "--", "a b", "it's", '"q"', "ünï", "🚀", "", "$HOME", "`x`", "*", "a=b", "${HOME}"]


def test_arguments_reach_the_script_as_they_were_typed(project: Path):
    spec = spec_of_script("train.py", ODD, here=project)
    assert on_the_node(spec) == ["python", "train.py", *ODD]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_any_text_survives_the_record(args: list[str]):
    spec = spec_of(with_arguments({"command": ["x"]}, args), Path("/"), "test")
    stored = json.loads(json.dumps(as_recorded(spec.document())))
    assert on_the_node(spec_of(as_submitted(stored), Path("/"), "record")) == ["x", *args]


def test_a_script_is_found_from_where_one_stands_and_the_code_is_the_project(project: Path):
    (project / "edgeloop.yaml").touch()
    spec = spec_of_script("train.py", here=project / "src")
    assert (spec.code, spec.script, spec.stem) == (project, "src/train.py", "train")
    assert spec_of_script("../go.sh", here=project / "src").script == "go.sh"
    own = spec_of_script("train.py", options={"code": "."}, here=project / "src")
    assert (own.code, own.script) == (project / "src", "train.py")


def test_options_of_the_command_line_are_checked_as_keys_of_a_file(project: Path):
    options = {"timeout": "2h", "data": ["faces"], "retries": 1, "resources": {"cpus": 2}}
    spec = spec_of_script("train.py", (), options, project)
    assert (spec.timeout_s, spec.data, spec.retries, spec.resources.cpus) == (
        *(7200, ("faces",), 1, 2),
    )
    with pytest.raises(BadJob, match="unknown key 'retry': did you mean 'retries'"):
        spec_of_script("train.py", (), {"retry": 1}, project)


@pytest.mark.parametrize(
    ("override", "of", "expected"),
    [
        ("lr=1e-4", "params", {"lr": "1e-4", "bs": "8", "flag": "yes"}),
        ("params.new=a=b", "params", {"lr": "1e-3", "bs": "8", "flag": "yes", "new": "a=b"}),
        ("resources.gpus=2", "resources", Resources(2.5, 2, 4_000_000_000, {"board": 1})),
        ("resources.custom.x=3", "resources", Resources(2.5, 1, 4 * 10**9, {"board": 1, "x": 3})),
        ("resources.nodes=2", "resources", Resources(2.5, 1, 4 * 10**9, {"board": 1}, 2)),
        ("name=other", "name", "other"),
        ("tags=[a, b]", "tags", ("a", "b")),
        ("data=faces", "data", ("faces",)),
        ("environment.conda=env.yaml", "environment", Environment("conda", "env.yaml")),
        ("environment.image=acme/train:3", "environment", Environment("image", "acme/train:3")),
        ("environment=here", "environment", Environment()),
        ("timeout=", "timeout_s", None),
        ("sweep.lr=1e-3,1e-4", "sweep", {"lr": ("1e-3", "1e-4")}),
        ("variables.MODE=slow", "variables", {"TOKEN": "${SECRET_TOKEN}", "MODE": "slow"}),
    ],
)
def test_a_key_can_be_changed_on_the_command_line(
    project: Path, override: str, of: str, expected: object
):
    assert getattr(read(project, FULL, override), of) == expected


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("lrr=1", "unknown key 'lrr': did you mean 'lr'?"),
        ("gpus=1", "unknown key 'gpus': did you mean 'resources.gpus'?"),
        ("resources.gpu=1", "unknown key 'resources.gpu': did you mean 'resources.gpus'?"),
        ("nam=x", "did you mean 'name'?"),
        ("zzzzzz=x", "known keys are lr, bs, flag, name"),
        ("lr", "'lr' is not a valid override: write key=value, for example epochs=30"),
        ("=1", "is not a valid override"),
        ("tags=[a", "the value of tags cannot be read as YAML"),
        ("name.x=1", "unknown key 'name.x'"),
        ("resources.custom=1", "resources.custom must hold 'key: value' lines, not '1'"),
    ],
)
def test_a_wrong_change_is_said(project: Path, override: str, said: str):
    with pytest.raises(BadJob) as caught:
        read(project, FULL, override)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


LINES = "must hold 'key: value' lines, for example 'script: train.py'"
NO_LINE = ("nothing to run", "both 'script' and 'command'", LINES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("script: train.py\nepoch: 3", "unknown key 'epoch'"),
        ("scrpt: train.py", "unknown key 'scrpt': did you mean 'script'?"),
        ("tags: [a]", "nothing to run"),
        ("script: train.py\nscript: gone.py", "the key 'script' is there twice"),
        ("script: train.py\ncommand: x", "both 'script' and 'command'"),
        ("script: gone.py", "script names 'gone.py', which is not in"),
        ("script: src", "script names 'src', which is not in"),
        ("script: ../train.py", "script must be a path inside the code folder"),
        ("script: /bin/sh", "script must be a path inside the code folder"),
        ("script: notes.md", "script is neither .py nor .sh nor executable"),
        ("script: train.py\ncode: nowhere", "nowhere is not there"),
        ("command: []", "command must name a program"),
        ("command: 'a \"b'", "command has a quote that is never closed"),
        ("command: {a: b}", "command must be a list"),
        ("command: [[a]]", "command must be a text, not ['a']"),
        ('command: [x, "a\\0b"]', "argument with a NUL character"),
        ("command: x\nname: a/b", "name may hold letters"),
        ("command: x\nname: .hidden", "name may hold letters"),
        ("command: x\nname: all", "name cannot be 'all'"),
        (f"command: x\nname: {'n' * 101}", "name has 101 characters"),
        ("command: x\ndata: [../x]", "data cannot hold '../x'"),
        ("command: x\ndata: [faces@0]", "data cannot hold 'faces@0': after @ comes a version"),
        ("command: x\ndata: {a: b}", "data must be a list"),
        ("command: x\nwrites: [working/a@2]", "writes cannot hold 'working/a@2'"),
        ("command: x\nwrites: [faces]", "writes cannot hold 'faces': it must begin with working/"),
        ("command: x\nenvironment: gone.txt", "environment names 'gone.txt', which is not in"),
        ("command: x\nenvironment: notes.md", "a requirements.txt or a conda .yaml"),
        ("command: x\nenvironment: {docker: x}", "environment must be 'here'"),
        ("command: x\nresources: {cpus: 0}", "resources.cpus must be a number above 0"),
        ("command: x\nresources: {cpus: two}", "resources.cpus must be a number"),
        ("command: x\nresources: {gpus: -1}", "resources.gpus must be a number"),
        ("command: x\nresources: {gpus: nan}", "resources.gpus must be a number"),
        ("command: x\nresources: {memory: 4}", "resources.memory must be a size like 4GB"),
        (
            "command: x\nresources: {ram: 4GB}",
            "unknown key 'resources.ram': known keys are cpus, gpus, memory",
        ),
        ("command: x\nresources: 3", "resources must hold 'key: value' lines"),
        ("command: x\ntags: [a b]", "tags must be plain words"),
        ("command: x\nsecrets: [[a]]", "secrets may hold names of letters"),
        ("command: x\nsecrets: [{a: b}]", "secrets may hold names of letters"),
        ("command: x\nexperiment: a", "experiment must be 3 to 40"),
        ("command: x\ntimeout: 90", "timeout must be a time like 90s"),
        ("command: x\ntimeout: 0s", "timeout must be a time"),
        ("command: x\ntimeout: soon", "timeout must be a time"),
        ("command: x\ngrace: -1s", "grace must be a time"),
        ("command: x\nretries: -1", "retries must be a whole number"),
        ("command: x\nretries: two", "retries must be a whole number"),
        ("command: x\npriority: 1.5", "priority must be a whole number"),
        ("command: x\nparams: [a]", "params must hold"),
        ("command: x\nparams: {a: [1]}", "params.a must be a single value"),
        ("command: x\nparams: {'a b': 1}", "params may hold names"),
        ("command: x\nsweep: {a: []}", "sweep.a has no values"),
        ("command: x\nsweep: {a: '1,,2'}", "sweep.a cannot be read"),
        (
            "command: x\nvariables: {EDGELOOP_X: 1}",
            "that do not begin with EDGELOOP_, not 'EDGELOOP_X'",
        ),
        ("command: x\nvariables: {'a-b': 1}", "variables may hold names"),
        ("just text", LINES),
        ("", LINES),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_a_wrong_specification_is_said_in_one_sentence(project: Path, text: str, said: str):
    with pytest.raises(BadJob) as caught:
        read(project, text)
    assert said in str(caught.value)
    line = text.count("\n") + 1  # the mistake is in the last one
    expected = "job.yaml: " if said in NO_LINE else f"job.yaml, line {line}: "
    assert str(caught.value).startswith(expected) and "\n" not in str(caught.value)


def test_a_path_that_is_missing_is_named(project: Path, tmp_path_factory: pytest.TempPathFactory):
    with pytest.raises(BadJob, match=r"gone\.py: there is no file /"):
        spec_of_script("gone.py", here=project)
    with pytest.raises(BadJob, match=r"gone\.yaml: there is no such file"):
        read_spec(project / "gone.yaml")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "train.py"
    elsewhere.touch()
    with pytest.raises(BadJob, match="outside the code folder"):
        spec_of_script(str(elsewhere), here=project)


def test_an_argument_that_is_no_text_is_refused(project: Path):
    with pytest.raises(BadJob, match="no UTF-8 text"):
        spec_of_script("train.py", ["\udcff"], here=project)


def test_a_job_is_changed_and_checked_again(project: Path):
    spec = read(project, FULL)
    other = changed(spec, ["lr=1e-5", "timeout=2h"], args=["--only", "this"])
    assert other.full_command() == (
        *("python", "src/train.py", "--only", "this"),
        *("--lr", "1e-5", "--bs", "8", "--flag", "yes"),
    )
    assert (other.timeout_s, other.tags, other.name) == (7200, spec.tags, spec.name)
    assert changed(spec) == spec
    with pytest.raises(BadJob, match="retries must be a whole number"):
        changed(spec, ["retries=many"])
    (project / "src/train.py").unlink()
    with pytest.raises(BadJob, match=r"src/train\.py"):
        changed(spec)


def test_a_name_is_made_from_the_file_where_none_is_given(project: Path):
    (project / "2 train (copy).py").touch()
    assert spec_of_script("2 train (copy).py", here=project).stem == "2-train-copy"
    (project / "all.sh").touch()
    assert spec_of_script("all.sh", here=project).stem == "job"


def test_times_and_sizes_are_read_as_people_write_them():
    times = {"90s": 90, "30m": 1800, "2h": 7200, "1d": 86400, "1h30m": 5400, "1.5h": 5400}
    assert {text: seconds_of(text) for text in times} == times
    assert [seconds_of(text) for text in ("90", "", "s", "-1s", "1w", "1 h", "٣s")] == [None] * 7
    sizes = {"4GB": 4 * 10**9, "512MiB": 2**29, "1.5 kb": 1500, "7B": 7, "1TiB": 2**40}
    assert {text: bytes_of(text) for text in sizes} == sizes
    assert [bytes_of(text) for text in ("4", "GB", "-1GB", "4G", "4 bananas")] == [None] * 5


@pytest.mark.parametrize("code", ["../..", "/", "..", "${OUTSIDE}"])
def test_a_job_file_sends_no_code_from_outside_its_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
):
    project = tmp_path / "project"
    (project / "jobs").mkdir(parents=True)
    (project / "edgeloop.yaml").touch()
    monkeypatch.setenv("OUTSIDE", str(tmp_path))
    file = project / "jobs/train.yaml"
    file.write_text(f"command: [echo, '1']\ncode: {code}\n")
    if code == "..":
        assert read_spec(file).code == project
        return
    with pytest.raises(BadJob, match=r"train.yaml, line 2: .* leads out of the project .*--code"):
        read_spec(file)
    assert read_spec(file, options={"code": str(tmp_path)}).code == tmp_path
    assert read_spec(file, ["code=../.."]).code == tmp_path
