"""Tab completion: installed by one command, as often as one likes, and asked as a shell asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Edgeloop

ASKED = """
. "$HOME/.bashrc"
complete -p edgeloop >/dev/null || exit 3
COMP_WORDS=($1)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_edgeloop_completion edgeloop
echo "${COMPREPLY[@]}"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "a home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SHELL", "/usr/bin/bash")
    for name in ("XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return home


def test_bash_completes_commands_and_options_after_one_command(home: Path, edgeloop: Edgeloop):
    dotfile = home / "dotfiles"
    dotfile.write_text("export MINE=1")
    (home / ".bashrc").symlink_to(dotfile)
    first = edgeloop("completion", "install")
    assert first.code == 0 and "completion.bash written" in first.out, first.err
    before = dotfile.read_text()
    assert before.startswith("export MINE=1\n[ -r ") and (home / ".bashrc").is_symlink()
    again = edgeloop("completion", "install", "--json").json
    assert not again[0]["is_written"] and not again[0]["is_added"]
    assert dotfile.read_text() == before
    program = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for words, wanted in {"edgeloop stat": ["status"], "edgeloop status --so": ["--sort"]}.items():
        done = subprocess.run(
            ["bash", "--norc", "-c", ASKED, "bash", words],
            env={**os.environ, "PATH": program},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.split() == wanted, done.stderr


@pytest.mark.parametrize(
    ("shell", "script", "start"),
    [
        ("zsh", ".config/edgeloop/completion.zsh", ".zshrc"),
        ("fish", ".config/fish/completions/edgeloop.fish", ""),
    ],
)
def test_the_files_of_other_shells_are_where_these_look(
    home: Path, edgeloop: Edgeloop, shell: str, script: str, start: str
):
    [made] = edgeloop("completion", "install", "--shell", shell, "--json").json
    assert made["script"] == str(home / script)
    assert (home / script).read_text() == edgeloop("completion", "show", shell).out
    assert made["start"] == (str(home / start) if start else "")
    assert not start or "completion.zsh" in (home / start).read_text()


def test_an_unknown_shell_is_said(home: Path, edgeloop: Edgeloop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "$SHELL is 'tcsh'" in edgeloop("completion", "install").sentence
    assert list(home.iterdir()) == []
