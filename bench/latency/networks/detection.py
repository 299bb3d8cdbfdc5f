"""Detectors: those of ultralytics with the vendor's heads, and transformers that detect."""

from __future__ import annotations

from typing import Any

from torch import nn

from bench.latency.networks.packages import transformers_network, ultralytics_network
from bench.latency.networks.recipe import Recipe
from bench.latency.networks.vendor import vendor_class

_SEGMENTOR = "templates.ultralytics.segmentation_model.Ultralytics"


def _yolo(path: str, config: str, kind: str = "DetectionModel", **options: Any) -> Recipe:
    def build() -> nn.Module:
        network: nn.Module = vendor_class(path)(ultralytics_network(config, kind), **options)
        return network

    return Recipe(build, (640, 640))


def _segmentor(config: str, kind: str = "MulticlassSegmentor") -> Recipe:
    return _yolo(_SEGMENTOR + kind, config, "SegmentationModel")


def _detr(path: str, name: str, **options: Any) -> Recipe:
    def build() -> nn.Module:
        network: nn.Module = vendor_class(path)(transformers_network(name, **options))
        return network

    return Recipe(build, (640, 640))


_RESNET = {"use_timm_backbone": True, "use_pretrained_backbone": False, "backbone_config": None}
RECIPES = {
    "yolov8_det": _yolo("yolov8_det.model.YoloV8Detector", "yolov8n.yaml"),
    "yolov8_obb": _yolo("yolov8_obb.model.YoloV8OBB", "yolov8n-obb.yaml", "OBBModel"),
    "yolov8_seg": _segmentor("yolov8n-seg.yaml"),
    "yolov9_det": _yolo("yolov9_det.model.YoloV9Detector", "yolov9t.yaml"),
    "yolov10_det": _yolo(
        "yolov10_det.model.YoloV10Detector", "yolov10n.yaml", include_postprocessing=True
    ),
    "yolov11_det": _yolo("yolov11_det.model.YoloV11Detector", "yolo11n.yaml"),
    "yolov11_pose": _yolo(
        "yolov11_pose.model.YoloV11PoseDetector", "yolo11n-pose.yaml", "PoseModel"
    ),
    "yolov11_seg": _segmentor("yolo11n-seg.yaml"),
    "yolo26_det": _yolo("yolo26_det.model.Yolo26Detector", "yolo26n.yaml"),
    "yolo26_pose": _yolo("yolo26_pose.model.Yolo26PoseDetector", "yolo26n-pose.yaml", "PoseModel"),
    "yolo26_seg": _segmentor("yolo26n-seg.yaml"),
    "fastsam_s": _segmentor("yolov8s-seg.yaml", "SingleClassSegmentor"),
    "fastsam_x": _segmentor("yolov8x-seg.yaml", "SingleClassSegmentor"),
    "detr_resnet50": _detr(
        "detr_resnet50.model.DETRResNet50", "DetrForObjectDetection", num_labels=91
    ),
    "detr_resnet101": _detr(
        "detr_resnet101.model.DETRResNet101",
        "DetrForObjectDetection",
        num_labels=91,
        backbone="resnet101",
    ),
}
