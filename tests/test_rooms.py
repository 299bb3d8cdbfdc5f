"""Imports go downwards only, through the doors, and one file alone reads the environment."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "edgeloop"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room, and the rooms it may use. Whoever adds a room says here where it stands.
ALLOWED = {
    "_util": {"errors"},
    "_version": set(),
    "errors": set(),
    "pareto": set(),
    "project_files": {"errors", "_util"},
    "store": {"errors", "_util"},
    "settings": {"errors", "_util", "store", "project_files", "paths"},
    "models": {"errors", "_util", "settings", "store", "graph"},
    "data": {"errors", "_util", "store"},
    "paths": set(),
    "health": {"errors", "_util"},
    "azure": {"errors", "_util", "settings", "project_files"},
    "jobs": {"errors", "_util", "settings", "paths", "store", "data", "azure"},
    "search": {
        *("errors", "_util", "settings", "store", "models", "workspace", "tasks", "pareto"),
        *("isolation", "graph", "platforms", "architectures", "training", "data", "jobs"),
    },
    "tasks": {"errors", "_util", "graph"},
    "graph": {"errors", "_util", "isolation"},
    "isolation": {"errors", "_util"},
    "platforms": {"errors", "_util", "settings", "tasks", "graph", "isolation"},
    "architectures": {"errors", "_util"},
    "training": {"errors", "_util", "architectures", "tasks"},
    "tuning": {
        *("errors", "_util", "settings", "tasks", "graph", "platforms", "isolation", "pareto"),
    },
    "runner": {
        *("errors", "_util", "settings", "store", "models", "tasks", "graph", "platforms"),
        *("workspace", "_version", "health", "tuning"),
    },
    "gate": {
        *("errors", "_util", "settings", "store", "models", "tasks", "graph", "platforms"),
        *("workspace", "_version", "tuning", "runner", "inspection", "benchmark"),
    },
    "fleet": {
        *("errors", "_util", "settings", "store", "models", "workspace", "jobs", "data"),
        *("runner", "platforms", "_version"),
    },
    "housekeeping": {
        *("errors", "_util", "settings", "store", "models", "workspace", "jobs", "platforms"),
        *("data", "runner", "fleet"),
    },
    "inspection": {"errors", "_util", "settings", "graph", "platforms"},
    "benchmark": {"errors", "_util", "settings", "graph", "platforms", "tasks", "inspection"},
    "service": {"errors", "_util", "settings"},
    "doctor": {"errors", "_util", "settings", "store", "models", "tasks", "platforms", "workspace"},
    "report": {
        *("_version", "errors", "_util", "store", "models", "workspace", "pareto", "search"),
        "graph",
    },
    "portal": {
        *("_version", "errors", "_util", "settings", "store", "models", "workspace", "runner"),
        *("jobs", "search", "report", "pareto", "fleet", "tasks"),
    },
    "testing": {
        "errors",
        "settings",
        "_util",
        "store",
        "tasks",
        "graph",
        "platforms",
        "jobs",
        "search",
        "architectures",
    },
    "demo": {"errors", "_util", "settings", "store", "testing", "workspace", "tasks"},
    "workspace": {"errors", "_util", "settings", "store", "models"},
    "": {"_version", "errors", "jobs", "models", "search", "workspace"},
    "cli": {
        *("_version", "errors", "_util", "settings", "store", "models", "workspace", "tasks"),
        *("platforms", "runner", "doctor", "data", "jobs", "paths", "architectures", "training"),
        *("search", "report", "portal", "azure", "demo", "service"),
        *("graph", "inspection", "benchmark", "fleet", "health", "housekeeping"),
        *("tuning", "gate"),
    },
    "__main__": {"cli"},
}


def room_of(parts: list[str]) -> str:
    """`edgeloop.models.leases` is in the room `models`, `edgeloop` itself in ``."""
    return parts[1] if len(parts) > 1 else ""


def module_of(file: Path) -> list[str]:
    parts = ["edgeloop", *file.relative_to(PACKAGE).with_suffix("").parts]
    return parts[:-1] if parts[-1] == "__init__" else parts


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text())))


@cache
def imports_of(file: Path) -> list[tuple[list[str], list[str]]]:
    """The modules of ours that a file imports, anywhere in it, with the names it takes."""
    found: list[tuple[list[str], list[str]]] = []
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
            found += [(module, []) for module in modules if module[0] == "edgeloop"]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import hides which room it means"
            module = (node.module or "").split(".")
            names = [alias.name for alias in node.names]
            if module[0] != "edgeloop":
                continue
            for name in names:  # `from edgeloop.cli import files` may mean a module
                is_module = (PACKAGE / Path(*module[1:], name)).with_suffix(".py").exists()
                found.append(([*module, name], []) if is_module else (module, [name]))
    return found


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@pytest.mark.slow
def test_a_file_imports_only_what_is_below_its_room():
    faults = []
    for file in FILES:
        room = room_of(module_of(file))
        others = {".".join(module): room_of(module) for module, _ in imports_of(file)}
        wrong = [name for name, other in others.items() if other not in {room, *ALLOWED[room]}]
        faults += [f"{name_of(file)} imports {name}" for name in wrong]
    assert faults == []


def test_a_file_enters_other_rooms_through_their_doors():
    faults = []
    for file in FILES:
        room = room_of(module_of(file))
        for module, names in imports_of(file):
            if room_of(module) in (room, "", "_util"):  # every file of `_util` is a door
                continue
            if room == "testing" and module[1] in ("store", "jobs"):
                continue  # a store of its own, and jobs sent without their usual client
            if len(module) != 2:
                faults.append(f"{name_of(file)} goes around the door of {'.'.join(module)}")
                continue
            door = importlib.import_module(".".join(module))
            unknown = set(names) - set(getattr(door, "__all__", dir(door)))
            if unknown:
                faults.append(f"{name_of(file)} takes {sorted(unknown)} of {door.__name__}")
    assert faults == []


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "os"
    names = ("environ", "environb", "getenv", "getenvb", "putenv")
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    )


def test_only_the_settings_read_the_environment():
    # A user's script imports `paths` alone, so that reads the two variables of a job itself; the
    # store is below the settings, and finds a machine's identity itself.
    # `_util/system.py` is below them too: a runner's processes learn how many CPUs it has reserved.
    # `azure/workspace.py` takes the names of a workspace from the variables that Azure ML sets.
    allowed = ("paths.py", "store/identity.py", "azure/workspace.py", "_util/system.py")
    found = {name_of(file) for file in FILES if any(map(reads_environment, nodes_of(file)))}
    readers = {name for name in found if Path(name).name not in ("settings.py", "environment.py")}
    assert readers <= set(allowed)


def test_the_rules_above_bite():
    """The settings do read the environment, and the command line does use the workspace."""
    assert "os.environ" in (PACKAGE / "settings.py").read_text()
    used = {room_of(module) for module, _ in imports_of(PACKAGE / "cli/context.py")}
    assert {"store", "workspace"} <= used
