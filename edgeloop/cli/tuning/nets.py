"""The NET of layers, advise and precision: an ONNX file, a model of the package (`demo:NAME`), or
one of the store by its name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import load_settings, model_file

if TYPE_CHECKING:
    from edgeloop.settings import Settings
    from edgeloop.store import Values

net_argument = click.argument("net", metavar="NET")


@dataclass(frozen=True)
class Net:
    """`path` is what toolchains take: float32, with fixed sizes. `uploaded` is the file as it was
    given or uploaded. A file has no `row` and no other `files`."""

    name: str
    path: Path
    uploaded: Path
    settings: Settings
    row: Values | None = None
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def is_stored(self) -> bool:
        return self.row is not None


@contextlib.contextmanager
def opened_net(
    net: str, store: str | None, experiment: str | None, shapes: tuple[str, ...] = ()
) -> Iterator[Net]:
    """Files that had to be fetched or prepared go at the end. A file that exists wins over a
    model's name."""
    from tempfile import TemporaryDirectory

    from edgeloop.graph import parse_shapes, shapes_from

    with TemporaryDirectory(prefix="edgeloop-net-") as name:
        folder = Path(name)
        path = model_file(net)
        if path.is_file() or _is_file_name(net):
            settings = load_settings(store=store, experiment=experiment)
            found = Net(path.stem, path, path, settings)
            given = parse_shapes(shapes)
        else:
            found = _fetched(net, store, experiment, folder / "files")
            given = parse_shapes(shapes) or shapes_from((found.row or {}).get("shapes"))
        yield _prepared(found, given, folder / "prepared")


def _is_file_name(net: str) -> bool:
    """A missing file is not reported as a missing model."""
    return net.endswith(".onnx") or "/" in net


def _fetched(net: str, store: str | None, experiment: str | None, folder: Path) -> Net:
    from edgeloop.cli.context import opened
    from edgeloop.runner import fetched

    with opened(store, experiment) as workspace:
        work = fetched(workspace, net, folder)
        return Net(net, work.uploaded, work.uploaded, workspace.settings, work.row, work.files)


def _prepared(net: Net, shapes: Mapping[str, tuple[int, ...]], folder: Path) -> Net:
    from dataclasses import replace

    from edgeloop.graph import GraphProcess, needs_preparing
    from edgeloop.inspection import check_file

    check_file(net.path)
    if not needs_preparing(net.path, dict(shapes)):
        return net
    with contextlib.closing(GraphProcess()) as graphs:
        return replace(net, path=graphs.prepare(net.path, dict(shapes), folder))
