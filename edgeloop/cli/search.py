"""search, search show and search train: from a space to a front of trained models."""

from __future__ import annotations

import string
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import common_options, json_option, load_settings, say_project
from edgeloop.cli.terminal import Screen, StepBar, TableColumn, listing, print_json, shown, step_bar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeloop.jobs.spec import JobSpec
    from edgeloop.search.campaign import Retrained, Search, SearchResult
    from edgeloop.search.config import SearchConfig
    from edgeloop.search.loop import Event
    from edgeloop.search.results import SeenCandidate, SeenFront, SeenSearch
    from edgeloop.search.study import Candidate
    from edgeloop.settings import Settings


# search and search train: from a space to a front of trained models.


_YAML = (".yaml", ".yml")


class _SearchGroup(click.Group):
    """`search FILE` is a command of its own, unless the first word is that of one below it."""

    allow_extra_args = False
    allow_interspersed_args = True

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Without the arguments in the path of a command below, where click writes them out."""
        params = super().get_params(ctx)
        if ctx.command is self:
            return params
        return [each for each in params if not isinstance(each, click.Argument)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return click.Command.collect_usage_pieces(self, ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            ctx.args = args
            return args
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.args:
            return click.Command.invoke(self, ctx)
        name, *args = ctx.args
        with self.commands[name].make_context(name, args, parent=ctx) as below:
            return below.command.invoke(below)


@click.command(cls=_SearchGroup, no_args_is_help=False)
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
    from edgeloop.search.campaign import Search, search_job, search_settings

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


@search.command("train")
@click.argument("name", metavar="SEARCH")
@click.option("--epochs", default=30, show_default=True, help="Passes over the training set.")
@click.option("--compute", help="Compute to train on  [default: this process]")
@click.option("--dataset", help="Dataset, such as working/faces  [default: the search's]")
@click.option("--gpus", type=float, default=0.0, help="GPUs per training  [default: 0]")
@click.option(
    "--at-once", type=click.IntRange(min=1), default=1, help="Concurrent trainings  [default: 1]"
)
@click.option("--pipeline", type=click.IntRange(min=1), help="Trainings per pipeline  [default: 1]")
@click.option("--batch", type=int, help="Images per step  [default: 16; 64 on a GPU]")
@click.option("--learning-rate", type=float, help="Peak learning rate  [default: the search's]")
@click.option("--no-publish", is_flag=True, help="Do not upload the models to the status table.")
@common_options
def train_front(
    name: str,
    epochs: int,
    compute: str | None,
    dataset: str | None,
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

    Example: edgeloop search train laptop --epochs 30 --compute cluster
    """
    from edgeloop.search.campaign import (
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
    options = {"batch": batch, "learning_rate": learning_rate, "gpus": gpus or None}
    options |= {"pipeline": pipeline}
    train |= {key: value for key, value in options.items() if value is not None}
    train |= {"compute": compute, "at_once": at_once, "images": None}
    trainer = trainer_of(train, dataset or config.data, settings, at_once)
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
            (i.name, _score(i.partial_iou), _score(i.full_iou), _score(i.full_f1), i.error)
            for i in done
        ]
        columns = (
            TableColumn("name", 100, 12),
            *(TableColumn(name, 90, right=True) for name in ("partial IoU", "full IoU", "full F1")),
            TableColumn("", 80, 20, wraps=True),
        )
        click.echo(listing(columns, cells))
    if any(item.error for item in done):
        raise SystemExit(1)


def _submit(
    config: SearchConfig, spec: JobSpec, settings: Settings, resume: bool, as_json: bool
) -> None:
    """A search that is resumed is another attempt of its job, and starts with its results."""
    from edgeloop.cli.job_views import print_jobs
    from edgeloop.jobs.client import Jobs
    from edgeloop.search.campaign import earlier_job

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
    from edgeloop.search.config import read_config
    from edgeloop.search.study import find_search, kept_search

    if file.suffix in _YAML or file.is_file():
        return read_config(file, words)
    project = load_settings().project
    return kept_search(find_search(str(file), project), project, words)


def _kept_config(name: str) -> tuple[SearchConfig, Path | None]:
    """A search by its name, its job, its folder or its configuration file, and where it is."""
    from edgeloop.search.config import read_config
    from edgeloop.search.study import find_search, kept_search

    if Path(name).suffix in _YAML:
        return read_config(Path(name)), None
    project = load_settings().project
    folder = find_search(name, project)
    return kept_search(folder, project), folder


def _say_plan(config: SearchConfig, settings: Settings, as_json: bool) -> None:
    from edgeloop.search.base import device_of, value_of
    from edgeloop.search.campaign import search_folder
    from edgeloop.search.config import NO_LIMIT
    from edgeloop.search.evaluators.screening import check_devices

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
    from edgeloop.search.base import value_of

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
    if event.what == "dropped":
        name = opened.name_of(event.candidate.arch.id)
        bar.say(f"          {name}  not evaluated: {event.reason}")
        return
    seen.append(event.candidate.number)
    words = {
        "complete": "",
        "screened": "screened out: ",
        "stopped": "stopped early ",
        "failed": "failed: ",
    }
    name = opened.name_of(event.candidate.arch.id)
    what = f"{name}  {_values(event, config)}  {words[event.what]}{event.reason}"
    bar.say(f"{len(seen):>4}/{config.budget}  {what.rstrip()}")
    volume = opened.hypervolume
    if volume is not None and len(seen) % config.iteration == 0:
        bar.say(f"          hypervolume {volume:.3f} after {len(seen)} candidates")
    text = "" if volume is None else f"hypervolume {volume:.3f}"
    bar.update(len(seen), config.budget, text)


def _values(event: Event, config: SearchConfig) -> str:
    """`chip_latency_ms 0.31  val_iou 0.5`; of several chips, from the least to the most."""
    from edgeloop.search.base import value_of

    values_by_name: dict[str, list[float]] = {}
    for name in config.wanted:
        if name in event.values:
            values_by_name.setdefault(value_of(name), []).append(event.values[name])
    return "  ".join(
        f"{name} {min(each):.4g}" if len(each) == 1 else f"{name} {min(each):.4g}–{max(each):.4g}"
        for name, each in values_by_name.items()
    )


def _say_outcome(config: SearchConfig, outcome: SearchResult) -> None:
    from edgeloop.search.results import read_search

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
    from edgeloop.search.base import is_result
    from edgeloop.search.results import front_names, read_search

    front = {item.number for item in outcome.front}
    seen = read_search(outcome.folder)
    names = {item.arch_id: item.name for item in seen.candidates}
    after = {
        item.number: volume
        for item, (_, volume, _) in zip(seen.candidates, seen.curve, strict=False)
    }
    return [
        {
            "number": item.number,
            "name": names[item.arch.id],
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
        return f"{item.name}: failed: {item.error}"
    return f"{item.name}: IoU {_score(item.partial_iou)} → {_score(item.full_iou)}"


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


# search list, search show, and the summary that ends a search.


WIDTH = 80
_NO_SEARCH = "No search was run or fetched yet. Start one: edgeloop search laptop.yaml"
_TOO_FEW = "Too few candidates to say which parameters matter."
_STAR, _NO_STAR = "*", " "
_MOST_PARAMETERS = 5
_MOST_ROWS = 40
_FIXED = "\N{NO-BREAK SPACE}"
_WORDS = {"screened": "screened out", "stopped": "stopped early"}


@search.command("list")
@json_option
def list_searches(as_json: bool) -> None:
    """List the searches of this project.

    Example: edgeloop search list
    """
    from edgeloop.errors import BadInput
    from edgeloop.search.results import read_search
    from edgeloop.search.study import found_searches

    searches_read, damaged = [], []
    for search_name, folder in sorted(found_searches(load_settings().project).items()):
        try:
            searches_read.append(read_search(folder, search_name))
        except BadInput as error:
            damaged.append(str(error))
    for sentence in damaged:
        click.echo(f"Note: {sentence}.", err=True)
    if as_json:
        print_json(map(summary_of, searches_read))
        if not searches_read:
            click.echo(_NO_SEARCH, err=True)
    else:
        _say_searches(searches_read)
    if damaged:
        raise SystemExit(1)


@search.command("show")
@click.argument("name", metavar="SEARCH")
@json_option
def show_search(name: str, as_json: bool) -> None:
    """Show what a search found.

    SEARCH is its name, job or folder. It is shown also while it runs: its front, the hypervolume
    with its reference point, and which parameters mattered.

    Example: edgeloop search show laptop
    """
    from edgeloop.search.results import read_search
    from edgeloop.search.study import find_search, found_searches

    project = load_settings().project
    folder = find_search(name, project)
    seen = read_search(folder, name if name in found_searches(project) else "")
    if as_json:
        print_json([{**summary_of(seen), **details_of(seen)}])
    else:
        say_search(seen)


def summary_of(seen: SeenSearch) -> dict[str, object]:
    """A search for programs; `hypervolume` is that of `hypervolume.csv`."""
    return {
        "name": seen.name,
        "experiment": seen.experiment,
        "objectives": {objective.name: objective.goal for objective in seen.objectives},
        "budget": seen.budget,
        "candidates": len(seen.own),
        "states": seen.counts,
        "taken_over": seen.taken_over,
        "front": [item.arch_id for item in seen.front],
        "fronts": [
            {
                "name": front.name,
                "front": [item.arch_id for item in front.candidates],
                "hypervolume": front.hypervolume,
            }
            for front in seen.fronts
        ],
        "hypervolume": seen.hypervolume,
        "reference": seen.reference.as_json() if seen.reference is not None else None,
        "utilisation": dict(seen.utilisation),
        "folder": str(seen.folder),
    }


def details_of(seen: SeenSearch) -> dict[str, object]:
    return {
        "importance": {item.parameter: dict(item.shares) for item in seen.importances},
        "curve": [[count, volume] for count, volume, _ in seen.curve],
        "all": [candidate_json(item) for item in seen.candidates],
    }


def candidate_json(item: SeenCandidate) -> dict[str, object]:
    return {
        "number": item.number,
        "iteration": item.iteration,
        "name": item.name,
        "arch_id": item.arch_id,
        "state": item.state,
        "reason": item.reason,
        "is_pareto": item.is_front,
        "fronts": list(item.fronts),
        "trained": item.trained,
        "values": dict(item.values),
        "parameters": dict(item.parameters),
    }


def say_search(seen: SeenSearch) -> None:
    """The front, counts, and the hypervolume with its reference point, in 80 columns."""
    if not seen.candidates:
        click.echo(f"No candidate of {seen.name} has ended yet.")
        return
    several = len(seen.fronts) > 1
    shown = seen.front[:_MOST_ROWS]
    click.echo(_chip_table(seen, shown) if several else _front_table(seen, shown))
    if len(seen.front) > len(shown):
        click.echo(f"… and {len(seen.front) - len(shown)} more in {seen.folder / 'front.csv'}")
    for place, front in enumerate(seen.fronts if several else ()):
        click.echo(_front_line(_letter(place), front))
    parts = (part.replace(" ", _FIXED) for part in _counts(seen))
    click.echo("\n".join(textwrap.wrap(" · ".join(parts), WIDTH)).replace(_FIXED, " "))
    volumes = [volume for _, volume, _ in seen.curve]
    if volumes:
        first = next((volume for volume in volumes if volume), volumes[-1])
        text = f"hypervolume {first:.3f} → {volumes[-1]:.3f}"
        text += f" (reference: {seen.reference})" if seen.reference else ""
        click.echo("\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  ")))
    if seen.importances:
        click.echo(_importance_line(seen))
    elif any(item.parameters for item in seen.candidates):
        click.echo(_TOO_FEW)
    if "gpu" in seen.utilisation:
        click.echo(utilisation_line(seen.utilisation))


def utilisation_line(utilisation: Mapping[str, float]) -> str:
    """`The GPU was busy 91 % of the time in training, the trainers 97 % until the last …`."""
    parts = [f"The GPU was busy {utilisation['gpu']:.0%} of the time in training"]
    if "trainers" in utilisation:
        parts.append(f"the trainers {utilisation['trainers']:.0%} until the last candidate began")
    return "\n".join(textwrap.wrap(f"{', '.join(parts)}.", WIDTH))


def _counts(seen: SeenSearch) -> list[str]:
    """`12 candidates`, then those that did not get to the end, then the results."""
    is_trained = any(objective.name in ("val_iou", "val_f1") for objective in seen.objectives)
    candidates, counts = seen.own, Counter(seen.counts)
    parts = [plural(len(candidates), "candidate")]
    if seen.budget is not None and len(candidates) < seen.budget:
        parts = [f"{len(candidates)} of {seen.budget} candidates"]
    for state in ("screened", "stopped", "failed"):
        if counts[state] or state == "screened":
            parts.append(f"{counts[state]} {_WORDS.get(state, state)}")
    parts.append(f"{counts['complete']} {'trained' if is_trained else 'measured'}")
    if seen.taken_over:
        parts.append(f"{seen.taken_over} taken over")
    return [*parts, f"front: {len(seen.front)}"]


def _front_table(seen: SeenSearch, shown: tuple[SeenCandidate, ...]) -> str:
    from edgeloop.models.columns import Column, interval_heading, latency_interval
    from edgeloop.search.base import columns_of

    columns = [columns_of(item.values, 0) for item in shown]
    names = [objective.name for objective in seen.objectives]
    measures = {name: seen.column(name) for name in names}
    for name, measure in measures.items():
        if measure.unit not in ("ms", "µs"):  # as its name says: bytes stay bytes
            measures[name] = Column(name, "number", "")
    headings = ("name", *(measure.heading for measure in measures.values()))
    rows = [
        (item.name, *(m.text(m.factor * item.values[name]) for name, m in measures.items()))
        for item in shown
    ]
    if any(map(latency_interval, columns)):
        headings += (interval_heading(columns),)
        chip = (m.unit for name, m in measures.items() if name.startswith("chip_latency_ms"))
        unit = next(chip, "ms")
        found = [latency_interval(row) for row in columns]
        intervals = [interval.in_unit(unit) if interval else "" for interval in found]
        rows = [(*row, text) for row, text in zip(rows, intervals, strict=True)]
    return listing(headings, rows, right=headings[1:])


def _chip_table(seen: SeenSearch, shown: tuple[SeenCandidate, ...]) -> str:
    """All that are on the front of a chip. Chips are letters, which the lines below explain, and a
    star marks those whose front it is on; many chips have no room for their latencies."""
    letters = {front.name: _letter(place) for place, front in enumerate(seen.fronts)}
    values = list(dict.fromkeys(o.value for o in seen.objectives if o.device))
    headings = ["name"]
    for objective in seen.objectives:
        letter = letters.get(objective.device, "")
        name = letter if len(values) == 1 else f"{objective.value} {letter}"
        headings.append(name if objective.device else objective.name)
    rows = []
    for item in shown:
        stars = [_STAR if o.device in item.fronts else _NO_STAR for o in seen.objectives]
        cells = [
            f"{item.values[o.name]:.3g}{star if o.device else ''}"
            for o, star in zip(seen.objectives, stars, strict=True)
        ]
        rows.append([item.name, *cells])
    drawn = listing(headings, rows, right=headings[1:], screen=Screen())
    if max(map(len, drawn.splitlines())) <= (Screen.of_stdout().width or WIDTH):
        return drawn
    general = [objective.name for objective in seen.objectives if not objective.device]
    rows = [
        [
            item.name,
            *(f"{item.values[name]:.4g}" for name in general),
            " ".join(letters[name] for name in item.fronts),
        ]
        for item in shown
    ]
    return listing(["name", *general, "on the front of"], rows, right=general)


def _front_line(letter: str, front: SeenFront) -> str:
    """`A htp:qcs8550: 5 networks, chip_latency_ms 0.31 to 1.2, hypervolume 0.412`."""
    if not front.candidates:
        return f"{letter} {front.name}: no network is within its limits"
    ranges = []
    for objective in front.objectives:
        if objective.device:
            values = [item.values[objective.name] for item in front.candidates]
            ranges.append(f"{objective.value} {min(values):.4g} to {max(values):.4g}")
    volume = [] if front.hypervolume is None else [f"hypervolume {front.hypervolume:.3f}"]
    networks = plural(len(front.candidates), "network")
    text = f"{letter} {front.name}: {', '.join([networks, *ranges, *volume])}"
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  "))


def _importance_line(seen: SeenSearch) -> str:
    """Of the first objectives of the first front: `val_iou depends most on layers 44 %, …`."""
    lines = []
    for objective in seen.fronts[0].objectives:
        ranked = sorted(seen.importances, key=lambda one: -one.shares.get(objective.name, 0.0))
        told = [
            f"{item.parameter} {100 * item.shares[objective.name]:.0f}{_FIXED}%"
            for item in ranked[:_MOST_PARAMETERS]
            if item.shares.get(objective.name, 0.0) >= 0.01
        ]
        if told:
            text = f"{objective.name} depends most on {', '.join(told)}"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join(lines).replace(_FIXED, " ")


def _letter(place: int) -> str:
    letters = string.ascii_uppercase
    return letters[place] if place < len(letters) else str(place + 1)


def _say_searches(searches: list[SeenSearch]) -> None:
    from edgeloop.search.results import share_reference

    if not searches:
        click.echo(_NO_SEARCH)
        return
    is_comparable = share_reference(searches)
    rows = [
        (
            seen.name,
            f"{len(seen.own)}/{seen.budget}" if seen.budget else str(len(seen.own)),
            f"{seen.counts.get('complete', 0)}" + (seen.taken_over > 0) * f" (+{seen.taken_over})",
            str(len(seen.front)),
            *([_volume_text(seen)] if is_comparable else []),
            ", ".join(dict.fromkeys(objective.value for objective in seen.objectives)),
        )
        for seen in searches
    ]
    columns = (
        TableColumn("search", 100, 20),
        TableColumn("candidates", 95, right=True),
        TableColumn("complete", 80, right=True),
        TableColumn("front", 85, right=True),
        *([TableColumn("hypervolume", 90, right=True)] if is_comparable else []),
        TableColumn("objectives", 70, 16),
    )
    evaluated = sum(len(seen.own) for seen in searches)
    searched = "1 search" if len(searches) == 1 else f"{len(searches)} searches"
    total = f"{searched}: {plural(evaluated, 'candidate')}"
    click.echo(listing(columns, rows, total=total))
    if any(seen.taken_over for seen in searches):
        click.echo("(+N): results taken over from earlier searches")
    if not is_comparable:
        click.echo("Hypervolumes are left out: their reference points differ.")


def _volume_text(seen: SeenSearch) -> str:
    return "" if seen.hypervolume is None else f"{seen.hypervolume:.3f}"


COMMANDS = (search,)
