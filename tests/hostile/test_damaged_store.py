"""Every command on a store that cannot be read says so in a sentence and ends with 1; one row that
cannot be read is named, and the others are there."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import clean_environ
from tests.hostile import harness
from tests.hostile.conftest import Attempt
from tests.nets import save_tiny

pytestmark = pytest.mark.slow  # a process for every input

COMMANDS = (
    *(
        "status",
        "status --json",
        "experiment list",
        "download --list",
        "upload new.onnx --no-check",
        "download net",
    ),
    *(
        "delete net -y",
        "reset net",
        "priority net 3",
        "unlock net",
        "devices usage",
        "queue",
        "pareto",
    ),
    *("gc --yes", "fleet status", "compare net", "runner --once", "runner --drain", "store check"),
)


def _change(file: Path, statement: str) -> None:
    with sqlite3.connect(file) as database:
        database.execute(statement)
    database.close()


def _empty(file: Path) -> None:
    file.write_bytes(b"")
    os.utime(file, (1, 1))


def _become_a_file(file: Path) -> None:
    shutil.rmtree(file.parent)
    file.parent.write_text("what is this?")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "garbage": lambda file: file.write_bytes(b"\x7fELF" * 5_000),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:5_000]),
    "empty": _empty,
    "no table": lambda file: _change(file, "ALTER TABLE edgeloop_rows RENAME TO other"),
    "no column": lambda file: _change(file, "ALTER TABLE edgeloop_rows RENAME version TO other"),
    "a file": _become_a_file,
}
SOME = ("status", "upload new.onnx --no-check", "gc --yes")
CASES = [
    *(("garbage", command) for command in COMMANDS),
    *((kind, words) for kind in list(DAMAGE)[1:] for words in SOME),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    for number, name in enumerate(("net", "new", "other")):
        save_tiny(folder / f"{name}.onnx", number)
    environ = {**clean_environ(), "HOME": str(folder)}
    for name in ("net", "other"):
        words = ["upload", f"{name}.onnx", "--name", name, "--no-check"]
        assert harness.run(words, folder, environ).code == 0
    return folder


@pytest.fixture
def damaged(sound: Path, project: Path) -> Path:
    """A copy of the sound project; its database."""
    shutil.copytree(sound, project, dirs_exist_ok=True)
    return project / ".edgeloop" / "store.db"


@pytest.mark.parametrize(("kind", "words"), CASES, ids=lambda each: each)
def test_a_store_that_cannot_be_read_ends_every_command_with_a_sentence(
    attempt: Attempt, damaged: Path, kind: str, words: str
) -> None:
    DAMAGE[kind](damaged)
    before = damaged.read_bytes() if damaged.exists() else b""
    ended = attempt(*words.split())
    if words == "store check":
        assert ended.code == 1 and "database" in ended.out
    else:
        sentence = ended.refusal
        assert "is damaged" in sentence or "not a folder" in sentence, ended
    if kind == "garbage":
        assert damaged.read_bytes() == before


@pytest.mark.parametrize(
    "words", ["status", "download --list", "queue", "pareto", "experiment list"]
)
def test_a_row_that_cannot_be_read_is_named_and_the_others_are_shown(
    attempt: Attempt, damaged: Path, words: str
) -> None:
    _change(damaged, "UPDATE edgeloop_rows SET data = '{' WHERE key = 'net'")
    ended = attempt(*words.split())
    assert ended.code == 1 and ended.settled.count("the row 'net' of models/default") == 1, ended
    if words in ("status", "download --list"):
        assert "other" in ended.out
    assert "'net' of models/default" in attempt("download", "net").refusal
