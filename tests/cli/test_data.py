"""`edgeloop data faces`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Edgeloop
from tests.cli.terminals import Terminal

FACES = ("data", "faces", "f", "--count")


def test_faces_are_drawn_and_said_so_in_one_line(edgeloop: Edgeloop, project: Path):
    done = edgeloop(*FACES, 3, "--size", 24)
    assert (done.code, done.err) == (0, "")
    assert done.out == "3 faces of 24 × 24, seed 7 → f\n"
    assert len(list((project / "f").glob("*_seg.png"))) == 3


def test_json_is_for_programs(edgeloop: Edgeloop):
    expected = {"folder": "f", "count": 2, "size": 24, "seed": 5, "version": 1, "difficulty": 0.0}
    for _ in range(2):
        assert edgeloop(*FACES, 2, "--size", 24, "--seed", 5, "--json").json == [expected]


def test_another_set_in_the_folder_is_refused_in_a_sentence(edgeloop: Edgeloop):
    assert edgeloop(*FACES, 2, "--size", 24).code == 0
    done = edgeloop(*FACES, 2, "--size", 24, "--seed", 8)
    assert "f holds other faces (2 of 24 px, seed 7, version 1" in done.sentence


def test_a_difficulty_is_a_word_or_a_number(edgeloop: Edgeloop):
    call = (*FACES, 2, "--size", 24, "--difficulty")
    assert edgeloop(*call, "hard").out == "2 faces of 24 × 24, seed 7, difficulty 1 → f\n"
    assert "seed 7, version 1, difficulty 1;" in edgeloop(*call, 0.3).sentence
    for wrong in ("harder", "1.5", "nan"):
        said = edgeloop(*call, wrong).sentence
        assert "a difficulty is easy, normal, hard or a number from 0 to 1" in said


def test_impossible_numbers_are_refused_in_a_sentence(edgeloop: Edgeloop, project: Path):
    assert "not 0" in edgeloop(*FACES, 0).sentence
    assert edgeloop(*FACES, "many").code == 2
    assert not (project / "f").exists()


def test_a_terminal_gets_a_bar(project: Path):
    shown = Terminal.output(["data", "faces", "f", "--count", "40", "--size", "24"], project, 80)
    assert "drawing 40 faces" in shown
    assert "40 faces of 24 × 24, seed 7 → f\n" in shown
