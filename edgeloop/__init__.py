"""Edgeloop: from a training script to the best model on a real edge chip.

from edgeloop import Workspace

workspace = Workspace.open()
model = workspace.upload("net.onnx")
print(model.row["status"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeloop._version import __version__

if TYPE_CHECKING:
    from edgeloop.models import Model
    from edgeloop.workspace import Workspace

__all__ = ["Model", "Workspace", "__version__"]


def __getattr__(name: str) -> object:
    """The door opens when somebody knocks: `edgeloop --help` needs none of what is behind it."""
    if name == "Workspace":
        from edgeloop.workspace import Workspace

        return Workspace
    if name == "Model":
        from edgeloop.models import Model

        return Model
    raise AttributeError(f"module 'edgeloop' has no attribute {name!r}")
