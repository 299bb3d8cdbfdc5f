"""`edgeloop data push|pull|verify|list|remove` as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Edgeloop
from tests.cli.terminals import Terminal
from tests.conftest import StoreUnderTest
from tests.data.trees import noise, tree, write
from tests.test_start import modules_after


@pytest.fixture
def faces(project: Path) -> Path:
    folder = project / "data/working/faces"
    write(folder, {"a.png": noise(1_000), "sub/b c.png": noise(2_000, 2)})
    return folder


@pytest.mark.slow
def test_the_walk_of_a_dataset(
    command: Edgeloop, project: Path, faces: Path, place: StoreUnderTest
):
    def say(*arguments: object) -> str:
        done = command("data", *arguments, environ=place.environ)
        assert (done.code, done.err) == (0, ""), done.err
        return done.out

    dry = say("push", "faces", "--dry-run")
    assert dry == "working/faces: would send 2 files, 3.0 kB, of 2 files, 3.0 kB\n"
    pushed = say("push", "working/faces", "-m", "the first")
    assert pushed.startswith("working/faces@1: 2 files, 3.0 kB; sent 2 files, 3.0 kB in ")
    assert say("push", "data/working/faces") == (
        "working/faces@1: nothing to do (2 files, 3.0 kB)\n"
    )
    write(faces, {"a.png": b"changed"})
    assert "working/faces@2: 2 files, 2.0 kB; sent 1 file, 7 B in " in say("push", "faces")
    newest = say("list").splitlines()
    assert newest[0].split()[:3] == ["dataset", "files", "size"]
    assert [line.split()[0] for line in newest[1:]] == ["working/faces@2"]
    both = say("list", "faces").splitlines()
    assert "the first" in both[1] and both[2].startswith("working/faces@2")
    assert "→ old: 2 files, 3.0 kB; fetched 2 files, 3.0 kB in" in say(
        "pull", "faces@1", "--output", "old"
    )
    assert (project / "old/a.png").read_bytes() == noise(1_000)
    assert "faces@2 → data/working/faces: nothing to do" in say("pull", "faces")
    assert say("verify", "faces") == "working/faces@2: all right here (2 files, 2.0 kB)\n"
    assert say("verify", "faces@1", "--in-store").startswith(
        "working/faces@1: all right in the store"
    )
    assert say("remove", "faces@1", "--yes") == "working/faces@1 removed\n1 version removed.\n"
    assert say("remove", "faces", "--yes") == "working/faces@2 removed\n1 version removed.\n"
    assert tree(faces)["a.png"] == b"changed"


def test_json_is_for_programs(edgeloop: Edgeloop, faces: Path):
    row = {"name": "working/faces", "version": 1, "files": 2, "bytes": 3000}
    moved = {"moved_files": 2, "moved_bytes": 3000}
    dry = edgeloop("data", "push", "faces", "--dry-run", "--json").json
    assert dry == [row | moved | {"dry_run": True, "new": True}]
    pushed = edgeloop("data", "push", "faces", "--json").json
    assert pushed == [row | moved | {"dry_run": False, "new": True}]
    again = edgeloop("data", "push", "faces", "--json").json
    assert again == [row | {"moved_files": 0, "moved_bytes": 0, "dry_run": False, "new": False}]
    pulled = edgeloop("data", "pull", "faces", "--output", "x", "--json").json
    assert pulled == [row | moved | {"dry_run": False, "deleted_files": 0, "folder": "x"}]
    [listed] = edgeloop("data", "list", "--json").json
    assert {key: listed[key] for key in row} == row and listed["created"].endswith("+00:00")
    [right] = edgeloop("data", "verify", "faces", "--json").json
    assert right["right"] is True
    [removed] = edgeloop("data", "remove", "faces", "--yes", "--json").json
    assert {key: removed[key] for key in row} == row
    assert edgeloop("data", "list", "--json").json == []


def test_several_datasets_go_in_one_command(edgeloop: Edgeloop, project: Path, faces: Path):
    write(project / "data/raw/other", {"x": b"1"})
    done = edgeloop("data", "push", "faces", "other")
    assert [line.partition(":")[0] for line in done.out.splitlines()] == [
        "working/faces@1",
        "raw/other@1",
    ]
    shown = edgeloop("data", "pull", "faces", "other")
    assert shown.code == 0 and shown.out.count("nothing to do") == 2
    assert edgeloop("data", "pull", "faces", "other", "--output", "x").code == 2


def test_a_misspelt_second_name_moves_nothing_of_the_first(
    edgeloop: Edgeloop, project: Path, faces: Path
):
    assert "did you mean 'working/faces'" in edgeloop("data", "push", "faces", "facess").sentence
    assert edgeloop("data", "list").code == 0 and not (project / ".edgeloop/blobs").exists()


def test_differences_are_listed_with_exit_code_1(edgeloop: Edgeloop, faces: Path):
    edgeloop("data", "push", "faces")
    write(faces, {"a.png": b"x", "new\x1b[31m": b""})
    (faces / "sub/b c.png").unlink()
    done = edgeloop("data", "verify", "faces")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines() == [
        "missing  sub/b c.png",
        "changed  a.png",
        "extra    new�[31m",
        "working/faces@1: 1 missing, 1 changed, 1 extra (2 files, 3.0 kB)",
    ]
    done = edgeloop("data", "verify", "faces", "--json")
    [row] = json.loads(done.out)
    assert done.code == 1 and row["right"] is False and row["changed"] == ["a.png"]


def test_a_change_made_here_is_kept_until_it_is_forced(edgeloop: Edgeloop, faces: Path):
    edgeloop("data", "push", "faces")
    write(faces, {"a.png": b"mine", "extra": b""})
    assert "a.png: it was changed here" in edgeloop("data", "pull", "faces").sentence
    assert edgeloop("data", "pull", "faces", "--force", "--dry-run").code == 0
    assert (faces / "a.png").read_bytes() == b"mine"
    done = edgeloop("data", "pull", "faces", "--force", "--delete")
    assert "fetched 1 file, 1.0 kB, deleted 1 file in" in done.out
    assert sorted(tree(faces)) == ["a.png", "sub/b c.png"]


@pytest.mark.slow
def test_removing_asks_first(command: Edgeloop, faces: Path):
    command("data", "push", "faces")
    done = command("data", "remove", "faces", stdin="n\n")
    assert done.code == 1 and "working/faces@1  2 files, 3.0 kB" in done.err
    assert len(command("data", "list", "--json").json) == 1
    assert command("data", "remove", "faces", stdin="y\n").code == 0
    assert command("data", "list", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["push", "nowhere"], "data/working/nowhere or "),
        (["push", "faces@2"], "a push assigns the version itself"),
        (["push", "../x"], "there is no folder"),
        (["pull", "nowhere"], "the store has none of that name"),
        (["pull", "faces@7"], "the store has no version 7 of it, only 1"),
        (["pull", "faces@x"], "after @ comes a version"),
        (["verify", "working/nowhere"], "the store has none of that name"),
        (["list", "nowhere"], "the store has none of that name"),
        (["remove", "faces@7", "--yes"], "the store has no version 7"),
        (["remove", "nowhere", "--yes"], "the store has none of that name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_said_in_a_sentence(
    edgeloop: Edgeloop, faces: Path, arguments: list[str], expected: str
):
    edgeloop("data", "push", "faces")
    assert expected in edgeloop("data", *arguments).sentence


def test_pushing_again_loads_nothing_it_does_not_need(project: Path, faces: Path):
    for _ in range(2):
        loaded, _ = modules_after(project, "data", "push", "faces")
        assert "edgeloop" in loaded
        assert not loaded & {"obstore", "sqlalchemy", "numpy", "rich", "yaml", "azure", "onnx"}


def test_a_terminal_gets_a_bar_with_a_rate(project: Path, faces: Path):
    write(faces, {f"{number}": noise(100_000, number) for number in range(50)})
    shown = Terminal.output(["data", "push", "faces"], project, 80)
    assert "pushing working/faces" in shown and "MB" in shown and "52 of 52 files" in shown
    assert "working/faces@1: 52 files, 5.0 MB; sent 52 files" in shown
