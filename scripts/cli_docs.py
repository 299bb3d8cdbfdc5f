"""Writes docs/reference/cli.md from the help of the commands, so that the two never drift apart.

    python scripts/cli_docs.py

tests/test_docs.py fails when somebody changed a command and forgot this.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from edgeloop.cli.app import app

TARGET = Path(__file__).parents[1] / "docs/reference/cli.md"
WIDTH = 100

INTRODUCTION = """\
# The command line

Made by `scripts/cli_docs.py` from `edgeloop COMMAND --help`: change it there.

Every command ends with exit code 0 when it did what was asked, 1 when it failed (one sentence on
stderr says why and what to do), and 2 when it was used wrongly. Every command takes `--json`,
and those that work with models `--experiment` and `--store`; names of models may be globs, in
quotes.
"""


def rendered() -> str:
    group = click.Context(
        app,
        info_name="edgeloop",
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    return "\n".join([INTRODUCTION, *_sections(app, group)])


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    """Its own, then those of the commands below it, however deep."""
    yield _section(context.command_path, command.get_help(context))
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is None:
            continue
        inside = click.Context(
            below, info_name=name, parent=context, terminal_width=WIDTH, max_content_width=WIDTH
        )
        yield from _sections(below, inside)


def _section(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## `{title}`\n\n```text\n{lines}\n```\n"


def main() -> None:
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(rendered(), encoding="utf-8")
    sys.stdout.write(f"{TARGET} written\n")


if __name__ == "__main__":
    main()
