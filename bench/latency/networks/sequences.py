"""Text and video."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.latency.networks.packages import torchvision_network, transformers_network
from bench.latency.networks.recipe import Recipe

_KINETICS = ((0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989))
_TOKENS = 384
_TEXT: dict[str, Any] = {"vocab_size": 256000, "max_position_embeddings": 64}
_VISION: dict[str, Any] = {"image_size": 224, "patch_size": 16}


class MaskedWord(nn.Module):
    """The most likely word at one place, with a float mask of the tokens."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, mask: Tensor, place: Tensor) -> Tensor:
        wide = (1.0 - mask)[:, None, None, :] * -100.0
        logits = self.network(tokens, attention_mask=wide)[0]
        return logits[torch.arange(1), place.to(torch.int64)].argmax(-1)


class Embedding(nn.Module):
    """The mean of the tokens that are there, of length 1."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        wide = (1.0 - mask)[:, None, None, :] * -100.0
        found = self.network(tokens, attention_mask=wide)[0]
        given = mask.unsqueeze(-1)
        mean = (found * given).sum(1) / given.sum(1).clamp(min=1e-9)
        return functional.normalize(mean, p=2, dim=1)


class Siglip(nn.Module):
    """An encoder of SigLIP 2, of images or of text."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part
        network = transformers_network("SiglipModel", text_config=_TEXT, vision_config=_VISION)
        self.network = network.vision_model if part == "image" else network.text_model

    def forward(self, given: Tensor) -> Tensor:
        if self.part == "image":
            found = self.network(given * 2.0 - 1.0)
        else:
            mask = torch.zeros(1, 1, given.shape[1], given.shape[1])
            found = self.network(given, attention_mask=mask)
        return functional.normalize(found[1], dim=-1)


class Pooled(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0], values.shape[1], -1).mean(2)


class VideoTokens(nn.Module):
    """VideoMAE: a ViT on tubes of two frames, with relative places kept in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.network = transformers_network(
            "VideoMAEForVideoClassification", num_labels=400, use_mean_pooling=True
        )

    def forward(self, video: Tensor) -> Tensor:
        return torch.softmax(self.network((video - 0.45) / 0.225)[0], 1)


class Clip(nn.Module):
    """A video network of torchvision with its normalisation in front and softmax behind."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.network = torchvision_network(f"video.{name}")
        self.network.avgpool = Pooled()
        for key, values in zip(("mean", "deviation"), _KINETICS, strict=True):
            self.register_buffer(key, torch.tensor(values).reshape(1, 3, 1, 1, 1))

    def forward(self, video: Tensor) -> Tensor:
        return torch.softmax(self.network((video - self.mean) / self.deviation), 1)


def _video(name: str) -> Recipe:
    return Recipe(lambda: Clip(name), {"video": (1, 3, 16, 112, 112)})


def _words(name: str, vocabulary: int, **options: Any) -> Recipe:
    return Recipe(
        lambda: MaskedWord(transformers_network(name, **options)),
        {"tokens": (1, _TOKENS), "mask": (1, _TOKENS), "place": (1,)},
        whole_numbers={"tokens": vocabulary, "place": _TOKENS},
    )


RECIPES = {
    "siglip2.image_encoder": Recipe(lambda: Siglip("image"), (224, 224)),
    "siglip2.text_encoder": Recipe(
        lambda: Siglip("text"), {"tokens": (1, 64)}, whole_numbers={"tokens": 256000}
    ),
    "video_mae": Recipe(VideoTokens, {"video": (1, 16, 3, 224, 224)}),
    "mobile_bert_uncased_google": _words("MobileBertForMaskedLM", 30522),
    "resnet_2plus1d": _video("r2plus1d_18"),
    "resnet_3d": _video("r3d_18"),
    "resnet_mixed": _video("mc3_18"),
    "bert_base_uncased_hf": _words("BertForMaskedLM", 30522),
    "distil_bert_base_uncased_hf": _words("DistilBertForMaskedLM", 30522),
    "electra_bert_base_discrim_google": _words(
        "ElectraForMaskedLM",
        30522,
        embedding_size=768,
        hidden_size=768,
        intermediate_size=3072,
        num_attention_heads=12,
    ),
    "albert_base_v2_hf": _words(
        "AlbertForMaskedLM", 30000, hidden_size=768, intermediate_size=3072, num_attention_heads=12
    ),
    "minilm_v2": Recipe(
        lambda: Embedding(
            transformers_network(
                "BertModel", hidden_size=384, num_hidden_layers=6, intermediate_size=1536
            )
        ),
        {"tokens": (1, 128), "mask": (1, 128)},
        whole_numbers={"tokens": 30522},
    ),
}
