"""Servers that are away, come back, or say no. The servers here belong to this file alone."""

from __future__ import annotations

import base64
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from edgeloop.errors import EdgeloopError, RowChanged, StoreError, StoreRefused, StoreUnavailable
from edgeloop.node.files import FolderBlobs
from edgeloop.store import Store, Table, open_store, parse_location
from edgeloop.store.files import url_blobs
from tests.peers.azurite import Azurite
from tests.peers.ports import free_port
from tests.peers.postgres import Postgres
from tests.peers.s3 import S3

PATIENCE_S = 15.0
PASSWORD = "s3cr3t-of-the-role"
SIGNATURE = "c2VjcmV0c2lnbmF0dXJl"


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def own_azurite() -> Iterator[Azurite]:
    with Azurite() as server:
        yield server


@pytest.fixture
def sql_store(own_postgres: Postgres, tmp_path: Path) -> Iterator[Store]:
    store = _postgres_store(own_postgres.start().url_of(own_postgres.make_database()), tmp_path)
    yield store
    store.close()


@pytest.fixture
def azure_store(own_azurite: Azurite) -> Iterator[Store]:
    server = own_azurite.start()
    store = open_store(parse_location(server.connection_string_of(server.new_account())))
    yield store
    store.close()


def _postgres_store(url: str, folder: Path) -> Store:
    return open_store(parse_location(f"{url}?blobs=file://{folder}/blobs"))


def _everything(store: Store) -> list[Callable[[], object]]:
    """Every way to ask a store's tables something."""
    table = store.models("exp")
    return [
        lambda: table.get("model"),
        lambda: table.insert("model", {"x": 1}),
        lambda: table.insert_many([("a", {}), ("b", {})]),
        lambda: list(table.query()),
        store.experiments,
    ]


def _every_blob_action(store: Store, folder: Path) -> list[Callable[[], object]]:
    return [
        lambda: store.blobs.put("a/b", b"x"),
        lambda: store.blobs.read("a/b"),
        lambda: store.blobs.get("a/b", folder / "target"),
        lambda: list(store.blobs.list("a/")),
        lambda: store.blobs.delete(["a/b"]),
    ]


def _fails(kind: type[EdgeloopError], action: Callable[[], object], *secrets: str) -> str:
    """The error's text, once it is of this kind, came soon, and holds no secret anywhere."""
    start = time.monotonic()
    with pytest.raises(kind) as caught:
        action()
    assert time.monotonic() - start < PATIENCE_S
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert not [secret for secret in secrets if secret in shown]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _all_fail(actions: list[Callable[[], object]], secret: str) -> list[str]:
    """Side by side: each is tried for some seconds before it is given up."""
    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(lambda action: _fails(StoreUnavailable, action, secret), actions))


class TestServersThatAreAway:
    def test_postgresql_is_unavailable_soon(self, tmp_path: Path) -> None:
        port = free_port()
        store = _postgres_store(f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/db", tmp_path)
        for action in _everything(store):
            assert f"127.0.0.1:{port}/db" in _fails(StoreUnavailable, action, PASSWORD)

    def test_azure_is_unavailable_soon(self, tmp_path: Path) -> None:
        store, key, port = _nobody_at_azure()
        actions = [*_everything(store), *_every_blob_action(store, tmp_path)]
        for text in _all_fail(actions, key):
            assert f"127.0.0.1:{port}/me" in text
        assert list(tmp_path.iterdir()) == []

    def test_a_signature_is_not_shown(self, tmp_path: Path) -> None:
        blob, table = (f"http://127.0.0.1:{free_port()}/me" for _ in range(2))
        signature = f"sv=2024-11-04&ss=bt&srt=sco&sp=rwdlacu&sig={SIGNATURE}"
        store = open_store(
            parse_location(
                f"BlobEndpoint={blob};TableEndpoint={table};SharedAccessSignature={signature}"
            )
        )
        actions = [
            lambda: store.models("exp").get("a"),
            lambda: store.blobs.read("a"),
            lambda: list(store.blobs.list("a")),
        ]
        assert len(_all_fail(actions, SIGNATURE)) == 3

    def test_s3_is_unavailable_soon(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
        environ = s3.environ | {"AWS_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        secret = environ["AWS_SECRET_ACCESS_KEY"]
        blobs = url_blobs("s3://bucket")
        for text in _all_fail([lambda: blobs.put("a", b"x"), lambda: list(blobs.list(""))], secret):
            assert "s3://bucket" in text


class TestServersThatSayNo:
    def test_a_wrong_azure_key_is_refused(self, own_azurite: Azurite, tmp_path: Path) -> None:
        wrong = base64.b64encode(b"wrong" * 6 + b"!!").decode()
        server = own_azurite.start()
        address = server.connection_string_of(server.new_account(), key=wrong)
        store = open_store(parse_location(address))
        for action in (*_everything(store), *_every_blob_action(store, tmp_path)):
            text = _fails(StoreRefused, action, wrong, server.key)
            assert f"127.0.0.1:{server.blob_port}" in text

    def test_a_wrong_password_is_refused(self, own_postgres: Postgres, tmp_path: Path) -> None:
        server = own_postgres.start()
        role = server.make_role(PASSWORD)
        store = _postgres_store(server.url_of("postgres", role, "wr0ng-guess"), tmp_path)
        for action in _everything(store):
            text = _fails(StoreRefused, action, PASSWORD, "wr0ng-guess")
            assert f"127.0.0.1:{server.port}" in text
            assert "password" in text

    def test_no_password_where_one_is_needed_is_refused(
        self, own_postgres: Postgres, tmp_path: Path
    ) -> None:
        server = own_postgres.start()
        role = server.make_role(PASSWORD)
        store = _postgres_store(server.url_of("postgres", role), tmp_path)
        _fails(StoreRefused, store.experiments, PASSWORD)

    def test_a_role_without_rights_is_refused(self, own_postgres: Postgres, tmp_path: Path) -> None:
        server = own_postgres.start()
        role = server.make_role(PASSWORD)
        store = _postgres_store(server.url_of("postgres", role, PASSWORD), tmp_path)
        assert store.experiments() == []
        table = store.models("exp")
        text = _fails(StoreRefused, lambda: table.insert("model", {}), PASSWORD)
        assert "permission denied" in text

    def test_a_database_that_is_not_there_is_refused(
        self, own_postgres: Postgres, tmp_path: Path
    ) -> None:
        store = _postgres_store(own_postgres.start().url_of("nowhere"), tmp_path)
        for action in _everything(store):
            assert "nowhere" in _fails(StoreRefused, action)

    def test_a_folder_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "plain").write_text("a file")
        store = open_store(parse_location(f"sqlite:{tmp_path}/plain"))
        assert "plain" in _fails(StoreError, lambda: store.models("exp").insert("a", {}))
        assert "plain" in _fails(StoreError, lambda: store.blobs.put("a", b"x"))

    def test_a_database_that_is_none_is_an_error_of_the_store(self, tmp_path: Path) -> None:
        (tmp_path / "store.db").write_bytes(b"this is no database" * 100)
        store = open_store(parse_location(f"sqlite:{tmp_path}"))
        assert str(tmp_path) in _fails(StoreError, lambda: store.models("exp").get("a"))
        assert str(tmp_path) in _fails(StoreError, lambda: store.models("exp").insert("a", {}))

    def test_a_file_in_a_folder_s_place_is_said(self, tmp_path: Path) -> None:
        blobs = FolderBlobs(tmp_path / "blobs")
        blobs.put("a", b"x")
        _fails(StoreError, lambda: blobs.put("a/b", b"x"))
        assert blobs.read("a") == b"x"


class TestServersThatComeBack:
    def test_postgresql_after_a_power_cut(self, sql_store: Store, own_postgres: Postgres) -> None:
        record = sql_store.models("exp").insert("model", {"x": 1})
        own_postgres.kill()
        _fails(StoreUnavailable, lambda: sql_store.models("exp").get("model"))
        own_postgres.start()
        assert sql_store.models("exp").get("model") == record

    def test_postgresql_restarted_between_two_calls(
        self, sql_store: Store, own_postgres: Postgres
    ) -> None:
        """Several pooled connections are dead by then; one failure must clear them all."""
        table = sql_store.models("exp")
        table.insert("model", {"x": 1})
        with ThreadPoolExecutor(5) as pool:
            list(pool.map(lambda _: table.get("model"), range(50)))
        own_postgres.kill()
        own_postgres.start()
        assert _failures_until_it_works(table) <= 1
        assert all(_failures_until_it_works(table) == 0 for _ in range(10))

    def test_azure_restarted_between_two_calls(
        self, azure_store: Store, own_azurite: Azurite
    ) -> None:
        table = azure_store.models("exp")
        record = table.insert("model", {"x": 1})
        azure_store.blobs.put("model/file", b"x")
        own_azurite.stop()
        own_azurite.start()
        assert _failures_until_it_works(table) <= 1
        assert table.get("model") == record
        assert azure_store.blobs.read("model/file") == b"x"
        table.update(record, {"x": 2})

    def test_azure_away_for_a_while(self, azure_store: Store, own_azurite: Azurite) -> None:
        table = azure_store.models("exp")
        record = table.insert("model", {"x": 1})
        own_azurite.stop()
        _fails(StoreUnavailable, lambda: table.update(record, {"x": 2}), own_azurite.key)
        own_azurite.start()
        assert table.get("model") == record

    def test_s3_away_for_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with S3() as server:
            for name, value in server.environ.items():
                monkeypatch.setenv(name, value)
            blobs = url_blobs(f"s3://{server.make_bucket()}")
            blobs.put("a", b"x")
            server.stop()
            _fails(StoreUnavailable, lambda: blobs.read("a"))
            server.start()
            assert blobs.read("a") == b"x"

    def test_no_acknowledged_increment_is_lost_in_a_power_cut(
        self, sql_store: Store, own_postgres: Postgres
    ) -> None:
        """A counter under load while the server is killed and restarted: it ends at no less than
        was acknowledged, and at no more than was tried."""
        table = sql_store.models("exp")
        table.insert("counter", {"n": 0})
        enough = Event()

        def increment() -> tuple[int, int]:
            acknowledged = tried = 0
            while not enough.is_set():
                try:
                    record = table.get("counter")
                    assert record is not None
                    tried += 1
                    table.update(record, {"n": int(record.values["n"]) + 1})
                    acknowledged += 1
                except RowChanged:
                    tried -= 1
                except StoreUnavailable:
                    continue
            return acknowledged, tried

        with ThreadPoolExecutor(4) as pool:
            counting = [pool.submit(increment) for _ in range(4)]
            try:
                for _ in range(2):
                    _wait_for_progress(table)
                    own_postgres.kill()
                    own_postgres.start()
                _wait_for_progress(table)
            finally:
                enough.set()
            counts = [future.result() for future in counting]
        record = table.get("counter")
        assert record is not None
        assert sum(a for a, _ in counts) <= int(record.values["n"]) <= sum(t for _, t in counts)


def _nobody_at_azure() -> tuple[Store, str, int]:
    key, port, other = base64.b64encode(b"k" * 32).decode(), free_port(), free_port()
    address = f"AccountName=me;AccountKey={key};BlobEndpoint=http://127.0.0.1:{port}/me;"
    address += f"TableEndpoint=http://127.0.0.1:{other}/me"
    return open_store(parse_location(address)), key, port


def _failures_until_it_works(table: Table) -> int:
    for failures in range(20):
        try:
            assert table.get("model") is not None
        except StoreUnavailable:
            continue
        return failures
    raise AssertionError("it never worked again")


def _wait_for_progress(table: Table) -> None:
    """Until the counter moved on by fifty, however long the server needs."""
    deadline = time.monotonic() + 60
    target = None
    while time.monotonic() < deadline:
        try:
            record = table.get("counter")
        except StoreUnavailable:
            continue
        assert record is not None
        now = int(record.values["n"])
        target = now + 50 if target is None else target
        if now >= target:
            return
    raise AssertionError("the counter stands still")
