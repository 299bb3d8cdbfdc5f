"""Image classifiers of torchvision, timm and transformers."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from bench.latency.networks.packages import timm_network, torchvision_network, transformers_network
from bench.latency.networks.recipe import IMAGENET, Doubled, Recipe


def _plain(name: str, side: int = 224, **options: Any) -> Recipe:
    return Recipe(lambda: torchvision_network(name, **options), (side, side), IMAGENET)


def _timm(name: str, side: int = 224, **options: Any) -> Recipe:
    return Recipe(lambda: timm_network(name, **options), (side, side), IMAGENET)


def _doubled(build: Any, side: int) -> Recipe:
    return Recipe(lambda: Doubled(build()), (side, side))


def _first(outputs: Any) -> Any:
    return outputs[0]


def _transformers(name: str, side: int = 224, is_normalised: bool = True, **options: Any) -> Recipe:
    return Recipe(
        lambda: transformers_network(name, **options),
        (side, side),
        IMAGENET if is_normalised else None,
        _first,
    )


def _inception() -> nn.Module:
    return torchvision_network(
        "inception_v3", transform_input=False, aux_logits=False, init_weights=False
    )


def _efficientvit() -> nn.Module:
    """GELU as one operator, which the vendor's converter makes of its approximation too."""
    network = timm_network("efficientvit_l2")
    for module in network.modules():
        for name, child in module.named_children():
            if type(child).__name__ == "GELUTanh":
                setattr(module, name, nn.GELU())
    return network


def _levit() -> nn.Module:
    """Normalisation is folded into the products before it: exporters do that for convolutions."""
    network = transformers_network(
        "LevitForImageClassification", hidden_sizes=[128, 256, 384], num_labels=1000
    ).eval()
    for module in network.modules():
        if type(module).__name__ == "MLPLayerWithBN":
            module.fused = fuse_linear_bn_eval(module.linear, module.batch_norm)
            module.forward = module.fused.forward
    return network


def _googlenet() -> nn.Module:
    return torchvision_network(
        "googlenet", transform_input=False, aux_logits=False, init_weights=False
    )


RECIPES = {
    "mobilenet_v2": _plain("mobilenet_v2"),
    "resnet18": _plain("resnet18"),
    "resnet50": _plain("resnet50"),
    "resnet101": _plain("resnet101"),
    "resnext50": _plain("resnext50_32x4d"),
    "resnext101": _plain("resnext101_32x8d"),
    "wideresnet50": _plain("wide_resnet50_2"),
    "convnext_tiny": _plain("convnext_tiny"),
    "convnext_base": _plain("convnext_base"),
    "densenet121": _plain("densenet121"),
    "dla102x": _timm("dla102x"),
    "efficientnet_b0": _plain("efficientnet_b0"),
    "efficientnet_b4": _plain("efficientnet_b4", 380),
    "efficientnet_v2_s": _plain("efficientnet_v2_s", 384),
    "efficientnet_lite4": _timm("tf_efficientnet_lite4", 300),
    "googlenet": _doubled(_googlenet, 224),
    "inception_v3": _doubled(_inception, 299),
    "inception_v4": _doubled(lambda: timm_network("inception_v4"), 299),
    "mnasnet05": _plain("mnasnet0_5"),
    "mobilenet_v3_large": _plain("mobilenet_v3_large"),
    "mobilenet_v3_small": _plain("mobilenet_v3_small"),
    "mobilenet_v4": _timm("mobilenetv4_conv_medium"),
    "regnet": _plain("regnet_x_3_2gf"),
    "regnet_y_800mf": _plain("regnet_y_800mf"),
    "shufflenet_v2": _plain("shufflenet_v2_x0_5"),
    "squeezenet1_1": _plain("squeezenet1_1"),
    "vit": _plain("vit_b_16"),
    "swin_tiny": _plain("swin_t"),
    "swin_small": _plain("swin_s"),
    "swin_base": _plain("swin_b"),
    "swinv2_base": _plain("swin_v2_b"),
    "efficientformer": _timm("efficientformer_l1"),
    "nasnet": _doubled(lambda: timm_network("nasnetalarge"), 331),
    "repvit": _timm("repvit_m2_3"),
    "sequencer2d": _timm("sequencer2d_s"),
    "efficientvit_b2_cls": _timm("efficientvit_b2"),
    "efficientvit_l2_cls": Recipe(_efficientvit, (224, 224), IMAGENET),
    "levit": Recipe(_levit, (224, 224), IMAGENET, _first),
    "convnext_v2_base": _transformers(
        "ConvNextV2ForImageClassification",
        hidden_sizes=[128, 256, 512, 1024],
        depths=[3, 3, 27, 3],
        num_labels=21841,
    ),
    "mobile_vit": _transformers("MobileViTForImageClassification", 256, False, num_labels=1000),
    "beit": _transformers(
        "BeitForImageClassification",
        is_normalised=False,
        num_labels=1000,
        use_relative_position_bias=True,
        use_absolute_position_embeddings=False,
        use_mean_pooling=True,
        layer_scale_init_value=0.1,
    ),
}
