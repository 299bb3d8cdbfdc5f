"""Azure takes names of tables that differ in case for one: another spelling is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgeloop.errors import BadName
from edgeloop.store import Store
from tests.cli.running import run_main
from tests.conftest import StoreUnderTest
from tests.nets import save_tiny

pytestmark = pytest.mark.server

MakeStore = Callable[[StoreUnderTest], Store]
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("download", "--list", "net"),
    ("download", "net"),
    ("upload", "net.onnx"),
    ("reset", "net", "--yes"),
    ("priority", "net", "1"),
    ("unlock", "net"),
    ("delete", "net", "--yes"),
    ("gc", "--yes"),
    ("queue",),
    ("pareto",),
    ("runner", "--once"),
    ("runner", "--drain"),
)


@pytest.fixture
def azure(make_place: Callable[[str], StoreUnderTest]) -> StoreUnderTest:
    return make_place("azure")


def test_another_spelling_of_an_experiment_is_refused_by_every_command(
    azure: StoreUnderTest,
    make_store: MakeStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    store = make_store(azure)
    store.models("nets").insert("net", {"name": "net", "status": "new"})
    store.blobs.put("nets/net/net.onnx", b"x")
    save_tiny(tmp_path / "net.onnx")

    monkeypatch.chdir(tmp_path)
    for name, value in azure.environ.items():
        monkeypatch.setenv(name, value)
    for arguments in COMMANDS:
        said = run_main((*arguments, "-e", "Nets"), monkeypatch, capfd).sentence
        assert "'Nets' cannot be used: this store has 'nets'" in said, arguments
    assert [row.key for row in store.models("nets").query()] == ["net"]
    assert [blob.key for blob in store.blobs.list("")] == ["nets/net/net.onnx"]


def test_two_that_create_an_experiment_in_two_spellings_at_once_get_one(
    azure: StoreUnderTest, make_store: MakeStore
) -> None:
    first, second = make_store(azure).models("nets-1"), make_store(azure).models("Nets-1")
    assert first.get("net") is None and second.get("net") is None
    first.insert("net", {"name": "net"})
    for attempt in (
        lambda: second.insert("other", {"name": "other"}),
        lambda: second.get("net"),
        lambda: list(second.query()),
    ):
        with pytest.raises(BadName, match="this store has 'nets-1'"):
            attempt()
    assert [row.key for row in first.query()] == ["net"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_other_stores_tell_them_apart(
    kind: str, make_place: Callable[[str], StoreUnderTest], make_store: MakeStore
) -> None:
    store = make_store(make_place(kind))
    for name in ("nets", "Nets"):
        store.models(name).insert(f"of-{name}", {"name": name})
        assert [row.key for row in store.models(name).query()] == [f"of-{name}"]
