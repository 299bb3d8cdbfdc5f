"""Datasets out of a store that others write to: nothing is allocated or written unchecked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import manifests
from tests.hostile.conftest import Attempt

pytestmark = pytest.mark.slow  # a process for every input


def tree(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("name", manifests.PULLS)
def test_a_hostile_manifest_is_refused_when_it_is_pulled(
    attempt: Attempt, project: Path, tmp_path: Path, name: str
) -> None:
    manifests.PULLS[name](project / ".edgeloop" / "blobs")
    before = tree(tmp_path)
    refusal = attempt("data", "pull", "working/faces").refusal
    assert "working/faces" in refusal
    new = {file for file in tree(tmp_path) - before if not file.endswith((".db", "-wal", "-shm"))}
    assert not new


@pytest.mark.parametrize("name", manifests.LISTS)
def test_a_hostile_manifest_is_refused_when_it_is_listed(
    attempt: Attempt, project: Path, name: str
) -> None:
    manifests.LISTS[name](project / ".edgeloop" / "blobs")
    assert "working/faces" in attempt("data", "list", "working/faces").refusal
