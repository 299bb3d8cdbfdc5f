"""A fork that runs a command is what a process that starts Python would be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import environment, finished, run_command, start_command
from tests.cli.terminals import Terminal

PORTRAIT = """
import os, signal, sys
print(__name__, sys.argv[1:], os.getcwd(), sorted(os.environ.items()), os.umask(0o77))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.fileno(), stream.isatty(), stream.encoding, stream.errors, stream.seekable())
    print(stream.writable() and (stream.line_buffering, stream.write_through))
print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)])
print(sys.stdin.read(), file=sys.stderr)
raise SystemExit(7)
"""


def test_it_has_the_folder_environment_streams_signals_and_code_of_a_new_process(project: Path):
    environ = {"ONE": "of its own"}
    fresh = subprocess.run(
        [sys.executable, "-c", PORTRAIT, "a", "b c"],
        cwd=project,
        env=environment(environ),
        input="said",
        capture_output=True,
        text=True,
        check=False,
    )
    fork = finished(start_command(["a", "b c"], project, environ, PORTRAIT), "said")
    assert (fork.code, fork.err) == (fresh.returncode, fresh.stderr) == (7, "said\n")
    assert fork.out == fresh.stdout


@pytest.mark.parametrize("code", ["raise ValueError('x')", "import os; os.kill(os.getpid(), 9)"])
def test_an_error_and_a_signal_end_it_as_they_end_a_process(project: Path, code: str):
    ended = finished(start_command([], project, {}, code))
    assert ended.code == (1 if "raise" in code else -9)
    assert ended.err.endswith("ValueError: x\n") == ("raise" in code)


def test_the_program_says_the_same_in_both(project: Path):
    for words in (["status"], ["status", "--no-such-option"], ["delete", "x"]):
        assert run_command(words, project, {}) == run_command(words, project, {}, is_fresh=True)


def test_a_terminal_is_its_own(project: Path):
    shown = Terminal.output(["--version"], project, 80)
    assert shown.startswith("edgeloop ")
