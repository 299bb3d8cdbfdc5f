"""A verb is about the jobs one means: by name, folder, prefix, glob, tag or state."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.errors import NoSuchJob
from edgeloop.jobs.records import Run, select
from tests.jobs.runs import run

RUNS = [
    run("lr-1", 5, "running", ("night",)),
    run("lr-10", 4, "completed"),
    run("lr-2", 3, "failed", ("night", "big")),
    run("base", 9, "queued"),
    run("lr", 1, "completed"),
]


def chosen(*patterns: str, runs: list[Run] = RUNS, **more: object) -> list[str]:
    """As the strict selection does it: a pattern that matches nothing is an error."""
    found = select(runs, patterns, **more)  # type: ignore[arg-type]
    for error in found.unknown:
        raise error
    return [item.name for item in found.runs]


@pytest.mark.parametrize(
    ("patterns", "names", "is_exact"),
    [
        ("lr-1", "lr-1", True),  # not lr-10
        ("lr", "lr", True),
        ("lr-", "lr-2 lr-10 lr-1", False),  # from the oldest
        ("ba", "base", False),
        ("lr-?", "lr-2 lr-1", False),
        ("*1*", "lr-10 lr-1", False),
        ("lr-[12]", "lr-2 lr-1", False),
        ("all", "lr lr-2 lr-10 lr-1 base", False),
        ("", "lr lr-2 lr-10 lr-1 base", False),
        ("last", "base", True),
        ("base lr-1", "lr-1 base", True),
        ("base lr-1 lr-* lr-1", "lr-2 lr-10 lr-1 base", False),  # each once
    ],
)
def test_names_prefixes_globs_and_words_select_jobs(patterns: str, names: str, is_exact: bool):
    assert chosen(*patterns.split()) == names.split()
    assert select(RUNS, patterns.split()).exact is is_exact


def test_a_folder_is_as_good_as_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "runs"
    (folder / "lr-1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for path in ("runs/lr-1", "./runs/lr-1/", "runs//lr-1", str(folder / "lr-1"), "runs/x/../lr-1"):
        found = select(RUNS, [path], folder=folder)
        assert [item.name for item in found.runs] == ["lr-1"] and found.exact
    assert chosen("runs/lr-*", folder=folder) == ["lr-2", "lr-10", "lr-1"]
    monkeypatch.chdir(folder / "lr-1")
    assert chosen(".", folder=folder) == ["lr-1"]
    assert chosen("../lr-2", folder=folder) == ["lr-2"]


def test_a_folder_reached_by_a_link_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "real/runs/lr-1").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert chosen("link/runs/lr-1", folder=tmp_path / "real/runs") == ["lr-1"]


@pytest.mark.parametrize("path", ["other/lr-1", "/lr-1", "runs", "runs/", "..", "."])
def test_a_path_elsewhere_is_no_job(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoSuchJob):
        chosen(path, folder=tmp_path / "runs")


def test_tags_and_states_narrow_what_is_named():
    assert chosen(tag="night") == ["lr-2", "lr-1"]
    assert chosen("lr-*", tag="big") == ["lr-2"]
    assert chosen("all", states=["completed"]) == ["lr", "lr-10"]
    assert chosen(tag="night", states={"running", "queued"}) == ["lr-1"]
    assert chosen("lr-1", tag="big") == []
    assert chosen(tag="nigh") == []


def test_a_name_that_nobody_has_is_said_with_the_nearest():
    with pytest.raises(NoSuchJob) as caught:
        chosen("lr-1", "bsae")
    assert str(caught.value) == (
        f"no job 'bsae' in {Path('runs').absolute()}; did you mean 'base'? "
        "'edgeloop job list' shows all jobs."
    )
    with pytest.raises(NoSuchJob, match=r"no job 'zzz' in /.*runs\. 'edgeloop job list'"):
        chosen("zzz")


def test_an_unknown_name_hides_no_other():
    found = select(RUNS, ["bsae", "lr-1", "zzz", "lr-2"])
    assert [item.name for item in found.runs] == ["lr-2", "lr-1"] and found.exact
    assert [error.fields["pattern"] for error in found.unknown] == ["bsae", "zzz"]


def test_a_pattern_that_matches_nothing_is_an_error_and_all_of_nothing_is_none():
    assert chosen("all", runs=[]) == [] and chosen(runs=[]) == []
    with pytest.raises(NoSuchJob):
        chosen("LR-*")
    for pattern in ("last", "x", "*"):
        with pytest.raises(NoSuchJob):
            chosen(pattern, runs=[])
