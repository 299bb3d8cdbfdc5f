"""The machines that run jobs. `base.py` is the seam; a new compute is one file and one line there.

May import `node/`, `store/` and `settings.py`. Start reading in `base.py`, then `local.py`.
"""

from edgeloop.jobs.computes.base import (
    Compute,
    ComputeOptions,
    JobOrder,
    ObservedState,
    ServedPlace,
    compute_kinds,
    compute_options,
    make_compute,
)
from edgeloop.node.ticket import Resources

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
