"""Around models whose own forward cannot be exported whole: without the boxes' suppression, with
tensors in and tensors out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Chosen(nn.Module):
    """The named fields of what a model of transformers gives."""

    def __init__(self, inner: nn.Module, inputs: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.inner, self.inputs, self.outputs = inner, inputs, outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.inputs, tensors, strict=True))
        answer = self.inner(**given, return_dict=True)
        return tuple(answer[name] for name in self.outputs)


class DetectionHeads(nn.Module):
    """A detector of torchvision up to its raw boxes and scores, before decoding and NMS."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.backbone, self.head = inner.backbone, inner.head

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        features = list(self.backbone(image).values())
        return tuple(self.head(features).values())


class ProposalHeads(nn.Module):
    """The first stage of a two-stage detector: features and proposals."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.backbone, self.head = inner.backbone, inner.rpn.head

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        features = list(self.backbone(image).values())
        scores, boxes = self.head(features)
        return (*features, *scores, *boxes)


class SegmentationOut(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.inner(image).values())


class Detr(nn.Module):
    """Without the mask of padded pixels: the image fills its tensor."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(pixel_values.shape[0], *pixel_values.shape[2:], dtype=torch.int64)
        answer = self.inner(pixel_values=pixel_values, pixel_mask=mask, return_dict=True)
        return answer.logits, answer.pred_boxes


class VitPose(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.inner(pixel_values=pixel_values, return_dict=True).heatmaps


class SuperPoint(nn.Module):
    """The dense scores and descriptors, before points are suppressed and chosen."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.inner.encoder(pixel_values[:, :1])
        encoded = encoded[0] if isinstance(encoded, tuple) else encoded.last_hidden_state
        points, described = self.inner.keypoint_decoder, self.inner.descriptor_decoder
        cells = points.conv_score_b(points.relu(points.conv_score_a(encoded))).softmax(1)
        features = described.conv_descriptor_b(described.relu(described.conv_descriptor_a(encoded)))
        scores = nn.functional.pixel_shuffle(cells[:, :-1], 8)
        return scores, nn.functional.normalize(features, p=2, dim=1)


class DepthAnything(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.inner(pixel_values=pixel_values, return_dict=True).predicted_depth


class Raft(nn.Module):
    """Four updates of the flow, and only the last one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.inner(first, second, num_flow_updates=4)[-1]


class Encoder(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner.encoder

    def forward(self, input_features: Tensor) -> Tensor:
        return self.inner(input_features, return_dict=True).last_hidden_state


class Clip(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        answer = self.inner(input_ids=input_ids, pixel_values=pixel_values, return_dict=True)
        return answer.text_embeds, answer.image_embeds
