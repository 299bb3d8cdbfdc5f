"""A hundred mistakes that people make, each answered with one sentence that has the next step.

`{here}` stands for the folder of the project. What is expected is the part of the answer that says
what to do, in its own words; a mistake must also change nothing.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from edgeloop import Workspace
from tests.cli.conftest import Edgeloop
from tests.nets import save_tiny

LEAST_ANSWERED = 95
LONGEST = 600  # characters: a sentence that lists what there is may be long

MISTAKES = {
    # names of commands and options
    "statsu": "did you mean 'status'?",
    "experiments": "did you mean 'experiment'?",
    "usage": "did you mean 'edgeloop devices usage'?",
    "list": "'edgeloop experiment list'",
    "train arch.json": "'edgeloop arch train'",
    "export arch.json": "did you mean 'edgeloop arch export'?",
    "searches": "did you mean 'search'?",
    "portl": "did you mean 'portal'?",
    "gc --dryrun": "--dry-run",
    "status --sotr name": "--sort",
    "status --watch --json": "choose one of",
    "--store sqlite:x status": "edgeloop status --store",
    "-e faces status": "edgeloop status -e",
    "upload": "Missing argument",
    "delete": "Missing argument",
    "reset": "use --failed",
    "restore": "use --list",
    "download": "use --list",
    "download --list -o out": "choose one of --list and --output",
    "experiment set faces": "Name a setting",
    "devices --state busy": "--state needs --watch",
    "queue --watch --json": "choose one of --json and --watch",
    "queue -e faces --all-experiments": "choose one of",
    "status --interval 0": "--interval",
    "runner --grace 5x": "write 90s, 5m or 1h30m",
    "layers net.onnx --timeout 0s": "write 90s, 5m or 1h30m",
    "gc --older-than 7 --dry-run": "is not a time like 90s",
    "gc": "add --yes or --dry-run",
    "unlock": "--node",
    # models of the store
    "status calm-hern": "did you mean 'calm-heron'?",
    "download calm-hern": "did you mean 'calm-heron'?",
    "compare calm-hern": "did you mean 'calm-heron'?",
    "reset calm-hern": "did you mean 'calm-heron'?",
    "delete calm-hern --yes": "did you mean 'calm-heron'?",
    "priority calm-hern 0": "did you mean 'calm-heron'?",
    "restore calm-heron": "'edgeloop restore --list'",
    "delete calm-heron": "add --yes",
    "delete '*'": "add --yes",
    "priority calm-heron soon": "a whole number",
    "reset calm-heron --stage benchmrk --yes": "did you mean 'benchmark'?",
    "reset --unsteady --failed": "leave out --failed",
    "status --stage benchmrk": "did you mean 'benchmark'?",
    "status --sort latncy": "did you mean 'latency_ms'?",
    "status --sort latency_ms:up": "COLUMN:desc",
    "status --columns nam": "did you mean 'name'?",
    "status --state finished": "the states are",
    "status --state complet": "did you mean 'complete'?",
    "status --tag unit": "did you mean 'unet'?",
    "status -e facs": "did you mean 'faces'",
    "status -e usage": "cannot be used",
    "upload net.onnx --name ../x": "cannot be used",
    "upload other.onnx --name calm-heron": "choose another with --name",
    "upload net.onnx other.onnx --name both": "--name takes one file",
    "download calm-heron --match '*.dlcc'": "edgeloop download --list",
    # files and folders
    "upload nothere.onnx": "there is no file {here}/nothere.onnx",
    "upload notes.txt": "it is not an ONNX model",
    "upload empty": "name a model or another folder",
    "upload demo:unet-larger": "did you mean 'unet-large'?",
    "inspect nothere.onnx": "{here}/nothere.onnx cannot be used: there is no such file",
    "bench nothere.onnx": "{here}/nothere.onnx cannot be used: there is no such file",
    "bench notes.txt": "ONNX",
    "layers ./nothere.onnx": "{here}/nothere.onnx",
    "gate nothere.json net.onnx": "make one with 'edgeloop gate --write'",
    "gate broken.json net.onnx": "'edgeloop gate --write'",
    "gate notes.json net.onnx": "make one with 'edgeloop gate --write'",
    "gate --write nowhere/b.json net.onnx": "make it first",
    "status --csv nowhere/x.csv": "make it first",
    "status --csv notes.txt/x.csv": "is a file, not a folder",
    "status --csv empty": "name a file in it",
    "devices usage --csv nowhere/x.csv": "make it first",
    "pareto -o nowhere/x.png": "make it first",
    "pareto -o front.xyz": "must end in one of",
    "report -o nowhere/r.html": "make it first",
    "notebook nowhere/n.ipynb --no-open": "make it first",
    "precision net.onnx -o nowhere/p.yaml": "make it first",
    "advise net.onnx --apply nowhere/n.onnx": "make it first",
    "download calm-heron -o notes.txt/x": "is a file, not a folder",
    "arch export nothere.json -o x.onnx": "{here}/nothere.json",
    "runner --dataset nothere --once": "{here}/nothere",
    "runner --calibration nothere": "{here}/nothere",
    "runner --precision a4w4": "is not one of",
    # devices, chips and columns of charts
    "bench net.onnx --device qcs8550": "did you mean 'htp:qcs8550'?",
    "layers net.onnx --device qcs8550": "did you mean 'htp:qcs8550'?",
    "runner --device qcs8550 --once": "did you mean 'htp:qcs8550'?",
    "bench net.onnx --device htp:qcs855": "did you mean",
    "bench net.onnx --device hots": "did you mean 'host'?",
    "devices --device 'adb:x*'": "All of them: edgeloop devices",
    "pareto --x latncy": "did you mean 'latency_ms'?",
    "pareto --x mine": "mine:min or mine:max",
    "inspect net.onnx --shape x": "NAME=SIZES",
    # stores and settings
    "status --store mysql://x": "it must be sqlite:FOLDER",
    "status --store postgresql://localhost/x": "add ?blobs=",
    "status --store sqlite:{here}/gone": "'edgeloop upload' begins a new one",
    "portal --demo --store sqlite:x": "leave out --store or --demo",
    # jobs, data and searches
    "run nothere.py": "there is no file {here}/nothere.py",
    "run s.py --requirements r.txt": "not there: {here}/r.txt",
    "run s.py lr=1": "goes after --",
    "run s.py --compute cluster": "edgeloop.yaml",
    "run s.py --image a --conda b.yaml": "choose one of",
    "run s.py --data faecs": "'edgeloop data list'",
    "job status gone": "no job 'gone'",
    "job logs": "Missing argument",
    "data push nothere": "'edgeloop data list'",
    "data pull nothere": "none of that name",
    "search nothere.yaml": "there is no file {here}/nothere.yaml",
    "search broken.yaml": "is not closed",
    "search show nothere": "there is no search 'nothere'",
    "schema jobs": "job",
}


@pytest.fixture
def here(project: Path) -> Path:
    (project / "edgeloop.yaml").write_text("experiment: faces\n")
    save_tiny(project / "net.onnx")
    save_tiny(project / "other.onnx", 5)
    (project / "notes.txt").write_text("Dear diary")
    (project / "notes.json").write_text("{}")
    (project / "broken.json").write_text('{"a":')
    (project / "broken.yaml").write_text("space: [hourglass\nname: x\n")
    (project / "s.py").write_text("print(1)\n")
    (project / "empty").mkdir()
    with Workspace.open() as workspace:
        workspace.upload(project / "net.onnx", "calm-heron", tags=["unet"], check=False)
    return project


def test_a_hundred_mistakes_are_answered(here: Path, edgeloop: Edgeloop):
    files = {path for path in here.rglob("*") if ".edgeloop" not in path.parts}
    wrong = {}
    for words, next_step in MISTAKES.items():
        said = edgeloop(*shlex.split(words.replace("{here}", str(here))))
        if complaint := unanswered(said.out, said.err, next_step.replace("{here}", str(here))):
            wrong[words] = complaint
    assert len(MISTAKES) >= 100
    assert len(wrong) <= len(MISTAKES) - LEAST_ANSWERED * len(MISTAKES) // 100, wrong
    assert wrong == {}, "all of them are answered by now"
    assert {path for path in here.rglob("*") if ".edgeloop" not in path.parts} == files
    with Workspace.open() as workspace:
        assert [row["status"] for row in workspace.status()] == ["new"]


def unanswered(out: str, err: str, next_step: str) -> str:
    """What is wrong with an answer. Wrong usage is shown with two lines of help before it."""
    said = f"{out}\n{err}"
    if "Traceback" in said or "unexpected" in said or "Errno" in said:
        return said
    lines = [line for line in err.splitlines() if line.startswith(("edgeloop: ", "Error: "))]
    if len(lines) > 1 or (lines and len(lines[0]) > LONGEST):
        return f"not one sentence: {said}"
    answer = lines[0] if lines else said
    if re.sub(r"\s+", " ", next_step) not in re.sub(r"\s+", " ", answer):
        return f"no {next_step!r} in: {answer}"
    return ""


def test_the_folder_of_a_health_file_that_cannot_be_made_is_refused(
    project: Path, edgeloop: Edgeloop
) -> None:
    (project / "taken").write_text("a file")
    done = edgeloop("runner", "--drain", "--health", "taken/health")
    assert done.code != 0 and "taken" in done.sentence
