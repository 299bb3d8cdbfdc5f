"""Class names are unique, and the published figures on structure describe the present tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.structure import Package, tables
from bench.tables import RESULTS, between_markers, commit


@pytest.fixture(scope="module")
def package() -> Package:
    return Package()


@pytest.mark.slow
def test_a_class_name_exists_once(package: Package):
    colliding = [", ".join(map(str, places)) for places in package.colliding_classes.values()]
    assert not colliding, "\n".join(colliding)


@pytest.mark.slow
def test_the_tables_on_structure_describe_the_present_tree(package: Package):
    page = RESULTS.read_text(encoding="utf-8")
    assert page == between_markers(page, tables(package)), (
        "bench/RESULTS.md has figures of another tree: run `python -m bench structure --write`"
    )


def test_the_gauges_count_what_they_describe(tmp_path: Path):
    (tmp_path / "one.py").write_text(
        '"""A docstring is no statement."""\n'
        "class Twice: ...\ndef _once(): ...\ndef _often(): ...\ndef f():\n"
        "    _once()\n    _often()\n    _often()\n"
    )
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("")
    (tmp_path / "room" / "two.py").write_text("class Twice: ...\nclass Once: ...\n")
    (tmp_path / "_private.py").write_text(
        "f(1, 2, 3, 4, 5, 6, 7)\nf(1, 2, 3, 4, 5, 6)\ng(*(1, 2), *h)\ng(**{'x': 1}, **h)\n"
        "[*(1, 2), *h]\n{**{'x': 1}, **h}\n"
    )
    package = Package(tmp_path)
    assert {name: len(found) for name, found in package.colliding_classes.items()} == {"Twice": 2}
    assert [place.name for place in package.helpers_used_once] == ["_once"]
    assert [place.line for place in package.long_calls] == [1]
    assert sorted(place.line for place in package.formatter_tricks) == [3, 4, 5, 6]
    assert package.thin_packages == [tmp_path / "room"]
    assert package.top_level_names == {"one", "room"}
    assert (len(package.files), len(package.functions), len(package.classes)) == (4, 3, 3)
    assert package.statements == 10 + 4 + 6


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
