"""The first block of the README works where nothing but its packages is installed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from edgeloop.jobs.bundle import edgeloop_requirements
from tests.peers.environments import ENVIRONMENTS, Definition

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_first_block_works_in_an_empty_folder_where_only_its_packages_are_installed(
    tmp_path: Path,
):
    """The wheel, with exactly the extras that the block names."""
    block = README.partition("```bash\n")[2].partition("```")[0]
    make, install, bench, portal = block.splitlines()
    assert make == "python3 -m venv ~/edgeloop-venv && . ~/edgeloop-venv/bin/activate"
    named = re.fullmatch(r"pip install '\.\[([a-z,]+)\]'", install)
    assert named is not None
    programs = ENVIRONMENTS.bin_of(Definition(edgeloop_requirements(*named[1].split(","))))
    with zipfile.ZipFile(built_wheel(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "installed")
    (tmp_path / "empty").mkdir()
    environ = {
        **{"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "installed"), "COLUMNS": "200"},
        **{"EDGELOOP_STATE": str(tmp_path / "state"), "EDGELOOP_CACHE": str(tmp_path / "cache")},
    }
    call = [programs / "python", "-m"]
    done = subprocess.run(
        [*call, *shlex.split(bench)],
        cwd=tmp_path / "empty",
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == README.partition("```text\n")[2].partition("```")[0]
    served = subprocess.Popen(
        [*call, *shlex.split(portal), "--port", "0"],
        cwd=tmp_path / "empty",
        env={**environ, "BROWSER": "true"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None
        address = served.stdout.readline().rpartition(" ")[2].strip()
        with httpx.Client(follow_redirects=True, timeout=60) as browser:
            assert "demo data" in browser.get(address).raise_for_status().text
    finally:
        served.terminate()
        served.wait(60)
    assert list((tmp_path / "empty").iterdir()) == []


def built_wheel(tmp_path: Path) -> Path:
    """Built outside of the repository, where it would leave files behind."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "edgeloop", tmp_path / "source/edgeloop", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tmp_path / "source" / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, tmp_path / "source"], check=True)
    (wheel,) = tmp_path.glob("edgeloop-*.whl")
    return wheel
