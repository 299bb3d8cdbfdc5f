"""Patterns of files to collect: what they match, and what is refused."""

from __future__ import annotations

import pytest

from edgeloop.errors import BadJob
from edgeloop.jobs.spec import read_spec
from edgeloop.node.ticket import FilePatterns, check_pattern


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("results", ["results", "results/a/b.pt"], ["results2/a", "a/results/b"]),
        ("./results/", ["results/a"], ["results.txt"]),
        ("*.ckpt", ["a.ckpt", ".ckpt"], ["a/b.ckpt", "a.ckpt2"]),
        ("**/*.ckpt", ["a.ckpt", "a/b/c.ckpt", "x.ckpt/inside"], ["a.pt"]),
        ("logs/**/best", ["logs/best", "logs/a/b/best/x"], ["logs/bestest", "best"]),
        ("results/**", ["results/a", "results/a/b"], ["results"]),
        ("run-[0-9]?", ["run-3a/x"], ["run-x1", "run-3"]),
        ("[!a]b", ["cb"], ["ab", "/b"]),
        ("a[b", ["a[b"], ["ab"]),
        ("a+(b).txt", ["a+(b).txt"], ["aab.txt"]),
        ("[z-a]", ["[z-a]"], ["b"]),
    ],
)
def test_a_pattern_matches_files_and_whole_folders(pattern: str, matched: list, others: list):
    patterns = FilePatterns([pattern])
    assert [name for name in matched if not patterns.matches(name)] == []
    assert [name for name in others if patterns.matches(name)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        ".",
        "./",
        "/",
        "/etc/*",
        "~/x",
        "..",
        "a/../b",
        "a//b",
        "a\\b",
        "a\0b",
        "s3://b/x",
        "C:/x",
    ],
)
def test_a_pattern_that_could_lead_out_of_the_job_is_refused(pattern: str):
    with pytest.raises(ValueError):
        check_pattern(pattern)


def test_a_job_file_names_its_bad_pattern(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text("script: train.py\noutputs: [results, ../secrets]\n")
    with pytest.raises(BadJob, match=r"outputs has a pattern that .*'../secrets'"):
        read_spec(tmp_path / "job.yaml")
    (tmp_path / "job.yaml").write_text("script: train.py\noutputs: [results/, '**/*.ckpt']\n")
    spec = read_spec(tmp_path / "job.yaml")
    assert spec.outputs == ("results", "**/*.ckpt")
    assert spec.document()["outputs"] == ["results", "**/*.ckpt"]
