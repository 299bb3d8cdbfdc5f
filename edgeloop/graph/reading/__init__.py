"""From a model's file to a graph in which every size is known."""

from edgeloop.graph.reading.shapes import fix_shapes, is_fixed, real_inputs, shape_of

__all__ = ["fix_shapes", "is_fixed", "real_inputs", "shape_of"]
