"""A net as an ONNX file that every later step takes: fixed shape, folded, nothing left over.

What exporters leave behind (constants as nodes, zero biases shared through Identity, batch norms)
is refused by the chip's compiler or quantizes badly, so it is gone before the file is written. The
file is checked, and its outputs are compared with the net's own.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import uuid
import warnings
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from edgeloop.architectures.architecture import Architecture
from edgeloop.errors import LocalFileError, MissingExtra, TrainingFailed

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto
    from torch import Tensor, nn

_EXPORTING = Lock()  # PyTorch's exporter keeps its state in the process, not in the call
OPSET = 18
INPUT, OUTPUT = "image", "logits"
ARCHITECTURE, IDENTITY = "edgeloop.architecture", "edgeloop.id"
TOLERANCE = 1e-3  # of the largest output: float32 sums in another order


def export_onnx(net: nn.Module, arch: Architecture, path: Path) -> Path:
    """Write the net, which is left as it was; the file appears whole or not at all."""
    import onnx

    check_exporter()
    still = copy.deepcopy(net).to("cpu").float().eval()
    image = _image(arch)
    wanted = _answer(still, image, arch)
    model = _exported(still, image, arch)
    tidy(model.graph)
    onnx.helper.set_model_props(model, {ARCHITECTURE: arch.canonical, IDENTITY: arch.id})
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    _compare(data, image, wanted, arch)
    _write(path, data)
    return path


def architecture_in(path: Path) -> Architecture | None:
    """The architecture that an exported file holds; None in a file of other origin."""
    import onnx

    model = onnx.load_model(str(path), load_external_data=False)
    for prop in model.metadata_props:
        if prop.key == ARCHITECTURE:
            return Architecture.from_json(prop.value, str(path))
    return None


def check_exporter() -> None:
    """Said before hours of training, not after them."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtra(what="Exporting nets", extra="qnn")


def _image(arch: Architecture) -> Tensor:
    import torch

    return torch.rand(arch.shape, generator=torch.Generator().manual_seed(0))


def _answer(net: nn.Module, image: Tensor, arch: Architecture) -> Tensor:
    import torch

    with torch.no_grad():
        try:
            answer: Tensor = net(image)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            first = str(error).partition("\n")[0]
            reason = f"the net does not take an image {list(arch.shape)}: {first}"
            raise TrainingFailed(arch=arch.id, reason=reason) from error
    fits = isinstance(answer, torch.Tensor) and tuple(answer.shape[:2]) == (1, arch.classes)
    if not fits:
        shape = list(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        reason = f"the net answers {shape}, but [1, {arch.classes}, …] is due"
        raise TrainingFailed(arch=arch.id, reason=reason)
    if not torch.isfinite(answer).all():
        raise TrainingFailed(arch=arch.id, reason="the net answers NaN or infinite values")
    return answer


def _exported(net: nn.Module, image: Tensor, arch: Architecture) -> ModelProto:
    """The older exporter: the newer one needs a package that nothing else here does."""
    import onnx
    import torch

    buffer = io.BytesIO()
    with _EXPORTING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                net,
                (image,),
                buffer,  # type: ignore[arg-type]  # it takes any file
                dynamo=False,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[OUTPUT],
                do_constant_folding=True,
            )
        except (RuntimeError, torch.onnx.OnnxExporterError, ValueError, TypeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise TrainingFailed(arch=arch.id, reason=f"it cannot be exported: {first}") from error
    return onnx.load_model_from_string(buffer.getvalue())


def tidy(graph: GraphProto) -> None:
    """Constants become weights, and a weight that went through Identity becomes a copy."""
    import onnx

    weights = {tensor.name: tensor for tensor in graph.initializer}
    kept = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        source = weights.get(node.input[0]) if node.op_type == "Identity" else None
        if node.op_type == "Constant" and value is not None:
            source = value
        if source is None:
            kept.append(node)
            continue
        weight = onnx.TensorProto()
        weight.CopyFrom(source)
        weight.name = node.output[0]
        weights[weight.name] = weight
    used = {name for node in kept for name in node.input}
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensor for name, tensor in weights.items() if name in used)


def _compare(data: bytes, image: Tensor, wanted: Tensor, arch: Architecture) -> None:
    import numpy as np
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
    given = session.run(None, {INPUT: image.numpy()})[0]
    expected = wanted.numpy()
    scale = max(1e-6, float(np.abs(expected).max()))
    off = float(np.abs(given - expected).max()) / scale if given.shape == expected.shape else 1.0
    if not off <= TOLERANCE:
        reason = f"the exported file answers otherwise than the net ({100 * off:.2g} % off)"
        raise TrainingFailed(arch=arch.id, reason=reason)


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        raise LocalFileError(path=path, reason=error.strerror or str(error)) from None
    finally:
        temporary.unlink(missing_ok=True)
