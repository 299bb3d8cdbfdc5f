"""train and export: an architecture becomes a net with weights, and a file for every later step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from edgeloop.training import Progress, Report, TrainingPlan, TrainingResult

_path = click.Path(path_type=Path)
_arch_argument = click.argument("arch_file", metavar="ARCH.json", type=_path)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@click.command()
@_arch_argument
@click.option("--dataset", required=True, type=_path, help="The folder of pictures, as faces/.")
@click.option("--epochs", default=1, show_default=True, help="How often to see every picture.")
@click.option("--steps", type=int, help="How many steps, in place of --epochs.")
@click.option("--batch", type=int, help="Pictures a step  [default: 16, on a GPU 64]")
@click.option("--learning-rate", default=4e-3, show_default=True, help="The highest, of AdamW.")
@click.option("--seed", default=0, show_default=True, help="Another seed gives other weights.")
@click.option("--patience", type=int, help="End after so many epochs without a better F1.")
@click.option("--images", type=int, help="Learn from so many pictures only.")
@click.option("--task", help="segmentation or classification  [default: what the net answers]")
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="What to train on; auto takes a GPU where there is one.",
)
@click.option("--threads", default=1, show_default=True, help="Of the CPU; 1 is mostly best.")
@click.option("--compile", "compiles", is_flag=True, help="torch.compile: for long runs on a GPU.")
@click.option(
    "--out",
    type=_path,
    envvar="EDGELOOP_OUTPUT_DIR",
    help="Where results go  [default: the job's outputs, else outputs/ID]",
)
@click.option("--cache", type=_path, help="For decoded pictures  [default: .edgeloop/prepared]")
@click.option("--resume/--fresh", default=True, help="Go on from a checkpoint in --out, or not.")
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
    """Train the net of an architecture.

    Writes model.onnx, metrics.json, metrics.jsonl (a line an epoch), arch.json and checkpoint.pt.
    A training that was interrupted goes on where it was.

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
@click.option("-o", "--output", required=True, type=_path, help="The file to write, as net.onnx.")
@click.option("--weights", type=_path, help="A checkpoint.pt  [default: untrained weights]")
@click.option("--seed", default=0, show_default=True, help="For weights that are not trained.")
@_json_option
def export(arch_file: Path, output: Path, weights: Path | None, seed: int, as_json: bool) -> None:
    """Write the net of an architecture as ONNX, trained or not.

    Untrained, it has the same latency on a chip as it will have when it is trained.

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
        click.echo(_summary(result, folder))


def _lines() -> Report:
    """A line an epoch, for people and logs alike."""
    told = 0

    def report(progress: Progress) -> None:
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


def _summary(result: TrainingResult, folder: Path) -> str:
    early = ", stopped early" if result.stopped_early else ""
    return (
        f"{result.arch_id}: F1 {result.f1:.3f}, mIoU {result.miou:.3f} after epoch "
        f"{result.best_epoch} of {result.epochs}{early} → {folder}"
    )
