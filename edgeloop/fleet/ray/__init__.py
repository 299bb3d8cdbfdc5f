"""Fleets on Ray: detached actors that keep runners alive, one for each runner and one for the
supervisor.

What runs on nodes before they are ready for Edgeloop needs only Ray and the standard library, so
nothing is imported here before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.fleet.ray.submit import start_supervisor

__all__ = ["start_supervisor"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgeloop.fleet.ray import submit

    return getattr(submit, name)
