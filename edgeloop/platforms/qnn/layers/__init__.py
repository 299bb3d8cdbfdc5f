"""Cost per layer without a board: the compiler's estimate of growing parts of a graph."""

from edgeloop.platforms.qnn.layers.costs import OUTPUT
from edgeloop.platforms.qnn.layers.model import Workshop, model_costs
from edgeloop.platforms.qnn.layers.prefixes import PrefixFiles, cuttable, name_layers

__all__ = ["OUTPUT", "PrefixFiles", "Workshop", "cuttable", "model_costs", "name_layers"]
