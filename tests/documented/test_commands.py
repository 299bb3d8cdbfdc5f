"""Every command that README and docs show exists; what no test runs says why, and is counted."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.documented.page import ROOT, commands_of, inline_commands, name_of, pages
from tests.documented.parsing import calls_of, complaint
from tests.documented.running import is_same

REASONS = {
    *("needs a package index", "needs root", "needs systemd", "needs Docker", "needs Kubernetes"),
    *("needs a board", "needs boards", "needs the Neural Processing SDK", "needs Azure"),
    *("needs a cluster", "needs a GPU"),
    *("needs the COCO dataset", "needs the portal above", "needs the search above"),
    *("needs the plan above", "keeps runners running", "needs GitHub"),
    "tests/test_readme.py runs it",
    *("serves until Ctrl-C", "evaluates until Ctrl-C", "evaluates for minutes"),
    *("compiles for minutes", "trains for minutes", "takes minutes", "takes an hour"),
}
"""What may keep a command from being run by tests."""
LEAD_TO_A_FARM = [
    "docs/farm.md",
    "docs/how-to/azure-fleet.md",
    "docs/how-to/boards.md",
    "docs/how-to/kubernetes.md",
    "docs/how-to/migrate-from-archai.md",
]
MOST_UNSEEN = 9
"""Commands with output that no test compares. A change that lowers it is welcome."""


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_command_of_a_page_is_one(page: Path):
    wrong = [
        f"line {shown.line}: {shown.command}: {said}"
        for shown in commands_of(page)
        for words in calls_of(shown.bare)
        if (said := complaint(words))
    ]
    wrong += [
        f"{text}: {said}"
        for text in inline_commands(page)
        for words in calls_of(text)
        if (said := complaint(words, is_whole=False))
    ]
    assert wrong == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_what_another_page_runs_has_the_same_output_there(page: Path):
    for shown in commands_of(page):
        if shown.as_in and not shown.not_run:
            there = {each.bare: each for each in commands_of(ROOT / shown.as_in)}
            assert shown.bare in there, f"{shown.as_in} does not show {shown.bare}"
            found = there[shown.bare]
            assert not found.as_in, f"{shown.as_in} does not run {shown.bare}"
            assert is_same(shown, found), f"line {shown.line}: {shown.as_in} shows another output"


@pytest.mark.parametrize("name", LEAD_TO_A_FARM)
def test_all_guides_lead_to_the_same_farm(name: str):
    """The experiment has what machines would otherwise have to be told alike."""
    page = ROOT / name
    shown = [each.bare for each in commands_of(page)]
    named = [*shown, *inline_commands(page)]
    assert any(line == "edgeloop experiment set faces --dataset working/faces" for line in named)
    runners = [line for line in shown if re.search(r"edgeloop (runner|service install)\b", line)]
    told = re.compile(r"--(toolchain|no-quantize|dataset)\b")
    assert [line for line in runners if told.search(line)] == []


def test_what_is_not_run_says_why_and_is_counted():
    left_out = [shown for page in pages() for shown in commands_of(page) if shown.not_run]
    reasons = Counter(shown.not_run for shown in left_out)
    assert set(reasons) == REASONS
    unseen = [shown.command for shown in left_out if shown.output]
    assert len(unseen) <= MOST_UNSEEN, unseen
