"""Edgeloop itself travels with the jobs that run it, and is stored once."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from edgeloop.errors import BadJob
from edgeloop.jobs.bundle import edgeloop_requirements, package_snapshot
from edgeloop.jobs.client import Jobs
from edgeloop.jobs.spec import spec_of_script
from edgeloop.settings import Settings
from tests.peers.environments import ENVIRONMENTS, Definition

AGAIN = """
import edgeloop
from edgeloop.jobs.bundle import edgeloop_requirements
from edgeloop.jobs.bundle import package_snapshot
from edgeloop.store import open_store, parse_location
open_store(parse_location("sqlite:store")).close()  # reads one of the package's data files
print(edgeloop.__file__)
print(package_snapshot().digest)
print(*edgeloop_requirements("train", "azureml", "qnn"))
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/edgeloop.yaml").write_text("")
    return Jobs(Settings.load(tmp_path / "project"))


def test_what_was_sent_works_where_it_is_not_installed_and_sends_the_same_again(tmp_path: Path):
    """A search on a node submits trainings: they get the package and the environment that those
    of a laptop would get."""
    with tarfile.open(fileobj=io.BytesIO(package_snapshot().archive())) as archive:
        archive.extractall(tmp_path / "sent", filter="data")
    core = ENVIRONMENTS.bin_of(Definition(edgeloop_requirements()))
    ran = subprocess.run(
        [core / "python", "-c", AGAIN],
        env={"PYTHONPATH": str(tmp_path / "sent")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    place, digest, requirements = ran.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path / "sent")
    assert digest == package_snapshot().digest
    assert requirements.split() == list(edgeloop_requirements("train", "azureml", "qnn"))


def test_a_script_that_imports_edgeloop_gets_ours_and_all_jobs_share_one_upload(jobs: Jobs):
    """Even where another Edgeloop is installed."""
    project = jobs.settings.project
    submitted = []
    for name in ("one", "two"):
        script = project / name / "script.py"
        script.parent.mkdir()
        script.write_text(f"import edgeloop; print({name!r}, edgeloop.__file__)")
        options = {"code": str(script.parent), "edgeloop": "core"}
        submitted += jobs.submit(spec_of_script("script.py", (), options, script.parent))
    for run, name in zip(jobs.wait(submitted, 120), ("one", "two"), strict=True):
        said = b"".join(jobs.log(run).more()).decode()
        place = f"packages/{package_snapshot().digest}/edgeloop/__init__.py"
        assert said.startswith(name) and place in said, said
        assert jobs.spec(run).edgeloop == ("core",)
    stored = {info.key for info in jobs.blobs.list("_code/")}
    assert len(stored) == 3
    assert f"_code/{package_snapshot().digest}.tar.gz" in stored


def test_requirements_are_those_of_the_extras_and_name_edgeloop_nowhere():
    core, train = set(edgeloop_requirements()), set(edgeloop_requirements("train"))
    assert core < train and any(text.startswith("torch") for text in train - core)
    everything = edgeloop_requirements("all")
    assert train < set(everything) and any(text.startswith("fastapi") for text in everything)
    assert not any(text.startswith("edgeloop") for text in everything)


def test_an_extra_that_does_not_exist_is_refused(jobs: Jobs):
    script = jobs.settings.project / "script.py"
    script.write_text("")
    with pytest.raises(BadJob, match="edgeloop cannot be 'trian': did you mean 'train'"):
        spec_of_script("script.py", (), {"edgeloop": "trian"}, script.parent)
