"""Graphs that compute the same for somebody with other wishes: other names, ends, or batches."""

from edgeloop.graph.variants.batch import single_sample, single_sample_info
from edgeloop.graph.variants.outputs import (
    DLC_CLASSES,
    DLC_INPUT,
    DLC_OUTPUT,
    class_axis,
    dlc_names,
    with_class_output,
    with_fixed_names,
)

__all__ = [
    "DLC_CLASSES",
    "DLC_INPUT",
    "DLC_OUTPUT",
    "class_axis",
    "dlc_names",
    "single_sample",
    "single_sample_info",
    "with_class_output",
    "with_fixed_names",
]
