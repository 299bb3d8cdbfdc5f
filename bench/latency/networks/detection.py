"""Detectors: those of ultralytics with the vendor's heads, and transformers that detect."""

from __future__ import annotations

from typing import Any

from torch import nn

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


def _segmentor(path: str, config: str, classes: int | None = None) -> Recipe:
    return _yolo(path, config, "SegmentationModel", classes)


def _detr(path: str, name: str, **options: Any) -> Recipe:
    def build() -> nn.Module:
        network: nn.Module = vendor_class(path)(transformers_network(name, **options))
        return network

    return Recipe(build, (640, 640))


RECIPES = {
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
