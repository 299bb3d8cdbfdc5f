"""What every evaluator promises, whatever it measures and however long that takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from edgeloop.errors import BadInput
from edgeloop.search.base import Evaluation, Evaluator
from edgeloop.search.nets.architecture import Architecture
from edgeloop.testing.waiting import wait_until

LIMIT_S = 120.0
MakeEvaluator = Callable[[], Evaluator]
FilesOf = Callable[[Architecture], Mapping[str, Path]]
Processes = Callable[[], set[int]]


def collect_all(evaluator: Evaluator, count: int) -> dict[str, Evaluation]:
    """Wait for that many answers; an architecture that is answered twice fails the test."""
    answers: dict[str, Evaluation] = {}
    deadline = time.monotonic() + LIMIT_S
    while len(answers) < count:
        assert time.monotonic() < deadline, f"only {answers}"
        for answer in evaluator.collect(1.0):
            assert answer.arch_id not in answers
            answers[answer.arch_id] = answer
    return answers


class EvaluatorContract:
    """Fixtures: `make` makes an evaluator that is closed after the test; `good` are architectures
    that can be evaluated, and `bad` is one that never can; `files_of` maps an architecture to what
    earlier evaluators made of it (no files for most); `processes` returns the ids of the processes
    that evaluators have running."""

    def test_everything_sent_is_answered_once_and_a_failure_harms_no_other(
        self,
        make: MakeEvaluator,
        good: Sequence[Architecture],
        bad: Architecture,
        files_of: FilesOf,
    ) -> None:
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
            assert set(evaluator.gives) <= set(answer.values)
            assert set(answer.values) <= {*evaluator.gives, *evaluator.beside}
            assert all(math.isfinite(value) for value in answer.values.values())
            assert all(path.is_file() for path in answer.files.values())
        assert evaluator.collect(0) == []

    def test_closed_in_the_middle_of_work_it_leaves_nothing_behind(
        self,
        make: MakeEvaluator,
        good: Sequence[Architecture],
        files_of: FilesOf,
        processes: Processes,
    ) -> None:
        before = processes()
        evaluator = make()
        evaluator.send(good[0], files_of(good[0]))
        self.wait_until_working(evaluator, processes, before)
        evaluator.close()
        wait_until(lambda: not processes() - before, LIMIT_S, "its processes to end")
        assert evaluator.collect(0) == []
        evaluator.close()
        with pytest.raises(BadInput, match="closed"):
            evaluator.send(good[0])

    def wait_until_working(
        self, evaluator: Evaluator, processes: Processes, before: set[int]
    ) -> None:
        """Override it where work does not show as a process of this machine."""
        wait_until(lambda: processes() - before, LIMIT_S, "the work to start")

    def test_its_conditions_are_one_line_and_the_same_for_the_same_arguments(
        self, make: MakeEvaluator
    ) -> None:
        first, second = make(), make()
        assert first.conditions == second.conditions
        assert first.conditions and "\n" not in first.conditions
