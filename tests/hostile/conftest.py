"""A project of its own for every input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import clean_environ
from tests.hostile import harness
from tests.hostile.harness import Ended

Attempt = Callable[..., Ended]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def attempt(project: Path, tmp_path: Path) -> Attempt:
    """A command in the project, with state and cache of its own."""

    def run(*arguments: object, forks_worker: bool = False) -> Ended:
        own = {"EDGELOOP_STATE": str(tmp_path / "state"), "EDGELOOP_CACHE": str(tmp_path / "cache")}
        known = {**clean_environ(), "HOME": str(tmp_path), **own}
        return harness.run(arguments, project, known, forks_worker=forks_worker)

    return run
