"""The graph of a model: from the file that conversion left, and the times of its layers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from edgeloop.models import is_true
from edgeloop.portal.shapes import FileView
from edgeloop.portal.state import Portal
from edgeloop.report import Evidence, PictureOfNetwork, outline_in_store, picture_of
from edgeloop.store import Record
from edgeloop.workspace import Workspace

_PREFIX = "network-"


def graph_view(
    portal: Portal, workspace: Workspace, record: Record, evidence: Evidence
) -> PictureOfNetwork | None:
    """None where the model has no such file, or one that cannot be used."""

    def made() -> PictureOfNetwork | None:
        outline = outline_in_store(workspace, record.key)
        layers = evidence.layers.times_us if evidence.layers else ()
        return picture_of(outline, layers, _PREFIX) if outline else None

    content = (workspace.experiment, record.key, record.version)
    return portal.drawings.get((_PREFIX, content), made)


def graph_hint(record: Record, files: Sequence[FileView]) -> tuple[str, str]:
    """A sentence and a command for a model that was converted by an older version. Without its
    ONNX file, as in the demo, it cannot be converted again."""
    can_convert = any(file.name.endswith(".onnx") for file in files)
    if not is_true(record.values.get("quantized")) or not can_convert:
        return "", ""
    command = shlex.join(("edgeloop", "reset", record.key, "--stage", "convert"))
    return "It has no graph. Converting it again makes one:", command
