"""Networks that break off in the middle of an answer, or let nothing through any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeloop.errors import Conflict, StoreError, StoreUnavailable
from edgeloop.store import Store, Table, open_store, parse_location
from tests.peers.azurite import Azurite
from tests.peers.postgres import Postgres
from tests.peers.proxy import Direction, Proxy

LIMIT_S = 60.0
# An answer of a few hundred bytes of headers: in the status line, in every part of the headers, at
# their end, and in the body.
CUTS = [*range(0, 620, 31), 700, 900]


@pytest.fixture
def cut_once() -> Callable[[Proxy, int], None]:
    """Cut one answer after so many bytes; the next ones are whole."""

    def cut(proxy: Proxy, size: int) -> None:
        before = proxy.counts["cut"]
        proxy.lose_answers(size)

        def heal() -> None:
            with proxy.changed:
                proxy.changed.wait_for(lambda: proxy.counts["cut"] > before, LIMIT_S)
            proxy.heal()

        threading.Thread(target=heal, daemon=True).start()

    return cut


@pytest.fixture
def cut_store(azurite: Azurite) -> Iterator[tuple[Store, Proxy]]:
    with Proxy(azurite.table_port) as proxy:
        text = azurite.connection_string_of(azurite.new_account())
        text = text.replace(f":{azurite.table_port}/", f":{proxy.port}/")
        store = open_store(parse_location(text))
        yield store, proxy
        store.close()


def _count(table: Table, number: int) -> None:
    """Every way to ask a table something, the writes in a way that shows how often they were
    carried out."""
    row = table.get("counter")
    assert row is not None
    assert [found.key for found in table.query("counter")] == ["counter"]
    table.update(row, {"n": int(row.values["n"]) + 1})
    table.delete(table.insert(f"row-{number}", {"n": number}))


def test_an_azure_answer_that_is_cut_anywhere_is_no_answer(
    cut_store: tuple[Store, Proxy], cut_once: Callable[[Proxy, int], None]
) -> None:
    store, proxy = cut_store
    table = store.models("exp")
    table.insert("counter", {"n": 0})
    for number, size in enumerate(CUTS):
        cut_once(proxy, size)
        try:
            _count(table, number)
        except (StoreError, Conflict):
            continue
        finally:
            proxy.heal()
    row = table.get("counter")
    assert row is not None and 0 < int(row.values["n"]) <= len(CUTS)
    assert proxy.counts["cut"] >= len(CUTS) // 2


@pytest.mark.parametrize("direction", ["requests", "answers"])
def test_a_network_that_swallows_everything_ends_a_wait_for_postgresql(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: Direction
) -> None:
    """Nothing tells the client that nothing will come: it has to look at its own clock."""
    monkeypatch.setattr("edgeloop.store.postgres.ANSWER_TIMEOUT_S", 0.5)
    database = postgres.lend_database()
    with Proxy(postgres.port) as proxy:
        url = postgres.url_of(database).replace(f":{postgres.port}/", f":{proxy.port}/")
        store = open_store(parse_location(f"{url}?blobs=file://{tmp_path}/blobs"))
        table = store.models("exp")
        table.insert("row", {"n": 1})
        proxy.hold(direction)
        with pytest.raises(StoreUnavailable):
            table.get("row")
        proxy.heal()
        row = table.get("row")
        assert row is not None and row.values["n"] == 1
        store.close()
    postgres.take_back(database)
