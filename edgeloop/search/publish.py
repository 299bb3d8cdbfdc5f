"""Trained nets become models of the status table, so that runners measure them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from edgeloop.architectures import Architecture
from edgeloop.errors import ModelBusy, NameTaken
from edgeloop.models import Candidates
from edgeloop.search.loop import patiently
from edgeloop.store import Value
from edgeloop.workspace import Workspace


def publish(
    workspace: Workspace,
    arch: Architecture,
    kind: str,
    net: Path,
    values: Mapping[str, float],
    columns: Mapping[str, Value],
    tag: str,
) -> str:
    """The name of the model. A net of another training has the plain one, or an upload that was
    cut off holds it: then this one is told apart by its content."""
    plain = f"{arch.id}.{kind}"
    try:
        name = _uploaded(workspace, net, plain, tag)
    except (NameTaken, ModelBusy):
        content = sha256(net.read_bytes()).hexdigest()
        name = _uploaded(workspace, net, f"{plain}.{content[:12]}", tag)
    experiment = workspace.experiment
    table = Candidates(workspace.store.models(experiment), experiment)
    patiently(lambda: table.note(name, arch.canonical, kind, values, columns))
    return name


def _uploaded(workspace: Workspace, net: Path, name: str, tag: str) -> str:
    patiently(lambda: workspace.upload(net, name, tags=[tag]))
    return name
