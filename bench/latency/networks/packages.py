"""Networks by name from the packages on PyPI, with random weights and nothing downloaded."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

# torchvision's compiled operators need the CUDA build of PyTorch. None of them is exported, so it
# is enough that the ones which its import describes exist.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _kind in ("nms", "qnms"):
    _OPERATORS.define(f"{_kind}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def torchvision_network(name: str, **options: Any) -> nn.Module:
    """`name` may have a module in front: segmentation.fcn_resnet50."""
    module, _, function = name.rpartition(".")
    torch.backends.mha.set_fastpath_enabled(False)
    found = import_module("torchvision.models" + (f".{module}" if module else ""))
    network: nn.Module = getattr(found, function)(weights=None, **options)
    return network


def timm_network(name: str, **options: Any) -> nn.Module:
    """Attention as plain products: the compiler does not know it as one operator."""
    import timm.layers

    timm.layers.set_fused_attn(False)
    network: nn.Module = timm.create_model(name, pretrained=False, exportable=True, **options)
    return network


def module_of(package: str, file: str) -> Any:
    """One file of a package, without what the package imports besides."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(package)
    path = Path(found.submodule_search_locations[0]) / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def transformers_network(name: str, **options: Any) -> nn.Module:
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class(**options)
    config._attn_implementation = "eager"
    network: nn.Module = kind(config)
    return network


def ultralytics_network(
    config: str, kind: str = "DetectionModel", classes: int | None = None
) -> nn.Module:
    """By its YAML file; `classes` where they are not those of the file."""
    import ultralytics.nn.tasks

    options = {"nc": classes} if classes else {}
    network: nn.Module = getattr(ultralytics.nn.tasks, kind)(config, verbose=False, **options)
    return network.eval()
