"""Detectors: those of ultralytics with the vendor's heads, and transformers that detect."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.latency.networks.packages import transformers_network, ultralytics_network
from bench.latency.networks.recipe import Recipe
from bench.latency.networks.vendor import vendor_class


def _yolo(
    path: str, config: str, kind: str = "DetectionModel", classes: int | None = None
) -> Recipe:
    def build() -> nn.Module:
        network: nn.Module = vendor_class(path)(ultralytics_network(config, kind, classes))
        network.include_postprocessing = True
        return network

    return Recipe(build, (640, 640))


class Decoupled(nn.Module):
    """YOLOX-S: CSPDarknet, a path aggregation network, and heads that part classes and boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = _Pyramid(), nn.Module()
        self.head.strides = [8, 16, 32]
        self.head.stems = nn.ModuleList(_conv(width, 128, 1) for width in (128, 256, 512))
        for part in ("cls", "reg"):
            towers = (nn.Sequential(_conv(128, 128, 3), _conv(128, 128, 3)) for _ in range(3))
            setattr(self.head, f"{part}_convs", nn.ModuleList(towers))
        for part, count in (("cls", 80), ("reg", 4), ("obj", 1)):
            last = (nn.Conv2d(128, count, 1) for _ in range(3))
            setattr(self.head, f"{part}_preds", nn.ModuleList(last))


class _Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from ultralytics.nn.modules.block import C3, SPP
        from ultralytics.nn.modules.conv import Focus

        self.fine = nn.Sequential(
            Focus(3, 32, 3),
            _conv(32, 64, 3, 2),
            C3(64, 64, 1),
            _conv(64, 128, 3, 2),
            C3(128, 128, 3),
        )
        self.middle = nn.Sequential(_conv(128, 256, 3, 2), C3(256, 256, 3))
        self.coarse = nn.Sequential(
            _conv(256, 512, 3, 2), SPP(512, 512), C3(512, 512, 1, shortcut=False)
        )
        self.lateral, self.reduce = _conv(512, 256, 1), _conv(256, 128, 1)
        self.up = nn.ModuleList((C3(512, 256, 1, False), C3(256, 128, 1, False)))
        self.down = nn.ModuleList((_conv(128, 128, 3, 2), _conv(256, 256, 3, 2)))
        self.joined = nn.ModuleList((C3(256, 256, 1, False), C3(512, 512, 1, False)))

    def forward(self, image: Tensor) -> list[Tensor]:
        fine = self.fine(image)
        middle = self.middle(fine)
        lateral = self.lateral(self.coarse(middle))
        reduced = self.reduce(self.up[0](torch.cat((_doubled(lateral), middle), 1)))
        first = self.up[1](torch.cat((_doubled(reduced), fine), 1))
        second = self.joined[0](torch.cat((self.down[0](first), reduced), 1))
        third = self.joined[1](torch.cat((self.down[1](second), lateral), 1))
        return [first, second, third]


def _conv(width: int, target: int, kernel: int, stride: int = 1) -> nn.Module:
    from ultralytics.nn.modules.conv import Conv

    layer: nn.Module = Conv(width, target, kernel, stride)
    return layer


def _doubled(values: Tensor) -> Tensor:
    return functional.interpolate(values, scale_factor=2, mode="nearest")


def _yolox() -> nn.Module:
    """The package that it comes from is not on PyPI: its names stand for what is here."""
    kind = vendor_class("yolox.model.YoloX")
    names = {
        "YOLOXHead": nn.Module,
        "replace_module": lambda network, *_: network,
        "meshgrid": lambda axes: torch.meshgrid(*axes, indexing="ij"),
    }
    with patch.multiple(kind.__module__, **names):
        network: nn.Module = kind(Decoupled())
    return network


def _segmentor(path: str, config: str, classes: int | None = None) -> Recipe:
    return _yolo(path, config, "SegmentationModel", classes)


def _detr(path: str, name: str, **options: Any) -> Recipe:
    def build() -> nn.Module:
        network: nn.Module = vendor_class(path)(transformers_network(name, **options))
        return network

    return Recipe(build, (640, 640))


RECIPES = {
    "yolox": Recipe(_yolox, (640, 640)),
    "yolov8_det": _yolo("yolov8_det.model.YoloV8Detector", "yolov8n.yaml"),
    "yolov8_obb": _yolo("yolov8_obb.model.YoloV8OBB", "yolov8n-obb.yaml", "OBBModel"),
    "yolov8_seg": _segmentor("yolov8_seg.model.YoloV8Segmentor", "yolov8n-seg.yaml"),
    "yolov9_det": _yolo("yolov9_det.model.YoloV9Detector", "yolov9t.yaml"),
    "yolov10_det": _yolo("yolov10_det.model.YoloV10Detector", "yolov10n.yaml"),
    "lpdm": _yolo("lpdm.model.LicensePlateDetector", "yolov8n.yaml", classes=51),
    "yolov11_det": _yolo("yolov11_det.model.YoloV11Detector", "yolo11n.yaml"),
    "yolov11_pose": _yolo(
        "yolov11_pose.model.YoloV11PoseDetector", "yolo11n-pose.yaml", "PoseModel"
    ),
    "yolov11_seg": _segmentor("yolov11_seg.model.YoloV11Segmentor", "yolo11n-seg.yaml"),
    "yolo26_det": _yolo("yolo26_det.model.Yolo26Detector", "yolo26n.yaml"),
    "yolo26_pose": _yolo("yolo26_pose.model.Yolo26PoseDetector", "yolo26n-pose.yaml", "PoseModel"),
    "yolo26_seg": _segmentor("yolo26_seg.model.Yolo26Segmentor", "yolo26n-seg.yaml"),
    "fastsam_s": _segmentor("fastsam_s.model.FastSAM_S", "yolov8s-seg.yaml", 1),
    "fastsam_x": _segmentor("fastsam_x.model.FastSAM_X", "yolov8x-seg.yaml", 1),
    "detr_resnet50": _detr(
        "detr_resnet50.model.DETRResNet50", "DetrForObjectDetection", num_labels=91
    ),
    "detr_resnet101": _detr(
        "detr_resnet101.model.DETRResNet101",
        "DetrForObjectDetection",
        num_labels=91,
        backbone="resnet101",
    ),
    "detr_resnet50_dc5": _detr(
        "detr_resnet50_dc5.model.DETRResNet50DC5",
        "DetrForObjectDetection",
        num_labels=91,
        dilation=True,
    ),
    "detr_resnet101_dc5": _detr(
        "detr_resnet101_dc5.model.DETRResNet101DC5",
        "DetrForObjectDetection",
        num_labels=91,
        backbone="resnet101",
        dilation=True,
    ),
    "conditional_detr_resnet50": _detr(
        "conditional_detr_resnet50.model.ConditionalDETRResNet50",
        "ConditionalDetrForObjectDetection",
        num_labels=91,
    ),
}
