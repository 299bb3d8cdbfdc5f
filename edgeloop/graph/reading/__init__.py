"""From a model's file to a graph in which every size is known."""

from edgeloop.graph.reading.external_data import external_files
from edgeloop.graph.reading.fold import fold_constants
from edgeloop.graph.reading.given import parse_shapes, shapes_from, shapes_text
from edgeloop.graph.reading.inference import infer_types
from edgeloop.graph.reading.limits import check_limits
from edgeloop.graph.reading.load import load_model, save_model
from edgeloop.graph.reading.prepare import needs_preparing, one_float, prepare_model
from edgeloop.graph.reading.shapes import fix_shapes, is_fixed, real_inputs, shape_of
from edgeloop.graph.reading.standard import STANDARD_DOMAINS, convert_opset, inline_functions

__all__ = [
    "STANDARD_DOMAINS",
    "check_limits",
    "convert_opset",
    "external_files",
    "fix_shapes",
    "fold_constants",
    "infer_types",
    "inline_functions",
    "is_fixed",
    "load_model",
    "needs_preparing",
    "one_float",
    "parse_shapes",
    "prepare_model",
    "real_inputs",
    "save_model",
    "shape_of",
    "shapes_from",
    "shapes_text",
]
