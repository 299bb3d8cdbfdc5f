"""Imports go downwards only, and one file alone reads the environment."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "edgeloop"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room, and the rooms it may use. A new room is added here, where it stands.
BASE = {"errors", "_util", "_version", "paths"}
ALLOWED = {
    "errors": set(),
    "_version": set(),
    "paths": set(),
    "pareto": set(),
    "_util": {"errors"},
    # Of the store, `node` takes the seam alone, `store.base`; see below.
    "node": BASE | {"store"},
    "store": BASE | {"node"},
    "settings": BASE | {"store"},
    "graph": BASE,
    "models": BASE | {"settings", "store", "graph"},
    "workspace": BASE | {"settings", "store", "models"},
    "tasks": BASE | {"graph"},
    "platforms": BASE | {"settings", "tasks", "graph"},
    "jobs": BASE | {"node", "settings", "store"},
    "tuning": BASE | {"settings", "tasks", "graph", "platforms", "pareto"},
    "runner": BASE
    | {"node", "settings", "store", "models", "workspace", "tasks", "graph", "platforms"}
    | {"tuning"},
    "search": BASE
    | {"node", "settings", "store", "models", "workspace", "tasks", "graph", "platforms", "jobs"}
    | {"pareto"},
    "operate": BASE
    | {"node", "settings", "store", "models", "workspace", "jobs", "tasks", "platforms", "runner"},
    "testing": BASE
    | {"node", "settings", "store", "tasks", "graph", "platforms", "jobs", "search"},
    "view": BASE
    | {"settings", "store", "models", "workspace", "graph", "tasks", "runner", "jobs", "search"}
    | {"operate", "pareto", "testing"},
    "": {"_version", "errors", "jobs", "models", "search", "workspace"},
    "cli": BASE
    | {"node", "settings", "store", "models", "workspace", "graph", "tasks", "platforms"}
    | {"runner", "tuning", "jobs", "search", "view", "operate", "testing"},
    "__main__": {"cli"},
}
# Packages whose `__init__` is more than a docstring: the public API and the seams.
DOORS = {
    "",
    "cli",
    "testing",
    "testing.contracts",
    "store",
    "platforms",
    "platforms.qnn",
    "platforms.snpe",
    "tasks",
    "jobs.computes",
    "search.evaluators",
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


def test_a_private_module_is_imported_only_inside_its_package():
    faults = []
    for file in FILES:
        here = module_of(file)
        for module, _ in imports_of(file):
            private = [n for n, name in enumerate(module) if name.startswith("_") and n > 1]
            if any(here[:n] != module[:n] for n in private):
                faults.append(f"{name_of(file)} imports the private {'.'.join(module)}")
    assert faults == []


def test_only_the_public_api_and_the_seams_have_code_in_their_init():
    faults = []
    for file in FILES:
        is_door = ".".join(module_of(file)[1:]) in DOORS
        if file.name == "__init__.py" and not is_door:
            statements = ast.parse(file.read_text()).body
            if len(statements) != 1 or not ast.get_docstring(ast.parse(file.read_text())):
                faults.append(name_of(file))
    assert faults == []


def test_a_job_takes_only_the_seam_of_the_store():
    """Otherwise the two rooms would need each other while they are imported."""
    taken = {
        ".".join(module)
        for file in (PACKAGE / "node").glob("*.py")
        for module, _ in imports_of(file)
        if module[:2] == ["edgeloop", "store"]
    }
    assert taken == {"edgeloop.store.base"}


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
    # node is below the settings, and finds a machine's identity itself.
    # `_util/system.py` is below them too: a runner's processes learn how many CPUs it has reserved.
    # The workspace of Azure ML takes its names from the variables that Azure ML sets.
    allowed = ("paths.py", "_util/system.py", "jobs/computes/azureml/workspace.py")
    # A fleet prepares a node of Ray before there is anything that could read settings.
    allowed += ("node/identity.py", "node/clouds.py", "jobs/computes/queue.py")
    allowed += ("operate/fleet/ray/node.py",)
    found = {name_of(file) for file in FILES if any(map(reads_environment, nodes_of(file)))}
    readers = {name for name in found if Path(name).name not in ("settings.py", "environment.py")}
    assert readers <= set(allowed)


def test_the_rules_above_bite():
    """The settings do read the environment, and the command line does use the workspace."""
    assert "os.environ" in (PACKAGE / "settings.py").read_text()
    used = {room_of(module) for module, _ in imports_of(PACKAGE / "cli/app.py")}
    assert {"store", "workspace"} <= used
