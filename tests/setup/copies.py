"""The tree as an archive of a release has it: no history, no environment, nothing installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_tree(target: Path) -> Path:
    """The files that git would commit, wherever `target` is."""
    for name in _listed(target.with_suffix(".git")):
        if (ROOT / name).is_file():  # and not just deleted
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def _listed(scratch: Path) -> list[str]:
    """Of a tree that has no history itself, a new repository says what it would commit."""
    git = ["git", "-c", "safe.directory=*"]  # whoever owns the tree
    if not (ROOT / ".git").exists():
        subprocess.run(["git", "init", "--quiet", "--bare", scratch], check=True)
        git += [f"--git-dir={scratch}", f"--work-tree={ROOT}"]
    command = [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]
