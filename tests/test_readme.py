"""What the README prints is what the commands print, but for names that are drawn and times."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.running import run_command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def shown_after(command: str) -> list[str]:
    """The lines that the README shows below a command, up to the next one."""
    _, found, rest = README.partition(f"$ {command}\n")
    if not found:
        _, found, rest = README.partition(f"$ {command} ")
        _, _, rest = rest.partition("\n")
    assert found, f"the README does not show {command}"
    return re.split(r"^(?:\$ |```)", rest, maxsplit=1, flags=re.MULTILINE)[0].splitlines()


def masked(line: str) -> str:
    line = re.sub(r"^[a-z]+-[a-z]+ +", "NAME  ", line)
    line = re.sub(r"\b\d+:\d\d\b", "TIME", line)
    return re.sub(r"\b\d+\.\d s\b", "TIME", line)


def typed(command: str, folder: Path, cache: Path) -> list[str]:
    environ = {"EDGELOOP_STATE": str(cache / "state"), "EDGELOOP_CACHE": str(cache / "cache")}
    done = run_command(shlex.split(command)[1:], folder, environ)
    assert done.code == 0, done.err
    return [*done.err.splitlines(), *done.out.splitlines()]


def check(command: str, folder: Path) -> None:
    printed = {masked(line) for line in typed(command, folder, folder.parent)}
    for line in shown_after(command):
        assert line == "…" or masked(line) in printed, f"{command} does not print: {line}"


def test_the_first_minute(tmp_path: Path):
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples/nets", project / "examples/nets")
    check(
        "edgeloop bench examples/nets/unet-w24.onnx --device htp:qcs8550 --device htp:x-elite",
        project,
    )
    check("edgeloop inspect examples/nets/unet-w24.onnx", project)
    assert [path.name for path in project.iterdir()] == ["examples"]


def test_uploading_the_example_models(tmp_path: Path):
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples/nets", project / "examples/nets")
    check("edgeloop upload examples/nets", project)
    header = typed("edgeloop status", project, tmp_path)[0].split()
    assert set(header) >= {"name", "status"}
    assert set(header) <= set(shown_after("edgeloop status")[0].split())


def test_running_the_example_job(tmp_path: Path):
    project = tmp_path / "my-project"
    shutil.copytree(ROOT / "examples/jobs", project)
    typed("edgeloop data faces data/working/faces64 --count 300 --size 64", project, tmp_path)
    check("edgeloop data push working/faces64", project)
    run = "edgeloop run train.py --data working/faces64 --name lr-3 -- --lr 1e-3 --epochs 3"
    check(run, project)
