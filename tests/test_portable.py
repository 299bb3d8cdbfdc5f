"""Outside Linux the catalog, jobs, portal and reports are imported and work.

macOS has no /proc, no CPU affinity, no pidfds and, before Python 3.13, no `waitid`. A start-up file
takes them from every Python process of these tests, and `fcntl` for one of them.
"""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import edgeloop
from tests.nets import save_tiny

# What only a board, a native library or an optional extra can load is imported all the same.
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(edgeloop.__path__, "edgeloop.")
    if not module.name.endswith("__main__")
)

WITHOUT = """
import builtins, io, os, signal, sys

for owner, name in (
    (os, "sched_getaffinity"), (os, "pidfd_open"), (os, "waitid"), (signal, "pidfd_send_signal"),
):
    if hasattr(owner, name):
        delattr(owner, name)

def hide(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])

sys.addaudithook(hide)
real_stat = os.stat

def stat(path, *rest, **named):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", path)
    return real_stat(path, *rest, **named)

os.stat = stat
if os.environ.get("TEST_WITHOUT_FCNTL"):
    sys.modules["fcntl"] = None
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that is not Linux."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start/sitecustomize.py").write_text(WITHOUT)
    folders = {"EDGELOOP_STATE": str(tmp_path / "state"), "EDGELOOP_CACHE": str(tmp_path / "cache")}
    return {**os.environ, "PYTHONPATH": str(tmp_path / "start"), "TERM": "dumb", **folders}


def python(environ: dict[str, str], folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


RUN = """
import sys
from edgeloop.cli import main
for words in sys.argv[1:]:
    sys.argv = ["edgeloop", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
"""


def edgeloop(environ: dict[str, str], folder: Path, *commands: str, code: str = "") -> str:
    """Commands one after another in one process, which starts once; what they said."""
    return python(environ, folder, "-c", RUN + code, *commands)


def test_the_start_up_file_hides_what_it_should(elsewhere: dict[str, str], tmp_path: Path):
    code = (
        "import os, pathlib; print(os.path.exists('/proc'), pathlib.Path('/proc/self').exists(),"
        " hasattr(os, 'waitid'), hasattr(os, 'sched_getaffinity'))\n"
        "try: open('/proc/self/stat')\nexcept FileNotFoundError: print('hidden')"
    )
    assert python(elsewhere, tmp_path, "-c", code).split() == ["False"] * 4 + ["hidden"]


@pytest.mark.slow
def test_every_module_is_imported(elsewhere: dict[str, str], tmp_path: Path):
    code = f"import importlib\nfor name in {MODULES!r}: importlib.import_module(name)"
    python(elsewhere, tmp_path, "-c", code)


@pytest.mark.parametrize("lacking", ["", "fcntl"])
def test_models_are_uploaded_and_shown(elsewhere: dict[str, str], tmp_path: Path, lacking: str):
    environ = {**elsewhere, "TEST_WITHOUT_FCNTL": lacking}
    save_tiny(tmp_path / "net.onnx")
    said = edgeloop(environ, tmp_path, "--help", "upload net.onnx --name calm-heron", "status")
    assert "upload" in said and "calm-heron" in said.splitlines()[-1]


@pytest.mark.slow
def test_jobs_and_reports_work(elsewhere: dict[str, str], tmp_path: Path):
    (tmp_path / "hello.py").write_text("open('outputs/word', 'w').write('hello')")
    (tmp_path / "data/working/words").mkdir(parents=True)
    (tmp_path / "data/working/words/one").write_text("1")
    report = "report --demo --details 1 -o report.html"
    commands = ("run hello.py --name hi", "data push working/words", report)
    code = "from edgeloop import Workspace\nfrom edgeloop.view.portal.app import create_app\n"
    code += "from edgeloop.view.portal.state import PortalOptions\n"
    code += "create_app(Workspace.open(), PortalOptions())"
    assert "working/words@1" in edgeloop(elsewhere, tmp_path, *commands, code=code)
    assert (tmp_path / "runs/hi/outputs/word").read_text() == "hello"
    assert (tmp_path / "report.html").stat().st_size > 100_000
