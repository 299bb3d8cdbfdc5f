"""`edgeloop.paths` for scripts, on nodes where Edgeloop is not installed.

A folder beside the job's own holds that one module, and is last on PYTHONPATH. Site packages come
after it, so its package first looks for an installed Edgeloop, and if there is one steps aside.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "PYTHONPATH"
_PACKAGE = '''\
"""Only `edgeloop.paths`, unless Edgeloop is installed: then this is the installed package."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _installed():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    others = [place for place in sys.path if os.path.abspath(place or ".") != here]
    for finder in sys.meta_path:
        if finder is PathFinder:
            found = PathFinder.find_spec("edgeloop", others)
        else:
            found = getattr(finder, "find_spec", lambda *_: None)("edgeloop", None)
        if found is not None and found.origin and found.loader is not None:
            return found
    return None


def __getattr__(name):
    raise AttributeError(
        "edgeloop is not installed in this job's environment, which has edgeloop.paths alone: "
        "write 'edgeloop: core' into the job's file to use edgeloop.%s" % name
    )


_spec = _installed()
if _spec is not None:
    _module = sys.modules["edgeloop"] = module_from_spec(_spec)
    _spec.loader.exec_module(_module)
'''


def write_library(folder: Path) -> None:
    """The package with its one module. Raises OSError."""
    paths = pkgutil.get_data("edgeloop", "paths.py")
    package = folder / "edgeloop"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(_PACKAGE, encoding="utf-8")
    (package / "paths.py").write_bytes(paths or b"")


def with_library(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables of a command, with the package where a script finds it last."""
    places = [place for place in variables.get(VARIABLE, "").split(os.pathsep) if place]
    return {**variables, VARIABLE: os.pathsep.join([*places, str(folder)])}
