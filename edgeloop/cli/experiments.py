"""experiment: the experiments of a store, and what each asks of its runners."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import common_options, opened
from edgeloop.cli.terminal import TableColumn, listing, no_models, print_json, say_empty

if TYPE_CHECKING:
    from edgeloop.models.catalog import ExperimentSettings
    from edgeloop.store import Store
    from edgeloop.workspace import Workspace

_UNSET = {
    "dataset": "none: runners use their own, else random inputs",
    "task": "that of the runner's settings",
    "primary": "the device that benchmarks first",
    "targets": "what the registered devices take",
    "devices": "none has been registered by a runner yet",
}
_CLEARABLE = {"dataset": "dataset", "task": "task", "primary": "primary", "target": "targets"}


@click.group()
def experiment() -> None:
    """List experiments and change their settings.

    Settings are in the store, the same for every machine, and runners follow them: they fetch the
    dataset, and convert for the devices that other runners have registered.
    """


@experiment.command("list")
@common_options
def list_experiments(experiment: str | None, store: str | None, as_json: bool) -> None:
    """List experiments and count their models.

    Example: edgeloop experiment list --json
    """
    from edgeloop.models.columns import check_experiment_name

    if experiment is not None:
        check_experiment_name(experiment)
    with opened(store, experiment) as workspace:
        counts = workspace.experiments()
        if experiment is not None:
            counts = {name: count for name, count in counts.items() if name == experiment}
        hint = "" if counts else no_models(workspace)
    if as_json:
        print_json({"name": name, "models": count} for name, count in counts.items())
    if hint:
        say_empty(hint, as_json)
    elif not as_json:
        cells = [(name, str(count)) for name, count in counts.items()]
        columns = (TableColumn("experiment", 100, 20), TableColumn("models", 90, right=True))
        models = plural(sum(counts.values()), "model")
        total = f"{plural(len(counts), 'experiment')}: {models}"
        click.echo(listing(columns, cells, total=total))


@experiment.command("set")
@click.argument("name", required=False)
@click.option(
    "--dataset",
    metavar="NAME",
    help="Dataset of the store to calibrate and score with, such as working/faces; 'random' for "
    "random inputs, 'none' for no setting.",
)
@click.option("--task", metavar="NAME", help="What the dataset is for, such as segmentation.")
@click.option(
    "--primary",
    metavar="DEVICE",
    help="Device whose results fill the main columns, such as htp:qcs8550, or a board's chip.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="TOOLCHAIN[:CHIP]",
    help="What models are converted for, such as snpe:qcs8550; repeatable, replaces all others.",
)
@click.option(
    "--forget",
    "forgotten",
    multiple=True,
    metavar="DEVICE",
    help="Type of device, as 'experiment show' lists it, to evaluate no models for; repeatable. "
    "Its results are kept. A runner that has one registers it again when it starts.",
)
@click.option(
    "--clear",
    "cleared",
    multiple=True,
    type=click.Choice(tuple(_CLEARABLE)),
    help="Setting to remove; repeatable.",
)
@common_options
def set_(
    name: str | None,
    dataset: str | None,
    task: str | None,
    primary: str | None,
    targets: tuple[str, ...],
    forgotten: tuple[str, ...],
    cleared: tuple[str, ...],
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Change settings of an experiment.

    NAME is the same as --experiment NAME. What is not named stays as it is. A dataset is kept with
    its version, so that all models of the experiment are calibrated on the same images: after
    another 'data push', set it again. Models that were calibrated on random inputs before are
    converted and evaluated again.

    The results of the primary device fill the main columns; each further type of device that
    runners have gets columns of its own, such as latency_ms_on_htp_x_elite.

    Example: edgeloop experiment set faces --dataset working/faces256
    """
    from edgeloop.models.catalog import change_settings, parse_target
    from edgeloop.platforms import find_platform

    changes: dict[str, str | tuple[str, ...]] = {_CLEARABLE[key]: "" for key in cleared}
    changes |= {key: text for key, text in (("task", task), ("primary", primary)) if text}
    if targets:
        for target in targets:
            find_platform(parse_target(target)[0])
        changes["targets"] = targets
    if not changes and not dataset and not forgotten:
        raise click.UsageError(
            "Name a setting: --dataset, --task, --primary, --target, --forget or --clear."
        )
    with opened(store, _only_name(name, experiment), makes=True) as workspace:
        if dataset:
            changes["dataset"] = _stored_dataset(dataset, workspace.store)

        def decide(before: ExperimentSettings) -> Mapping[str, str | tuple[str, ...]]:
            return changes | _without(forgotten, before)

        settings = change_settings(workspace.store, workspace.experiment, decide)
        workspace.catalog.retarget(settings.for_models())
        again = _calibrated_again(workspace) if dataset and not settings.has_random_inputs else 0
    _show(workspace.experiment, settings, as_json)
    if again and not as_json:
        click.echo(f"{plural(again, 'model')} calibrated on random inputs: converted again.")


@experiment.command()
@click.argument("name", required=False)
@common_options
def show(name: str | None, experiment: str | None, store: str | None, as_json: bool) -> None:
    """Show the settings of an experiment.

    NAME is the same as --experiment NAME.

    Example: edgeloop experiment show faces
    """
    from edgeloop.models.catalog import read_settings

    with opened(store, _only_name(name, experiment)) as workspace:
        settings = read_settings(workspace.store, workspace.experiment)
    _show(workspace.experiment, settings, as_json)


COMMANDS = (experiment,)


def _without(
    forgotten: tuple[str, ...], before: ExperimentSettings
) -> dict[str, str | tuple[str, ...]]:
    """The devices that are left; the primary one is another one then."""
    from edgeloop.errors import NotFound

    if not forgotten:
        return {}
    types = {text.partition("=")[0]: text for text in before.devices}
    for device in forgotten:
        if device not in types:
            known = ", ".join(types) or "none"
            raise NotFound(reason=f"there is no device {device!r} to forget: there are {known}")
    left = tuple(text for device, text in types.items() if device not in forgotten)
    first = left[0].partition("=")[0] if left else ""
    return {"devices": left, **({"primary": first} if before.primary in forgotten else {})}


def _calibrated_again(workspace: Workspace) -> int:
    """Reset conversions that had no dataset, with all that was measured of them; how many models.
    A model for latency alone needs none."""
    from edgeloop.errors import ModelBusy
    from edgeloop.models.columns import is_true

    count = 0
    for row in workspace.catalog.rows():
        of_forms = (v for name, v in row.values.items() if name.startswith("calibration"))
        if "random" not in of_forms or is_true(row.values.get("benchmark_only")):
            continue
        with contextlib.suppress(ModelBusy):  # its holder finds that its result does not count
            workspace.catalog.reset(row.key, ["convert", "f1_onnx"])
            count += 1
    return count


def _only_name(name: str | None, experiment: str | None) -> str | None:
    if name and experiment and name != experiment:
        raise click.UsageError(f"{name} and --experiment {experiment} are two experiments.")
    return name or experiment


def _stored_dataset(text: str, store: Store) -> str:
    """The dataset with its version; raises NoSuchDataset if the store has none of that name."""
    from edgeloop.errors import BadInput
    from edgeloop.models.catalog import RANDOM_INPUTS
    from edgeloop.node.datasets import Datasets

    if text == "none":
        return ""
    if text == RANDOM_INPUTS:
        return RANDOM_INPUTS
    if "://" in text or text.startswith(("/", "./", "../", "~")):
        reason = (
            f"{text} is not a dataset of the store, which is where every machine can fetch it: "
            "publish it with 'edgeloop data push', then name it, such as working/faces"
        )
        raise BadInput(reason=reason)
    return str(Datasets(store.blobs).resolve(text))


def _show(name: str, settings: ExperimentSettings, as_json: bool) -> None:
    if as_json:
        print_json([{"name": name, **vars(settings)}])
        return
    cells = []
    for key, value in vars(settings).items():
        text = " ".join(value) if isinstance(value, tuple) else value
        cells.append((key, text or f"({_UNSET[key]})"))
    click.echo(listing((TableColumn("setting", 100), TableColumn(name, 90, 40)), cells))
