"""Configurations of transformers models that contain other configurations."""

from __future__ import annotations

from typing import Any


def vit_pose() -> Any:
    from transformers import VitPoseBackboneConfig, VitPoseConfig

    backbone = VitPoseBackboneConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=12, out_indices=[12]
    )
    return VitPoseConfig(backbone_config=backbone, num_labels=17)


def depth_anything() -> Any:
    from transformers import DepthAnythingConfig, Dinov2Config

    backbone = Dinov2Config(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        image_size=266,
        patch_size=14,
        out_indices=[3, 6, 9, 12],
        apply_layernorm=True,
        reshape_hidden_states=False,
    )
    return DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=384,
        neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64,
        patch_size=14,
    )


def clip() -> Any:
    from transformers import CLIPConfig

    small = {"num_hidden_layers": 4, "num_attention_heads": 6, "hidden_size": 384}
    text = {**small, "intermediate_size": 1536, "vocab_size": 49408}
    vision = {**small, "intermediate_size": 1536, "patch_size": 32}
    return CLIPConfig(text_config=text, vision_config=vision)


NESTED = {
    "VitPoseForPoseEstimation": vit_pose,
    "DepthAnythingForDepthEstimation": depth_anything,
    "CLIPModel": clip,
}
