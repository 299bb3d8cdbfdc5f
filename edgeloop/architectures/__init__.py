"""Architectures: what a net is before it has weights. The door of the room: what others may use.

space = find_space("hourglass")
arch = space.sample(seed=1, shape=(1, 3, 128, 128), classes=19)
net = build(Architecture.from_json(arch.canonical))
export_onnx(net, arch, Path("net.onnx"))
"""

from edgeloop.architectures.archai import from_arch_config, load_architecture
from edgeloop.architectures.architecture import Architecture, Shape, Value
from edgeloop.architectures.export import architecture_in, check_exporter, export_onnx
from edgeloop.architectures.spaces import BUILT_IN, Space, build, check_torch, find_space
from edgeloop.architectures.trial import FixedTrial, RecordingTrial, Trial

__all__ = [
    "BUILT_IN",
    "Architecture",
    "FixedTrial",
    "RecordingTrial",
    "Shape",
    "Space",
    "Trial",
    "Value",
    "architecture_in",
    "build",
    "check_exporter",
    "check_torch",
    "export_onnx",
    "find_space",
    "from_arch_config",
    "load_architecture",
]
