"""A new key of a job is declared once, and is everywhere that a key has to be."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgeloop._util.values import choice
from edgeloop.cli import jobs as cli_jobs
from edgeloop.cli.app import app
from edgeloop.cli.schema import file_schema
from edgeloop.errors import BadJob
from edgeloop.jobs import spec
from edgeloop.jobs.client import Jobs
from scripts.schema_docs import pages

pytestmark = pytest.mark.slow

SCRIPT = "import os, pathlib; pathlib.Path('outputs/mood').write_text(os.environ['EDGELOOP_MOOD'])"


@dataclass(frozen=True, kw_only=True)
class WithMood(spec.JobSpec):
    mood: str = spec.job_key(
        "mood",
        choice("calm", "wild"),
        "",
        "How daring the script is.",
        options=(spec.JobOption("--mood", "Mood of the script.", choices=("calm", "wild")),),
        variable="EDGELOOP_MOOD",
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "project"
    (folder / ".edgeloop").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as declared:
        declared.setattr(spec, "JobSpec", WithMood)
        importlib.reload(cli_jobs)  # the options of commands are made when it is imported
        yield folder
    importlib.reload(cli_jobs)


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_key_is_an_option_and_a_part_of_schema_and_reference(project: Path):
    for command in (["run"], ["job", "submit"]):
        assert "--mood [calm|wild]" in run(*command, "--help")
    mood = file_schema("job")["properties"]["mood"]
    assert (mood["description"], mood["enum"]) == ("How daring the script is.", ["calm", "wild"])
    assert "| `mood` |" in pages()["job"]


def test_a_key_is_in_the_record_and_reaches_the_node(project: Path):
    run("run", "train.py", "--name", "by-option", "--mood", "wild")
    (project / "job.yaml").write_text("script: train.py\nname: by-file\nmood: wild\n")
    run("run", "job.yaml", "mood=calm")
    moods = {"by-option": "wild", "by-file": "calm"}
    for name, mood in moods.items():
        record = json.loads((project / "runs" / name / "job.json").read_text())
        assert record["spec"]["mood"] == mood
        assert (project / "runs" / name / "outputs/mood").read_text() == mood
    jobs = Jobs.open()
    [again] = jobs.wait([jobs.resubmit(jobs.select(["by-file"]).runs[0])], timeout_s=60)
    assert again.record.spec["mood"] == "calm", "another attempt keeps it"


def test_a_wrong_value_is_refused_as_that_of_any_key(project: Path):
    (project / "job.yaml").write_text("script: train.py\nmood: sad\n")
    with pytest.raises(BadJob, match="mood cannot be 'sad': there are calm, wild"):
        spec.read_spec(project / "job.yaml")
