"""Services that limit requests: everybody waits as long as they ask, and nothing is lost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path

import pytest

from edgeloop._util import retry
from edgeloop._util.retry import LONGEST_PAUSE_S, RateLimit, asked_pause
from edgeloop.errors import RowChanged, StoreLimited
from edgeloop.store import Blobs, Store, open_from_job, open_store, parse_location
from tests.peers.azurite import Azurite
from tests.peers.limiter import Limiter

THREADS = 6
ROUNDS = 4


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_pause_is_asked_for_in_seconds_in_milliseconds_or_by_a_date():
    assert asked_pause(200, {"retry-after": "9"}) is None
    assert asked_pause(429, {"retry-after": "9"}) == 9.0
    assert asked_pause(503, {"x-ms-retry-after-ms": "1500"}) == 1.5
    assert asked_pause(503, {}) == asked_pause(503, {"retry-after": "soon"}) == 0.0
    at = formatdate(time.time() + 30, usegmt=True)
    assert 20 < (asked_pause(503, {"retry-after": at}) or 0) <= 30
    assert asked_pause(503, {"retry-after": formatdate(0, usegmt=True)}) == 0.0


@pytest.mark.parametrize(("asked", "kept"), [(4.0, 4.0), (3_600.0, LONGEST_PAUSE_S)])
def test_a_pause_is_as_long_as_asked_within_bounds_and_never_the_same(asked: float, kept: float):
    def wait() -> float:
        clock, answers = FakeClock(), iter([503, 200])
        limit = RateLimit(clock, clock.sleep)
        limit.keep(lambda: next(answers), lambda answer: asked if answer > 400 else None)
        return sum(clock.slept)

    waits = {wait() for _ in range(20)}
    assert all(kept <= seconds <= kept * 1.6 for seconds in waits)
    assert len(waits) == 20


def test_a_service_that_says_nothing_is_asked_less_and_less_and_then_not_at_all():
    clock = FakeClock()
    asked: list[float] = []

    def send() -> int:
        asked.append(clock.now)
        return 503

    assert RateLimit(clock, clock.sleep).keep(send, lambda _: 0.0, patience_s=60.0) == 503
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert gaps[0] < gaps[2] < gaps[4] and len(asked) < 10
    assert asked[-1] <= 100.0 + 60.0 + 1.0


def test_one_limited_answer_makes_all_threads_wait():
    clock = FakeClock()
    limit = RateLimit(clock, clock.sleep)
    answers = iter([503, 200])
    limit.keep(lambda: next(answers), lambda a: 7.0 if a > 400 else None)
    limit._pause(7.0)
    began = clock.now
    assert limit.keep(lambda: 200, lambda _: None) == 200
    assert clock.now - began >= 7.0


@pytest.fixture
def tables_and_files(azurite: Azurite) -> Iterator[tuple[Store, Limiter, Limiter]]:
    """A store of which all requests pass through limiters."""
    tables, files = Limiter(azurite.table_port), Limiter(azurite.blob_port)
    account = azurite.new_account()
    text = azurite.connection_string_of(account)
    text = text.replace(f":{azurite.table_port}/", f":{tables.port}/")
    store = open_store(parse_location(text.replace(f":{azurite.blob_port}/", f":{files.port}/")))
    yield store, tables, files
    store.close()
    tables.close()
    files.close()


def _count(store: Store, number: int) -> list[bool]:
    """Adds to a row that all threads share, and creates files; whether each file was new."""
    table, created = store.models("exp"), []
    for step in range(ROUNDS):
        while True:
            row = table.get("shared")
            assert row is not None
            try:
                table.update(row, {"n": int(row.values["n"]) + 1})
                break
            except RowChanged:
                continue
        created.append(store.blobs.create(f"exp/{number}/{step}", b"x" * 100))
        table.insert(f"row-{number}-{step}", {"n": step})
    return created


@pytest.mark.parametrize(
    ("status", "header"), [(503, {"Retry-After": "1"}), (429, {"x-ms-retry-after-ms": "600"})]
)
def test_nothing_is_lost_or_doubled_while_an_account_limits(
    tables_and_files: tuple[Store, Limiter, Limiter], status: int, header: dict[str, str]
):
    store, tables, files = tables_and_files
    store.models("exp").insert("shared", {"n": 0})
    store.blobs.put("exp/warm", b"")
    with ThreadPoolExecutor(THREADS) as pool:
        for limiter in (tables, files):
            limiter.limit(0.5, status, header)
        done = list(pool.map(lambda number: _count(store, number), range(THREADS)))
    row = store.models("exp").get("shared")
    assert row is not None and row.values["n"] == THREADS * ROUNDS
    assert all(all(created) for created in done)
    assert len(list(store.blobs.list("exp/"))) == THREADS * ROUNDS + 1
    assert len(list(store.models("exp").query("row-"))) == THREADS * ROUNDS
    # Those that were under way when the first answer came, and nobody after it.
    assert 0 < len(tables.limited) <= THREADS
    assert len(files.limited) <= 3 * THREADS


def test_files_are_asked_for_again_when_the_account_says_so(
    tables_and_files: tuple[Store, Limiter, Limiter], tmp_path: Path
):
    store, _, files = tables_and_files
    keys = [f"exp/m/{number:03d}" for number in range(120)]
    for key in keys:
        store.blobs.put(key, key.encode())
    plain = open_from_job(store.blobs.access(600))
    for action in itertools.chain(*(_uses(b, keys, tmp_path) for b in (store.blobs, plain))):
        files.limit(0.2, 503, {"x-ms-retry-after-ms": "300"})
        began = time.monotonic()
        assert action()
        assert time.monotonic() - began >= 0.3
        assert 0 < len(files.limited) <= 4, files.limited
    assert (tmp_path / "file").read_bytes() == keys[1].encode()


def _uses(blobs: Blobs, keys: list[str], folder: Path) -> list[Callable[[], bool]]:
    return [
        lambda: blobs.read(keys[0]) == keys[0].encode(),
        lambda: [info.key for info in blobs.list("exp/m/")] == keys,
        lambda: blobs.get(keys[1], folder / "file") is None,
        lambda: blobs.size(keys[2]) == len(keys[2]),
        lambda: blobs.delete(["exp/m/none"]) is None,
    ]


def test_a_listing_that_is_limited_on_its_way_goes_on_where_it_was(
    tables_and_files: tuple[Store, Limiter, Limiter],
):
    store, _, files = tables_and_files
    keys = [f"exp/m/{number:03d}" for number in range(130)]  # obstore gives 50 at a time
    store.blobs.put_many({key: Path(__file__) for key in keys})
    found = []
    for number, info in enumerate(store.blobs.list("exp/m/")):
        found.append(info.key)
        if number == 60:
            files.limit(0.2, 503, {"x-ms-retry-after-ms": "300"})
    assert found == keys


def test_an_account_that_keeps_limiting_is_given_up_with_a_reason(
    tables_and_files: tuple[Store, Limiter, Limiter], monkeypatch: pytest.MonkeyPatch
):
    store, tables, files = tables_and_files
    plain = open_from_job(store.blobs.access(600))
    monkeypatch.setattr(retry, "PATIENCE_S", 1.0)
    for limiter in (tables, files):
        limiter.limit(600.0, 503, {"Retry-After": "30"})
    for action in (
        lambda: store.models("exp").insert("a", {}),
        lambda: store.models("exp").get("a"),
        lambda: store.blobs.put("a/b", b"x"),
        lambda: list(store.blobs.list("a/")),
        lambda: plain.put("a/c", b"x"),
    ):
        with pytest.raises(StoreLimited, match="the storage account is limiting requests"):
            action()
