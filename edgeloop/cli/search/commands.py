"""search and train-pareto: from a space to a front of trained models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.context import common_options, load_settings, say_project

if TYPE_CHECKING:
    from edgeloop.cli.terminal.progress import StepBar
    from edgeloop.jobs import JobSpec
    from edgeloop.search import Candidate, Event, Retrained, Search, SearchConfig, SearchResult
    from edgeloop.settings import Settings


_YAML = (".yaml", ".yml")


@click.command()
@click.argument("file", metavar="CONF.yaml|SEARCH", type=click.Path(path_type=Path))
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--resume", is_flag=True, help="Continue an interrupted search.")
@click.option(
    "--from",
    "earlier",
    multiple=True,
    metavar="SEARCH",
    help="Start from the results of an earlier search; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done and what it costs.")
@click.option("--compute", help="Run the search itself as a job on this compute.")
@common_options
def search(
    file: Path,
    words: tuple[str, ...],
    resume: bool,
    earlier: tuple[str, ...],
    dry_run: bool,
    compute: str | None,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Search for the best architectures.

    Best are those that trade accuracy against latency better than any other.

    Stop it whenever you like: --resume goes on, and nothing is evaluated twice. Results are in
    searches/NAME and in the status table. A search that was run is also known by its name, its
    folder, or the job that ran it: edgeloop search laptop --resume

    With --from, results of an earlier search of the same space are not obtained again.

    Example: edgeloop search laptop.yaml search.budget=24
    """
    from edgeloop.cli.output import print_json
    from edgeloop.cli.terminal.progress import step_bar
    from edgeloop.search import Search, search_job, search_settings

    config = _opened_config(file, words)
    if earlier:
        config = replace(config, earlier=tuple(dict.fromkeys((*config.earlier, *earlier))))
    settings = search_settings(config, store, experiment)
    say_project(settings.project)
    if dry_run:
        _say_plan(config, settings, as_json)
        return
    if compute:
        spec = search_job(config, file, words, settings, compute, resume)
        _submit(config, spec, settings, resume, as_json)
        return
    with Search(config, settings, resume) as opened, step_bar(f"search {config.name}") as bar:
        seen = [item.number for item in opened.study.candidates() if item.state != "running"]
        bar.update(len(seen), config.budget)
        outcome = opened.run(lambda event: _say_event(event, config, seen, opened, bar), bar.say)
    if as_json:
        print_json(_as_json(config, outcome))
    else:
        _say_outcome(config, outcome)


@click.command("train-pareto")
@click.argument("name", metavar="SEARCH")
@click.option("--epochs", default=30, show_default=True, help="Passes over the training set.")
@click.option("--compute", help="Compute to train on  [default: this process]")
@click.option("--data", help="Dataset, such as working/faces  [default: the search's]")
@click.option("--gpus", type=float, default=0.0, help="GPUs per training  [default: 0]")
@click.option(
    "--at-once", type=click.IntRange(min=1), default=1, help="Concurrent trainings  [default: 1]"
)
@click.option("--pipeline", type=click.IntRange(min=1), help="Trainings per pipeline  [default: 1]")
@click.option("--batch", type=int, help="Images per step  [default: 16; 64 on a GPU]")
@click.option("--learning-rate", type=float, help="Peak learning rate  [default: the search's]")
@click.option("--no-publish", is_flag=True, help="Do not upload the models to the status table.")
@common_options
def train_pareto(
    name: str,
    epochs: int,
    compute: str | None,
    data: str | None,
    gpus: float,
    at_once: int,
    pipeline: int | None,
    batch: int | None,
    learning_rate: float | None,
    no_publish: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Train the models of a front in full.

    Shows the results of partial and full training side by side.

    Models that are already trained are not trained again.

    Example: edgeloop train-pareto laptop --epochs 30 --compute cluster
    """
    from edgeloop.cli.output import print_json
    from edgeloop.cli.terminal.progress import step_bar
    from edgeloop.cli.terminal.tables import TableColumn, listing
    from edgeloop.search import (
        front_in,
        retrain,
        search_folder,
        search_settings,
        summary,
        trainer_of,
    )
    from edgeloop.workspace import Workspace

    config, folder = _kept_config(name)
    settings = search_settings(config, store, experiment)
    say_project(settings.project)
    train: dict[str, object] = {**(config.train or {}), "epochs": epochs, "steps": None}
    given = {"batch": batch, "learning_rate": learning_rate, "gpus": gpus or None}
    given |= {"pipeline": pipeline}
    train |= {key: value for key, value in given.items() if value is not None}
    train |= {"compute": compute, "at_once": at_once, "images": None}
    trainer = trainer_of(train, data or config.data, settings, at_once)
    folder = folder or search_folder(config, settings)
    with Workspace(settings) as workspace, step_bar("training the front") as bar:
        count, trained = len(front_in(folder)), 0
        bar.update(0, count)

        def hear(item: Retrained) -> None:
            nonlocal trained
            trained += 1
            if not as_json:
                bar.say(_trained_line(item))
            bar.update(trained, count)

        done = retrain(config.name, folder, trainer, workspace, hear, not no_publish)
    if as_json:
        print_json(summary(done))
    else:
        cells = [
            (i.arch.id, _score(i.partial_iou), _score(i.full_iou), _score(i.full_f1), i.error)
            for i in done
        ]
        columns = (
            TableColumn("architecture", 100, 12),
            *(TableColumn(name, 90, right=True) for name in ("partial IoU", "full IoU", "full F1")),
            TableColumn("", 80, 20, wraps=True),
        )
        click.echo(listing(columns, cells))
    if any(item.error for item in done):
        raise SystemExit(1)


COMMANDS = (search, train_pareto)


def _submit(
    config: SearchConfig, spec: JobSpec, settings: Settings, resume: bool, as_json: bool
) -> None:
    """A search that is resumed is another attempt of its job, and starts with its results."""
    from edgeloop.cli.jobs.views import print_jobs
    from edgeloop.jobs import Jobs
    from edgeloop.search import earlier_job

    jobs = Jobs(settings)
    tell = None if as_json else lambda line: click.echo(line, err=True)
    earlier = earlier_job(config, jobs) if resume else None
    if earlier is not None:
        there = [f"compute={spec.compute}"]
        run = jobs.resubmit(earlier, there, spec.args, with_outputs=True, tell=tell)
    else:
        [run] = jobs.submit(spec, tell=tell)
    if as_json:
        print_jobs(jobs, [run], as_json=True)
        return
    click.echo(f"{run.name} submitted to {run.record.compute}")
    follow = f"edgeloop job logs {run.name} -f  ·  edgeloop job results {run.name}"
    click.echo(f"Next: {follow}", err=True)


def _opened_config(file: Path, words: tuple[str, ...]) -> SearchConfig:
    """A configuration file, or a search that was run: by its name, its job or its folder."""
    from edgeloop.search import find_search, kept_search, read_config

    if file.suffix in _YAML or file.is_file():
        return read_config(file, words)
    project = load_settings().project
    return kept_search(find_search(str(file), project), project, words)


def _kept_config(name: str) -> tuple[SearchConfig, Path | None]:
    """A search by its name, its job, its folder or its configuration file, and where it is."""
    from edgeloop.search import find_search, kept_search, read_config

    if Path(name).suffix in _YAML:
        return read_config(Path(name)), None
    project = load_settings().project
    folder = find_search(name, project)
    return kept_search(folder, project), folder


def _say_plan(config: SearchConfig, settings: Settings, as_json: bool) -> None:
    from edgeloop.cli.output import print_json
    from edgeloop.search import NO_LIMIT, check_devices, device_of, search_folder, value_of

    check_devices(config, settings)
    steps = [f"{name}: {_cost(config, name)}" for name in config.wanted]
    if as_json:
        print_json(
            [
                {
                    "name": config.name,
                    "budget": config.budget,
                    "sampler": config.sampler,
                    "objectives": [o.name for o in config.objectives],
                    "experiment": settings.experiment,
                    "folder": str(search_folder(config, settings)),
                    "costs": {name: _cost(config, name) for name in config.wanted},
                }
            ]
        )
        return
    click.echo(f"{config.budget} candidates of the space {config.space}, sampler {config.sampler}")
    click.echo("each costs " + "; ".join(steps))
    for name, (low, high) in config.constraints.items():
        what = f"kept off the front of {device_of(name)}" if device_of(name) else "left out"
        if (low, high) != NO_LIMIT:
            click.echo(f"{what} where {value_of(name)} is not within {low:g} to {high:g}")
    click.echo(f"results in {search_folder(config, settings)}, experiment '{settings.experiment}'")


def _cost(config: SearchConfig, name: str) -> str:
    from edgeloop.search import value_of

    name = value_of(name)
    if name in ("params", "macs", "memory_bytes"):
        return "no time"
    if name in ("host_latency_ms", "chip_latency_ms", "ddr_bytes"):
        return "about a second"
    if name in ("farm_latency_ms", "farm_f1"):
        return "runner time on the device"
    train = config.train or {}
    length = f"{train['steps']} steps" if train.get("steps") else f"{train.get('epochs', 1)} epochs"
    return f"training for {length} on {train.get('compute') or 'this machine'}"


def _say_event(
    event: Event, config: SearchConfig, seen: list[int], opened: Search, bar: StepBar
) -> None:
    """A line per candidate that has ended, above the bar of the search."""
    if event.what == "begun" or event.what == "paused":  # noqa: PLR1714 - for mypy
        return
    seen.append(event.candidate.number)
    words = {
        "complete": "",
        "screened": "screened out: ",
        "stopped": "stopped early ",
        "failed": "failed: ",
    }
    what = f"{event.candidate.arch.id}  {_values(event, config)}  {words[event.what]}{event.reason}"
    bar.say(f"{len(seen):>4}/{config.budget}  {what.rstrip()}")
    volume = opened.hypervolume
    if volume is not None and len(seen) % config.iteration == 0:
        bar.say(f"          hypervolume {volume:.3f} after {len(seen)} candidates")
    text = "" if volume is None else f"hypervolume {volume:.3f}"
    bar.update(len(seen), config.budget, text)


def _values(event: Event, config: SearchConfig) -> str:
    """`chip_latency_ms 0.31  val_iou 0.5`; of several chips, from the least to the most."""
    from edgeloop.search import value_of

    found: dict[str, list[float]] = {}
    for name in config.wanted:
        if name in event.values:
            found.setdefault(value_of(name), []).append(event.values[name])
    return "  ".join(
        f"{name} {min(each):.4g}" if len(each) == 1 else f"{name} {min(each):.4g}–{max(each):.4g}"
        for name, each in found.items()
    )


def _say_outcome(config: SearchConfig, outcome: SearchResult) -> None:
    from edgeloop.cli.output import shown
    from edgeloop.cli.search.views import say_search
    from edgeloop.search import read_search

    say_search(read_search(outcome.folder))
    if outcome.screened:
        text = f"Screened {outcome.screened} members of the space; {outcome.left_out} cannot be"
        click.echo(f"{text} trained.", err=True)
    if config.rungs is not None:
        share = f"{outcome.share_of_training(config.rungs):.0%} of the {config.rungs.unit}"
        click.echo(f"{outcome.count('stopped')} stopped early: trained for {share}")
    if outcome.is_exhausted:
        of = " that can be trained" if outcome.screened else ""
        click.echo(f"The space has only these {len(outcome.candidates)} members{of}.", err=True)
    click.echo(f"Results in {shown(str(outcome.folder))}", err=True)


def _as_json(config: SearchConfig, outcome: SearchResult) -> list[dict[str, object]]:
    """A candidate per row; `hypervolume` is that of the search when it had ended."""
    from edgeloop.search import front_names, is_result, read_search

    front = {item.number for item in outcome.front}
    seen = read_search(outcome.folder)
    after = {
        item.number: volume
        for item, (_, volume, _) in zip(seen.candidates, seen.curve, strict=False)
    }
    return [
        {
            "number": item.number,
            "arch_id": item.arch.id,
            "state": item.state,
            "reason": item.reason,
            "is_pareto": item.number in front,
            **({"fronts": front_names(outcome.fronts, item)} if outcome.fronts else {}),
            "hypervolume": after.get(item.number),
            "parameters": dict(item.params),
            **_trained_for(config, item),
            **({"earlier": item.earlier} if item.earlier else {}),
            **{name: value for name, value in item.values.items() if is_result(name)},
        }
        for item in (*outcome.earlier, *outcome.candidates)
    ]


def _trained_for(config: SearchConfig, item: Candidate) -> dict[str, object]:
    """How far a candidate was trained, if trainings are stopped early."""
    rungs = config.rungs
    if rungs is None:
        return {}
    reached = rungs.total if item.state == "complete" else max(item.rungs, default=0)
    return {f"trained_{rungs.unit}": reached, f"planned_{rungs.unit}": rungs.total}


def _trained_line(item: Retrained) -> str:
    if item.error:
        return f"{item.arch.id}: failed: {item.error}"
    return f"{item.arch.id}: IoU {_score(item.partial_iou)} → {_score(item.full_iou)}"


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
