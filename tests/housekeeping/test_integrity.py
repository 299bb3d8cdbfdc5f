"""`store check` finds what is wrong with a store, and `store repair` mends it or saves the rest."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeloop import Workspace
from edgeloop.errors import BadInput, RowTooLarge
from edgeloop.store import Record, Store
from edgeloop.store.sql import SqlTable, _by_pages
from tests.cli.conftest import Edgeloop, edgeloop, project
from tests.cli.running import hints_of, rows_of
from tests.conftest import StoreUnderTest
from tests.nets import save_external, save_tiny

__all__ = ["edgeloop", "project"]


@pytest.fixture
def local(project: Path) -> Path:
    """The store of a project with two models."""
    with Workspace.open() as workspace:
        for number, name in enumerate(("calm-heron", "brave-fox")):
            path = save_tiny(project / f"{name}.onnx", number)
            workspace.upload(path, name, check=False)
    return project / ".edgeloop"


def _found(edgeloop: Edgeloop, *arguments: str) -> dict[str, str]:
    """What is wrong, by its kind and what it is about."""
    done = edgeloop("store", "check", "--json", *arguments)
    problems = json.loads(done.out)
    assert done.code == bool(problems), done
    return {f"{p['kind']} {p['what']}": p["why"] for p in problems}


def test_a_store_of_every_kind_is_sound_and_what_is_missing_is_found_and_mended(
    place: StoreUnderTest,
    store: Store,
    project: Path,
    edgeloop: Edgeloop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in place.environ.items():
        monkeypatch.setenv(name, value)
    with Workspace.open() as workspace:
        workspace.upload(save_tiny(project / "net.onnx"), "calm-heron", check=False)
    assert _found(edgeloop, "--content") == {}
    said = edgeloop("store", "check")
    assert said.code == 0 and "Checked 1 model and 1 file" in said.out
    assert "Nothing is wrong." in said.out
    beside = store.queue("default")
    for record in list(beside.query()):
        beside.delete(record)
    beside.insert("quantize|1|x|gone|convert", {"model": "gone", "stage": "convert", "until": 0.0})
    found = _found(edgeloop)
    assert sorted(key.split(" ")[0] for key in found) == ["hint", "hint", "hint", "note"]
    assert found["hint quantize|1|x|gone|convert"] == "its model is gone"
    assert edgeloop("store", "repair").code == 0
    assert _found(edgeloop) == {}
    [blob] = store.blobs.list("default/")
    content = store.blobs.read(blob.key)
    store.blobs.put(blob.key, bytes(byte ^ 1 for byte in content))
    assert _found(edgeloop) == {}
    assert "SHA-256" in _found(edgeloop, "--content")[f"file {blob.key}"]
    store.blobs.put(blob.key, b"cut off")
    assert "7 bytes" in _found(edgeloop)["file default/calm-heron"]
    store.blobs.delete([blob.key])
    assert "the row names it" in _found(edgeloop)[f"file {blob.key}"]
    said = edgeloop("store", "repair")
    assert said.code == 1 and "1 problem left" in said.err


def test_rows_links_and_a_missing_folder_are_found(local: Path, edgeloop: Edgeloop) -> None:
    with sqlite3.connect(local / "store.db") as database:
        database.execute("UPDATE edgeloop_rows SET data = '{' WHERE key = 'brave-fox'")
        database.execute("INSERT INTO edgeloop_rows VALUES ('odd/x', 'k', 'v', '{}')")
    database.close()
    (local / "blobs" / "default" / "calm-heron" / "link").symlink_to("/nowhere")
    found = _found(edgeloop)
    assert found["row models/default: 'brave-fox'"] == "it is not JSON"
    assert "unknown table 'odd/x'" in found[f"database {local}"]
    assert "not followed" in found["link default/calm-heron/link (a symbolic link)"]
    (local / "blobs").rename(local / "elsewhere")
    assert "mounted" in _found(edgeloop)["file all files of default"]
    assert edgeloop("store", "check").out.endswith("problems; none of them can be repaired here.\n")


def test_a_row_is_set_aside_into_a_file_and_its_name_is_free_again(
    local: Path, project: Path, edgeloop: Edgeloop
) -> None:
    with sqlite3.connect(local / "store.db") as database:
        database.execute("UPDATE edgeloop_rows SET data = '{broken' WHERE key = 'brave-fox'")
    database.close()
    with Workspace.open() as workspace:
        hints = hints_of(workspace.store)
    said = edgeloop("store", "repair")
    assert said.code == 1 and "Hints and notes repaired" in said.err
    with Workspace.open() as workspace:
        assert hints_of(workspace.store) == hints, "the row can still be repaired"
    assert edgeloop("download", "brave-fox").code == 1
    assert edgeloop("store", "repair", "--set-aside").code == 0
    [file] = project.glob("unreadable-rows-*.jsonl")
    kept = json.loads(file.read_text())
    assert (kept["key"], kept["row"][2]) == ("brave-fox", "{broken")
    assert "no model 'brave-fox'" in edgeloop("download", "brave-fox").err


def _edit(local: Path, name: str, **cells: object) -> None:
    """As another tool writes into a row; None takes a cell away."""
    this = ("models/default", name)
    with sqlite3.connect(local / "store.db") as database:
        query = "SELECT data FROM edgeloop_rows WHERE space = ? AND key = ?"
        row = json.loads(database.execute(query, this).fetchone()[0]) | cells
        text = json.dumps({name: value for name, value in row.items() if value is not None})
        change = "UPDATE edgeloop_rows SET data = ? WHERE space = ? AND key = ?"
        database.execute(change, (text, *this))
    database.close()


@pytest.mark.parametrize(
    "cell",
    [{"note": "a\0b"}, {"PartitionKey": "x"}, {"note": "x" * 1_200_000}],
    ids=["NUL", "name", "size"],
)
def test_a_cell_that_breaks_the_rules_is_named_and_keeps_nobody_from_working(
    local: Path, edgeloop: Edgeloop, cell: dict[str, str]
) -> None:
    _edit(local, "brave-fox", **cell, priority=1)
    assert "not every store takes it" in _found(edgeloop)["row brave-fox"]
    claimed = []
    with Workspace.open() as workspace:
        leases = workspace.leases()
        while lease := leases.claim(["quantize"], "node-1"):
            claimed.append(lease.model)
    assert claimed == ["brave-fox", "calm-heron"]
    assert edgeloop("unlock", "--node", "node-1", "-y").code == 0
    said = edgeloop("delete", "brave-fox", "-y")
    assert said.code == 0, said
    assert "calm-heron" in edgeloop("status").out


@pytest.mark.parametrize("error", [BadInput(reason="odd"), RowTooLarge(key="x", reason="odd")])
def test_a_model_that_cannot_be_claimed_for_a_reason_in_its_row_is_left(
    local: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    _edit(local, "brave-fox", priority=1)
    update = SqlTable.update_with

    def refuse(table: SqlTable, record: Record, *more: Any) -> Record:
        if record.key == "brave-fox":
            raise error
        return update(table, record, *more)

    monkeypatch.setattr(SqlTable, "update_with", refuse)
    with Workspace.open() as workspace:
        leases = workspace.leases()
        lease = leases.claim(["quantize"], "node-1")
        assert lease is not None and lease.model == "calm-heron"
        assert leases.claim(["quantize"], "node-1") is None


def test_commands_that_leave_rows_out_show_the_others_and_end_with_1(
    local: Path, project: Path, edgeloop: Edgeloop, caplog: pytest.LogCaptureFixture
) -> None:
    with sqlite3.connect(local / "store.db") as database:
        database.execute("UPDATE edgeloop_rows SET data = '{' WHERE key = 'brave-fox'")
    database.close()
    said = edgeloop("status")
    assert said.code == 1 and "calm-heron" in said.out and "is left out" in caplog.text
    for line in (
        *("status --json", "queue", "pareto", "experiment list"),
        *("report --output report.html", "runner --once --subset none"),
    ):
        said = edgeloop(*line.split())
        assert said.code == 1 and "Traceback" not in said.err, (line, said)
    assert (project / "report.html").exists()
    assert edgeloop("delete", "calm-heron", "-y").code == 0
    said = edgeloop("status")
    assert said.code == 1 and "No model can be read in experiment 'default'" in said.out
    assert "upload" not in said.out
    assert edgeloop("store", "repair", "--set-aside").code == 0
    assert edgeloop("status").code == 0


def test_content_is_checked_in_rows_of_older_versions(
    local: Path, edgeloop: Edgeloop, project: Path
) -> None:
    save_external(project / "two.onnx")
    with Workspace.open() as workspace:
        workspace.upload(project / "two.onnx", "two", check=False)
        rows = {row.key: row for row in workspace.store.models("default").query()}
        for name, row in rows.items():
            records = json.loads(str(row.values["stages"]))
            assert records["upload"].pop("sha256")
            _edit(local, name, stages=json.dumps(records))
    assert _found(edgeloop, "--content") == {}
    _edit(local, "calm-heron", content=None)
    said = edgeloop("store", "check", "--content").out
    assert "3 files by content (1 other had nothing to compare with)" in said
    for name in ("two", "brave-fox"):
        [file, *_] = sorted((local / "blobs" / "default" / name).rglob("*.onnx"))
        file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    found = _found(edgeloop, "--content")
    assert "SHA-256" in found["file default/two"]
    assert sum("brave-fox" in what for what in found) == 1


def _flip(content: bytes, *positions: int) -> bytes:
    bad = bytearray(content)
    for position in positions:
        bad[position] ^= 0xFF
    return bytes(bad)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "sound": lambda content: content,
    "header": lambda content: _flip(content, *range(16)),
    "schema": lambda content: _flip(content, content.index(b"CREATE TABLE")),
    "table's name": lambda content: content.replace(b"edgeloop_rows", b"edgeloop_sows"),
    "first page": lambda content: bytes(4096) + content[4096:],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_can_be_read_is_saved_into_a_new_store_and_the_old_one_stays(
    local: Path, project: Path, edgeloop: Edgeloop, kind: str
) -> None:
    with Workspace.open() as workspace:
        before = rows_of(workspace.store)
        values = {"status": "new", "error": "x" * 9_000}
        many = [(f"m-{n:03d}", {"name": f"m-{n:03d}", **values}) for n in range(40)]
        workspace.store.models("other").insert_many(many)
    content = (local / "store.db").read_bytes()
    (local / "store.db").write_bytes(DAMAGE[kind](content))
    damaged = (local / "store.db").read_bytes()
    if kind != "sound":
        assert "is damaged" in edgeloop("status").sentence
        assert edgeloop("store", "check").code == 1
    done = edgeloop("store", "repair", "--to", "saved")
    assert done.code == 0 and "42 models and 2 files" in done.err, done
    assert (local / "store.db").read_bytes() == damaged
    with Workspace.open(f"sqlite:{project / 'saved'}") as workspace:
        assert rows_of(workspace.store) == before
        assert len(rows_of(workspace.store, "other")) == 40
        assert workspace.model("calm-heron").download(project / "out")
    assert _found(edgeloop, "--store", f"sqlite:{project / 'saved'}") == {}
    assert "has models already" in edgeloop("store", "repair", "--to", "saved").sentence


def test_rows_around_a_lost_page_are_saved(local: Path, project: Path, edgeloop: Edgeloop) -> None:
    with Workspace.open() as workspace:
        many = [(f"m-{n:03d}", {"name": f"m-{n:03d}", "error": "x" * 500}) for n in range(400)]
        workspace.store.models("other").insert_many(many)
    content = (local / "store.db").read_bytes()
    leaves = [n for n in range(1, len(content) // 4096) if content[n * 4096] == 0x0D]
    lost = leaves[len(leaves) // 2]
    (local / "store.db").write_bytes(
        content[: lost * 4096] + b"\x99" * 4096 + content[(lost + 1) * 4096 :]
    )
    done = edgeloop("store", "repair", "--to", "saved", "--rows-only", "--json")
    [saved] = json.loads(done.out)
    assert 390 <= saved["models"] < 402 and saved["files"] == 0


def test_pages_that_say_nonsense_end_the_search_quickly(tmp_path: Path) -> None:
    """Lengths, counts and pages that point at themselves, wherever the bytes are ours to choose."""
    page = b"\x0d" + b"\xff" * 7 + b"\x00\x40" * 1_000
    (tmp_path / "x").write_bytes((page.ljust(4096, b"\xff") + page.ljust(4096, b"\x85")) * 20)
    assert _by_pages(tmp_path / "x") == []
