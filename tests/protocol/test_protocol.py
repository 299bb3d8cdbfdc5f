"""The lease protocol, explored: no order of operations and faults within the bounds breaks it, and
every planted bug is found. `python -m bench protocol` goes further."""

from __future__ import annotations

import pytest

from tests.protocol.broken import PLANTED, Planted
from tests.protocol.configurations import LARGE, SMALL
from tests.protocol.explore import Explored, explore

LEAST_STATES = 20_000


@pytest.fixture(scope="module")
def explored() -> list[Explored]:
    return [explore(configuration) for configuration in SMALL]


@pytest.mark.slow
def test_no_order_of_operations_and_faults_breaks_the_protocol(explored: list[Explored]) -> None:
    for each in explored:
        assert not each.violations, f"{each.configuration.name}\n{each.violations[0]}"
        assert each.is_whole, each.configuration.name
    assert sum(each.states for each in explored) >= LEAST_STATES


@pytest.mark.parametrize("planted", PLANTED.values(), ids=list(PLANTED))
def test_a_planted_bug_is_found_with_the_way_that_leads_to_it(planted: Planted) -> None:
    found = explore(planted.configuration, most_states=20_000).violations
    assert found, "the explorer has missed it"
    assert planted.says in found[0].message
    assert " begins " in found[0].trace[0]
    assert len(found[0].trace) < 30, "a shortest way is one that people can follow"


@pytest.mark.slow
@pytest.mark.parametrize("most_states", [500, pytest.param(6_000, marks=pytest.mark.soak)])
def test_the_larger_configurations_begin_without_a_violation(most_states: int) -> None:
    for configuration in LARGE:
        begun = explore(configuration, most_states=most_states)
        assert not begun.violations, f"{configuration.name}\n{begun.violations[0]}"
