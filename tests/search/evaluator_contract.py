"""What every evaluator must do, whatever it asks and however long that takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import pytest

from edgeloop.architectures import Architecture
from edgeloop.errors import BadInput
from edgeloop.search.base import Answer, Evaluator
from tests.jobs.waiting import eventually

LIMIT_S = 120.0


def collect_all(evaluator: Evaluator, count: int) -> dict[str, Answer]:
    """Until so many came; one that comes twice is an error."""
    answers: dict[str, Answer] = {}
    deadline = time.monotonic() + LIMIT_S
    while len(answers) < count:
        assert time.monotonic() < deadline, f"only {answers}"
        for answer in evaluator.collect(1.0):
            assert answer.arch_id not in answers
            answers[answer.arch_id] = answer
    return answers


class EvaluatorContract:
    """Fixtures: `make` makes an evaluator (closed for you), `good` are architectures that can be
    evaluated, `bad` is one that never can, `files_of` what earlier evaluators made of one, and
    `processes` counts what evaluators have running."""

    def test_all_that_is_sent_is_answered_once_and_one_that_fails_harms_no_other(
        self,
        make: Callable[[], Evaluator],
        good: Sequence[Architecture],
        bad: Architecture,
        files_of: Callable[[Architecture], dict],
    ):
        evaluator = make()
        assert evaluator.collect(0) == []
        for arch in (good[0], bad, *good[1:], good[0]):  # the first one twice
            evaluator.send(arch, files_of(arch))
        answers = collect_all(evaluator, len(good) + 1)
        failed = answers.pop(bad.id)
        assert failed.error and failed.is_final and not failed.values, failed
        assert "\n" not in failed.error
        for arch in good:
            answer = answers[arch.id]
            assert not answer.error, answer.error
            assert set(answer.values) == set(evaluator.gives)
            assert all(math.isfinite(value) for value in answer.values.values())
            assert all(path.is_file() for path in answer.files.values())
        assert evaluator.collect(0) == []

    def test_closed_in_the_middle_of_work_it_leaves_nothing_behind(
        self,
        make: Callable[[], Evaluator],
        good: Sequence[Architecture],
        files_of: Callable[[Architecture], dict],
        processes: Callable[[], set],
    ):
        before = processes()
        evaluator = make()
        evaluator.send(good[0], files_of(good[0]))
        self.wait_until_working(evaluator, processes, before)
        evaluator.close()
        eventually(lambda: not processes() - before)
        assert evaluator.collect(0) == []
        evaluator.close()
        with pytest.raises(BadInput, match="closed"):
            evaluator.send(good[0])

    def wait_until_working(self, evaluator: Evaluator, processes: Callable[[], set], before: set):
        eventually(lambda: processes() - before)

    def test_its_conditions_are_one_line_and_the_same_for_the_same_arguments(
        self, make: Callable[[], Evaluator]
    ):
        first, second = make(), make()
        assert first.conditions == second.conditions
        assert first.conditions and "\n" not in first.conditions
