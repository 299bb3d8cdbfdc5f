"""train and export: from an architecture to a trained model and its ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from edgeloop.training import ProgressReport, TrainingPlan, TrainingProgress

_path = click.Path(path_type=Path)
_arch_argument = click.argument("arch_file", metavar="ARCH.json", type=_path)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@click.command()
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
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="Device to train on; auto takes a GPU if available.",
)
@click.option("--threads", default=1, show_default=True, help="CPU threads; 1 is usually best.")
@click.option(
    "--compile", "compiles", is_flag=True, help="Use torch.compile; pays on long GPU runs."
)
@click.option(
    "--out",
    type=_path,
    envvar="EDGELOOP_OUTPUT_DIR",
    help="Output folder  [default: the job's outputs, else outputs/ID]",
)
@click.option("--cache", type=_path, help="Cache of decoded images  [default: .edgeloop/prepared]")
@click.option(
    "--resume/--fresh", default=True, help="Continue from a checkpoint in --out, or start over."
)
@_json_option
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
    device: str,
    threads: int,
    compiles: bool,
    out: Path | None,
    cache: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Train the model of an architecture.

    Writes model.onnx, arch.json, checkpoint.pt, metrics.json and metrics.jsonl (a line per epoch).
    An interrupted training continues where it stopped.

    Example: edgeloop train arch.json --dataset faces/ --epochs 30 --out trained/
    """
    from edgeloop.training import TrainingPlan

    plan = TrainingPlan(
        epochs=epochs,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        seed=seed,
        patience=patience,
        images=images,
        task=task,
        device=device,  # type: ignore[arg-type]  # one of the choices
        threads=threads,
        compile=compiles,
    )
    _train(arch_file, dataset, plan, out, cache, resume, as_json)


@click.command()
@_arch_argument
@click.option(
    "-o", "--output", required=True, type=_path, help="File to write, for example net.onnx."
)
@click.option("--weights", type=_path, help="A checkpoint.pt  [default: untrained weights]")
@click.option("--seed", default=0, show_default=True, help="Seed of untrained weights.")
@_json_option
def export(arch_file: Path, output: Path, weights: Path | None, seed: int, as_json: bool) -> None:
    """Export an architecture as an ONNX model.

    An untrained model has the same latency on a chip as the trained one.

    Example: edgeloop export arch.json -o net.onnx --weights trained/checkpoint.pt
    """
    from edgeloop.architectures import Architecture, build, export_onnx
    from edgeloop.cli.output import print_json
    from edgeloop.settings import Settings
    from edgeloop.training import load_weights

    arch = Architecture.load(arch_file)
    net = build(arch, seed, Settings.load().project)
    if weights is not None:
        load_weights(net, arch, weights)
    export_onnx(net, arch, output)
    parameters = sum(p.numel() for p in net.parameters())
    if as_json:
        print_json([{"id": arch.id, "file": str(output), "parameters": parameters}])
    else:
        click.echo(f"{arch.id} ({parameters / 1e6:.2f}M parameters) → {output}")


COMMANDS = (train, export)


def _train(
    arch_file: Path,
    dataset: Path,
    plan: TrainingPlan,
    out: Path | None,
    cache: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    from edgeloop.architectures import Architecture
    from edgeloop.cli.output import print_json
    from edgeloop.paths import outputs
    from edgeloop.settings import Settings
    from edgeloop.training import train as train_net

    arch = Architecture.load(arch_file)
    folder = out or outputs(arch.id)
    result = train_net(
        arch,
        dataset,
        plan,
        folder,
        resume=resume,
        progress=_lines(),
        cache=cache,
        project=Settings.load().project,
    )
    if as_json:
        print_json([{**vars(result), "out": str(folder)}])
    else:
        early = ", stopped early" if result.stopped_early else ""
        epoch = f"epoch {result.best_epoch} of {result.epochs}{early}"
        scores = f"F1 {result.f1:.3f}, mIoU {result.miou:.3f}"
        click.echo(f"{result.arch_id}: {scores} after {epoch} → {folder}")


def _lines() -> ProgressReport:
    """One line per epoch."""
    told = 0

    def report(progress: TrainingProgress) -> None:
        nonlocal told
        last = progress.last
        if last is None or last.epoch == told:
            return
        told = last.epoch
        click.echo(
            f"epoch {last.epoch}, step {last.step} of {progress.steps}: loss {last.loss:.3f}, "
            f"F1 {last.f1:.3f}, mIoU {last.miou:.3f}, {last.images_per_s:,.0f} images/s",
            err=True,
        )

    return report
