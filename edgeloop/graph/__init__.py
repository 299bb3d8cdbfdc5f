"""Work on ONNX graphs that belongs to no vendor: check, simplify, count, outputs."""

from edgeloop.graph.advice import (
    EXACT_REWRITES,
    ExactRewrite,
    OutputComparison,
    RewriteStep,
    find_rewrite,
)
from edgeloop.graph.bits import (
    TunableTensor,
    channel_axis,
    tunable_from,
    tunable_tensors,
    weight_layers,
)
from edgeloop.graph.caveats import estimate_caveats
from edgeloop.graph.check import layout_of, read_graph, shapes_of
from edgeloop.graph.count import (
    CountedLayer,
    LayerTiming,
    add_times,
    costliest,
    count_layers,
    graph_info,
    with_times,
    write_layers,
)
from edgeloop.graph.describe import (
    DeclaredTensor,
    GraphSummary,
    TaskFit,
    fitting_task,
)
from edgeloop.graph.info import (
    GraphInfo,
    GraphMemory,
    Layout,
    Shape,
    TensorInfo,
    image_info,
    info_from,
    shape_text,
)
from edgeloop.graph.masks import soften_masks
from edgeloop.graph.memory import DeployedMemory, deployed_memory
from edgeloop.graph.operators import refusal
from edgeloop.graph.process import GraphPool, GraphProcess, graph_pool
from edgeloop.graph.reading import (
    check_limits,
    external_files,
    needs_preparing,
    parse_shapes,
    prepare_model,
    save_model,
    shapes_from,
    shapes_text,
)
from edgeloop.graph.reading.indices import index_limits
from edgeloop.graph.rewrites import (
    AppliedRewrite,
    applied_rewrites,
    apply_rewrites,
    rewrite_notes,
)
from edgeloop.graph.variants import (
    DLC_CLASSES,
    DLC_INPUT,
    DLC_OUTPUT,
    class_axis,
    dlc_names,
    single_sample,
    single_sample_info,
    with_class_output,
    with_fixed_names,
)
from edgeloop.graph.viewer import write_viewer

__all__ = [
    "DLC_CLASSES",
    "DLC_INPUT",
    "DLC_OUTPUT",
    "EXACT_REWRITES",
    "AppliedRewrite",
    "CountedLayer",
    "DeclaredTensor",
    "DeployedMemory",
    "ExactRewrite",
    "GraphInfo",
    "GraphMemory",
    "GraphPool",
    "GraphProcess",
    "GraphSummary",
    "LayerTiming",
    "Layout",
    "OutputComparison",
    "RewriteStep",
    "Shape",
    "TaskFit",
    "TensorInfo",
    "TunableTensor",
    "add_times",
    "applied_rewrites",
    "apply_rewrites",
    "channel_axis",
    "check_limits",
    "class_axis",
    "costliest",
    "count_layers",
    "deployed_memory",
    "dlc_names",
    "estimate_caveats",
    "external_files",
    "find_rewrite",
    "fitting_task",
    "graph_info",
    "graph_pool",
    "image_info",
    "index_limits",
    "info_from",
    "layout_of",
    "needs_preparing",
    "parse_shapes",
    "prepare_model",
    "read_graph",
    "refusal",
    "rewrite_notes",
    "save_model",
    "shape_text",
    "shapes_from",
    "shapes_of",
    "shapes_text",
    "single_sample",
    "single_sample_info",
    "soften_masks",
    "tunable_from",
    "tunable_tensors",
    "weight_layers",
    "with_class_output",
    "with_fixed_names",
    "with_times",
    "write_layers",
    "write_viewer",
]
