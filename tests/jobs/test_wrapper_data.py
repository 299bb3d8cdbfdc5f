"""Datasets that a job reads and makes, and environments that are built for it."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.errors import NoSuchDataset
from edgeloop.node.datasets import Datasets
from edgeloop.node.files import FolderBlobs
from edgeloop.node.ticket import Environment, Input, TicketPlace
from tests.jobs.wrapped import Wrapped, python_of

pytestmark = pytest.mark.slow

READ = """
import os, sys
path = sys.argv[1]
assert path == os.environ["EDGELOOP_INPUT_FACES"] == os.environ["EDGELOOP_INPUT_RAW_FACES"]
assert os.path.samefile(path, "data/raw/faces")
open("outputs/seen", "w").write(open("data/raw/faces/a/1.txt").read())
"""

WRITE = """
import os, sys
folder = os.environ["EDGELOOP_OUTPUT_SMALL"]
assert folder == os.environ["EDGELOOP_OUTPUT_WORKING_SMALL"] == sys.argv[1]
assert os.path.samefile(folder, "data/working/small")
if sys.argv[2:] != ["nothing"]:
    open(folder + "/made.txt", "w").write("made")
raise SystemExit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture(params=["here", pytest.param("3.8", marks=pytest.mark.soak)])
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> Wrapped:
    blobs = FolderBlobs(tmp_path / "store")
    return Wrapped(blobs, tmp_path / "node", python=python_of(request.param))


def push(wrapped: Wrapped, folder: Path, name: str, text: str) -> int:
    (folder / "a").mkdir(parents=True, exist_ok=True)
    (folder / "a/1.txt").write_text(text)
    return Datasets(wrapped.blobs).push(name, folder).reference.version


def test_a_job_reads_the_version_that_it_was_given(wrapped: Wrapped, tmp_path: Path):
    first = push(wrapped, tmp_path / "faces", "raw/faces", "first")
    push(wrapped, tmp_path / "faces", "raw/faces", "second")
    code = {"script.py": READ, "data/raw/faces/a/1.txt": "of the code"}
    command = ["python", "script.py", "{input:faces}"]
    wrapped.order(command, code, inputs=(Input("raw/faces", first),))
    status, shown = wrapped.run()
    assert status == 0, shown
    assert wrapped.stored() == {"seen": b"first"}


def test_jobs_of_a_node_share_what_was_fetched(wrapped: Wrapped, tmp_path: Path):
    version = push(wrapped, tmp_path / "faces", "raw/faces", "once")
    for _ in range(2):
        job = Wrapped(wrapped.blobs, wrapped.folder, python=wrapped.python)
        job.order_script(READ, "{input:raw/faces}", inputs=(Input("raw/faces", version),))
        assert job.run()[0] == 0
    assert len(list(wrapped.cache.rglob("1.txt"))) == 1


def test_a_dataset_that_is_not_there_fails_the_job_with_its_name(wrapped: Wrapped):
    wrapped.order_script(READ, "{input:faces}", inputs=(Input("raw/faces", 3),))
    assert wrapped.run()[0] == 1
    progress = wrapped.final()
    assert progress.state == "failed" and "'raw/faces'" in progress.reason


def test_a_job_that_succeeds_publishes_what_it_made(wrapped: Wrapped, tmp_path: Path):
    wrapped.order_script(WRITE, "{output:small}", writes=("working/small",))
    status, shown = wrapped.run()
    assert status == 0, shown
    assert wrapped.final().published == {"working/small": 1}
    Datasets(wrapped.blobs).pull("working/small@1", tmp_path / "pulled")
    assert (tmp_path / "pulled/made.txt").read_text() == "made"


def test_a_job_that_fails_publishes_nothing(wrapped: Wrapped):
    variables = {"CODE": "5"}
    wrapped.order_script(WRITE, "{output:small}", writes=("working/small",), variables=variables)
    assert wrapped.run()[0] == 5
    assert wrapped.final().published == {}
    with pytest.raises(NoSuchDataset):
        Datasets(wrapped.blobs).versions("working/small")


def test_a_dataset_that_was_left_empty_fails_the_job(wrapped: Wrapped):
    wrapped.order_script(WRITE, "{output:small}", "nothing", writes=("working/small",))
    assert wrapped.run()[0] == 1
    progress = wrapped.final()
    assert (progress.state, progress.exit_code) == ("failed", 0)
    assert progress.reason == "working/small was not published: the job left it empty"


def test_results_that_could_not_be_sent_to_their_url_fail_the_job(wrapped: Wrapped, tmp_path: Path):
    (tmp_path / "blocked").write_text("a file where the folder should be")
    url = f"file://{tmp_path}/blocked"
    options = {"folder": f"{tmp_path}/blocked"}
    target = TicketPlace("small", url, mode="upload", make="LocalStore", options=options)
    wrapped.pace = replace(wrapped.pace, patience_s=0.1)
    wrapped.order(
        ["sh", "-c", 'echo made > "$1/made.txt"', "sh", "{output:small}"], targets=(target,)
    )
    assert wrapped.run()[0] == 1
    progress = wrapped.final()
    assert (progress.state, progress.exit_code) == ("failed", 0)
    assert progress.reason.startswith(f"small was not sent to {url}: ")


def test_a_dataset_cannot_be_read_and_written_at_once(wrapped: Wrapped, tmp_path: Path):
    version = push(wrapped, tmp_path / "small", "working/small", "x")
    inputs = (Input("working/small", version),)
    wrapped.order_script(WRITE, "x", inputs=inputs, writes=("working/small",))
    assert wrapped.run()[0] == 1
    assert "working/small comes twice" in wrapped.final().reason
    assert "replaced by a link" not in wrapped.log(), "outputs/ was never made"


def wheel(folder: Path) -> str:
    """A tiny package, so that pip needs no network."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "tinything.py": "WORD = 'installed'\n",
        "tinything-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinything\n"
        "Version: 1.0\n",
        "tinything-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{_hash(text)},{len(text)}\n" for name, text in files.items())
    files["tinything-1.0.dist-info/RECORD"] = record + "tinything-1.0.dist-info/RECORD,,\n"
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    (folder / "tinything-1.0-py3-none-any.whl").write_bytes(target.getvalue())
    return f"--no-index\n--find-links {folder}\ntinything\n"


def _hash(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return "sha256=" + digest.decode().rstrip("=")


@pytest.mark.parametrize("wrapped", ["here"], indirect=True)
def test_requirements_are_installed_once_for_all_jobs_of_a_node(wrapped: Wrapped, tmp_path: Path):
    requirements = wheel(tmp_path / "wheels")
    script = """
import os, shutil, sys, tinything
assert shutil.which("python") == sys.executable, sys.executable
open("outputs/word", "w").write(tinything.WORD)
"""
    code = {"script.py": script, "requirements.txt": requirements}
    environment = Environment("requirements", "requirements.txt")
    for expected in (1, 0):
        job = Wrapped(wrapped.blobs, wrapped.folder, python=sys.executable)
        job.order(["python", "script.py"], code, environment=environment)
        status, shown = job.run()
        assert status == 0, shown
        assert job.stored() == {"word": b"installed"}
        assert job.log().count("building an environment") == expected


@pytest.mark.soak
@pytest.mark.parametrize("wrapped", ["3.8"], indirect=True)
def test_a_node_whose_python_cannot_make_environments_says_what_to_install(wrapped: Wrapped):
    """As Debian's and Ubuntu's Python without a further package."""
    environment = Environment("requirements", "requirements.txt")
    wrapped.order(["true"], {"requirements.txt": "tinything\n"}, environment=environment)
    assert wrapped.run()[0] == 1
    assert wrapped.final().reason == (
        "The environment of requirements.txt was not built: the node's Python has no ensurepip: "
        "install python3-venv there, or use an image that has it"
    )


@pytest.mark.soak
@pytest.mark.parametrize("wrapped", ["here"], indirect=True)
def test_requirements_that_cannot_be_installed_fail_the_job_with_pip_s_word(
    wrapped: Wrapped, tmp_path: Path
):
    wrapped.python = sys.executable
    requirements = wheel(tmp_path / "wheels") + "no-such-thing==7\n"
    environment = Environment("requirements", "requirements.txt")
    wrapped.order(["true"], {"requirements.txt": requirements}, environment=environment)
    assert wrapped.run()[0] == 1
    progress = wrapped.final()
    expected = "The environment of requirements.txt was not built: No matching distribution"
    assert progress.state == "failed" and progress.reason.startswith(expected)
    assert "no-such-thing" in progress.reason
    assert "Could not find a version" in wrapped.log()


def stand_in(wrapped: Wrapped, tmp_path: Path, script: str) -> None:
    """There is no conda here; what it is asked for can be seen all the same."""
    program = tmp_path / "bin/conda"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    wrapped.variables["PATH"] = f"{program.parent}:{os.environ['PATH']}"


def test_conda_makes_the_environment_at_its_place(wrapped: Wrapped, tmp_path: Path):
    stand_in(
        wrapped,
        tmp_path,
        f'echo "asked: $1 $2 $3 $5"; mkdir -p "$4/bin"; ln -s {sys.executable} "$4/bin/python"',
    )
    environment = Environment("conda", "conda.yaml")
    script = "import shutil; open('outputs/which', 'w').write(shutil.which('python'))"
    code = {"conda.yaml": "name: x", "script.py": script}
    wrapped.order(["python", "script.py"], code, environment=environment)
    status, shown = wrapped.run()
    assert status == 0, shown
    assert "asked: env create -p -f" in wrapped.log()
    assert wrapped.stored()["which"].startswith(f"{wrapped.cache}/envs/".encode())


@pytest.mark.parametrize(
    ("conda", "reason"),
    [
        ("exec sleep 600", "The environment of conda.yaml was not built after 0.2 s"),
        (
            "echo solving; echo 'ERROR: no such package'; exit 1",
            "The environment of conda.yaml was not built: no such package",
        ),
        (None, "This node has no conda, mamba or micromamba"),
    ],
    ids=["endless", "refused", "missing"],
)
def test_an_environment_that_conda_does_not_make_fails_the_job_with_the_reason(
    wrapped: Wrapped, tmp_path: Path, conda: str | None, reason: str
):
    if conda is None:
        wrapped.variables["PATH"] = "/usr/bin:/bin"
    else:
        stand_in(wrapped, tmp_path, conda)
    if "sleep" in str(conda):
        wrapped.pace = replace(wrapped.pace, install_s=0.2)
    environment = Environment("conda", "conda.yaml")
    wrapped.order(["true"], {"conda.yaml": "name: x"}, environment=environment)
    assert wrapped.run()[0] == 1
    assert wrapped.final().reason.startswith(reason)


def test_an_environment_s_file_that_is_not_in_the_code_is_named(wrapped: Wrapped):
    wrapped.order(["true"], environment=Environment("requirements", "needs.txt"))
    assert wrapped.run()[0] == 1
    assert wrapped.final().reason == "The environment's file needs.txt is not in the job's code"
