"""One command, many jobs: every combination once, named so that a glob selects them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.errors import BadInput, BadJob
from edgeloop.jobs.spec import expand, parse_sweep, spec_of, split_values


def swept(*texts: str, **more: object) -> list[tuple[str, dict[str, str]]]:
    document = {"command": ["x"], "sweep": parse_sweep(texts), **more}
    return [(job.name, dict(job.params)) for job in expand(spec_of(document, Path("/"), "t"), "s")]


def test_a_sweep_is_the_product_of_its_values():
    assert swept("lr=1e-3,1e-4", "bs=8,16") == [
        ("s-1", {"lr": "1e-3", "bs": "8"}),
        ("s-2", {"lr": "1e-3", "bs": "16"}),
        ("s-3", {"lr": "1e-4", "bs": "8"}),
        ("s-4", {"lr": "1e-4", "bs": "16"}),
    ]


def test_the_values_reach_the_command():
    spec = spec_of({"command": "x --lr={lr}", "sweep": {"lr": "1,2", "n": ["a"]}}, Path("/"), "t")
    commands = [job.full_command() for job in expand(spec, "s")]
    assert commands == [("x", "--lr=1", "--n", "a"), ("x", "--lr=2", "--n", "a")]


def test_names_of_ten_and_more_sort_as_they_were_made():
    names = [name for name, _ in swept("lr=" + ",".join(map(str, range(12))))]
    assert names == sorted(names) and names[0] == "s-01" and names[-1] == "s-12"


def test_a_sweep_wins_over_a_param_and_leaves_the_others():
    assert swept("lr=2", params={"lr": "1", "wd": "0"}) == [("s-1", {"lr": "2", "wd": "0"})]


def test_without_a_sweep_there_is_one_job_of_that_name():
    assert swept() == [("s", {})]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3,1e-4", ["1e-3", "1e-4"]),
        ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ('"a,b",c', ["a,b", "c"]),
        ("'a' , 'b c'", ["a", "b c"]),
        ('{"a": [1, 2]},x', ['{"a": [1, 2]}', "x"]),
        ("-1,--x", ["-1", "--x"]),
        ("'',a", ["", "a"]),
        ("f(1,2)", ["f(1,2)"]),
        ("'a'-'b'", ["'a'-'b'"]),
    ],
)
def test_commas_inside_quotes_and_brackets_are_kept(text: str, values: list[str]):
    assert split_values(text) == values


@pytest.mark.parametrize("text", ["", "1,", ",1", "1,,2", "[1,2", "'a", "(a,[b)"])
def test_a_list_of_values_that_cannot_be_read_is_refused(text: str):
    with pytest.raises(BadInput):
        split_values(text)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["lr"], "has no values"),
        (["=1"], "has no values"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["lr=1,,2"], "lr: a value is missing"),
        (["a=" + ",".join(["1"] * 200), "b=" + ",".join(["1"] * 200)], "40,000 jobs"),
    ],
)
def test_a_wrong_sweep_is_said(texts: list[str], said: str):
    with pytest.raises(BadJob, match=said):
        swept(*texts)
