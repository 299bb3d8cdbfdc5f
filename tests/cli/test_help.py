"""`edgeloop --help` lists every command once, under a heading, with a text that is not cut off."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import edgeloop.cli
from edgeloop.cli.app import OPERATIONS, SECTIONS, app

WIDTH = 80


def every_command(
    group: click.Group = app, path: str = "edgeloop"
) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")


def test_every_command_of_the_modules_is_in_exactly_one_section():
    sections = (*SECTIONS.values(), OPERATIONS)
    modules = {module for names in sections for module in names.values()}
    defined = [
        command.name
        for module in modules
        for command in import_module(f"edgeloop.cli.{module}").COMMANDS
    ]
    listed = [name for names in sections for name in names]
    assert sorted(listed) == sorted(defined)
    folder = Path(edgeloop.cli.__file__).parent
    with_commands = {
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if re.search(r"^COMMANDS = ", file.read_text(), re.MULTILINE)
    }
    assert with_commands == modules


def test_a_command_imports_no_module_of_another():
    program = (
        "import sys; from edgeloop.cli.app import app; "
        "app(['status', '--help'], standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith('edgeloop.cli.')])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(done.stdout.splitlines()[-1])
    assert sorted(loaded) == ["edgeloop.cli.app", "edgeloop.cli.status", "edgeloop.cli.terminal"]


def test_the_sections_are_shown_in_their_order():
    text = CliRunner().invoke(app, ["--help"]).output
    places = [text.index(f"\n{title}:\n") for title in SECTIONS]
    assert places == sorted(places)


def test_the_first_screen_leaves_the_commands_for_operators_to_all():
    def listed(*arguments: str) -> set[str]:
        text = CliRunner().invoke(app, arguments).output
        return set(re.findall(r"^  ([a-z]\S*) {2,}\S", text, re.MULTILINE))

    first = {name for names in SECTIONS.values() for name in names}
    assert listed("--help") == first and len(first) <= 27
    for arguments in (["--help", "--all"], ["--all", "--help"], ["--all"]):
        assert listed(*arguments) == first | set(OPERATIONS)
    assert "edgeloop --help --all" in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["gc", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("usage", "'edgeloop devices usage'"),
        ("export", "'edgeloop arch export'"),
        ("train", "'edgeloop arch train'"),
        ("list", "'edgeloop experiment list'"),
        ("experiments", "'experiment'"),
        ("searches", "'search'"),
    ],
)
def test_a_command_that_is_below_a_group_is_pointed_at(old: str, new: str):
    said = CliRunner().invoke(app, [old])
    assert said.exit_code == 2 and "did you mean" in said.output and new in said.output


def test_a_search_runs_a_file_unless_its_first_word_is_a_command(tmp_path: Path):
    gone = str(tmp_path / "gone.yaml")
    for arguments in ([gone, "--resume"], ["--resume", gone, "search.budget=3"]):
        said = CliRunner().invoke(app, ["search", *arguments])
        assert said.exit_code == 1 and "gone.yaml" in str(said.exception)
    assert CliRunner().invoke(app, ["search"]).exit_code == 2
    assert CliRunner().invoke(app, ["search", "--no-such", gone]).exit_code == 2
    text = CliRunner().invoke(app, ["search", "train", "--help"]).output
    assert re.match(r"Usage: \w+ search train \[OPTIONS\] SEARCH\n", text)


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


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["runner", "--grace", "5x"], 2),
        (["runner", "--idle", "-1"], 2),
        (["layers", "net.onnx", "--timeout", "0s"], 2),
        (["layers", "net.onnx", "--timeout", "nan"], 2),
        (["runner", "--grace", "1m30s", "--idle", "90", "--help"], 0),
    ],
)
def test_a_time_is_written_alike_everywhere(arguments: list[str], code: int):
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == code
    assert code == 0 or "write 90s, 5m or 1h30m" in said.output
