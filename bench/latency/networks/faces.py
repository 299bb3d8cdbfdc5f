"""Faces, bodies and hands: small networks that the vendor's package defines, HRNet, OSNet."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.latency.networks.packages import module_of, timm_network
from bench.latency.networks.recipe import IMAGENET, Doubled, Recipe
from bench.latency.networks.vendor import vendor_class, vendor_network


def _vendor(path: str, *inputs: Any, **options: Any) -> nn.Module:
    network: nn.Module = vendor_class(path)(*inputs, **options)
    return network


def _facemap() -> nn.Module:
    backbone = vendor_class("facemap_3dmm.resnet_score_rgb.resnet18_wd2")(pretrained=False)
    return _vendor("facemap_3dmm.model.FaceMap_3DMM", backbone)


class HighResolution(nn.Module):
    """HRNet's stages by timm; a head on the finest map (`is_joined`: on all, enlarged to it)."""

    def __init__(self, name: str, points: int, is_joined: bool) -> None:
        super().__init__()
        self.stages = timm_network(name)
        width = int(name.rpartition("w")[2])
        self.is_joined = is_joined
        joined = 15 * width
        self.head = (
            nn.Sequential(
                nn.Conv2d(joined, joined, 1),
                nn.BatchNorm2d(joined),
                nn.ReLU(),
                nn.Conv2d(joined, points, 1),
            )
            if is_joined
            else nn.Conv2d(width, points, 1)
        )

    def forward(self, image: Tensor) -> Tensor:
        net = self.stages
        values = net.act2(net.bn2(net.conv2(net.act1(net.bn1(net.conv1(image))))))
        maps = net.stages(values)
        if not self.is_joined:
            return self.head(maps[0])
        size = maps[0].shape[2:]
        rest = [functional.interpolate(one, size=size, mode="bilinear") for one in maps[1:]]
        return self.head(torch.cat([maps[0], *rest], 1))


class Identified(nn.Module):
    """OSNet's embedding, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.network = module_of("torchreid", "reid/models/osnet.py").osnet_x1_0(
            1000, pretrained=False
        )

    def forward(self, image: Tensor) -> Tensor:
        return functional.normalize(self.network(image), p=2, dim=1)


class Separable(nn.Sequential):
    """A step of MobileNetV1."""

    def __init__(self, width: int, target: int, stride: int = 1, spread: int = 1) -> None:
        super().__init__(
            nn.Conv2d(width, width, 3, stride, spread, spread, groups=width),
            nn.ReLU6(),
            nn.Conv2d(width, target, 1),
            nn.ReLU6(),
        )


class PoseNet(nn.Module):
    """MobileNetV1 at stride 16 with four heads of one convolution."""

    def __init__(self) -> None:
        super().__init__()
        steps = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
        steps += [(256, 512, 2), *([(512, 512, 1)] * 5)]
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.ReLU6(),
            *(Separable(*step) for step in steps),
            Separable(512, 1024, 1),
            Separable(1024, 1024, 1, 2),
        )
        self.heads = nn.ModuleList(nn.Conv2d(1024, count, 1) for count in (17, 34, 32, 32))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        features = self.features(image)
        heat, *others = (head(features) for head in self.heads)
        heat = torch.sigmoid(heat)
        peaks = functional.max_pool2d(heat, 3, 1, 1)
        return (heat, *others, peaks)


class AudioNet(nn.Module):
    """YAMNet: MobileNetV1 on a spectrogram."""

    def __init__(self) -> None:
        super().__init__()
        steps = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
        steps += [(256, 512, 2), *([(512, 512, 1)] * 5), (512, 1024, 2), (1024, 1024, 1)]
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), *(Separable(*step) for step in steps)
        )
        self.classes = nn.Linear(1024, 521)

    def forward(self, audio: Tensor) -> Tensor:
        return self.classes(self.features(audio).mean((2, 3)))


RECIPES = {
    "facemap_3dmm": Recipe(_facemap, (128, 128)),
    "face_det_lite": Recipe(
        lambda: _vendor("face_det_lite.model.FaceDetLite"), (480, 640), channels=1
    ),
    "face_attrib_net": Recipe(
        lambda: _vendor("face_attrib_net.model.FaceAttribNet", 64, [2, 6, 3]), (128, 128)
    ),
    "foot_track_net": Recipe(lambda: _vendor("foot_track_net.model.FootTrackNet"), (480, 640)),
    "gear_guard_net": Recipe(
        lambda: vendor_network("gear_guard_net.model.GearGuardNet"), (320, 192)
    ),
    "mediapipe_selfie": Recipe(
        lambda: _vendor("mediapipe_selfie.model.MediapipeSelfie"), (256, 256)
    ),
    "hrnet_pose": Recipe(lambda: HighResolution("hrnet_w32", 17, False), (256, 192), IMAGENET),
    "hrnet_face": Recipe(lambda: HighResolution("hrnet_w18", 29, True), (256, 256), IMAGENET),
    "osnet": Recipe(Identified, (256, 128), IMAGENET),
    "posenet_mobilenet": Recipe(lambda: Doubled(PoseNet()), (513, 257)),
    "yamnet": Recipe(AudioNet, (96, 64), channels=1),
}
