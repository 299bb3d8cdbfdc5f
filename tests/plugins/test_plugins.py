"""The example plug-ins, installed from their wheels, as their users have them.

In `make test` they lie beside what this environment has. In `make soak` they are in an environment
that holds what the packages declare and nothing else, without the repository; and there the suite
of the Slurm plug-in runs on a real cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import guard

pytestmark = pytest.mark.server

REPOSITORY = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in REPOSITORY.glob("examples/plugins/*/pyproject.toml"))
SOURCES = ("edgeloop", "pyproject.toml", "setup.py", "README.md", "LICENSE")
LIMIT_S = 240.0
WITHOUT_A_CLUSTER = ("-k", "not TestSlurm and not command_line")


@dataclass(frozen=True)
class Scratch:
    """An environment that has the plug-ins, and a folder to stand in."""

    venv: Path
    folder: Path
    beside: Path | None = None

    def popen(self, *command: str, cwd: Path, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                [str(self.venv / "bin" / command[0]), *command[1:]],
                cwd=cwd,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def run(self, *command: str, check: bool = True) -> str:
        log = self.folder / "output"
        code = self.popen(*command, cwd=self.folder, log=log).wait(LIMIT_S)
        output = log.read_text()
        assert code == 0 or not check, output
        return output

    def pip(self, *arguments: str) -> str:
        """This environment's pip works on that one: it need not hold a pip."""
        return pip("--python", str(self.venv), *arguments)

    @property
    def environ(self) -> dict[str, str]:
        """Nothing of the environment that runs this test."""
        kept = ("HOME", "LANG", "TMPDIR", "USER")
        own = {"PATH": f"{self.venv / 'bin'}:/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin"}
        if self.beside:
            own["PYTHONPATH"] = str(self.beside)
        inherited = {name: os.environ[name] for name in kept if name in os.environ}
        return {**inherited, **guard.mark(), **own}


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    folder = tmp_path_factory.mktemp("beside")
    sources = [str(copied(path, folder / "source" / path.name)) for path in PLUGINS]
    quickly = ("--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--no-index")
    pip("install", *quickly, "--target", str(folder / "plugins"), *sources)
    return Scratch(Path(sys.prefix), folder, folder / "plugins")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    folder = tmp_path_factory.mktemp("plugins")
    sources = [str(copied(REPOSITORY, folder / "source/edgeloop", SOURCES))]
    sources += [str(copied(path, folder / "source" / path.name)) for path in PLUGINS]
    pip(
        *("wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(folder / "wheels"), *sources),
    )
    make_venv = [sys.executable, "-m", "venv", "--without-pip", folder / "venv"]
    subprocess.run(make_venv, check=True)
    scratch = Scratch(folder / "venv", folder)
    wheels = [str(wheel) for wheel in (folder / "wheels").glob("edgeloop-*.whl")]
    wheels += [f"{wheel}[test]" for wheel in (folder / "wheels").glob("edgeloop_*.whl")]
    constraints = str(REPOSITORY / "constraints.txt")
    pinned = ("--no-require-hashes", "--constraint", constraints)
    scratch.pip("install", "--quiet", "--no-compile", *pinned, *wheels)
    return scratch


@pytest.fixture(scope="module", params=["beside", pytest.param("alone", marks=pytest.mark.soak)])
def scratch(request: pytest.FixtureRequest) -> Scratch:
    found: Scratch = request.getfixturevalue(request.param)
    return found


def copied(source: Path, target: Path, names: tuple[str, ...] = ("",)) -> Path:
    """Building leaves files behind: not in the repository."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignored)
        else:
            shutil.copy2(source / name, target / name)
    return target


@pytest.fixture(scope="module")
def suites(scratch: Scratch) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], Path]]]:
    """The tests of all plug-ins, running side by side."""
    running = {}
    chosen = WITHOUT_A_CLUSTER if scratch.beside else ()
    for path in PLUGINS:
        place = scratch.folder / "tests" / path.name
        shutil.copytree(path / "tests", place)
        log = place / "output"
        pytest_command = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", ".", *chosen)
        running[path.name] = (scratch.popen(*pytest_command, cwd=place, log=log), log)
    yield running
    for process, _ in running.values():
        process.kill()
        process.wait()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [path.name for path in PLUGINS])
def test_a_plug_in_passes_the_shipped_contracts(
    suites: dict[str, tuple[subprocess.Popen[bytes], Path]], name: str
):
    process, log = suites[name]
    code = process.wait(LIMIT_S)
    assert code == 0, log.read_text()
    assert " passed" in log.read_text()


# Prints what is installed that no package declares, starting from ours.
UNDECLARED = """
from importlib.metadata import distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
installed = {canonicalize_name(package.name) for package in distributions()}
declared, todo = set(), [("edgeloop", "")]
todo += [(name, "test") for name in installed if name.startswith("edgeloop-")]
while todo:
    name, extra = todo.pop()
    declared.add((name, extra))
    for text in requires(name) or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            asked = [(canonicalize_name(needed.name), each) for each in ("", *needed.extras)]
            todo += [one for one in asked if one not in declared]
print(sorted(installed - {name for name, _ in declared}))
"""


@pytest.mark.soak
def test_the_environment_holds_what_the_packages_declare_and_not_this_repository(alone: Scratch):
    where = alone.run("python", "-c", "import edgeloop; print(edgeloop.__file__)")
    assert Path(where.strip()).is_relative_to(alone.venv)
    alone.pip("check")
    assert alone.run("python", "-c", UNDECLARED) == "[]\n"
    installed = {line.partition("==")[0] for line in alone.pip("freeze").splitlines()}
    assert not installed & {"torch", "ray", "optuna", "azure-ai-ml", "onnxruntime-qnn"}
    suites = "import edgeloop.testing.contracts.evaluator, edgeloop.testing.contracts.platform"
    alone.run("python", "-c", suites)


def test_upload_and_status_use_the_store_of_a_plug_in(scratch: Scratch):
    code = "from pathlib import Path; from edgeloop.testing.models import save_segmentation_model"
    scratch.run("python", "-c", f"{code}; save_segmentation_model(Path('tiny.onnx'))")
    scratch.run("edgeloop", "upload", "tiny.onnx", "--name", "tiny", "--store", "json:results")
    assert '["tiny"' in (scratch.folder / "results/models/default.jsonl").read_text()
    assert "tiny" in scratch.run("edgeloop", "status", "--store", "json:results")


def test_run_knows_the_compute_of_a_plug_in(scratch: Scratch):
    """That jobs really run there is a test of the plug-in itself."""
    (scratch.folder / "hello.py").write_text("print('hello')\n")
    settings = "computes:\n  cluster: {kind: slurm, bin: /nowhere}\n"
    (scratch.folder / "edgeloop.yaml").write_text(settings)
    said = scratch.run("edgeloop", "run", "hello.py", "--compute", "cluster", check=False)
    assert "/nowhere/sinfo is not installed here" in said


def test_the_options_of_a_plug_in_s_compute_have_a_schema(scratch: Scratch):
    assert '"partition"' in scratch.run("edgeloop", "schema", "compute", "slurm")


def test_devices_lists_the_platform_of_a_plug_in(scratch: Scratch):
    lines = scratch.run("edgeloop", "devices").splitlines()
    assert any(line.split()[:2] == ["ort1", "measured"] for line in lines)


@pytest.mark.soak
def test_a_runner_takes_a_model_through_all_stages_with_plug_ins_alone(alone: Scratch):
    """Store and platform are those of plug-ins; nothing of Qualcomm's is installed."""
    code = "from pathlib import Path; from edgeloop.testing.models import save_segmentation_model"
    alone.run("python", "-c", f"{code}; save_segmentation_model(Path('walk.onnx'))")
    alone.run("edgeloop", "data", "faces", "faces", "--count", "24", "--size", "64")
    store = ("--store", "json:walk")
    alone.run("edgeloop", "upload", "walk.onnx", "--name", "walk", *store)
    runner = ("edgeloop", "runner", "--device", "ort1", "--dataset", "faces", "--drain")
    output = alone.run(*runner, *store)
    assert "stages done" in output
    (row,) = json.loads(alone.run("edgeloop", "status", "--json", *store))
    assert (row["status"], row["device"]) == ("complete", "ort1")
    assert row["mean"] > 0
    assert 0 <= row["f1_10k"] <= 1
