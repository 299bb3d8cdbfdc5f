"""Networks that the chip maker's package (qai-hub-models) defines, and its changes to others.

Its modules also import what they need to read data sets and to draw; such packages are stood in
for, since nothing of them is called when a network is built.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

_UNUSED = frozenset(
    (
        *("aiofiles", "aimet_onnx", "albumentations", "bs4", "clip", "ffmpeg"),
        *("fvcore", "git", "imageio", "inputimeout", "mmcv", "mmpose"),
        *(
            "mypy_boto3_s3",
            "nuscenes",
            "onnxsim",
            "pandas",
            "tensorboard",
            "podm",
            "prettytable",
            "pyquaternion",
        ),
        *("resampy", "roboflow", "schema", "shapely", "skimage", "sklearn", "soundfile"),
        *("tabulate", "tflite", "torch_audioset", "torchmetrics", "xtcocotools", "yolox"),
    )
)
_CLONED = ".external_repos"  # the package would clone it when it is imported


class _Standin(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_unused = _CLONED in name or name.partition(".")[0] in _UNUSED
        return ModuleSpec(name, self) if is_unused else None

    def create_module(self, spec: ModuleSpec) -> Any:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def vendor_class(path: str) -> Any:
    """`resnet18.model.ResNet18` of the package's models."""
    if not any(isinstance(finder, _Standin) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Standin())
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"qai_hub_models.models.{module}"), name)


def vendor_network(path: str) -> Any:
    """As its package builds it, without its weights."""
    kind = vendor_class(path)
    module = kind.__module__
    with patch.object(kind, "load_state_dict"), patch(f"{module}.load_torch"):
        return kind.from_pretrained()
