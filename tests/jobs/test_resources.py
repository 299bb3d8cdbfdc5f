"""Which jobs fit on a machine beside those that run there, and which GPUs they get."""

from __future__ import annotations

import pytest

from edgeloop.jobs.computes import Resources
from edgeloop.jobs.computes.queue import Allocation, Capacity, allocate

MACHINE = Capacity(4.0, ("3", "5"), 8_000, {"board": 1.0})


def holding(*names: str, **resources) -> Allocation:
    return Allocation(Resources(**resources), names)


@pytest.mark.parametrize(
    ("requested", "running", "gpus"),
    [
        (Resources(4), [], ()),
        (Resources(1), [holding(cpus=3)], ()),
        (Resources(2), [holding(cpus=3)], None),
        (Resources(2), [holding(cpus=1.5), holding(cpus=1.5)], None),
        (Resources(1, memory_bytes=5_000), [holding(memory_bytes=4_000)], None),
        (Resources(1, custom={"board": 1}), [holding(custom={"board": 1})], None),
        (Resources(0.1), [holding(cpus=1.3), holding(cpus=2.6)], ()),
        (Resources(gpus=2), [], ("3", "5")),
        (Resources(gpus=1), [holding("3", gpus=1)], ("5",)),
        (Resources(gpus=1), [holding("3", gpus=0.5)], ("5",)),
        (Resources(gpus=1), [holding("3", gpus=0.5), holding("5", gpus=0.5)], None),
        (Resources(gpus=0.5), [holding("5", gpus=0.5)], ("5",)),
        (Resources(gpus=0.6), [holding("3", gpus=0.5), holding("5", gpus=0.3)], ("5",)),
    ],
)
def test_a_job_starts_only_where_the_others_leave_it_enough(requested, running, gpus):
    assert allocate(requested, MACHINE, running) == gpus
