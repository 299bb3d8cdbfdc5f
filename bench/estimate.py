"""From a model file to the compiler's estimate of latency; and how near that is to the truth."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.tables import markdown
from edgeloop.platforms.qnn.chips import find_chip
from edgeloop.platforms.qnn.latency import built_in_profiles, calibrated
from edgeloop.platforms.qnn.toolchain import QnnToolchain
from tests.converted import open_htp, samples, smooth_images
from tests.nets_torch import Normalised, SmallUNet, export, mobilenet_v2, resnet18, resnet50

REPEATS = 5
PUBLISHED_US = {"MobileNetV2": 441, "ResNet18": 543, "ResNet50": 901}
NETS = {"MobileNetV2": mobilenet_v2, "ResNet18": resnet18, "ResNet50": resnet50}


def run() -> str:
    with TemporaryDirectory() as folder:
        return "\n\n".join((_times(Path(folder)), _errors(Path(folder))))


def _times(folder: Path) -> str:
    model = export(SmallUNet(32, 3), folder / "unet.onnx", 256)
    chip = find_chip("qcs8550")
    with QnnToolchain() as toolchain:
        made = toolchain.convert(model, samples(smooth_images(2, 256)), folder / "unet")
        quantized = made.files[made.quantized]
        estimates = {toolchain.estimate(quantized, chip) for _ in range(REPEATS)}
        assert len(estimates) == 1, "the estimate is not deterministic"
        warm = [_seconds(lambda: toolchain.estimate(quantized, chip)) for _ in range(REPEATS)]
        screen = [_seconds(lambda: toolchain.screen(model, chip)) for _ in range(REPEATS)]

    def from_nothing() -> None:
        device = open_htp("htp:qcs8550")
        device.measure(quantized, made.info)
        device.close()

    cold = [_seconds(from_nothing) for _ in range(REPEATS)]
    rows = [
        ("quantized file to number, warm process", _median(warm), "< 2"),
        ("quantized file to number, cold process", _median(cold), "< 2"),
        ("float file to number, no calibration, warm", _median(screen), "< 2"),
    ]
    size = f"U-Net at 256², {made.info.params / 1e6:.2f}M parameters"
    return markdown((size, "median, s", "goal, s"), rows)


def _errors(folder: Path) -> str:
    profile, chip = built_in_profiles()["qcs8550"], find_chip("qcs8550")
    rows = []
    with QnnToolchain() as toolchain:
        for name, make in NETS.items():
            model = export(Normalised(make()), folder / f"{name}.onnx", 224)
            made = toolchain.convert(model, samples(smooth_images(1, 224)), folder / name)
            raw = toolchain.estimate(made.files[made.quantized], chip).raw_us
            ours, published = calibrated(raw, profile), PUBLISHED_US[name]
            error = f"{100 * (ours / published - 1):+.1f}"
            rows.append((name, f"{raw:.0f}", f"{ours:.0f}", published, error, "± 10"))
    headings = ("QCS8550", "raw, µs", "calibrated, µs", "published, µs", "error, %", "goal, %")
    return markdown(headings, rows)


def _seconds(work: object) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f}"
