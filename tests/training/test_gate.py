"""Together by default, alone for a capture, and nobody waits for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

from edgeloop.search.nets.device import Gate

LIMIT_S = 30


def test_several_are_in_together():
    gate, both = Gate(), Barrier(2)

    def one() -> bool:
        with gate.together():
            both.wait(LIMIT_S)
            return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda _: one(), range(2)))


def test_who_is_alone_meets_nobody_and_all_get_their_turn():
    gate, busy, alone_seen = Gate(), [0], []

    def work(number: int) -> int:
        with gate.together():
            for step in range(200):
                gate.give_way()
                busy[0] += 1
                busy[0] -= 1
                if step == 20 * number:
                    with gate.alone():
                        alone_seen.append((gate._inside, gate._is_alone))
            return number

    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(work, number) for number in range(6)]
        assert [each.result(LIMIT_S) for each in done] == list(range(6))
    assert alone_seen == [(0, True)] * 6
    assert (gate._inside, gate._want_alone, gate._is_alone) == (0, 0, False)


def test_work_outside_holds_up_nobody():
    gate, is_outside, go_on = Gate(), Event(), Event()

    def exporting() -> None:
        with gate.together(), gate.outside():
            is_outside.set()
            assert go_on.wait(LIMIT_S)

    def capturing() -> bool:
        assert is_outside.wait(LIMIT_S)
        with gate.together(), gate.alone():
            return True

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(exporting)
        assert pool.submit(capturing).result(LIMIT_S)
        go_on.set()
        first.result(LIMIT_S)


def test_a_failure_while_alone_opens_the_gate_again():
    gate = Gate()
    try:
        with gate.together(), gate.alone():
            raise RuntimeError
    except RuntimeError:
        pass
    with gate.together(), gate.alone():
        pass
    assert (gate._inside, gate._is_alone) == (0, False)
