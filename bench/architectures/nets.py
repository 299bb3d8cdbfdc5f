"""Public architectures without a package of their own, in a few lines each, from their papers."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv(given: int, made: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(given, made, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(made),
        nn.ReLU(inplace=True),
    )


def separable(given: int, made: int, stride: int = 1, kernel: int = 3) -> nn.Sequential:
    return nn.Sequential(conv(given, given, kernel, stride, given), conv(given, made, 1))


# --- super-resolution ---


class SrCnn(nn.Module):
    """Dong et al. 2014, with the bicubic enlargement replaced by a bilinear one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 9, padding=4),
            nn.ReLU(),
            nn.Conv2d(64, 32, 1),
            nn.ReLU(),
            nn.Conv2d(32, 3, 5, padding=2),
        )

    def forward(self, image: Tensor) -> Tensor:
        large = functional.interpolate(
            image, scale_factor=2.0, mode="bilinear", align_corners=False
        )
        return self.layers(large)


class Espcn(nn.Module):
    """Shi et al. 2016: luminance only, sub-pixel convolution at the end."""

    def __init__(self, scale: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(32, scale * scale, 3, padding=1),
            nn.PixelShuffle(scale),
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Edsr(nn.Module):
    """Lim et al. 2017, the baseline: 16 residual blocks of 64 channels."""

    def __init__(self, scale: int = 2, blocks: int = 16, width: int = 64) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        body = [_Residual(width) for _ in range(blocks)]
        self.body = nn.Sequential(*body, nn.Conv2d(width, width, 3, padding=1))
        self.tail = nn.Sequential(
            nn.Conv2d(width, width * scale * scale, 3, padding=1),
            nn.PixelShuffle(scale),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, image: Tensor) -> Tensor:
        shallow = self.head(image - 0.5)
        return self.tail(shallow + self.body(shallow)) + 0.5


class Xlsr(nn.Module):
    """Ayazoglu 2021: blocks of grouped convolutions, concatenated ends, a clipped ReLU."""

    def __init__(self, scale: int = 3) -> None:
        super().__init__()
        self.side = nn.Conv2d(3, 16, 3, padding=1)
        self.head = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.Sequential(*(self._block() for _ in range(3)))
        self.mix = nn.Sequential(nn.Conv2d(48, 32, 1), nn.ReLU())
        self.tail = nn.Conv2d(32, 3 * scale * scale, 3, padding=1)
        self.shuffle = nn.PixelShuffle(scale)

    @staticmethod
    def _block() -> nn.Sequential:
        grouped = nn.Conv2d(32, 32, 3, padding=1, groups=4)
        return nn.Sequential(grouped, nn.ReLU(), nn.Conv2d(32, 32, 1))

    def forward(self, image: Tensor) -> Tensor:
        both = torch.cat([self.blocks(self.head(image)), self.side(image)], 1)
        return self.shuffle(self.tail(self.mix(both)).clamp(0, 1))


class QuickSrNet(nn.Module):
    """Berger et al. 2023: plain convolutions with clipped ReLUs."""

    def __init__(self, scale: int = 2, width: int = 32, depth: int = 5) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.Hardtanh(0.0, 1.0)]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.Hardtanh(0.0, 1.0)]
        last = nn.Conv2d(width, 3 * scale * scale, 3, padding=1)
        self.layers = nn.Sequential(*layers, last, nn.Hardtanh(0.0, 1.0), nn.PixelShuffle(scale))

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


# --- detection ---


class YoloSmall(nn.Module):
    """A one-stage detector: strided stages, a top-down path, three anchor-free heads of
    4 × 16 bins and the classes. `decoded` turns bins into boxes inside the graph."""

    def __init__(self, classes: int = 80, width: int = 16, decoded: bool = False) -> None:
        super().__init__()
        self.classes, self.decoded = classes, decoded
        widths = [width * 2**i for i in range(5)]
        self.stem = conv(3, widths[0], 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(conv(a, b, 3, 2), _Split(b)) for a, b in pairwise(widths)
        )
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.after = conv(widths[4] * 2, widths[4], 1)
        self.middle = _Split(widths[4] + widths[3], widths[3])
        self.fine = _Split(widths[3] + widths[2], widths[2])
        made = 64 + classes
        self.heads = nn.ModuleList(nn.Conv2d(w, made, 1) for w in widths[2:])
        self.act = nn.SiLU()

    def forward(self, images: Tensor) -> Tensor:
        x, levels = self.stem(images), []
        for stage in self.stages:
            x = self.act(stage(x))
            levels.append(x)
        coarse = self.after(torch.cat([x, self.pool(x)], 1))
        up = functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        middle = self.middle(torch.cat([up, levels[2]], 1))
        up = functional.interpolate(middle, scale_factor=2.0, mode="nearest")
        fine = self.fine(torch.cat([up, levels[1]], 1))
        maps = [head(x) for head, x in zip(self.heads, (fine, middle, coarse), strict=True)]
        flat = torch.cat([m.flatten(2) for m in maps], 2)
        if not self.decoded:
            return flat
        return self._decode(flat, [m.shape[-1] for m in maps])

    def _decode(self, flat: Tensor, sizes: list[int]) -> Tensor:
        bins, scores = flat.split((64, self.classes), 1)
        batch, _, cells = bins.shape
        weights = torch.arange(16, dtype=flat.dtype).view(1, 16, 1, 1)
        spread = bins.view(batch, 4, 16, cells).transpose(1, 2).softmax(1)
        sides = (spread * weights).sum(1)
        centres, strides = [], []
        for size, stride in zip(sizes, (8, 16, 32), strict=True):
            steps = torch.arange(size, dtype=flat.dtype) + 0.5
            y, x = torch.meshgrid(steps, steps, indexing="ij")
            centres.append(torch.stack((x.flatten(), y.flatten())))
            strides.append(torch.full((1, size * size), float(stride)))
        centre, stride = torch.cat(centres, 1), torch.cat(strides, 1)
        low, high = centre - sides[:, :2], centre + sides[:, 2:]
        boxes = torch.cat([(low + high) / 2, high - low], 1) * stride
        return torch.cat([boxes, scores.sigmoid()], 1)


class _Split(nn.Module):
    """Half of the channels pass through two convolutions, everything is kept and mixed."""

    def __init__(self, given: int, made: int | None = None) -> None:
        super().__init__()
        made = made or given
        self.enter = conv(given, made, 1)
        self.first, self.second = conv(made // 2, made // 2), conv(made // 2, made // 2)
        self.leave = conv(made + made // 2, made, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept, worked = self.enter(x).chunk(2, 1)
        return self.leave(torch.cat([kept, worked, worked + self.second(self.first(worked))], 1))


# --- segmentation, pose, depth ---


class UNet(nn.Module):
    """Ronneberger et al. 2015, with padding and transposed convolutions; 5 classes."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(4)]
        self.down = nn.ModuleList(
            nn.Sequential(conv(a, b), conv(b, b))
            for a, b in zip([3, *sizes[:-1]], sizes, strict=True)
        )
        pairs = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(nn.Sequential(conv(2 * b, b), conv(b, b)) for _, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        x, kept = image, []
        for index, stage in enumerate(self.down):
            x = stage(functional.max_pool2d(x, 2) if index else x)
            kept.append(x)
        for rise, stage, side in zip(self.rise, self.up, kept[-2::-1], strict=True):
            x = stage(torch.cat([rise(x), side], 1))
        return self.head(x)


class SimpleBaseline(nn.Module):
    """Xiao et al. 2018: a residual backbone and three transposed convolutions; 17 heatmaps."""

    def __init__(self, joints: int = 17) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        for given, made, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
            layers += [_Basic(given, made, stride), _Basic(made, made, 1)]
        for given in (512, 256, 256):
            layers += [
                nn.ConvTranspose2d(given, 256, 4, 2, 1, bias=False),
                nn.BatchNorm2d(256),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(256, joints, 1))

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class _Basic(nn.Module):
    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        second = nn.Sequential(nn.Conv2d(made, made, 3, padding=1), nn.BatchNorm2d(made))
        self.layers = nn.Sequential(conv(given, made, 3, stride), second)
        same = given == made and stride == 1
        self.side = nn.Identity() if same else nn.Conv2d(given, made, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layers(x) + self.side(x))


class _Hourglass(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.side, self.enter = _Basic(width, width, 1), _Basic(width, width, 1)
        self.inner = _Hourglass(depth - 1, width) if depth > 1 else _Basic(width, width, 1)
        self.leave = _Basic(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        low = self.leave(self.inner(self.enter(functional.max_pool2d(x, 2))))
        return self.side(x) + functional.interpolate(low, scale_factor=2.0, mode="nearest")


class PoseHourglass(nn.Module):
    """Newell et al. 2016: two stacks, each with heatmaps of its own."""

    def __init__(self, width: int = 64, joints: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, width, 7, 2), nn.MaxPool2d(2), _Basic(width, width, 1))
        self.first, self.second = _Hourglass(4, width), _Hourglass(4, width)
        self.heads = nn.ModuleList(nn.Conv2d(width, joints, 1) for _ in range(2))
        self.back = nn.Conv2d(joints, width, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(image)
        features = self.first(x)
        heat = self.heads[0](features)
        return heat, self.heads[1](self.second(x + features + self.back(heat)))


class Landmarks(nn.Module):
    """A face-mesh-like regressor: 468 points in space, and whether a face is there."""

    def __init__(self, points: int = 468) -> None:
        super().__init__()
        widths = [(3, 16, 2), (16, 32, 2), (32, 64, 2), (64, 128, 2), (128, 128, 2)]
        self.stem = nn.Sequential(*(separable(*w) for w in widths))
        self.act = nn.PReLU(128)
        self.points = nn.Conv2d(128, 3 * points, 6)
        self.visible = nn.Conv2d(128, 1, 6)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.act(self.stem(image))
        return self.points(x).flatten(1), torch.sigmoid(self.visible(x)).flatten(1)


class FastDepth(nn.Module):
    """Wofk et al. 2019: a MobileNet encoder, separable decoder with additive skips."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(32, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2), (512, 512, 2)]
        self.stem = conv(3, 32, 3, 2)
        self.down = nn.ModuleList(separable(*w) for w in widths)
        self.up = nn.ModuleList(
            separable(a, b, kernel=5)
            for a, b in ((512, 512), (512, 256), (256, 128), (128, 64), (64, 32))
        )
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        x, kept = self.stem(image), []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
        for stage, side in zip(self.up, [*kept[-2::-1], None], strict=True):
            x = functional.interpolate(stage(x), scale_factor=2.0, mode="nearest")
            x = x if side is None else x + side
        return self.head(x)


# --- audio ---


class YamNet(nn.Module):
    """A MobileNet of 14 layers over a log-mel spectrogram of 96 frames; 521 classes."""

    def __init__(self, classes: int = 521) -> None:
        super().__init__()
        widths = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
        widths += [(256, 512, 2), *[(512, 512, 1)] * 5, (512, 1024, 2), (1024, 1024, 1)]
        self.layers = nn.Sequential(conv(1, 32, 3, 2), *(separable(*w) for w in widths))
        self.head = nn.Linear(1024, classes)

    def forward(self, spectrogram: Tensor) -> Tensor:
        return torch.sigmoid(self.head(self.layers(spectrogram).mean((2, 3))))


class DsCnn(nn.Module):
    """Zhang et al. 2018: keyword spotting with separable convolutions; 12 words."""

    def __init__(self, classes: int = 12, width: int = 64) -> None:
        super().__init__()
        first = nn.Conv2d(1, width, (10, 4), (2, 2), (5, 1), bias=False)
        blocks = [separable(width, width) for _ in range(4)]
        self.layers = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), *blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(functional.adaptive_avg_pool2d(self.layers(features), 1).flatten(1))


class M5(nn.Module):
    """Dai et al. 2017: one-dimensional convolutions on the raw wave."""

    def __init__(self, classes: int = 35, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        sizes = ((1, width, 80, 16), (width, width, 3, 1))
        sizes += ((width, 2 * width, 3, 1), (2 * width, 2 * width, 3, 1))
        for given, made, kernel, stride in sizes:
            convolution = nn.Conv1d(given, made, kernel, stride)
            layers += [convolution, nn.BatchNorm1d(made), nn.ReLU(), nn.MaxPool1d(4)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, wave: Tensor) -> Tensor:
        x = self.layers(wave)
        return functional.log_softmax(
            self.head(functional.avg_pool1d(x, x.shape[-1]).flatten(1)), dim=-1
        )


class TcResNet(nn.Module):
    """Choi et al. 2019: temporal convolutions, the spectrum as channels."""

    def __init__(self, classes: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv1d(40, 16, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(_Temporal(a, b) for a, b in ((16, 24), (24, 32), (32, 48)))
        self.head = nn.Linear(48, classes)

    def forward(self, features: Tensor) -> Tensor:
        x = self.stem(features)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(2))


class _Temporal(nn.Module):
    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(given, made, 9, 2, 4, bias=False),
            nn.BatchNorm1d(made),
            nn.ReLU(),
            nn.Conv1d(made, made, 9, 1, 4, bias=False),
            nn.BatchNorm1d(made),
        )
        self.side = nn.Sequential(nn.Conv1d(given, made, 1, 2), nn.BatchNorm1d(made), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layers(x) + self.side(x))


class ConformerBlock(nn.Module):
    """Gulati et al. 2020: half feed-forward, attention, convolution, half feed-forward."""

    def __init__(self, width: int = 144, heads: int = 4) -> None:
        super().__init__()
        self.before, self.after = self._feed_forward(width), self._feed_forward(width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.enter = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width))
        self.depthwise = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.leave = nn.Linear(width, width)
        self.last = nn.LayerNorm(width)

    @staticmethod
    def _feed_forward(width: int) -> nn.Sequential:
        wide = nn.Linear(width, 4 * width)
        return nn.Sequential(nn.LayerNorm(width), wide, nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, frames: Tensor) -> Tensor:
        x = frames + 0.5 * self.before(frames)
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        inner = functional.glu(self.enter(x), -1).transpose(1, 2)
        inner = functional.silu(self.batch_norm(self.depthwise(inner))).transpose(1, 2)
        x = x + self.leave(inner)
        return self.last(x + 0.5 * self.after(x))
