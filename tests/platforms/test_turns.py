"""Between the sessions of one runner on one board."""

from __future__ import annotations

import threading

from edgeloop.platforms.snpe.run import TurnRefusedError, Turns
from tests.jobs.waiting import eventually


def in_background(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_nothing_travels_while_one_has_the_board_alone():
    turns, arrived = Turns(), threading.Event()

    def push() -> None:
        with turns.travel():
            arrived.set()

    with turns.tool(0, alone=True):
        assert turns.alone_s > 0
        pushing = in_background(push)
        assert not arrived.wait(0.1)
    pushing.join(60)
    assert arrived.is_set()
    assert turns.alone_s == 0


def test_a_benchmark_waits_for_what_is_under_way_and_nothing_new_begins():
    turns, measured, pushed = Turns(), threading.Event(), threading.Event()

    def measure() -> None:
        with turns.tool(0, alone=True):
            measured.set()
            assert not pushed.is_set()

    def push() -> None:
        with turns.travel():
            pushed.set()

    with turns.travel():
        measuring = in_background(measure)
        eventually(lambda: turns.alone_s)
        pushing = in_background(push)
        assert not measured.wait(0.1)
        assert not pushed.is_set()
    for thread in (measuring, pushing):
        thread.join(60)
    assert measured.is_set()
    assert pushed.is_set()


def test_files_travel_while_a_tool_runs():
    turns = Turns()
    with turns.tool(0), turns.travel():
        pass


def test_whoever_began_first_goes_first_and_one_at_a_time():
    turns, order = Turns(), []
    early, late = turns.rank(), turns.rank()

    def use(rank: int, name: str) -> None:
        with turns.tool(rank):
            order.append(name)

    with turns.tool(early):
        threads = [in_background(lambda: use(late, "late"))]
        eventually(lambda: len(turns._waiting) == 1)
        threads.append(in_background(lambda: use(early, "early")))
        eventually(lambda: len(turns._waiting) == 2)
        assert order == []
    for thread in threads:
        thread.join(60)
    assert order == ["early", "late"]


def test_at_the_end_only_those_that_have_begun_get_another_turn():
    turns, refused = Turns(), threading.Event()
    begun, waiting = turns.rank(), turns.rank()

    def wait() -> None:
        try:
            with turns.tool(waiting):
                pass
        except TurnRefusedError:
            refused.set()

    with turns.tool(begun):
        in_background(wait)
        eventually(lambda: turns._waiting)
        turns.close()
        assert refused.wait(60)
    with turns.tool(begun):
        pass
    assert not turns._waiting


def test_a_board_that_cools_down_is_kept_from_those_behind():
    turns, used = Turns(), threading.Event()
    first, second = turns.rank(), turns.rank()

    def use() -> None:
        with turns.tool(second):
            used.set()

    with turns.kept_for(first):
        waiting = in_background(use)
        assert not used.wait(0.1)
        with turns.tool(first):
            pass
    waiting.join(60)
    assert used.is_set()


def test_a_stage_that_others_give_way_to_may_push_its_files_and_goes_first() -> None:
    """Although a benchmark waits behind it, and benchmarks that are ready go before files."""
    turns = Turns()
    urgent, behind = turns.rank(), turns.rank()
    ran = []

    def run(name: str, rank: int) -> None:
        with turns.tool(rank, alone=True):
            ran.append(name)

    turns.reserve(urgent)
    waiting = threading.Thread(target=run, args=("behind", behind), daemon=True)
    waiting.start()
    eventually(lambda: turns._waiting)
    pushing = threading.Thread(target=lambda: turns.travel().__enter__(), daemon=True)
    pushing.start()
    pushing.join(30)
    assert not pushing.is_alive()
    turns._travelling = 0
    run("urgent", urgent)
    waiting.join(30)
    assert ran == ["urgent", "behind"]
