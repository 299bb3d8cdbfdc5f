"""Servers (one of each per pytest process, started when first asked for) and stores on them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from edgeloop.location import parse_location
from edgeloop.store import Store, open_store
from tests.peers.azurite import Azurite
from tests.peers.postgres import Postgres
from tests.peers.ray import RayCluster
from tests.peers.s3 import S3

# Contracts are no test modules themselves, yet their failures should read as well.
pytest.register_assert_rewrite("tests.store.table_contract", "tests.store.blobs_contract")

# A shell that starts us in the background has these ignored, and what we start would inherit that:
# a test of Ctrl-C or of a closed terminal would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

STORE_KINDS = ("sqlite", "postgresql", "azure")

# Whatever the developer's shell holds must not reach a test.
_OUTSIDE = ("EDGELOOP_", "MODEL_STORAGE_", "AWS_", "AZURE_", "GOOGLE_", "PG")


@dataclass(frozen=True)
class StoreUnderTest:
    """An empty store's address, and the environment that leads a command to it."""

    kind: str
    url: str = field(repr=False)
    environ: dict[str, str] = field(repr=False)

    def open(self) -> Store:
        return open_store(parse_location(self.url))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(_OUTSIDE)]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with Azurite() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with S3() as server:
        yield server


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    with RayCluster() as cluster:
        yield cluster


@pytest.fixture
def make_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], StoreUnderTest]]:
    """Makes a new, empty place of a kind; servers start only for the kinds that are asked for."""
    with ExitStack() as cleaning:

        def make(kind: str) -> StoreUnderTest:
            if kind == "azure":
                server: Azurite = request.getfixturevalue("azurite")
                address = server.connection_string_of(server.new_account())
                return StoreUnderTest(kind, address, {"MODEL_STORAGE_CONNECTION_STRING": address})
            if kind == "postgresql":
                database: Postgres = request.getfixturevalue("postgres")
                name = database.make_database()
                cleaning.callback(database.drop_database, name)
                blobs = tmp_path_factory.mktemp("blobs") / "files"
                address = f"{database.url_of(name)}?blobs=file://{blobs}"
            else:
                address = f"sqlite:{tmp_path_factory.mktemp('sqlite') / 'store'}"
            return StoreUnderTest(kind, address, {"EDGELOOP_STORE": address})

        yield make


@pytest.fixture(params=STORE_KINDS)
def place(
    request: pytest.FixtureRequest, make_place: Callable[[str], StoreUnderTest]
) -> StoreUnderTest:
    return make_place(request.param)


@pytest.fixture
def make_store() -> Iterator[Callable[[StoreUnderTest], Store]]:
    """Opens stores, as many on one place as a test wants, and closes them in the end."""
    with ExitStack() as cleaning:

        def make(place: StoreUnderTest) -> Store:
            store = place.open()
            cleaning.callback(store.close)
            return store

        yield make


@pytest.fixture
def store(place: StoreUnderTest, make_store: Callable[[StoreUnderTest], Store]) -> Store:
    return make_store(place)
