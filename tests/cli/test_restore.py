"""delete asks, restore brings back, gc empties the trash."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop.errors import ModelBusy, RowChanged
from edgeloop.models.plan import records_of
from edgeloop.models.trash import DELETED, KEPT_S
from edgeloop.operate.gc import GcOptions, ModelLeftovers, find_leftovers
from edgeloop.store import Record, Table
from tests.cli.conftest import Edgeloop
from tests.cli.running import blobs_of, hints_of, rows_of
from tests.cli.terminals import Terminal
from tests.nets import save_tiny


@pytest.fixture
def model(project: Path, edgeloop: Edgeloop) -> Path:
    """calm-heron: uploaded, converted and measured by a runner on this machine."""
    net = save_tiny(project / "net.onnx")
    edgeloop("upload", net, "--name", "calm-heron", "--tag", "mine")
    edgeloop("runner", "--drain", "--device", "host", "--benchmark-only")
    return net


def everything() -> tuple[dict[str, object], dict[str, bytes], list[str]]:
    with Workspace.open() as workspace:
        store = workspace.store
        row = rows_of(store)["calm-heron"]
        return row, blobs_of(store, "default/calm-heron/"), hints_of(store)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_one_model_is_asked_for(model: Path, project: Path, answer: str):
    terminal = Terminal(["delete", "calm-heron"], project)
    terminal.read_until("Delete calm-heron and its results?")
    terminal.type(f"{answer}\n".encode())
    assert terminal.wait() == (0 if answer == "y" else 1)
    with Workspace.open() as workspace:
        assert ("calm-heron" in rows_of(workspace.store)) == (answer == "n")


def test_a_restored_model_is_what_it_was(model: Path, edgeloop: Edgeloop):
    before = everything()
    assert before[0]["mean"] and len(before[1]) > 1
    said = edgeloop("delete", "calm-heron", "--yes")
    assert said.out == "calm-heron: deleted\n"
    assert "edgeloop restore calm-heron -e default" in said.err
    assert edgeloop("status", "--json").json == []
    assert edgeloop("download", "--list", "--json").json == []
    [listed] = edgeloop("restore", "--list", "--json").json
    assert listed["name"] == "calm-heron" and listed["files"] == len(before[1])
    assert "calm-heron" in edgeloop("restore", "--list").out
    assert "1 deleted model" not in edgeloop("store", "check").out
    assert edgeloop("restore", "calm-heron").out == "calm-heron: restored\n"
    assert everything() == before
    assert edgeloop("upload", model, "--json").json[0]["new"] is False
    assert edgeloop("restore", "--list").out.startswith("No deleted model can be restored")


def test_what_cannot_be_restored_is_said(model: Path, edgeloop: Edgeloop):
    assert edgeloop("restore").code == 2
    assert "no deleted model 'calm-heron'" in edgeloop("restore", "calm-heron").sentence
    edgeloop("delete", "calm-heron", "--yes")
    assert "did you mean 'calm-heron'?" in edgeloop("restore", "calm-hern").sentence
    assert "cannot be used" in edgeloop("restore", "../calm-heron").sentence
    with Workspace.open() as workspace:
        note = f"default/calm-heron/{DELETED}"
        kept = workspace.store.blobs.read(note)
        for damage in (b"{", b"[]", b'{"name": "other"}', b'{"name": [1]}', b"\xff"):
            workspace.store.blobs.put(note, damage)
            assert "damaged" in edgeloop("restore", "calm-heron").sentence
        workspace.store.blobs.put(note, kept)
        workspace.store.models("default").insert("calm-heron", {"status": "new"})
    assert "has a model of that name" in edgeloop("restore", "calm-heron").sentence


def test_an_upload_under_the_name_takes_its_place(model: Path, edgeloop: Edgeloop, project: Path):
    edgeloop("delete", "calm-heron", "--yes")
    other = save_tiny(project / "other.onnx", 5)
    assert edgeloop("upload", other, "--name", "calm-heron").code == 0
    assert edgeloop("restore", "--list", "--json").json == []
    with Workspace.open() as workspace:
        assert list(blobs_of(workspace.store)) == ["default/calm-heron/other.onnx"]


def test_gc_and_idle_runners_empty_the_trash_by_its_age(model: Path, edgeloop: Edgeloop):
    edgeloop("delete", "calm-heron", "--yes")
    assert "deleted models" not in edgeloop("gc", "--dry-run").out
    with Workspace.open() as workspace:
        now = workspace.store.now()

        def idle(later_s: float) -> list[str]:
            leftovers = ModelLeftovers(
                workspace.store, "default", workspace.settings, 0.0, now + later_s, True
            )
            leftovers.reclaim(0.0)
            return [deleted.name for deleted in workspace.catalog.trash.models()]

        assert idle(KEPT_S - 60) == ["calm-heron"]
        later = find_leftovers(workspace, GcOptions(), now + KEPT_S + 60)
        [found] = [each for each in later.findings if each.kind == "deleted models"]
        assert list(found.items) == ["default/calm-heron"]
        assert idle(KEPT_S + 60) == []
        assert blobs_of(workspace.store, "default/") == {}


def test_gc_empties_it_earlier_if_asked(model: Path, edgeloop: Edgeloop):
    edgeloop("delete", "calm-heron", "--yes")
    assert "deleted models" in edgeloop("gc", "--older-than", "0s", "--yes").out
    assert "no deleted model" in edgeloop("restore", "calm-heron").sentence
    with Workspace.open() as workspace:
        assert blobs_of(workspace.store, "default/") == {}


def test_a_claim_from_before_the_deletion_does_not_come_back(project: Path, edgeloop: Edgeloop):
    with Workspace.open() as workspace:
        workspace.upload(save_tiny(project / "net.onnx"), "calm-heron")
        table = workspace.store.models("default")
        row = table.get("calm-heron")
        assert row is not None
        held = '{"convert": {"token": "t1", "owner": "bench:1", "expires": 9e12, "since": 1.0}}'
        table.update(row, {"stages": held, "status": "running convert", "node": "bench:1"})
    edgeloop("delete", "calm-heron", "--yes")
    edgeloop("restore", "calm-heron")
    with Workspace.open() as workspace:
        row = workspace.store.models("default").get("calm-heron")
        assert row is not None
        assert not any(record.is_held for record in records_of(row.values).values())
        assert not row.values.get("node")
        assert any("calm-heron" in hint for hint in hints_of(workspace.store))


def test_a_deletion_that_is_cut_off_is_finished_by_the_next(
    model: Path, edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch
):
    before = everything()
    with Workspace.open() as workspace:
        table = workspace.catalog._models

        def cut_off(record: Record) -> None:
            raise RowChanged(key=record.key)

        with monkeypatch.context() as patched:
            patched.setattr(table, "delete", cut_off)
            with pytest.raises(ModelBusy, match="deleting it, too"):
                workspace.catalog.discard("calm-heron")
        assert isinstance(table, Table)
    assert edgeloop("delete", "calm-heron", "--yes").out == "calm-heron: deleted\n"
    edgeloop("restore", "calm-heron")
    assert everything() == before
