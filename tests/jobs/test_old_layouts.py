"""Projects that keep data and records in folders of their own: `data_root:` and `runs:`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeloop import paths
from edgeloop.errors import BadSetting
from edgeloop.settings import Settings

SCRIPT = """
import pathlib
from edgeloop import paths
text = pathlib.Path("data_blobs/working/x/a.txt").read_text()
assert paths.working("x", "a.txt").read_text() == text
assert not pathlib.Path("data_blobs/raw/big.bin").exists()
pathlib.Path("data_blobs/outputs/direct.txt").write_text(text)
paths.outputs("helper.txt").write_text(text)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGELOOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("EDGELOOP_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    for name in ("raw", "working/x", "outputs"):
        (folder / "data_blobs" / name).mkdir(parents=True)
    (folder / "data_blobs/raw/big.bin").write_bytes(b"0" * 1000)
    (folder / "data_blobs/working/x/a.txt").write_text("hello")
    (folder / "src").mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "edgeloop.yaml").write_text("data_root: data_blobs/  # as before\nruns: output\n")
    return folder


def edgeloop(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgeloop", *words]
    return subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("data", ["working/x", "data_blobs/working/x"])
def test_a_job_finds_its_data_where_the_project_has_it(project: Path, data: str) -> None:
    ran = edgeloop(project, "run", "train.py", "--data", data, "--name", "X")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = project / "output/X/outputs"
    assert {file.name: file.read_text() for file in results.iterdir()} == {
        "direct.txt": "hello",
        "helper.txt": "hello",
    }
    status = edgeloop(project / "src", "job", "status", "output/X")
    assert status.returncode == 0 and "completed" in status.stdout, status.stderr
    assert not (project / "runs").exists()


def test_a_message_names_the_folder_that_was_looked_in(project: Path) -> None:
    ran = edgeloop(project, "run", "train.py", "--data", "data_blobs/working/y")
    assert ran.returncode == 1
    assert str(project / "data_blobs/working/y") in ran.stderr


def test_paths_are_those_of_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "src")
    assert paths.raw("big.bin") == project / "data_blobs/raw/big.bin"
    assert paths.outputs("m.pt") == project / "data_blobs/outputs/m.pt"


def test_a_form_that_scripts_cannot_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "edgeloop.yaml").write_text("{data_root: data_blobs}\n")
    with pytest.raises(BadSetting, match="on a line of its own"):
        Settings.load(tmp_path, {})
