"""How many files a reader meets when following a command. Ceilings only ever go down."""

from __future__ import annotations

import sys

import pytest

from bench.trace import WALKS, lower_ceilings, read_ceilings, trace

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_enters_exactly_as_many_files_as_its_ceiling(name: str):
    entered = sorted(trace(name).entered)
    ceiling = read_ceilings()[name]
    assert len(entered) <= ceiling, (
        f"`edgeloop {WALKS[name].title}` enters {len(entered)} files; at most {ceiling} are "
        "allowed, and ceilings only ever go down. It enters:\n" + "\n".join(entered)
    )
    if sys.version_info >= (3, 12):
        return  # comprehensions are inlined there: a module whose only calls are such is not seen
    assert len(entered) == ceiling, (
        f"`edgeloop {WALKS[name].title}` enters only {len(entered)} files now: lower its ceiling "
        f"of {ceiling} in bench/walks.yaml with `python -m bench trace --write`"
    )


def test_every_walk_has_a_ceiling():
    assert read_ceilings().keys() == WALKS.keys()


def test_ceilings_are_lowered_and_never_raised():
    before = "# only down\nrun: 61\nrunner: 91\n"
    assert lower_ceilings(before, {"run": 60, "runner": 92}) == "# only down\nrun: 60\nrunner: 91\n"
