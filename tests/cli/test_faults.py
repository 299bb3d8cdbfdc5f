"""Stores that are away, say no, or are addressed wrongly; and secrets, which never show."""

from __future__ import annotations

import base64
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeloop.store import open_store, parse_location
from edgeloop.store import postgres as postgres_store
from tests.cli.conftest import Edgeloop
from tests.cli.running import Finished, command_line, environment, is_empty, rows_of
from tests.nets import save_external, save_tiny
from tests.peers.ports import free_port

if TYPE_CHECKING:
    from tests.peers.azurite import Azurite
    from tests.peers.postgres import Postgres

KEY = base64.b64encode(b"the key that nobody may ever see").decode()
PASSWORD = "pw-that-nobody-may-see"
SECRETS = (KEY, PASSWORD, KEY.rstrip("="), "nobody-may", "bm9ib2R5")
VERBS = [["status"], ["upload", "net.onnx"], ["delete", "x"], ["experiment", "list"]]


@pytest.fixture(autouse=True)
def net(project: Path) -> Path:
    return save_tiny(project / "net.onnx")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        yield server.getsockname()[1]


def azure_at(blob_port: int, table_port: int, key: str = KEY, account: str = "acme") -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};"
        f"BlobEndpoint=http://127.0.0.1:{blob_port}/{account};"
        f"TableEndpoint=http://127.0.0.1:{table_port}/{account}"
    )


def postgres_at(port: int, folder: Path) -> str:
    return f"postgresql://somebody:{PASSWORD}@127.0.0.1:{port}/db?blobs=file://{folder}/blobs"


def no_secret_in(said: Finished) -> bool:
    return not any(secret in said.out + said.err for secret in SECRETS)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("kind", ["postgresql", "azure"])
def test_a_server_that_is_not_there_is_said_soon(
    edgeloop: Edgeloop,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    verb: list[str],
):
    if kind == "azure":
        address = azure_at(free_port(), free_port())
        monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", address)
    else:
        monkeypatch.setenv("EDGELOOP_STORE", postgres_at(free_port(), project))
    begun = time.monotonic()
    said = edgeloop(*verb)
    assert time.monotonic() - begun < 30
    assert "cannot be reached" in said.sentence and "127.0.0.1" in said.sentence
    assert no_secret_in(said)
    assert list(project.iterdir()) == [project / "net.onnx"]


@pytest.mark.parametrize("kind", ["postgresql", "azure"])
def test_with_debug_a_traceback_shows_and_still_no_secret(
    command: Edgeloop, project: Path, kind: str
):
    environ = {
        "postgresql": {"EDGELOOP_STORE": postgres_at(free_port(), project)},
        "azure": {"MODEL_STORAGE_CONNECTION_STRING": azure_at(free_port(), free_port())},
    }[kind]
    said = command("--debug", "upload", "net.onnx", environ=environ)
    assert said.code == 1 and "Traceback" in said.err
    assert said.err.splitlines()[-1].startswith("edgeloop: the store")
    assert no_secret_in(said)


@pytest.mark.server
def test_a_postgresql_that_never_answers_is_given_up_in_time(
    edgeloop: Edgeloop, project: Path, silent_port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EDGELOOP_STORE", postgres_at(silent_port, project))
    assert postgres_store.CONNECT_TIMEOUT_S <= 10
    monkeypatch.setattr(postgres_store, "CONNECT_TIMEOUT_S", 2)  # the least that libpq knows
    begun = time.monotonic()
    said = edgeloop("status")
    assert time.monotonic() - begun < 30
    assert "cannot be reached" in said.sentence and no_secret_in(said)


def test_a_wrong_key_is_refused(
    edgeloop: Edgeloop, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
):
    account = azurite.new_account()
    wrong = azurite.connection_string_of(account, KEY)
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", wrong)
    for verb in VERBS:
        for debug in ([], ["--debug"]):
            said = edgeloop(*debug, *verb)
            assert said.code == 1 and no_secret_in(said) and azurite.key not in said.err
            assert "refused" in said.err and "Check the credentials" in said.err
    assert "refused" in edgeloop("status").sentence
    store = open_store(parse_location(azurite.connection_string_of(account)))
    assert is_empty(store)
    store.close()


def test_a_wrong_password_is_refused(
    edgeloop: Edgeloop, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, project: Path
):
    role = postgres.make_role("the right one")
    address = postgres.url_of("postgres", role, PASSWORD) + f"?blobs=file://{project}/blobs"
    monkeypatch.setenv("EDGELOOP_STORE", address)
    for verb in VERBS:
        said = edgeloop(*verb)
        assert "refused" in said.sentence and "authentication failed" in said.sentence
        assert no_secret_in(said)
        assert no_secret_in(edgeloop("--debug", *verb))
    assert list(project.iterdir()) == [project / "net.onnx"]


def test_a_role_that_may_not_write_is_refused(
    edgeloop: Edgeloop, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, project: Path
):
    role, database = postgres.make_role(PASSWORD), postgres.make_database()
    address = postgres.url_of(database, role, PASSWORD) + f"?blobs=file://{project}/blobs"
    monkeypatch.setenv("EDGELOOP_STORE", address)
    said = edgeloop("upload", "net.onnx")
    assert "refused" in said.sentence and "permission denied" in said.sentence
    assert no_secret_in(said)
    assert list(project.iterdir()) == [project / "net.onnx"]
    postgres.drop_database(database)


def test_a_database_that_is_not_there_is_named(
    edgeloop: Edgeloop, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, project: Path
):
    address = postgres.url_of("no_such_db") + f"?blobs=file://{project}/blobs"
    monkeypatch.setenv("EDGELOOP_STORE", address)
    assert "no_such_db" in edgeloop("status").sentence


@pytest.mark.parametrize(
    "text",
    [
        f"AccountName=acme;AccountKey={KEY[:-3]}",
        f"AccountKey={KEY}",
        "AccountName=acme;AccountKey=",
        f"AccountName=acme;{KEY}",
        f"acme {KEY}",
        f'"AccountName=acme;AccountKey={KEY}"',
        "DefaultEndpointsProtocol=https",
        f"AccountName=acme;AccountKey={KEY};TableEndpoint=127.0.0.1:1",
        f"AccountName=ac me/..;AccountKey={KEY}",
    ],
)
def test_a_wrong_connection_string_is_said_without_it(
    edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch, text: str
):
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", text)
    for verb in (["status"], ["upload", "net.onnx"]):
        said = edgeloop(*verb)
        assert "connection string cannot be read" in said.sentence
        assert no_secret_in(said) and no_secret_in(edgeloop("--debug", *verb))


def test_a_connection_string_that_a_shell_cut_gets_a_hint(
    edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch
):
    cut = f"AccountName=acme;AccountKey={KEY}".partition(";")[0]
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", cut)
    assert "put it in quotes: a shell cuts it at the first ';'" in edgeloop("status").sentence


def test_a_misspelt_command_gets_the_nearest_one(command: Edgeloop):
    said = command("stauts")
    assert said.code == 2
    assert "no such command 'stauts'; did you mean 'status'?" in said.err


@pytest.mark.parametrize(
    "text",
    [
        f"mysql://u:{PASSWORD}@h/db",
        f"postgresql://u:{PASSWORD}@h/db",
        f"postgresql://u:{PASSWORD}@h",
        f"postgresql://u:{PASSWORD}@h:port/db?blobs=file:///x",
        f"postgresql://u:{PASSWORD}@[h/db?blobs=file:///x",
        f"postgresql://u:{PASSWORD}@h/db?blobs=ftp://x",
        f"postgresql://u:{PASSWORD}@127.0.0.1:1/db?blobs=file:///x&nonsense=1",
        f"postgresql://u:{PASSWORD}@127.0.0.1:1/db?blobs=s3://",
        "sqlite:",
        "azure:",
        "nonsense",
    ],
)
def test_a_wrong_store_is_said_without_its_secret(
    edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch, project: Path, text: str
):
    for given in (["--store", text], []):
        if not given:
            monkeypatch.setenv("EDGELOOP_STORE", text)
        said = edgeloop("upload", "net.onnx", *given)
        assert said.sentence and no_secret_in(said)
        assert no_secret_in(edgeloop("--debug", "upload", "net.onnx", *given))
    assert list(project.iterdir()) == [project / "net.onnx"]


def test_a_store_whose_files_cannot_be_written_keeps_no_row(
    edgeloop: Edgeloop, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, project: Path
):
    database = postgres.make_database()
    for blobs in ("/proc/blobs", str(project / "net.onnx")):
        address = f"{postgres.url_of(database)}?blobs=file://{blobs}"
        monkeypatch.setenv("EDGELOOP_STORE", address)
        assert edgeloop("upload", "net.onnx").sentence
        store = open_store(parse_location(address))
        assert rows_of(store) == {}
        store.close()
    postgres.drop_database(database)


def test_an_account_whose_blobs_are_away_keeps_no_row(
    edgeloop: Edgeloop, azurite: Azurite, monkeypatch: pytest.MonkeyPatch, project: Path
):
    account = azurite.new_account()
    half = azure_at(free_port(), azurite.table_port, azurite.key, account)
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", half)
    begun = time.monotonic()
    said = edgeloop("upload", save_external(project / "b.onnx", 3))
    assert time.monotonic() - begun < 40
    assert "cannot be reached" in said.sentence and azurite.key not in said.err
    store = open_store(parse_location(azurite.connection_string_of(account)))
    assert is_empty(store)
    store.close()


def test_a_closed_stdin_is_no_yes(project: Path):
    """As in a cron job: `edgeloop delete '*' <&-`"""
    from edgeloop import Workspace

    with Workspace.open() as workspace:
        for number in (1, 2):
            workspace.upload(save_tiny(project / f"{number}.onnx", number))
        line = " ".join(command_line(["delete", "'*'"]))
        done = subprocess.run(
            ["bash", "-c", f"{line} <&-"],
            cwd=project,
            env=environment({}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2 and "add --yes" in done.stderr
        assert "Traceback" not in done.stderr and "unexpected" not in done.stderr
        assert len(rows_of(workspace.store)) == 2


def test_a_database_that_is_no_database_is_said(edgeloop: Edgeloop, project: Path):
    (project / ".edgeloop").mkdir()
    (project / ".edgeloop/store.db").write_text("Dear diary, " * 100)
    for verb in VERBS:
        assert str(project / ".edgeloop") in edgeloop(*verb).sentence
    assert (project / ".edgeloop/store.db").read_text() == "Dear diary, " * 100


def test_a_file_in_the_place_of_the_store_is_said(edgeloop: Edgeloop, project: Path):
    assert edgeloop("upload", "net.onnx", "--store", "sqlite:net.onnx").sentence
    assert list(project.iterdir()) == [project / "net.onnx"]
