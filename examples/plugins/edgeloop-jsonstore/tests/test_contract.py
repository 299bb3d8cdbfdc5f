"""The store passes the suites that Edgeloop's own stores pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from edgeloop.errors import BadSetting
from edgeloop.store import Blobs, Store, Table, open_store, parse_location
from edgeloop.testing.contracts.blobs import BlobsContract
from edgeloop.testing.contracts.store import StoreContract
from edgeloop.testing.contracts.table import TableContract


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"json:{tmp_path_factory.mktemp('store')}"


@pytest.fixture
def store(place: str) -> Store:
    return open_store(parse_location(place))


class TestTable(TableContract):
    @pytest.fixture
    def table(self, store: Store) -> Table:
        return store.models("contract")


class TestBlobs(BlobsContract):
    has_links = False

    @pytest.fixture
    def blobs(self, store: Store) -> Blobs:
        return store.blobs


class TestStore(StoreContract):
    @pytest.fixture
    def reopened(self, place: str) -> Store:
        return open_store(parse_location(place))


def test_a_line_that_was_not_finished_never_was(store: Store, place: str) -> None:
    table = store.models("exp")
    table.insert("a", {"n": 1})
    with (Path(place.removeprefix("json:")) / "models/exp.jsonl").open("ab") as file:
        file.write(b'["b", {"n"')
    assert [row.key for row in table.query()] == ["a"]
    table.insert("c", {"n": 3})
    fresh = open_store(parse_location(place)).models("exp")
    assert [row.key for row in fresh.query()] == ["a", "c"]


ADD = """
import sys
from edgeloop.errors import RowChanged
from edgeloop.store import open_store, parse_location
table, done = open_store(parse_location(sys.argv[1])).models("exp"), 0
while done < 50:
    row = table.get("counter")
    try:
        table.update(row, {"n": row.values["n"] + 1})
        done += 1
    except RowChanged:
        continue
"""


def test_four_processes_lose_no_increment(store: Store, place: str) -> None:
    store.models("exp").insert("counter", {"n": 0})
    processes = [subprocess.Popen([sys.executable, "-c", ADD, place]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert [row.values for row in store.models("exp").query()] == [{"n": 200}]


def test_a_url_without_a_folder_is_one_sentence() -> None:
    with pytest.raises(BadSetting, match="json: needs a folder"):
        open_store(parse_location("json:"))
