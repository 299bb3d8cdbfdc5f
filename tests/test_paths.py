"""A script finds its data and its outputs by the same words here and inside a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeloop.paths import PROJECT_MARKS, outputs, raw, working


def test_inside_a_job_they_are_the_folders_laid_out_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EDGELOOP_DATA_DIR", str(tmp_path / "d"))
    monkeypatch.setenv("EDGELOOP_OUTPUT_DIR", str(tmp_path / "o"))
    assert raw("faces") == tmp_path / "d/raw/faces"
    assert working("faces128", "train") == tmp_path / "d/working/faces128/train"
    assert outputs() == tmp_path / "o" and (tmp_path / "o").is_dir()


@pytest.mark.parametrize("mark", PROJECT_MARKS)
def test_outside_they_are_those_of_the_nearest_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
):
    below = tmp_path / "src/deep"
    below.mkdir(parents=True)
    (tmp_path / mark).mkdir(parents=True)
    monkeypatch.chdir(below)
    assert raw() == tmp_path / "data/raw"
    assert working("x") == tmp_path / "data/working/x"
    assert outputs("a", "b.pt") == tmp_path / "outputs/a/b.pt"
    assert (tmp_path / "outputs/a").is_dir() and not (tmp_path / "outputs/a/b.pt").exists()


def test_without_a_project_they_are_where_the_script_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert raw() == tmp_path / "data/raw" and outputs() == tmp_path / "outputs"


@pytest.mark.parametrize("parts", [("..",), ("a", "../../x"), ("/etc",)])
def test_a_part_that_leads_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...]
):
    monkeypatch.chdir(tmp_path)
    for place in (raw, working, outputs):
        with pytest.raises(ValueError, match="leads out of"):
            place(*parts)


def test_a_script_that_asks_for_its_paths_loads_nothing_else():
    code = (
        "import sys; import edgeloop.paths; "
        "print(*(n for n in sys.modules if n.startswith('edgeloop') or n in ('yaml', 'numpy')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(found.stdout.split()) == {"edgeloop", "edgeloop._version", "edgeloop.paths"}
