"""A page of the documentation as what it shows: commands, their output, and remarks for the tests.

Remarks are HTML comments right above a block, which readers do not see:

    <!-- setup: cp "$DEMO_MODELS"/unet-large.onnx net.onnx -->  run before the block; repeatable
    <!-- setup: scene NAME -->                                a function of scenes.py; those for
                                                              Azure ML get an emulated workspace
    <!-- not run: needs a board -->                           the commands are parsed, not run
    <!-- not run: serves until Ctrl-C: edgeloop portal -->    only those that begin like this
    <!-- as in: README.md -->                                 run there, with the same output
    <!-- exit code: 1 -->                                     the last command of the block fails
    <!-- ctrl-c after: TEXT -->                               it is ended so, once it has shown that
    <!-- on: quant-1, quant-2 -->                             on machines that a scene has made, in
                                                              this order
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMPT = "$ "
_BLOCK = re.compile(
    r"(?P<remarks>(?:^<!-- [^\n]* -->\n)*)^```(?P<language>console|bash)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_REMARK = re.compile(
    r"^<!-- (setup|not run|as in|exit code|ctrl-c after|on): (.*) -->$", re.MULTILINE
)
_INLINE = re.compile(r"`(edgeloop [a-z][^`]*)`")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Shown:
    """A command as a page shows it."""

    line: int
    """Where it stands on the page, counted from 1."""
    command: str
    """Without the prompt, with the comment of its line, several lines in one."""
    output: list[str] = field(default_factory=list)
    """The lines below it."""
    not_run: str = ""
    """Why no test runs it."""
    as_in: str = ""
    """The page that runs it."""
    exit_code: int = 0
    ctrl_c_after: str = ""
    """What it has shown when it gets Ctrl-C; empty: it ends by itself."""

    @property
    def bare(self) -> str:
        return re.sub(r"\s+#\s.*$", "", self.command)


@dataclass(frozen=True)
class Block:
    """Commands that a page shows together, and what a test runs before them."""

    line: int
    setup: tuple[str, ...]
    commands: tuple[Shown, ...]
    machines: tuple[str, ...] = ()
    """Where they are run; empty: in the page's project."""


def pages() -> list[Path]:
    """All but the reference of the command line, which is made of `--help`."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in docs if page.name != "cli.md")]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    return [_block(page.read_text(), found) for found in _BLOCK.finditer(page.read_text())]


def commands_of(page: Path) -> list[Shown]:
    return [command for block in blocks_of(page) for command in block.commands]


def inline_commands(page: Path) -> Iterator[str]:
    """`edgeloop …` in the middle of a sentence."""
    for found in _INLINE.finditer(_FENCED.sub("", page.read_text())):
        yield found[1]


def _block(text: str, found: re.Match[str]) -> Block:
    remarks: dict[str, list[str]] = {}
    for kind, words in _REMARK.findall(found["remarks"]):
        remarks.setdefault(kind, []).append(words)
    first_line = text.count("\n", 0, found.start("body")) + 1
    shown = list(_shown(found["body"], first_line, found["language"] == "bash"))
    for reason in remarks.get("not run", ()):
        why, _, prefix = reason.partition(": ")
        chosen = [each for each in shown if each.command.startswith(prefix)]
        assert chosen, f"no command begins with {prefix!r}"
        for command in chosen:
            command.not_run = why
    for command in shown:
        command.as_in = remarks.get("as in", [""])[0]
    if shown:
        shown[-1].exit_code = int(remarks.get("exit code", ["0"])[0])
        shown[-1].ctrl_c_after = remarks.get("ctrl-c after", [""])[0]
    machines = tuple(name for names in remarks.get("on", ()) for name in names.split(", "))
    return Block(first_line, tuple(remarks.get("setup", ())), tuple(shown), machines)


def _shown(body: str, first_line: int, is_script: bool) -> Iterator[Shown]:
    """Commands with what is below each; in a block of Bash every line is a command."""
    command: Shown | None = None
    for number, line in enumerate(body.splitlines(), first_line):
        if command is not None and command.command.endswith("\\"):
            command.command = f"{command.command[:-1].rstrip()} {line.strip()}"
        elif is_script or line.startswith(PROMPT):
            if command is not None:
                yield command
            command = Shown(number, line.removeprefix(PROMPT))
        elif command is not None:
            command.output.append(line)
    if command is not None:
        yield command
