"""Rebuilds the architectures of architectures.yaml with random weights, as ONNX files.

Runs in an environment of its own (requirements.txt): `python build.py FOLDER [NAME…]`. Files that
are there already are kept; index.json says of each how it was made.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

HERE = Path(__file__).parent
Entry = dict[str, Any]
Tensors = dict[str, Tensor]
IMAGE = {"image": [1, 3, 224, 224]}
# torchvision's compiled operators need the CUDA build of PyTorch. None of them is exported, so it
# is enough that the ones which its import describes exist.
OPERATORS = torch.library.Library("torchvision", "DEF")
for _kind in ("nms", "qnms"):
    OPERATORS.define(f"{_kind}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def main() -> None:
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    entries = yaml.safe_load((HERE / "architectures.yaml").read_text("utf-8"))
    failed = []
    for entry in entries:
        if wanted and entry["name"] not in wanted:
            continue
        if (folder / f"{entry['name']}.onnx").is_file():
            continue
        began = time.monotonic()
        try:
            build(entry, folder)
        except Exception as error:  # one that cannot be built does not stop the others
            traceback.print_exc()
            failed.append(entry["name"])
            remove(folder, entry["name"])
            print(f"{entry['name']}: FAILED: {type(error).__name__}", flush=True)
        else:
            print(f"{entry['name']}: {time.monotonic() - began:.1f} s", flush=True)
    sys.exit(f"not built: {', '.join(failed)}" if failed else 0)


def build(entry: dict[str, Any], folder: Path) -> None:
    torch.manual_seed(0)
    net = make(entry).eval()
    tensors = inputs_of(entry)
    if entry.get("half"):
        net = net.half()
        tensors = {n: t.half() if t.is_floating_point() else t for n, t in tensors.items()}
    target = folder / f"{entry['name']}.onnx"
    with torch.no_grad():
        outputs = names_of(net(*tensors.values()), entry)
        export(net, tensors, outputs, target, entry)
    note(entry, folder, tensors, outputs)


def make(entry: Entry) -> nn.Module:
    package, options = entry["package"], entry.get("options", {})
    if package == "papers":
        net = getattr(import_module("nets"), entry["build"])(**options)
    elif package == "timm":
        net = import_module("timm").create_model(entry["build"], **options)
    elif package == "torchvision":
        net = getattr(_torchvision(entry["build"]), entry["build"].rpartition(".")[2])(
            weights=None, **options
        )
    else:
        net = _transformers(entry["build"], options)
    if "wrap" in entry:
        return getattr(import_module("wrappers"), entry["wrap"])(net)
    if package == "transformers":
        chosen = import_module("wrappers").Chosen
        return chosen(net, list(entry["inputs"]), entry["outputs"])
    return net


def _torchvision(build: str) -> Any:
    module = build.rpartition(".")[0]
    return import_module("torchvision.models" + (f".{module}" if module else ""))


def _transformers(build: str, options: dict[str, Any]) -> nn.Module:
    import transformers

    kind = getattr(transformers, build)
    nested = import_module("configs").NESTED.get(build)
    made = nested() if nested else kind.config_class(**options)
    made._attn_implementation = "eager"
    return kind(made)


def inputs_of(entry: Entry) -> Tensors:
    tensors = {}
    for name, shape in entry.get("inputs", IMAGE).items():
        if shape[0] != "int64":
            tensors[name] = torch.rand(shape)
        elif "mask" in name:
            tensors[name] = torch.ones(shape[1:], dtype=torch.int64)
        else:
            tensors[name] = torch.randint(entry["vocabulary"], shape[1:])
    return tensors


def names_of(answer: Any, entry: Entry) -> list[str]:
    count = len(answer) if isinstance(answer, list | tuple) else 1
    names = entry.get("outputs") or [f"output_{i}" for i in range(count)]
    if len(names) != count:
        raise ValueError(f"{entry['name']} has {count} outputs, not {names}")
    return list(names)


def export(
    net: nn.Module,
    tensors: dict[str, Tensor],
    outputs: list[str],
    target: Path,
    entry: dict[str, Any],
) -> None:
    shared = {
        "input_names": list(tensors),
        "output_names": outputs,
        "opset_version": entry["opset"],
    }
    given = tuple(tensors.values())
    if entry["exporter"] == "legacy":
        free = {name: {0: "batch"} for name in (*tensors, *outputs)}
        torch.onnx.export(
            net,
            given,
            target,
            dynamo=False,
            dynamic_axes=free if entry.get("dynamic") else None,
            **shared,
        )
        return
    free = tuple({0: torch.export.Dim("batch", min=1, max=64)} for _ in tensors)
    torch.onnx.export(
        net,
        given,
        target,
        dynamo=True,
        external_data=True,
        dynamic_shapes=free if entry.get("dynamic") else None,
        verbose=False,
        **shared,
    )


def note(
    entry: dict[str, Any], folder: Path, tensors: dict[str, Tensor], outputs: list[str]
) -> None:
    index = folder / "index.json"
    known = json.loads(index.read_text("utf-8")) if index.is_file() else {}
    package = entry["package"]
    files = folder.glob(f"{entry['name']}.onnx*")
    known[entry["name"]] = {
        "family": entry["family"],
        "package": package if package == "papers" else f"{package} {version(package)}",
        "torch": torch.__version__,
        "exporter": entry["exporter"],
        "opset": entry["opset"],
        "dynamic": bool(entry.get("dynamic")),
        "half": bool(entry.get("half")),
        "inputs": {name: list(tensor.shape) for name, tensor in tensors.items()},
        "outputs": outputs,
        "bytes": sum(file.stat().st_size for file in files),
    }
    index.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


def remove(folder: Path, name: str) -> None:
    for file in folder.glob(f"{name}.onnx*"):
        file.unlink()


if __name__ == "__main__":
    main()
