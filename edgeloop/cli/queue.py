"""queue: how much work waits, and how many runners would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edgeloop._util.values import plural
from edgeloop.cli.app import common_options, interval_option, opened, watch_option
from edgeloop.cli.terminal import (
    Screen,
    TableColumn,
    listing,
    no_models,
    print_json,
    printable,
    say_empty,
)
from edgeloop.cli.terminal import watch as show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeloop.models.runners import RunnerEntry
    from edgeloop.operate.fleet.demand import WaitingWork
    from edgeloop.workspace import Workspace

    WorkByExperiment = dict[str, tuple[WaitingWork, ...]]  # by experiment

NAME_WIDTH = 28  # of a capability or a machine in a sentence
MOST_NAMED = 3


@click.command()
@click.option("--all-experiments", "all_of_them", is_flag=True, help="Of every experiment.")
@watch_option
@interval_option
@common_options
def queue(
    all_of_them: bool,
    watch: bool,
    interval: float,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show how much work waits for runners.

    One line per capability: linux (f1_onnx, and conversion of models that no device has asked for),
    device (benchmarks of models that no device has measured yet), conversion for each toolchain
    that devices ask for, such as "convert snpe", and each type of device that models are pinned to.

    Ready stages can be claimed now. Running ones are held by a runner. Blocked ones wait for an
    earlier stage, for a retry, or for another tool. "runners" is how many would have something to
    do; for boards, at most as many as are known. "have" is how many there are.

    Example: edgeloop queue --watch

    Example: edgeloop queue --all-experiments --json
    """
    if watch and as_json:
        raise click.UsageError("choose one of --json and --watch.")
    if all_of_them and experiment is not None:
        raise click.UsageError("choose one of --experiment and --all-experiments.")
    with opened(store, experiment) as workspace:

        def text(screen: Screen) -> str:
            return _text(*_read(workspace, all_of_them), screen, hint)

        hint = "" if all_of_them or _has_models(workspace) else no_models(workspace)
        if as_json:
            work, _ = _read(workspace, all_of_them)
            print_json(_as_row(name, line) for name, lines in work.items() for line in lines)
            if hint:
                say_empty(hint, as_json)
        elif watch:
            hint = ""  # there may be some at the next look
            show(text, interval)
        else:
            click.echo(text(Screen.of_stdout()))


COMMANDS = (queue,)


def _has_models(workspace: Workspace) -> bool:
    return any(True for _ in workspace.store.models(workspace.experiment).query(limit=1))


def _read(workspace: Workspace, all_of_them: bool) -> tuple[WorkByExperiment, list[RunnerEntry]]:
    """The work by experiment, and the runners of these experiments that are dead."""
    from dataclasses import replace

    from edgeloop.models.runners import Registry
    from edgeloop.operate.fleet.demand import read_waiting_work
    from edgeloop.workspace import Workspace

    names = workspace.store.experiments() if all_of_them else [workspace.experiment]
    entries = Registry(workspace.store).entries()
    work = {}
    for name in names:
        one = Workspace(replace(workspace.settings, experiment=name), workspace.store)
        work[name] = read_waiting_work(one, [e for e in entries if e.experiment == name])
    return work, [entry for entry in entries if entry.is_dead and entry.experiment in work]


def _as_row(experiment: str, line: WaitingWork) -> dict[str, object]:
    return {
        "experiment": experiment,
        **vars(line),
        "stages": dict(line.stages),
        "oldest_s": round(line.oldest_s, 1),
    }


def _text(work: WorkByExperiment, dead: Sequence[RunnerEntry], screen: Screen, hint: str) -> str:
    """`hint`: why the experiment has no models, which says more than that no work is left."""
    if not work:
        return "No experiment has models yet. Next: edgeloop upload MODEL.onnx"
    tables = {name: _table(lines, screen) for name, lines in work.items()}
    parts = [f"{screen.clipped(name)}\n{text}" for name, text in tables.items()]
    text = "\n\n".join(parts if len(parts) > 1 else tables.values())
    return "\n".join([text, "", hint or _advice(work), *_dead_runners(dead)])


def _table(lines: Sequence[WaitingWork], screen: Screen) -> str:
    from edgeloop._util.values import duration_text

    numbers = {"ready": 98, "running": 96, "blocked": 90, "oldest": 70, "runners": 94, "have": 92}
    columns = (
        TableColumn("capability", 100, 16),
        *(TableColumn(name, weight, right=True) for name, weight in numbers.items()),
    )
    cells = [
        (
            line.capability,
            *map(str, (line.ready, line.running, line.blocked)),
            duration_text(line.oldest_s) if line.ready else "",
            *map(str, (line.runners, line.have)),
        )
        for line in lines
    ]
    return listing(columns, cells, screen=screen)


def _advice(work: WorkByExperiment) -> str:
    """Whether more runners would make it faster, and which."""
    lines = [line for lines in work.values() for line in lines]
    if not any(line.ready or line.running for line in lines):
        blocked = sum(line.blocked for line in lines)
        is_blocked = f"Nothing is ready: {plural(blocked, 'stage')} blocked."
        return is_blocked if blocked else "No work is left."
    more: dict[str, int] = {}
    for line in lines:
        lacking = max(0, line.runners - line.have)
        more[line.capability] = more.get(line.capability, 0) + lacking
    named = [f"{count:,} for {_short(name)}" for name, count in more.items() if count]
    if not named:
        return "More runners would not help."
    return "\n".join([f"More runners would help: {_listed(named)}.", *_missing_toolchains(lines)])


def _missing_toolchains(lines: Sequence[WaitingWork]) -> list[str]:
    """Conversions that wait for a machine of another kind: more of the same would not do them."""
    from edgeloop.operate.fleet.demand import CONVERT

    waiting = [line for line in lines if line.capability.startswith(CONVERT) and line.ready]
    served = {line.capability for line in waiting if line.have}
    missing = dict.fromkeys(each.capability for each in waiting if each.capability not in served)
    return [
        f"No live runner can do {_short(name)}: start one on a machine that has the toolchain "
        f"{_short(name.removeprefix(CONVERT))}."
        for name in missing
    ]


def _dead_runners(dead: Sequence[RunnerEntry]) -> list[str]:
    """Runners that fell silent without having ended: the machine crashed, or is unreachable."""
    from edgeloop._util.values import duration_text

    if not dead:
        return []
    newest_first = sorted(dead, key=lambda entry: entry.age_s)
    named = [f"{_short(e.node)} (silent for {duration_text(e.age_s)})" for e in newest_first]
    return [
        f"{plural(len(dead), 'dead runner')}: {_listed(named)}.",
        "Others take over when leases expire. More: edgeloop devices --watch",
    ]


def _listed(texts: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(texts) - MOST_NAMED
    return ", ".join([*texts[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _short(name: str) -> str:
    plain = printable(name)
    return plain if len(plain) <= NAME_WIDTH else plain[: NAME_WIDTH - 1] + "…"
