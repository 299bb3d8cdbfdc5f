"""A machine of a walk: a folder, an environment that has only what some extras of Edgeloop need,
and commands that are processes there."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeloop.jobs.bundle import edgeloop_requirements
from tests import guard
from tests.kept import REPOSITORY
from tests.peers.environments import ENVIRONMENTS, Definition

LIMIT_S = 300


@dataclass
class Machine:
    folder: Path
    python: Path
    environ: dict[str, str]
    limit_s: float = LIMIT_S
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self.python, "-m", "edgeloop", *map(str, words)],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def __call__(self, *words: object) -> str:
        """What it printed; it must succeed."""
        process = self.start(*words)
        out, err = process.communicate(timeout=self.limit_s)
        assert process.returncode == 0, (words, out, err)
        return out


@contextmanager
def machine(
    folder: Path, home: Path, extras: tuple[str, ...], environ: Mapping[str, str], **more: Any
) -> Iterator[Machine]:
    """`home` is made, and has state and cache; what is still running in the end is killed."""
    python = ENVIRONMENTS.bin_of(Definition(edgeloop_requirements(*extras))) / "python"
    installed = home / "installed"
    installed.mkdir(parents=True)
    (installed / "edgeloop").symlink_to(REPOSITORY / "edgeloop")
    # Of the installed package: the repository itself may hold what a build left.
    for each in Path(sysconfig.get_path("purelib")).glob("edgeloop-*.dist-info"):
        (installed / each.name).symlink_to(each)
    path = [str(installed), *filter(None, [environ.get("PYTHONPATH", "")])]
    own = {
        **guard.mark(),
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "PYTHONPATH": ":".join(path),
        "EDGELOOP_STATE": str(home / "state"),
        "EDGELOOP_CACHE": str(home / "cache"),
    }
    made = Machine(folder, python, {**environ, **own}, **more)
    try:
        yield made
    finally:
        for process in made.started:
            if process.poll() is None:
                process.kill()
                process.communicate()
