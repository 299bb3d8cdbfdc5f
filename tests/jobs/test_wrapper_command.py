"""The command: what it is given, what its end means, and that it is started again when asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edgeloop.node.files import FolderBlobs
from edgeloop.node.layout import JobFolders, fill, variables_for
from edgeloop.node.ticket import ticket_key
from tests.jobs.wrapped import Wrapped, python_of

pytestmark = pytest.mark.slow

TELL = """
import json, os, sys
json.dump({"arguments": sys.argv[1:], "environ": dict(os.environ), "cwd": os.getcwd(),
           "python": sys.executable}, open("outputs/told.json", "w"))
"""


@pytest.fixture(params=["here", pytest.param("3.8", marks=pytest.mark.soak)])
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> Wrapped:
    blobs = FolderBlobs(tmp_path / "store")
    return Wrapped(blobs, tmp_path / "node", python=python_of(request.param))


def told(wrapped: Wrapped) -> dict:
    code, shown = wrapped.run()
    assert code == 0, shown
    return json.loads(wrapped.stored()["told.json"])


def test_a_job_that_succeeds_says_so_and_leaves_nothing_on_its_node(wrapped: Wrapped):
    wrapped.order_script("print('hello'); open('outputs/result', 'w').write('42')")
    code, shown = wrapped.run()
    progress = wrapped.final()
    assert (code, progress.state, progress.exit_code) == (0, "completed", 0)
    assert progress.outputs_complete and progress.reason == ""
    assert progress.started is not None and progress.ended is not None
    assert wrapped.stored() == {"result": b"42"}
    assert "hello\n" in shown and "hello\n" in wrapped.log()
    assert progress.log_bytes == len(wrapped.log())
    assert not wrapped.scratch.exists()


def test_the_wrapper_begins_a_line_of_its_own(wrapped: Wrapped):
    wrapped.order_script("print('no end', end='')")
    assert wrapped.run()[0] == 0
    assert "no end\nedgeloop: completed\n" in wrapped.log()


def test_the_exit_code_of_the_command_is_the_job_s(wrapped: Wrapped):
    wrapped.order_script("raise SystemExit(3)")
    code, _ = wrapped.run()
    progress = wrapped.final()
    assert (code, progress.state, progress.exit_code) == (3, "failed", 3)
    assert progress.reason == "the command ended with exit code 3"


def test_a_failure_names_the_script_s_own_last_line(wrapped: Wrapped):
    wrapped.order_script("print('epoch 3')\nimport nothing_of_this_name", retries=1)
    assert wrapped.run()[0] == 1
    said = "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    hint = f"it ran with {wrapped.python}: install the module there, or list it in a file for"
    reason = f"the command ended with exit code 1: {said}; {hint} --requirements"
    assert wrapped.final().reason == reason


AWKWARD = [
    *("-1", "--", "--x=1", "a b", 'say "hi"', "it's", "$HOME", "`id`", "a;b", "*", ""),
    *("ünï–→漢字", "{}", '{"a": {"b": [1]}}', "{x:>3}", "{{outputs", "\n", "SOLVER.LR", "\\"),
]


def test_arguments_arrive_as_they_were_given(wrapped: Wrapped):
    wrapped.order_script(TELL, *AWKWARD)
    assert told(wrapped)["arguments"] == AWKWARD


def test_a_command_finds_its_places_in_variables_and_placeholders(wrapped: Wrapped):
    wrapped.order_script(TELL, "{outputs}", "--to={outputs}/x", "{data}", "{job}", "{attempt}")
    found = told(wrapped)
    work = wrapped.scratch / "work"
    assert Path(found["cwd"]) == work
    expected = [f"{work}/outputs", f"--to={work}/outputs/x", f"{work}/data", wrapped.job, "1"]
    assert found["arguments"] == expected
    environ = found["environ"]
    assert environ["EDGELOOP_OUTPUT_DIR"] == f"{work}/outputs"
    assert environ["EDGELOOP_DATA_DIR"] == f"{work}/data"
    assert environ["EDGELOOP_JOB_ID"] == wrapped.job
    assert environ["EDGELOOP_JOB_NAME"] == "test"
    assert environ["EDGELOOP_ATTEMPT"] == "1"
    assert environ["PYTHONUNBUFFERED"] == "1"


def test_variables_of_the_job_reach_the_command_and_the_order_does_not(wrapped: Wrapped):
    wrapped.order_script(TELL, variables={"EPOCHS": "3", "EDGELOOP_JOB_ID": "another"})
    wrapped.variables["EDGELOOP_INPUT_OLD"] = "/of/the/job/that/started/this/one"
    environ = told(wrapped)["environ"]
    assert environ["EPOCHS"] == "3"
    assert environ["EDGELOOP_JOB_ID"] == wrapped.job
    assert "EDGELOOP_ORDER" not in environ
    assert "EDGELOOP_INPUT_OLD" not in environ


def test_python_is_the_one_that_the_node_was_told_to_use(wrapped: Wrapped, tmp_path: Path):
    other = tmp_path / "elsewhere/python"
    other.parent.mkdir()
    other.symlink_to(sys.executable)
    wrapped.variables["EDGELOOP_PYTHON"] = str(other)
    wrapped.order_script(TELL)
    found = told(wrapped)
    assert found["environ"]["PATH"].startswith(f"{other.parent}:")


def test_any_program_can_be_the_command(wrapped: Wrapped):
    wrapped.order(["sh", "run.sh", "{outputs}"], {"run.sh": 'echo "$1" > "$1/said"'})
    assert wrapped.run()[0] == 0
    assert wrapped.stored()["said"].decode().strip().endswith("work/outputs")


def test_a_program_that_is_not_there_is_named(wrapped: Wrapped):
    wrapped.order(["no-such-program"])
    code, shown = wrapped.run()
    assert code == 1
    assert wrapped.final().reason == "no-such-program cannot be started: No such file or directory"
    assert "no-such-program cannot be started" in shown


def test_a_placeholder_for_a_dataset_that_is_not_there_fails_the_job(wrapped: Wrapped):
    wrapped.order_script("", "{input:faces}")
    assert wrapped.run()[0] == 1
    progress = wrapped.final()
    assert progress.state == "failed" and progress.started is None
    assert progress.reason == "{input:faces} in the command names nothing: this job reads nothing"


def test_a_failing_command_is_started_again_in_the_same_outputs(wrapped: Wrapped):
    script = """
import os, sys
attempt = os.environ["EDGELOOP_ATTEMPT"]
open("outputs/attempts", "a").write(attempt)
sys.exit(0 if attempt == "4" else 7)
"""
    wrapped.order_script(script, attempt=2, retries=5)
    assert wrapped.run()[0] == 0
    progress = wrapped.final()
    assert (progress.state, progress.attempt) == ("completed", 4)
    assert wrapped.stored() == {"attempts": b"234"}
    assert "attempt 3 failed: the command ended with exit code 7" in wrapped.log()


def test_retries_have_an_end(wrapped: Wrapped):
    wrapped.order_script("open('outputs/n', 'a').write('x'); raise SystemExit(7)", retries=2)
    assert wrapped.run()[0] == 7
    assert wrapped.stored() == {"n": b"xxx"}
    assert wrapped.final().attempt == 3


def test_a_command_that_runs_too_long_is_ended_and_not_started_again(wrapped: Wrapped):
    script = """
import signal, sys, time
def late(*_):
    open("outputs/last", "w").write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, late)
open("outputs/runs", "a").write("x")
time.sleep(600)
"""
    wrapped.order_script(script, timeout_s=1.5, retries=3)
    assert wrapped.run()[0] == 124
    progress = wrapped.final()
    assert (progress.state, progress.exit_code) == ("failed", 0)
    assert progress.reason == "ran longer than 1.5 s and was ended"
    assert wrapped.stored() == {"last": b"saved", "runs": b"x"}


def test_the_latest_metrics_are_in_the_state(wrapped: Wrapped):
    script = """
lines = ['{"epoch": 1, "loss": 0.5}', '{"epoch": 2, "loss": NaN}', "nonsense", '{"epoch": 3, "lo']
open("outputs/metrics.jsonl", "w").write("\\n".join(lines))
"""
    wrapped.order_script(script)
    wrapped.run()
    assert wrapped.final().metrics == {"epoch": 2, "loss": None}


def test_a_job_that_is_over_is_not_run_again(wrapped: Wrapped):
    wrapped.order_script("open('outputs/n', 'a').write('x'); raise SystemExit(9)")
    assert wrapped.run()[0] == 9
    code, shown = wrapped.run()
    assert code == 9 and "this job has already ended" in shown
    assert wrapped.stored() == {"n": b"x"}


def test_a_job_without_a_ticket_fails_with_a_sentence(wrapped: Wrapped):
    wrapped.order_script("")
    wrapped.blobs.delete([ticket_key(wrapped.job)])
    assert wrapped.run()[0] == 1
    assert wrapped.final().reason == "The job's ticket is not in the store"


def test_code_cannot_be_unpacked_outside_of_its_folder(wrapped: Wrapped):
    wrapped.order(["true"], {"../../escaped": "x"})
    assert wrapped.run()[0] == 1
    assert wrapped.final().reason.startswith("The job's code cannot be unpacked")
    assert not list(wrapped.cache.rglob("escaped"))


def test_names_of_datasets_become_variables_whole_and_by_their_last_part():
    from edgeloop.node.ticket import Ticket

    ticket = Ticket("id", "name", "default", (), "")
    inputs = {"working/faces-128": Path("/a"), "raw/cats": Path("/b"), "working/cats": Path("/c")}
    places = JobFolders(Path("/o"), Path("/d"), inputs, {"working/faces64": Path("/w")}, {})
    variables = variables_for(ticket, 1, places)
    assert variables["EDGELOOP_INPUT_WORKING_FACES_128"] == "/a"
    assert variables["EDGELOOP_INPUT_FACES_128"] == "/a"
    assert variables["EDGELOOP_INPUT_RAW_CATS"] == "/b"
    assert variables["EDGELOOP_INPUT_WORKING_CATS"] == "/c"
    assert "EDGELOOP_INPUT_CATS" not in variables
    assert variables["EDGELOOP_OUTPUT_FACES64"] == "/w"
    command = ["{input:faces-128}", "{input:raw/cats}", "{output:faces64}", "{input}"]
    assert fill(command, ticket, 1, places) == ["/a", "/b", "/w", "{input}"]
    with pytest.raises(Exception, match="could mean several"):
        fill(["{input:cats}"], ticket, 1, places)
