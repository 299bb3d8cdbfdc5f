"""What a node of a Ray cluster that has only Ray makes of itself."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeloop.jobs.bundle import edgeloop_requirements
from edgeloop.jobs.computes.ray import driver_command
from edgeloop.operate.fleet.ray.submit import package_contents
from tests.peers.ray import node_programs
from tests.peers.wheels import make_wheels

ASK = """
import json, os, sys
from edgeloop.errors import EdgeloopError
from edgeloop.operate.fleet.ray import node, start  # what runs before a node is ready
from edgeloop.operate.fleet.ray.node import interpreter
try:
    python = interpreter(json.loads(sys.argv[1]), os.environ)
except EdgeloopError as error:
    sys.exit(str(error))
print(json.dumps([sys.executable, python]))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Edgeloop as Ray unpacks it on a node."""
    folder = tmp_path_factory.mktemp("package")
    for name, content in package_contents().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheels(tmp_path_factory.mktemp("wheels"), ["psycopg[binary]"])


def run_on_node(
    python: Path | str, code: str, package: Path, tmp_path: Path, wheels: Path | str, *words: str
) -> subprocess.CompletedProcess[str]:
    environ = {
        **{"PATH": os.environ["PATH"], "PYTHONPATH": str(package), "HOME": str(tmp_path)},
        **{"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)},
    }
    command = [str(python), "-c", code, *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_a_node_that_has_everything_is_used_as_it_is(package: Path, tmp_path: Path):
    needed = edgeloop_requirements("qnn")
    python = node_programs(needed) / "python"
    done = run_on_node(python, ASK, package, tmp_path, "nowhere", json.dumps(needed))
    assert done.returncode == 0, done.stderr
    own, chosen = json.loads(done.stdout)
    assert own == chosen
    assert not (tmp_path / ".cache").exists()


def test_a_node_that_has_only_ray_builds_what_it_lacks_once_on_top_of_it(
    package: Path, wheels: Path, tmp_path: Path
):
    python = node_programs(()) / "python"
    needed = json.dumps(["packaging>=20", "psycopg[binary]>=3.2"])
    done = run_on_node(python, ASK, package, tmp_path, wheels, needed)
    assert done.returncode == 0, done.stderr
    assert "this node lacks psycopg[binary]>=3.2: building an environment" in done.stderr
    own, chosen = json.loads(done.stdout)
    assert own != chosen
    used = run_on_node(chosen, "import psycopg, ray, psycopg_binary", package, tmp_path, wheels)
    assert used.returncode == 0, used.stderr
    mark = Path(chosen).parent.parent / ".ready"
    os.utime(mark, (0, 0))
    again = run_on_node(python, ASK, package, tmp_path, "nowhere", needed)
    assert json.loads(again.stdout)[1] == chosen and "building" not in again.stderr
    assert mark.stat().st_mtime > 0, "it is marked whenever it is used"


def test_a_node_that_cannot_build_says_why_in_one_sentence(package: Path, tmp_path: Path):
    python = node_programs(()) / "python"
    done = run_on_node(python, ASK, package, tmp_path, "nowhere", '["no-such-thing==7"]')
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "the environment of this node was not built: No matching distribution found for "
        "no-such-thing==7"
    )


@pytest.fixture
def raylet() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the command line of a raylet that runs in an environment of its own."""
    python = node_programs(()) / "python"
    words = ["raylet", "--x=y", f"--python_worker_command={python} setup_worker.py", "--z"]
    with subprocess.Popen(["bash", "-c", "read", *words], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate()


def test_the_python_of_ray_is_found_wherever_it_is(raylet: subprocess.Popen[bytes]):
    command = driver_command("python3", "ray.scripts.scripts")
    bare = {"PATH": "/usr/bin:/bin", "RAY_RAYLET_PID": str(raylet.pid)}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2) and "Usage:" in done.stdout + done.stderr, done.stderr
    del bare["RAY_RAYLET_PID"]
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("edgeloop: no Python of this node has")
