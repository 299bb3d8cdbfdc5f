"""`edgeloop --help` lists every command once, under a heading, with a text that is not cut off."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from edgeloop.cli.app import SECTIONS, app

WIDTH = 80


def every_command(
    group: click.Group = app, path: str = "edgeloop"
) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")


def test_every_command_is_in_exactly_one_section():
    listed = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(listed) == sorted(app.commands)


def test_the_sections_are_shown_in_their_order():
    text = CliRunner().invoke(app, ["--help"]).output
    places = [text.index(f"\n{title}:\n") for title in SECTIONS]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("path", "command"), list(every_command()), ids=lambda value: str(value)[:40]
)
def test_the_short_help_of_a_command_fits_its_line(path: str, command: click.Command):
    short = command.get_short_help_str(1_000)
    assert short, path
    assert len(short) <= 45, f"{path}: {short} has {len(short)} characters"
    assert not short.endswith("...")


@pytest.mark.parametrize("group", [(), ("job",), ("data",), ("devices",), ("azure",)])
def test_no_help_is_cut_off_on_a_terminal_of_80_columns(group: tuple[str, ...]):
    text = CliRunner().invoke(app, [*group, "--help"], terminal_width=WIDTH).output
    assert "..." not in text.replace("[ARGS]...", "")
    assert max(map(len, text.splitlines())) <= WIDTH
