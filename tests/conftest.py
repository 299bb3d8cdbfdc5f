"""Servers (one of each per pytest process, started when first asked for) and stores on them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from edgeloop.store import Store, open_store, parse_location
from tests import guard, tiers

if TYPE_CHECKING:  # peers are imported by the fixture that starts them
    from tests.peers.azureml import AzureML
    from tests.peers.azurite import Azurite
    from tests.peers.board import AdbServer, VirtualBoard
    from tests.peers.certificate import Certificate
    from tests.peers.postgres import Postgres
    from tests.peers.ray import RayCluster
    from tests.peers.s3 import S3

# A shell that starts us in the background has these ignored, and what we start would inherit that:
# a test of Ctrl-C or of a closed terminal would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

STORE_KINDS = ("sqlite", "postgresql", "azure")

# Whatever the developer's shell holds must not reach a test.
_OUTSIDE = ("EDGELOOP_", "MODEL_STORAGE_", "AWS_", "AZURE_", "GOOGLE_", "PG", "SNPE_", "QAIRT_")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tiers.TIERS, help="only the tests of this tier")


def pytest_configure(config: pytest.Config) -> None:
    guard.start()
    # A busy machine is slow, which says nothing about the code: time decides no test.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("busy")
    for marker in tiers.MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getoption("--tier") == "unit":
        tiers.forbid_servers()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    tier = config.getoption("--tier")
    return True if tier and tiers.is_left_out(collection_path, tier) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.mark_servers(items)
    # Long files first: an even end.
    items.sort(key=lambda item: not tiers.is_left_out(item.path, "unit"))
    tier = config.getoption("--tier")
    if tier:
        config.hook.pytest_deselected(items=[item for item in items if not tiers.is_in(item, tier)])
        items[:] = [item for item in items if tiers.is_in(item, tier)]


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
    for name in os.environ.keys() - clean_environ().keys():
        monkeypatch.delenv(name)


def clean_environ() -> dict[str, str]:
    """For processes that are started by fixtures of a whole module."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OUTSIDE)}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    from tests.peers.postgres import Postgres

    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    from tests.peers.azurite import Azurite

    with Azurite() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    from tests.peers.s3 import S3

    with S3() as server:
        yield server


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    from tests.peers.ray import RayCluster

    with RayCluster() as cluster:
        yield cluster


def begin_store(address: str) -> None:
    """A store that was named must be there, but for the first upload."""
    from edgeloop.store import open_store, parse_location

    store = open_store(parse_location(address))
    store.usage().put("nothing", None)
    store.close()


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
                name = database.lend_database()
                cleaning.callback(database.take_back, name)
                blobs = tmp_path_factory.mktemp("blobs") / "files"
                address = f"{database.url_of(name)}?blobs=file://{blobs}"
            else:
                address = f"sqlite:{tmp_path_factory.mktemp('sqlite') / 'store'}"
                begin_store(address)
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


@pytest.fixture(scope="session")
def azure_certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    from tests.peers.certificate import Certificate

    return Certificate.make(tmp_path_factory.mktemp("certificate"), "*.blob.core.localhost")


@pytest.fixture(scope="session")
def azure_storage(azure_certificate: Certificate) -> Iterator[Azurite]:
    """Azurite as an account on Azure is reached: https, a host name an account, identities."""
    from tests.peers.azurite import Azurite

    with Azurite(azure_certificate) as server:
        yield server


@pytest.fixture
def azureml(
    azure_storage: Azurite,
    azure_certificate: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clean_environment: None,
) -> Iterator[AzureML]:
    """A new workspace of Azure ML; this process, and those it starts, are logged in to it."""
    from tests.peers.azureml import AzureML

    with AzureML(azure_storage, azure_certificate, tmp_path / "azureml-nodes") as emulator:
        for name, value in emulator.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("edgeloop.jobs.computes.azureml.services.BACKOFF_FACTOR", 0.005)
        yield emulator
    assert not emulator.complaints, "bodies that the REST API would refuse"
    assert not emulator.crashes, "".join(emulator.crashes)


@pytest.fixture(scope="session")
def adb_server() -> Iterator[AdbServer]:
    """Ours alone: no device of this machine is on it, and its own server goes on undisturbed."""
    from tests.peers.board import AdbServer

    with AdbServer() as server:
        yield server


@pytest.fixture
def boards(adb_server: AdbServer, tmp_path: Path) -> Iterator[Callable[..., VirtualBoard]]:
    """Starts boards by name, as many as a test wants, connected; they end with the test."""
    from tests.peers.board import VirtualBoard

    if not adb_server.is_running:  # a test may have taken it away
        adb_server.start()
    with ExitStack() as cleaning:

        def make(name: str = "board", **options: Any) -> VirtualBoard:
            return cleaning.enter_context(VirtualBoard(tmp_path, adb_server, name, **options))

        yield make


@pytest.fixture
def board(boards: Callable[..., VirtualBoard]) -> VirtualBoard:
    return boards()


@pytest.fixture(scope="session")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a Neural Processing SDK 2.x whose programs are stand-ins."""
    from tests.peers.board import SDK_2, make_sdk

    return make_sdk(tmp_path_factory.mktemp("sdk"), SDK_2)


@pytest.fixture(scope="session")
def sdk_1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of the older generation, which names folders and flags otherwise."""
    from tests.peers.board import SDK_1, make_sdk

    return make_sdk(tmp_path_factory.mktemp("sdk"), SDK_1)
