"""A runner of an older version beside one of this version, on one store.

The old package comes from the history of this repository, so a clone without it must fetch it: in
a tree without any history, EDGELOOP_OLD_PACKAGE names a folder that holds the old `edgeloop/`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgeloop.models.plan import records_of
from edgeloop.testing.models import save_segmentation_model
from tests.runner.conftest import Farm

pytestmark = pytest.mark.soak

REPOSITORY = Path(__file__).parents[2]
# Two versions from before stores had a schema, with which docs/how-to/upgrade.md lets one share.
OLD_COMMITS = (
    "d3798397a82aaf9795cd9598cc2bb2a9b4392c4c",
    "565575e4f2e656c5d9ec2c89e2d2334f3c191ebd",
)
GIVEN = os.environ.get("EDGELOOP_OLD_PACKAGE", "")  # read before tests clear such variables
MODELS = 6
LIMIT_S = 280.0


@pytest.fixture(scope="module", params=OLD_COMMITS, ids=lambda commit: commit[:7])
def old_package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the old `edgeloop/` in it."""
    if GIVEN:
        return Path(GIVEN)
    folder = tmp_path_factory.mktemp("old")
    commit = request.param
    if _git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        _git("fetch", "--unshallow", "origin")  # of a shallow clone
    archive = _git("archive", commit, "edgeloop")
    if archive.returncode:
        reason = "; set EDGELOOP_OLD_PACKAGE to a folder with that version's edgeloop/"
        pytest.fail(f"{commit} is not in the history: {archive.stderr.decode()}{reason}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    git = shutil.which("git") or pytest.fail("git is not installed")
    return subprocess.run([git, "-C", str(REPOSITORY), *words], capture_output=True, check=False)


def of_version(farm: Farm, node: str, package: Path) -> Farm:
    """The same project as another machine, with another version of Edgeloop."""
    environ = {**farm.environ, "PYTHONPATH": str(package), "EDGELOOP_NODE": node}
    return replace(farm, environ=environ)


def said_by(farm: Farm, *words: str) -> str:
    """What a command of that version prints."""
    command = [sys.executable, "-m", "edgeloop", *words]
    done = subprocess.run(
        command,
        cwd=farm.folder,
        env=farm.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_runners_of_two_versions_share_the_work_of_one_store(
    make_farm: Callable[[str], Farm], kind: str, old_package: Path, tmp_path: Path
) -> None:
    farm = make_farm(kind)
    old = of_version(farm, "old-machine", old_package)
    new = of_version(farm, "new-machine", REPOSITORY)
    shown = [sys.executable, "-c", "import edgeloop; print(edgeloop.__file__)"]
    for version, package in ((old, old_package), (new, REPOSITORY)):
        told = subprocess.check_output(shown, env=version.environ, text=True, cwd=farm.folder)
        assert Path(told.strip()).parents[1] == package
    names = [f"net-{number}" for number in range(MODELS)]
    for number, name in enumerate(names):  # the old version creates the store
        model = save_segmentation_model(tmp_path / f"{name}.onnx", seed=number)
        said_by(new if number % 2 else old, "upload", str(model), "--name", name)

    runners = [version.runner("--drain", device="host") for version in (old, new)]
    outputs = [runner.communicate(timeout=LIMIT_S)[0] for runner in runners]
    assert [runner.returncode for runner in runners] == [0, 0], outputs
    for version in (old, new):  # what each had to leave to the other
        runner = version.runner("--drain", device="host")
        output = runner.communicate(timeout=LIMIT_S)[0]
        assert runner.returncode == 0, output

    with farm.workspace() as workspace:
        rows = {str(row["name"]): row for row in workspace.status()}
        uses = [row.values for row in workspace.store.usage().query()]
    assert sorted(rows) == names
    for row in rows.values():
        assert row["status"] == "complete" and "error" not in row, row
        assert len(json.loads(str(row["total_inference_avg"]))) == 2
        assert all(not held.is_held and held.attempts == 0 for held in records_of(row).values())
    done = Counter((str(use["stage"]), str(use["model"])) for use in uses)
    for stage in {stage for stage, _ in done}:  # a benchmark is claimed run by run
        times = 2 if stage == "benchmark" else 1
        assert [done[stage, name] for name in names] == MODELS * [times], (stage, uses)
    owners = {str(use.get("owner", "old-machine")) for use in uses}  # the oldest named none
    assert any("old-machine" in owner for owner in owners), owners
    assert any("new-machine" in owner for owner in owners), owners

    by_old, by_new = (
        {row["name"]: _decoded(row) for row in json.loads(said_by(version, "status", "--json"))}
        for version in (old, new)
    )
    assert by_old.keys() == by_new.keys()
    for name in names:
        shared = by_old[name].keys() & by_new[name].keys()
        assert {"status", "mean", "macs", "f1_onnx", "f1_1k"} <= shared
        assert {key: by_old[name][key] for key in shared} == {
            key: by_new[name][key] for key in shared
        }


def _decoded(row: dict[str, object]) -> dict[str, object]:
    """The oldest version prints a list as the text that the store has."""
    is_list = {name: isinstance(value, str) and value[:1] == "[" for name, value in row.items()}
    return {name: json.loads(str(row[name])) if is_list[name] else row[name] for name in row}
