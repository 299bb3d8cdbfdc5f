"""The machines that run jobs. `base` is the seam; a new compute is one file and one line here.

A compute of somebody else plugs in by the entry point `edgeloop.computes`: a function that takes
its name, its settings and the folder where it may keep things, and gives back a `Compute`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path

from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.base import Compute, Order, Resources, Seen

__all__ = ["Compute", "Order", "Resources", "Seen", "compute_kinds", "make_compute"]

ENTRY_POINTS = "edgeloop.computes"
Maker = Callable[[str, Mapping[str, object], Path | None], Compute]


def make_compute(
    name: str, config: Mapping[str, object] | None = None, state_folder: Path | None = None
) -> Compute:
    """The compute of that name. Its settings say its `kind`, else the name does. Nothing is
    contacted or started before it is used.

    `local` takes cpus, gpus (how many, or which), memory and custom (what it has; else it looks).
    `ray` takes address, headers, verify, python and elastic; see `ray.py`.
    `azureml` takes cluster, size, nodes and more; see `azureml_options.py`.
    """
    settings = dict(config or {})
    kind = settings.get("kind", name)
    makers = _built_in()
    if isinstance(kind, str) and kind in makers:
        return makers[kind](name, settings, state_folder)
    for point in entry_points(group=ENTRY_POINTS, name=str(kind)):
        maker: Maker = point.load()
        return maker(name, settings, state_folder)
    known = compute_kinds()
    near = get_close_matches(str(kind), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
    raise BadSetting(where=f"computes.{name}", reason=f"unknown kind {kind!r}: {hint}")


def compute_kinds() -> tuple[str, ...]:
    """What `kind` may be, those of plug-ins too."""
    others = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return (*_built_in(), *sorted(others - set(_built_in())))


def _built_in() -> dict[str, Maker]:
    return {"local": _local, "ray": _ray, "azureml": _azureml}


def _local(name: str, config: Mapping[str, object], state_folder: Path | None) -> Compute:
    from edgeloop.jobs.computes.local.compute import LocalCompute
    from edgeloop.jobs.computes.options import Options

    return LocalCompute(name, Options(name, config), state_folder)


def _azureml(name: str, config: Mapping[str, object], _: Path | None) -> Compute:
    from edgeloop.jobs.computes.azureml.compute import AzureMLCompute
    from edgeloop.jobs.computes.azureml.options import read_options
    from edgeloop.jobs.computes.options import Options

    return AzureMLCompute(name, read_options(name, Options(name, config)))


def _ray(name: str, config: Mapping[str, object], _: Path | None) -> Compute:
    from edgeloop.jobs.computes.options import Options
    from edgeloop.jobs.computes.ray.compute import RayCompute

    return RayCompute(name, Options(name, config))
