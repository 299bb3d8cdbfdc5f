"""Nothing of the command line is undocumented."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from edgeloop.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs/reference/cli.md"
# A fleet serves several, and a store has one schema for all.
OF_ALL_EXPERIMENTS = {"fleet status", "fleet scale", "fleet down", "store upgrade"}
# These make or read files of this machine and open no store.
WITHOUT_A_STORE = {
    *("arch train", "arch export"),
    *(f"service {verb}" for verb in ("install", "uninstall", "status")),
    *("completion install", "completion show"),
    "bench",
    "data faces",
    "gate",
    "health",
    "inspect",
    "notebook",
    "schema",
    "search list",
    "search show",
    "secrets scan",
}


def commands_of(group: click.Group, prefix: str = "") -> dict[str, click.Command]:
    """Every command by the words that call it; a group without parameters does nothing itself."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= commands_of(command, f"{prefix}{name} ")
        if command.params:
            found[f"{prefix}{name}"] = command
    return found


BY_NAME = commands_of(app)
COMMANDS = list(BY_NAME)


def section_of(command: str) -> str:
    """What docs/reference/cli.md says about one command, and nothing of the others."""
    _, heading, rest = DOCS.read_text().partition(f"## `edgeloop {command}`\n")
    assert heading, f"edgeloop {command} is not on the page: run scripts/cli_docs.py"
    return rest.partition("\n## ")[0]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_page_is_what_the_commands_say_of_themselves():
    assert DOCS.read_text() == script("cli_docs").rendered(), "run: python scripts/cli_docs.py"


def test_the_reference_pages_are_what_the_models_say():
    for name, text in script("schema_docs").pages().items():
        page = ROOT / f"docs/reference/{name}.md"
        assert page.read_text() == text, "run: python scripts/schema_docs.py"


def architecture() -> str:
    return (ROOT / "docs/architecture.md").read_text()


def top_level_rooms() -> set[str]:
    """The names in edgeloop/ that a reader meets: `cli/`, `errors.py`, but no dunder files."""
    entries = (ROOT / "edgeloop").iterdir()
    folders_and_modules = (entry for entry in entries if entry.is_dir() or entry.suffix == ".py")
    return {
        f"{entry.name}/" if entry.is_dir() else entry.name
        for entry in folders_and_modules
        if not entry.name.startswith(("_", "."))
    }


def test_the_architecture_page_names_only_files_that_exist():
    """Code spans such as `models/plan.py`, `node/` or `tests/test_rooms.py`."""
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*|\w+\.(?:py|yaml|txt|sql))`", architecture()))
    files_of_users = {"edgeloop.yaml", "data/", "outputs/"}
    missing = [
        name
        for name in sorted(named - files_of_users)
        if not (ROOT / "edgeloop" / name).exists() and not (ROOT / name).exists()
    ]
    assert {"models/plan.py", "node/"} <= named
    assert missing == []


def test_the_architecture_page_has_a_paragraph_for_every_room():
    _, heading, rest = architecture().partition("\n## The rooms\n")
    assert heading
    rooms = rest.partition("\n## ")[0]
    described = set(re.findall(r"^\*\*`([\w./]+)`\*\*", rooms, re.MULTILINE))
    assert described - {"_util/"} == top_level_rooms()


def test_the_page_does_not_depend_on_the_terminal(tmp_path: Path):
    code = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])['rendered']())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "scripts/cli_docs.py")],
        env={"COLUMNS": "40", "PATH": "/usr/bin", "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == DOCS.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_on_the_page_with_its_options_and_an_example(name: str):
    section = section_of(name)
    assert f"Example: edgeloop {name}" in section
    for parameter in BY_NAME[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts} has no help"
            for spelling in parameter.opts:
                assert spelling in section, f"{name} {spelling} is not documented"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_name_its_experiment_and_speak_json(name: str):
    spellings = {s for parameter in BY_NAME[name].params for s in parameter.opts}
    wanted = {"--json"} if name in WITHOUT_A_STORE else {"--experiment", "--store", "--json"}
    assert wanted - ({"--experiment"} if name in OF_ALL_EXPERIMENTS else set()) <= spellings


# An option of the left has the name on the right in every command.
OTHER_NAMES = {
    **dict.fromkeys(("--out", "--to", "--target"), "--output"),
    **dict.fromkeys(("--limit", "--wait-for"), "--timeout"),
    **dict.fromkeys(("--data", "--images-folder"), "--dataset"),
    **dict.fromkeys(("--inputs",), "--calibration"),
    **dict.fromkeys(("--max-benchmark-runs",), "--runs"),
    **dict.fromkeys(("--chip", "--devices"), "--device"),
    **dict.fromkeys(("--print",), "--dry-run"),
    **dict.fromkeys(("--status",), "--state"),
}
# These mean something else: a store, a toolchain, the input of a job, the chip of a new profile.
NAMES_OF_OTHER_THINGS = {
    ("store repair", "--to"),
    ("experiment set", "--target"),
    ("run", "--data"),
    ("job submit", "--data"),
    ("devices calibrate", "--chip"),
}


def test_an_option_has_one_name_in_all_commands():
    found = {
        (name, spelling)
        for name, command in BY_NAME.items()
        for parameter in command.params
        for spelling in parameter.opts
        if isinstance(parameter, click.Option) and spelling in OTHER_NAMES
    }
    assert found <= NAMES_OF_OTHER_THINGS, "use the name that other commands have"


def test_output_has_its_short_form_and_an_argument_is_a_file_or_a_name():
    for name, command in BY_NAME.items():
        for parameter in command.params:
            if "--output" in parameter.opts:
                assert "-o" in parameter.opts, name
            if isinstance(parameter, click.Argument):
                assert parameter.metavar not in ("NET", "NAMES", "MODEL"), name


def test_what_python_examples_import_exists():
    imported = re.compile(r"^from (edgeloop[\w.]*) import ([\w, ]+)$", re.MULTILINE)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            for module, names in imported.findall(block):
                for name in names.split(", "):
                    assert hasattr(importlib.import_module(module), name), f"{page}: {name}"
