"""Images a second in training: our loop beside the straightforward one, in the same run.

The net is an hourglass of about 3.0M parameters at 256², 19 classes, and a step is whole: from
pictures (or what was kept of them) to new weights. Without a GPU the same is run small, to see that
it works; the goals are for a GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier, Thread

import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from bench.tables import markdown
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.nets.device import (
    Gate,
    ImageSet,
    SharedData,
    class_weights,
    machine_for,
    order_of,
)
from edgeloop.search.nets.engine import Engine
from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan, TrainingResult
from edgeloop.search.nets.spaces import build
from edgeloop.search.nets.train import TrainingItem, train_many
from edgeloop.tasks import Samples, open_task
from edgeloop.testing.faces import make_faces

CLASSES = 19


@dataclass(frozen=True)
class Size:
    pictures: int
    picture_side: int
    side: int
    base: int
    workers: int
    seconds: float
    batches: tuple[int, ...]
    at_once: tuple[int, ...]
    whole_nets: int
    whole_steps: int


ON_GPU = Size(1500, 512, 256, 32, 8, 6.0, (16, 64, 128, 256), (1, 2, 4), 8, 300)
ON_CPU = Size(96, 128, 64, 8, 1, 3.0, (16,), (1, 2), 2, 24)


def net_of(base: int, side: int) -> Architecture:
    """One layer a block, 3 × 3, widening by 1.5: 3.0M parameters from a base of 32."""
    params: dict[str, object] = {
        "depth": 5 if side >= 128 else 4,
        "stem_stride": 2,
        "base_channels": base,
        "hourglasses": 1,
        "h0_last_layers": 1,
        "h0_last_op0": "conv3x3",
    }
    for level in range(1, params["depth"] + 1):
        params[f"h0_down{level}_factor"] = (1.5, 2, 1.5, 1.5, 1.5)[level - 1]
        for block in ("down", "skip", "up"):
            if block == "down" or level < params["depth"]:
                params[f"h0_{block}{level}_layers"] = 1
                params[f"h0_{block}{level}_op0"] = "conv3x3"
    return Architecture("hourglass", params, (1, 3, side, side), CLASSES)


def run() -> str:
    has_gpu = torch.cuda.is_available()
    size = ON_GPU if has_gpu else ON_CPU
    arch = net_of(size.base, size.side)
    rows: list[tuple[str, float]] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_faces(folder / "faces", size.pictures, size.picture_side, 7)
        for workers in (size.workers, 2 * size.workers) if has_gpu else (size.workers,):
            what = f"straightforward: {workers} workers decode PNG, float32, batch 16, Adam"
            rows.append((what, straightforward(arch, folder / "faces", size, workers)))
        images = _images(folder, size)
        for batch in size.batches:
            what = f"ours: images kept as bytes, bfloat16, batch {batch}"
            rows.append((what, _alone(arch, images, size, batch)))
        if has_gpu:
            speed = _alone(arch, images, size, 64, compiles=True)
            rows.append(("ours, batch 64, with torch.compile (half a minute before)", speed))
            small = net_of(16, size.side)
            for count in size.at_once:
                what = f"ours, smaller nets (base 16), batch 64, {count} at once, together"
                rows.append((what, _together(small, images, size, count)))
        rows += [(_whole_name(size, n), _whole(folder, size, n)) for n in size.at_once]
    parameters = sum(p.numel() for p in build(arch).parameters()) / 1e6
    first = rows[0][1]
    cells = [(what, f"{speed:,.0f}", f"{speed / first:.1f}") for what, speed in rows]
    head = f"{parameters:.2f}M parameters, {size.side}², {machine_for(TrainingPlan()).title}"
    return markdown((head, "images/s", "×"), cells)


class Pictures(Dataset):
    """Decodes and resizes each picture whenever it is asked for."""

    def __init__(self, folder: Path, side: int):
        self.images = sorted(p for p in folder.glob("*.png") if not p.stem.endswith("_seg"))
        self.side = side

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int):
        path = self.images[index]
        image = Image.open(path).convert("RGB").resize((self.side, self.side), Image.BILINEAR)
        label = Image.open(path.with_name(f"{path.stem}_seg.png"))
        label = label.resize((self.side, self.side), Image.NEAREST)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        labels = torch.frombuffer(bytearray(label.tobytes()), dtype=torch.uint8)
        shape = (self.side, self.side)
        return pixels.view(*shape, 3).permute(2, 0, 1).float() / 255, labels.view(shape).long()


def straightforward(arch: Architecture, faces: Path, size: Size, workers: int) -> float:
    """What most people write first."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = build(arch).to(device)
    for index, module in enumerate(net):
        if type(module).__name__ == "Enlarge":
            net[index] = nn.Upsample(scale_factor=module.factor, mode="bilinear")
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4)
    loader = DataLoader(
        Pictures(faces, size.side),
        batch_size=16,
        shuffle=True,
        num_workers=workers,
        pin_memory=device == "cuda",
        drop_last=True,
        persistent_workers=True,
    )

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from loader

    source = batches()

    def step() -> int:
        pixels, labels = (part.to(device, non_blocking=True) for part in next(source))
        optimizer.zero_grad()
        functional.cross_entropy(net(pixels), labels, ignore_index=255).backward()
        optimizer.step()
        return len(pixels)

    return _speed(step, size.seconds, warm=len(loader))


def ours(
    arch: Architecture, images: ImageSet, batch: int, plan: TrainingPlan, gate: Gate
) -> Callable[[], int]:
    machine = machine_for(replace(plan, batch=batch))
    weights = class_weights(images, CLASSES, 255)
    engine = Engine(build(arch), images, weights, plan, machine, gate)
    steps = max(1, len(images) // batch)
    order = order_of(0, 0, len(images), min(batch, len(images)), steps)
    index, chance = order.index.to(images.device), order.chance.to(machine.device)
    done = iter(range(10**9))

    def step() -> int:
        place = next(done) % steps
        engine.step(index[place], chance[place], 1e-3)
        return len(index[place])

    return step


def _alone(
    arch: Architecture, images: ImageSet, size: Size, batch: int, compiles: bool = False
) -> float:
    gate = Gate()
    with gate.together():
        step = ours(arch, images, batch, TrainingPlan(compile=compiles), gate)
        return _speed(step, size.seconds, warm=6)


def _together(arch: Architecture, images: ImageSet, size: Size, count: int) -> float:
    """Nets in threads, each on a stream of its own; the sum of their speeds."""
    speeds: list[float] = []
    ready, gate = Barrier(count), Gate()

    def wait() -> None:
        with gate.outside():
            ready.wait(60)

    def one() -> None:
        with torch.cuda.stream(torch.cuda.Stream()), gate.together():
            step = ours(arch, images, 64, TrainingPlan(), gate)
            speeds.append(_speed(step, size.seconds, warm=20, ready=wait))

    threads = [Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(speeds) == count
    return sum(speeds)


def _whole_name(size: Size, count: int) -> str:
    what = f"{size.whole_nets} whole trainings of {size.whole_steps} steps (base {size.base // 2})"
    return f"{what}, {count} at once: with validation, checkpoints and export"


def _whole(folder: Path, size: Size, count: int) -> float:
    """`train_many` as a search calls it, with nets that are all alike."""
    batch = size.batches[-1] if len(size.batches) == 1 else 64
    plan = TrainingPlan(steps=size.whole_steps, batch=batch, validation_images=64)
    faces, cache = folder / "faces", folder / "cache"
    outs = [folder / f"whole-{count}-{number}" for number in range(size.whole_nets)]
    nets = [
        TrainingItem(net_of(size.base // 2, size.side), TrainingPaths(faces, out, cache))
        for out in outs
    ]
    began = time.perf_counter()
    for _, outcome in train_many(nets, plan, at_once=count):
        assert isinstance(outcome, TrainingResult), outcome
    return size.whole_nets * size.whole_steps * batch / (time.perf_counter() - began)


def _images(folder: Path, size: Size) -> ImageSet:
    task = open_task("segmentation", folder / "faces", folder / "cache")
    samples: Samples = task.training(size.side, size.side)
    return SharedData().load(samples, None, machine_for(TrainingPlan()))


def _speed(
    step: Callable[[], int], seconds: float, warm: int, ready: Callable[[], None] | None = None
) -> float:
    for _ in range(warm):
        step()
    _wait()
    if ready is not None:
        ready()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(4):
            done += step()
        _wait()
    return done / (time.perf_counter() - began)


def _wait() -> None:
    """For this stream only: others in the process go on."""
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


if __name__ == "__main__":
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    print(run())
