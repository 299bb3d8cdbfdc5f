"""A model's files, here, as a stage would see them."""

from __future__ import annotations

from pathlib import Path

from edgeloop.stages import Assignment
from edgeloop.workspace import Workspace


def fetched(workspace: Workspace, model: str, folder: Path, match: str = "*") -> Assignment:
    row = workspace.catalog.get(model).values
    paths = workspace.catalog.download(model, folder, match)
    files = {str(path.relative_to(folder)): path for path in paths}
    return Assignment(model, "", row, files, folder)
