"""Three tiny models through upload, status and download, in a temporary folder. `make demo`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 32


def make_net(path: Path, channels: int, seed: int) -> None:
    """Two convolutions with random weights: 3 → channels → 19 classes."""
    dice = numpy.random.default_rng(seed)
    shapes = {"first": (channels, 3, 3, 3), "second": (19, channels, 3, 3)}
    weights = [
        numpy_helper.from_array(dice.standard_normal(shape).astype(numpy.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["image", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["classes"], pads=[1, 1, 1, 1]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])
    classes = helper.make_tensor_value_info("classes", TensorProto.FLOAT, [1, 19, SIDE, SIDE])
    graph = helper.make_graph(nodes, path.stem, [image], [classes], weights)
    opset = helper.make_opsetid("", 18)
    onnx.save_model(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(path))


def edgeloop(*arguments: str, folder: Path) -> None:
    print(f"$ edgeloop {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "edgeloop", *arguments], cwd=folder, check=True)


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        nets = folder / "nets"
        nets.mkdir()
        for channels in (8, 16, 32):
            make_net(nets / f"unet-w{channels}.onnx", channels, seed=channels)
        edgeloop("upload", "nets", "--tag", "demo", folder=folder)
        edgeloop("status", folder=folder)
        edgeloop("download", "*", "--to", "copies", folder=folder)
        print(
            *sorted(str(path.relative_to(folder)) for path in folder.glob("copies/*/*")), sep="\n"
        )


if __name__ == "__main__":
    main()
