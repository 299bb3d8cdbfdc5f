"""arch train and arch export: from an architecture to a trained model and its ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.app import NewPath, dataset_folder, json_option, load_settings, output_option
from edgeloop.cli.terminal import (
    INTERRUPT_SENTENCES,
    StepBar,
    print_json,
    say_on_interrupt,
    shown,
    step_bar,
)

if TYPE_CHECKING:
    from edgeloop.search.nets.architecture import Architecture
    from edgeloop.search.nets.plan import (
        ProgressReport,
        TrainingPaths,
        TrainingPlan,
        TrainingProgress,
        TrainingResult,
    )

_path = click.Path(path_type=Path)
_arch_argument = click.argument("arch_file", metavar="ARCH.json", type=_path)
_classes_option = click.option(
    "--classes",
    type=click.IntRange(min=2),
    help="Classes, for an ArchConfig of Archai  [default: the dataset's]",
)
_size_option = click.option(
    "--size",
    type=click.IntRange(min=8),
    help="Side of the image, for an ArchConfig of Archai  [default: 256]",
)


@click.group()
def arch() -> None:
    """Train or export one architecture.

    An architecture is a JSON file: that of a candidate of a search, or an ArchConfig of Microsoft
    Archai's stacked hourglass.
    """


@arch.command()
@_arch_argument
@click.option("--dataset", required=True, type=_path, help="Folder of images, for example faces/.")
@click.option("--epochs", default=1, show_default=True, help="Passes over the training set.")
@click.option("--steps", type=int, help="Number of steps, instead of --epochs.")
@click.option("--batch", type=int, help="Images per step  [default: 16; 64 on a GPU]")
@click.option(
    "--learning-rate", default=4e-3, show_default=True, help="Peak learning rate of AdamW."
)
@click.option("--seed", default=0, show_default=True, help="Seed of weights and data order.")
@click.option("--patience", type=int, help="Stop after this many epochs without a better F1.")
@click.option("--images", type=int, help="Use only this many training images.")
@click.option("--task", help="segmentation or classification  [default: by the output's shape]")
@click.option(
    "--qat",
    "qat_from",
    type=_path,
    metavar="CHECKPOINT",
    help="Quantization-aware: continue this trained model with rounding.",
)
@click.option(
    "--qat-weight-bits",
    type=click.Choice(("4", "8")),
    default="8",
    show_default=True,
    help="Bits of weights with --qat.",
)
@_classes_option
@_size_option
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="Device to train on; auto takes a GPU if available.",
)
@click.option("--threads", default=1, show_default=True, help="CPU threads; 1 is usually best.")
@click.option(
    "--compile/--no-compile",
    "compiles",
    default=None,
    help="Use torch.compile.  [default: on long GPU runs]",
)
@click.option(
    "--output",
    "-o",
    type=NewPath(is_folder=True),
    metavar="FOLDER",
    envvar="EDGELOOP_OUTPUT_DIR",
    help="Folder of the results  [default: the job's outputs, else outputs/ID]",
)
@click.option("--cache", type=_path, help="Cache of decoded images  [default: .edgeloop/prepared]")
@click.option(
    "--resume/--fresh", default=True, help="Continue from a checkpoint in --output, or start over."
)
@json_option
def train(
    arch_file: Path,
    dataset: Path,
    epochs: int,
    steps: int | None,
    batch: int | None,
    learning_rate: float,
    seed: int,
    patience: int | None,
    images: int | None,
    task: str | None,
    qat_from: Path | None,
    qat_weight_bits: str,
    classes: int | None,
    size: int | None,
    device: str,
    threads: int,
    compiles: bool | None,
    output: Path | None,
    cache: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Train the model of an architecture.

    Writes model.onnx, arch.json, checkpoint.pt, metrics.json and metrics.jsonl (a line per epoch).
    An interrupted training continues where it stopped. ARCH.json is an architecture of Edgeloop, or
    an ArchConfig of Microsoft Archai's stacked hourglass.

    With --qat a trained model learns on with the rounding that quantization does, at a learning
    rate of a tenth or so: for what `runner --recover` cannot win back. What is exported is a plain
    float model.

    Example: edgeloop arch train arch.json --dataset faces/ --epochs 30 -o trained/

    Example: edgeloop arch train arch.json --dataset faces/ --qat trained/checkpoint.pt
    -o robust/ --learning-rate 4e-4 --epochs 3
    """
    from edgeloop.paths import outputs
    from edgeloop.search.nets.plan import TrainingPaths, TrainingPlan

    settings = load_settings()
    data = dataset_folder(dataset, settings) or dataset
    plan = TrainingPlan(
        epochs=epochs,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        seed=seed,
        patience=patience,
        images=images,
        task=task,
        qat_from=qat_from,
        qat_weight_bits=int(qat_weight_bits),
        device=device,  # type: ignore[arg-type]  # one of the choices
        threads=threads,
        compile=compiles,
    )
    architecture = _architecture(arch_file, classes, size, data, task)
    paths = TrainingPaths(data, output or outputs(architecture.id), cache, settings.project)
    result = _train(architecture, plan, paths, resume)
    if as_json:
        print_json([{**vars(result), "out": str(paths.out)}])
    else:
        early = ", stopped early" if result.stopped_early else ""
        epoch = f"epoch {result.best_epoch} of {result.epochs}{early}"
        scores = f"F1 {result.f1:.3f}, mIoU {result.miou:.3f}"
        click.echo(f"{result.arch_id}: {scores} after {epoch} → {paths.out}")


@arch.command()
@_arch_argument
@output_option("File to write, for example net.onnx.", required=True, makes_folders=True)
@click.option("--weights", type=_path, help="A checkpoint.pt  [default: untrained weights]")
@click.option("--seed", default=0, show_default=True, help="Seed of untrained weights.")
@click.option(
    "--classes",
    type=click.IntRange(min=2),
    help="Classes; needed for an ArchConfig of Archai, which says none.",
)
@_size_option
@json_option
def export(
    arch_file: Path,
    output: Path,
    weights: Path | None,
    seed: int,
    classes: int | None,
    size: int | None,
    as_json: bool,
) -> None:
    """Export an architecture as an ONNX model.

    An untrained model has the same latency on a chip as the trained one.

    Example: edgeloop arch export arch.json -o net.onnx --weights trained/checkpoint.pt
    """
    from edgeloop.search.nets.export import export_onnx
    from edgeloop.search.nets.plan import load_weights
    from edgeloop.search.nets.spaces import build

    architecture = _architecture(arch_file, classes, size)
    net = build(architecture, seed, load_settings().project)
    if weights is not None:
        load_weights(net, architecture, weights)
    export_onnx(net, architecture, output)
    parameters = sum(p.numel() for p in net.parameters())
    if as_json:
        print_json([{"id": architecture.id, "file": str(output), "parameters": parameters}])
    else:
        click.echo(f"{architecture.id} ({parameters / 1e6:.2f}M parameters) → {output}")


COMMANDS = (arch,)


def _architecture(
    arch_file: Path,
    classes: int | None,
    size: int | None,
    dataset: Path | None = None,
    task: str | None = None,
) -> Architecture:
    """From a file of ours or of Archai's; the latter takes its classes from the dataset."""
    from edgeloop.errors import BadInput
    from edgeloop.search.nets.spaces import load_architecture

    is_asked = False

    def class_count() -> int:
        nonlocal is_asked
        is_asked = True
        if classes is not None:
            return classes
        if dataset is None:
            reason = f"{arch_file} is an ArchConfig, which says no number of classes: use --classes"
            raise BadInput(reason=reason)
        from edgeloop.tasks import open_task

        return len(open_task(task or "segmentation", dataset, Path()).classes)

    arch = load_architecture(arch_file, class_count, None if size is None else (size, size))
    if not is_asked and (classes or size):
        reason = f"{arch_file} says its classes and size itself: --classes and --size are for an"
        raise BadInput(reason=f"{reason} ArchConfig of Archai")
    return arch


def _train(
    arch: Architecture, plan: TrainingPlan, paths: TrainingPaths, resume: bool
) -> TrainingResult:
    from edgeloop.search.nets.train import train as train_net

    checkpoint = paths.out / "checkpoint.pt"
    again = f"Stopped; {shown(str(checkpoint))} is kept. Run it again to continue from there."
    say_on_interrupt(lambda: again if checkpoint.exists() else INTERRUPT_SENTENCES["arch train"])
    with step_bar(f"training {arch.id}, steps") as bar:
        return train_net(arch, plan, paths, resume=resume, progress=_shown_on(bar))


def _shown_on(bar: StepBar) -> ProgressReport:
    """A line per epoch, above the bar of the steps."""
    told = 0

    def report(progress: TrainingProgress) -> None:
        nonlocal told
        last = progress.last
        if last is not None and last.epoch != told:
            told = last.epoch
            bar.say(
                f"epoch {last.epoch}, step {last.step} of {progress.steps}: loss {last.loss:.3f}, "
                f"F1 {last.f1:.3f}, mIoU {last.miou:.3f}, {last.images_per_s:,.0f} images/s"
            )
        bar.update(progress.step, progress.steps, f"loss {progress.loss:.3f}")

    return report
