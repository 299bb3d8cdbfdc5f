"""The machines that run jobs. `base` is the seam; a new compute is one file and one line here.

A third-party compute plugs in by the entry point `edgeloop.computes`, which names its class:
`Options` is the model of its settings, and it is made with its name, its checked options and the
folder where it may keep things, which may not exist yet. A function that takes a mapping instead of
options will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from edgeloop._util.values import suggestion
from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.base import (
    Compute,
    ComputeOptions,
    JobOrder,
    ObservedState,
    Resources,
    ServedPlace,
    read_options,
)

__all__ = [
    "Compute",
    "ComputeOptions",
    "JobOrder",
    "ObservedState",
    "Resources",
    "ServedPlace",
    "compute_kinds",
    "compute_options",
    "make_compute",
]

ENTRY_POINTS = "edgeloop.computes"
_BUILT_IN = {
    "local": ("local", "LocalCompute"),
    "ray": ("ray", "RayCompute"),
    "azureml": ("azureml.compute", "AzureMLCompute"),
}


def make_compute(
    name: str, config: Mapping[str, object] | None = None, state_folder: Path | None = None
) -> Compute:
    """The compute of that name. Its settings say its `kind`, else the name does. Nothing is
    contacted or started before it is used. It always gets a folder: `state_folder`, or by default
    its kind's own in the state folder of the user, per machine if the kind `is_per_machine`."""
    settings = dict(config or {})
    kind = str(settings.get("kind", name))
    maker = _maker(kind)
    if maker is None:
        hint = suggestion(kind, compute_kinds(), "there are")
        raise BadSetting(where=f"computes.{name}", reason=f"unknown kind {kind!r}: {hint}")
    model = getattr(maker, "Options", None)
    options = settings if model is None else read_options(model, name, settings)
    folder = state_folder or _own_folder(kind, getattr(maker, "is_per_machine", False))
    made: Compute = maker(name, options, folder.absolute())
    return made


def compute_kinds() -> tuple[str, ...]:
    """What `kind` may be, those of plug-ins too."""
    others = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return (*_BUILT_IN, *sorted(others - set(_BUILT_IN)))


def compute_options(kind: str) -> type[ComputeOptions]:
    """The model of a kind's settings; of a plug-in without one, what every compute has."""
    maker = _maker(kind)
    if maker is None:
        hint = suggestion(kind, compute_kinds(), "there are")
        raise BadSetting(where="computes", reason=f"unknown kind {kind!r}: {hint}")
    model: type[ComputeOptions] = getattr(maker, "Options", ComputeOptions)
    return model


def _own_folder(kind: str, is_per_machine: bool) -> Path:
    from socket import gethostname

    from edgeloop.settings import state_folder

    folder = state_folder() / kind
    return folder / gethostname() if is_per_machine else folder


def _maker(kind: str) -> Callable[..., Any] | None:
    if kind in _BUILT_IN:
        module, name = _BUILT_IN[kind]
        built_in: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), name)
        return built_in
    for point in entry_points(group=ENTRY_POINTS, name=kind):
        loaded: Callable[..., Any] = point.load()
        return loaded
    return None
