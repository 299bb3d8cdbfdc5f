"""reset, delete, unlock, priority: changes to models that are there."""

from __future__ import annotations

import click

from edgeloop.cli.options import (
    any_names_argument,
    common_options,
    confirm,
    names_argument,
    opened,
    yes_option,
)


@click.command()
@names_argument
@click.option(
    "--stage", multiple=True, help="Only this stage and those that stand on it; may be given again."
)
@yes_option
@common_options
def reset(
    names: tuple[str, ...],
    stage: tuple[str, ...],
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Test models again: clear their results and stale files, so that runners redo them.

    Example: edgeloop reset 'brave-*' --stage f1_1k
    """
    from edgeloop.cli.output import print_json

    with opened(store, experiment) as workspace:
        for chosen in stage:
            workspace.plan[chosen]
        rows = workspace.find(names)
        confirm("reset", rows, yes)
        done = []
        for row in rows:
            cleared = workspace.catalog.reset(row.key, stage)
            order = [s.name for s in workspace.plan.stages if s.name in cleared]
            done.append({"name": row.key, "reset": order})
            if not as_json:
                click.echo(f"{row.key}: reset {', '.join(order)}")
    if as_json:
        print_json(done)


@click.command()
@names_argument
@yes_option
@common_options
def delete(
    names: tuple[str, ...], yes: bool, experiment: str | None, store: str | None, as_json: bool
) -> None:
    """Delete models: their rows and all their files.

    Example: edgeloop delete lucky-marten
    """
    from edgeloop.cli.output import print_json

    with opened(store, experiment) as workspace:
        rows = workspace.find(names)
        confirm("delete", rows, yes)
        for row in rows:
            workspace.catalog.delete(row.key)
            if not as_json:
                click.echo(f"{row.key}: deleted")
    if as_json:
        print_json({"name": row.key, "deleted": True} for row in rows)


@click.command()
@any_names_argument
@click.option("--node", help="Only claims of this machine, on any model.")
@yes_option
@common_options
def unlock(
    names: tuple[str, ...],
    node: str | None,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Give up a dead machine's claims, so that others need not wait until they expire.

    What that machine still hands in, should it live, is thrown away.

    Example: edgeloop unlock --node bench-1
    """
    from edgeloop.cli.output import print_json

    if not names and node is None:
        raise click.UsageError("name models, or a machine with --node.")
    with opened(store, experiment) as workspace:
        held = workspace.catalog.held_by(node) if node is not None else None
        rows = workspace.find(names) if names else held or []
        confirm("unlock", rows, yes)
        done = [
            {"name": row.key, "unlocked": workspace.catalog.unlock(row.key, node)} for row in rows
        ]
    if as_json:
        print_json(done)
        return
    for item in done:
        freed = item["unlocked"]
        assert isinstance(freed, list)
        click.echo(f"{item['name']}: {'unlocked ' + ', '.join(freed) if freed else 'was not held'}")
    if not done:
        click.echo(f"{node} holds nothing in experiment '{workspace.experiment}'.")


@click.command()
@names_argument
@click.argument("value", metavar="N|auto")
@yes_option
@common_options
def priority(
    names: tuple[str, ...],
    value: str,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Set the priority of models: 0 goes before everything, 'auto' gives back the stages' own.

    Example: edgeloop priority calm-heron 0
    """
    from edgeloop.cli.output import print_json

    if value != "auto" and not value.isdecimal():
        raise click.UsageError(f"a priority is 0 or more, or 'auto'; not {value!r}.")
    number = None if value == "auto" else int(value)
    with opened(store, experiment) as workspace:
        rows = workspace.find(names)
        confirm("set the priority of", rows, yes)
        for row in rows:
            workspace.catalog.set_priority(row.key, number)
            if not as_json:
                click.echo(f"{row.key}: priority {value}")
    if as_json:
        print_json({"name": row.key, "priority": number} for row in rows)


COMMANDS = (reset, delete, unlock, priority)
