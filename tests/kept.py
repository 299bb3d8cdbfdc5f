"""What takes long to make and is the same in every run: converted networks, evaluated projects.

It is kept in `.tools/kept` between runs, under a digest of everything it is made with: the whole
package, the helpers of the tests, and the versions of the libraries. A changed product never meets
what another one made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
KEPT = REPOSITORY / ".tools" / "kept"
_SOURCES = ("edgeloop", "tests/peers/board", "tests/runner", "tests/platforms")
_LIBRARIES = ("numpy", "onnx", "onnxruntime", "onnxruntime-qnn", "torch", "pillow")
_VERSIONS_KEPT = 4


def kept(what: str, folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`, a new one, as `make` fills it: copied from an earlier run if nothing changed."""
    place = KEPT / f"{what}-{_digest()}"
    if place.is_dir():
        shutil.copytree(place, folder, dirs_exist_ok=True)
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    make(folder)
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.copytree(folder, fresh)
    try:
        fresh.rename(place)
    except OSError:  # another worker was first
        shutil.rmtree(fresh)
    _forget_all_but_the_newest(what)
    return folder


def _forget_all_but_the_newest(what: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another worker forgets them, too
        versions = sorted(KEPT.glob(f"{what}-*"), key=lambda path: path.stat().st_mtime)
        for path in versions[:-_VERSIONS_KEPT]:
            shutil.rmtree(path, ignore_errors=True)


@cache
def _digest() -> str:
    files = [path for folder in _SOURCES for path in (REPOSITORY / folder).rglob("*")]
    files += REPOSITORY.glob("tests/[!t]*.py")  # helpers, and no tests
    state = hashlib.sha256()
    for library in _LIBRARIES:
        state.update(f"{library} {version(library)}\n".encode())
    state.update(f"{sys.version} {platform.machine()}\n".encode())
    for path in sorted(files):
        if path.is_file() and path.suffix != ".pyc":
            state.update(f"{path.relative_to(REPOSITORY)} {path.stat().st_size}\n".encode())
            state.update(path.read_bytes())
    return state.hexdigest()[:24]
