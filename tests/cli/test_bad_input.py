"""Whatever cannot be used is refused in one sentence, and nothing is stored.

What is wrong with a model or a name is told apart in `tests/models`: here is one of each way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeloop.store import Store
from tests.cli.conftest import Edgeloop
from tests.cli.running import is_empty, run_command
from tests.conftest import StoreUnderTest
from tests.nets import save_tiny, save_with_location

NAMES = ["../x", "a\nb", "x" * 300]


def a_text(folder: Path) -> Path:
    return written(folder, b"Not a model.\n")


def data_above(folder: Path) -> Path:
    (folder / "w").write_bytes(bytes(64))
    return save_with_location(folder / "below/net.onnx", "../w")


def a_3_gb_file(folder: Path) -> Path:
    path = written(folder, b"")
    os.truncate(path, 3 * 2**30)
    return path


def an_empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def a_missing_path(folder: Path) -> Path:
    return folder / "missing.onnx"


def a_long_file_name(folder: Path) -> Path:
    return save_tiny(folder / ("n" * 245 + ".onnx"))


def a_file_name_with_a_newline(folder: Path) -> Path:
    return save_tiny(folder / "a\nb.onnx")


def written(folder: Path, content: bytes) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(content)
    return path


BAD_FILES = [
    a_text,
    data_above,
    a_3_gb_file,
    an_empty_folder,
    a_missing_path,
    a_long_file_name,
    a_file_name_with_a_newline,
]


@pytest.mark.parametrize("make", BAD_FILES, ids=lambda make: make.__name__)
def test_a_file_that_cannot_be_used_is_refused(
    edgeloop: Edgeloop, project: Path, tmp_path: Path, make: Callable[[Path], Path]
):
    folder = tmp_path / "bad"
    folder.mkdir()
    said = edgeloop("upload", make(folder))
    assert len(said.sentence) < 400
    assert said.out == ""
    assert not (project / ".edgeloop").exists()


@pytest.mark.server
def test_a_refused_file_leaves_no_trace_in_a_database(
    edgeloop: Edgeloop,
    tmp_path: Path,
    make_place: Callable[[str], StoreUnderTest],
    make_store: Callable[[StoreUnderTest], Store],
    monkeypatch: pytest.MonkeyPatch,
):
    place = make_place("postgresql")
    store = make_store(place)
    for name, value in place.environ.items():
        monkeypatch.setenv(name, value)
    assert edgeloop("upload", a_text(tmp_path)).sentence
    assert is_empty(store) and store.experiments() == []


def test_a_real_process_answers_the_same(project: Path):
    (project / "net.onnx").write_text("no model")
    said = run_command(["upload", "net.onnx"], project, {}, is_fresh=True)
    assert "net.onnx was not uploaded: it is not an ONNX model" in said.sentence
    assert not (project / ".edgeloop").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_name_is_refused(edgeloop: Edgeloop, project: Path, name: str):
    save_tiny(project / "net.onnx")
    assert "cannot be used" in edgeloop("upload", "net.onnx", f"--name={name}").sentence
    assert not (project / ".edgeloop").exists()


@pytest.mark.parametrize("name", [*NAMES, "ab", "usage"])
def test_a_bad_experiment_is_refused(edgeloop: Edgeloop, project: Path, name: str):
    save_tiny(project / "net.onnx")
    said = edgeloop("upload", "net.onnx", f"--experiment={name}")
    assert "experiment" in said.sentence and "cannot be used" in said.sentence
    assert not (project / ".edgeloop").exists()
    assert list(project.iterdir()) == [project / "net.onnx"]


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["download", "--list"], ["download", "x"], ["reset", "x"], ["delete", "x"],
     ["unlock", "x"], ["priority", "x", "1"], ["experiment", "list"]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("name", ["../x", ""])
def test_every_verb_refuses_a_bad_experiment(
    edgeloop: Edgeloop, project: Path, arguments: list[str], name: str
):
    assert "cannot be used" in edgeloop(*arguments, "-e", name).sentence


def test_a_name_that_no_model_can_have_is_not_found_and_touches_nothing(
    place: StoreUnderTest, edgeloop: Edgeloop, project: Path, monkeypatch: pytest.MonkeyPatch
):
    for variable, value in place.environ.items():
        monkeypatch.setenv(variable, value)
    for name in ("../x", "a/b", "..", "", "a\nb", "x" * 300, "größe", "a'b\"c"):
        for verb in (["status"], ["delete", "--yes"]):
            assert "no model" in edgeloop(*verb, "--", name).sentence, (verb, name)
    assert list(project.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"edgeloop.yaml": "experimnt: x"}, "did you mean 'experiment'"),
        ({"edgeloop.yaml": "store: ["}, "edgeloop.yaml"),
        ({"edgeloop.yaml": "store: mysql://u:SECRET@h/db"}, "it must be sqlite:FOLDER"),
    ],
    ids=["unknown-key", "no-yaml", "unknown-store"],
)
def test_a_wrong_settings_file_is_named(
    edgeloop: Edgeloop, project: Path, files: dict[str, str], said: str
):
    for name, text in files.items():
        (project / name).write_text(text)
    answer = edgeloop("status")
    assert said in answer.sentence and "SECRET" not in answer.err
