"""`edgeloop data faces`."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import command_line, environment, run_command

pytestmark = pytest.mark.slow


def test_faces_are_drawn_and_said_so_in_one_line(tmp_path: Path):
    done = run_command(["data", "faces", "f", "--count", 3, "--size", 24], tmp_path, {})
    assert (done.code, done.err) == (0, "")
    assert done.out == "3 faces of 24 × 24, seed 7 → f\n"
    assert len(list((tmp_path / "f").glob("*_seg.png"))) == 3


def test_json_is_for_programs(tmp_path: Path):
    arguments = ["data", "faces", "f", "--count", 2, "--size", 24, "--seed", 5, "--json"]
    expected = {"folder": "f", "count": 2, "size": 24, "seed": 5, "version": 1, "difficulty": 0.0}
    assert run_command(arguments, tmp_path, {}).json == [expected]
    assert run_command(arguments, tmp_path, {}).json == [expected]


def test_another_set_in_the_folder_is_refused_in_a_sentence(tmp_path: Path):
    arguments = ["data", "faces", "f", "--count", 2, "--size", 24]
    assert run_command(arguments, tmp_path, {}).code == 0
    done = run_command([*arguments, "--seed", 8], tmp_path, {})
    assert "f holds other faces (2 of 24 px, seed 7, version 1" in done.sentence


def test_a_difficulty_is_a_word_or_a_number(tmp_path: Path):
    arguments = ["data", "faces", "f", "--count", 2, "--size", 24, "--difficulty"]
    done = run_command([*arguments, "hard"], tmp_path, {})
    assert done.out == "2 faces of 24 × 24, seed 7, difficulty 1 → f\n"
    assert (
        "seed 7, version 1, difficulty 1;" in run_command([*arguments, 0.3], tmp_path, {}).sentence
    )
    for wrong in ("harder", "1.5", "nan"):
        said = run_command([*arguments, wrong], tmp_path, {}).sentence
        assert "a difficulty is easy, normal, hard or a number from 0 to 1" in said


def test_impossible_numbers_are_refused_in_a_sentence(tmp_path: Path):
    assert "not 0" in run_command(["data", "faces", "f", "--count", 0], tmp_path, {}).sentence
    assert run_command(["data", "faces", "f", "--count", "many"], tmp_path, {}).code == 2
    assert not (tmp_path / "f").exists()


def test_a_terminal_gets_a_bar(tmp_path: Path):
    ours, theirs = pty.openpty()
    done = subprocess.run(
        command_line(["data", "faces", "f", "--count", 40, "--size", 24]),
        cwd=tmp_path,
        env={**environment({}), "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=60,
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "drawing 40 faces" in shown
    assert done.stdout == "40 faces of 24 × 24, seed 7 → f\n"
