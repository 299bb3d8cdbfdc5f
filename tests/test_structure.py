"""Class names are unique in the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.structure import Package
from bench.tables import commit


@pytest.fixture(scope="module")
def package() -> Package:
    return Package()


@pytest.mark.slow
def test_a_class_name_exists_once(package: Package):
    colliding = [", ".join(map(str, places)) for places in package.colliding_classes.values()]
    assert not colliding, "\n".join(colliding)


def test_the_lints_find_what_they_look_for(tmp_path: Path):
    (tmp_path / "one.py").write_text(
        "class Twice: ...\ndef _once(): ...\ndef _often(): ...\ndef f():\n"
        "    _once()\n    _often()\n    _often()\n"
    )
    (tmp_path / "two.py").write_text("class Twice: ...\nclass Once: ...\n")
    package = Package(tmp_path)
    assert {name: len(found) for name, found in package.colliding_classes.items()} == {"Twice": 2}
    assert [place.name for place in package.helpers_used_once] == ["_once"]
    assert (package.folders[tmp_path], package.lines[tmp_path / "one.py"]) == (2, 7)


def test_figures_are_printed_with_the_commit_of_their_tree(tmp_path: Path):
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    assert commit(tmp_path) == "unknown"
    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message=One")
    head = git("rev-parse", "--short", "HEAD")
    assert commit(tmp_path) == head
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{head}-dirty"
