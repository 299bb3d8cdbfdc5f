"""The main walk of a model through every verb, on every kind of store, as processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeloop.store import Store
from tests.cli.running import Finished, blobs_of, hints_of, notes_of, rows_of, run_command
from tests.conftest import StoreUnderTest
from tests.nets import save_external, save_tiny

pytestmark = pytest.mark.slow


def test_two_models_go_in_through_every_verb_and_out_again(
    place: StoreUnderTest, store: Store, project: Path
):
    def command(*arguments: object) -> Finished:
        is_fresh = place.kind == "sqlite"  # with Python's own start, once
        return run_command(arguments, project, place.environ, is_fresh=is_fresh)

    def edgeloop(*arguments: object) -> Finished:
        return command(*arguments, "-e", "walk-2")

    plain = save_tiny(project / "nets/plain.onnx", 1)
    external = save_external(project / "nets/external.onnx", 2)

    # upload
    uploaded = edgeloop("upload", project / "nets", "--tag", "first", "--json").json
    assert [item["model_name"] for item in uploaded] == ["external.onnx", "plain.onnx"]
    assert all(item["new"] and item["experiment"] == "walk-2" for item in uploaded)
    big, small = (item["name"] for item in uploaded)

    # status
    rows = {row["name"]: row for row in edgeloop("status", "--json").json}
    assert set(rows) == {big, small}
    assert rows[small]["status"] == "new" and rows[small]["tags"] == ["first"]
    assert rows[small]["size"] == plain.stat().st_size
    assert "stages" not in rows[small]

    # experiments
    assert command("experiment", "list", "--json").json == [{"name": "walk-2", "models": 2}]

    # list
    listed = edgeloop("download", "--list", "--json").json
    assert sorted((item["name"], item["file"], item["size"]) for item in listed) == sorted(
        [
            (big, "external.onnx", external.stat().st_size),
            (big, "weights.bin", (project / "nets/weights.bin").stat().st_size),
            (small, "plain.onnx", plain.stat().st_size),
        ]
    )

    # download
    assert edgeloop("download", "*", "--output", "back").code == 0
    fetched = {
        p.relative_to(project / "back"): p.read_bytes() for p in files_below(project / "back")
    }
    assert fetched == {
        Path(big, "external.onnx"): external.read_bytes(),
        Path(big, "weights.bin"): (project / "nets/weights.bin").read_bytes(),
        Path(small, "plain.onnx"): plain.read_bytes(),
    }

    # priority
    assert edgeloop("priority", small, 0).code == 0
    assert rows_of(store, "walk-2")[small]["priority"] == 0
    assert any(f"|{0:012.3f}+" in hint and small in hint for hint in hints_of(store, "walk-2"))

    # reset
    assert edgeloop("reset", "*", "--yes").code == 0
    assert set(rows_of(store, "walk-2")) == {big, small}
    assert len(blobs_of(store)) == 3

    # delete
    assert edgeloop("delete", big, small, "--yes", "--purge", "--json").json == [
        {"name": big, "deleted": True, "can_restore": False},
        {"name": small, "deleted": True, "can_restore": False},
    ]
    assert rows_of(store, "walk-2") == {}
    assert blobs_of(store) == {}
    assert all(note.startswith("content|") for note in notes_of(store, "walk-2"))
    assert json.loads(edgeloop("status", "--json").out) == []


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
