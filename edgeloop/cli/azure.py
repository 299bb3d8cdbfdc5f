"""azure create, setup, list, doctor, connection-string."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeloop.cli.app import common_options, load_settings, workspace_option, yes_option
from edgeloop.cli.terminal import listing, print_json, printable

if TYPE_CHECKING:
    from edgeloop.jobs.computes.azureml.resources import WorkspaceRequirements
    from edgeloop.operate.azure import Step, StepResult


KINDS = ("computes", "environments", "datastores", "experiments")


@click.group()
def azure() -> None:
    """Create and check an Azure ML workspace.

    Example: edgeloop azure doctor
    """


@azure.command()
@click.option("--dry-run", is_flag=True, help="Show the plan without creating anything.")
@click.option("--change", is_flag=True, help="Update clusters that differ from their description.")
@click.option("--cpu-size", metavar="SIZE", default="", help="Size of the CPU nodes.")
@click.option("--gpu-size", metavar="SIZE", default="", help="Size of the GPU nodes.")
@click.option("--nodes", type=click.IntRange(min=1), help="Maximum nodes per cluster.")
@click.option("--spot", is_flag=True, help="Train on spot nodes: cheaper, may be preempted.")
@click.option(
    "--conda",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Conda file of the environment.",
)
@yes_option
@workspace_option
@common_options
def setup(
    dry_run: bool,
    change: bool,
    cpu_size: str,
    gpu_size: str,
    nodes: int | None,
    spot: bool,
    conda: Path | None,
    yes: bool,
    workspace_config: Path | None,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Create what the workspace lacks.

    That is clusters, datastores and the environment. Existing resources stay as they are.

    The workspace is that of .azureml/config.json, of the settings, or of AZURE_SUBSCRIPTION_ID,
    AML_RESOURCE_GROUP and AML_WORKSPACE_NAME. Clusters go to zero nodes when nothing runs.

    Example: edgeloop azure setup --dry-run
    """
    from edgeloop.jobs.computes.azureml.connection import connect
    from edgeloop.jobs.computes.azureml.requirements import SetupChoices, azure_requirements
    from edgeloop.operate.azure import apply_plan, as_row, plan_setup

    choices = SetupChoices(cpu_size, gpu_size, nodes or 0, spot, conda)
    settings = load_settings(store=store, experiment=experiment, workspace_config=workspace_config)
    required = azure_requirements(settings, choices)
    connection = connect(required.address, required.patience_s)
    plan = plan_setup(connection, required, change)
    work = [step for step in plan if step.is_work]
    if dry_run:
        print_json(map(as_row, plan)) if as_json else _print_plan(required, plan)
        return
    if work and not yes and not as_json:
        _print_plan(required, plan)
    if work and not yes:
        if sys.stdin is None:  # a job with its input closed: no answer can come
            raise click.Abort
        click.confirm(f"Make {len(work)} of these?", abort=True, err=True)
    done: list[StepResult] = []
    try:
        apply_plan(connection, required, plan, done.append if as_json else _print_done)
    finally:  # a step that failed is in there, too
        if as_json:
            print_json({**as_row(each.step), "did": each.did, "text": each.text} for each in done)
    if not as_json:
        _print_end(required, work)


@azure.command()
@click.option("--subscription", metavar="ID", default="", help="The subscription's id.")
@click.option("--resource-group", metavar="NAME", default="", help="The resource group.")
@click.option("--workspace", metavar="NAME", default="", help="The workspace.")
@click.option("--location", metavar="REGION", default="", help="Region, such as westeurope.")
@click.option("--storage-account", metavar="NAME", default="", help="The storage account.")
@click.option("--shared-key", is_flag=True, help="Let a connection string open the account.")
@click.option("--dry-run", is_flag=True, help="Show the plan without creating anything.")
@yes_option
@common_options
def create(
    subscription: str,
    resource_group: str,
    workspace: str,
    location: str,
    storage_account: str,
    shared_key: bool,
    dry_run: bool,
    yes: bool,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Create an account, from nothing to ready.

    Creates the resource group, storage account, key vault, logs and workspace, then what 'azure
    setup' creates. Existing resources stay as they are; after a failure, run it again.

    Only identities can open the storage account, unless --shared-key is given. Names that are not
    given come from the settings. You need the role Owner of the subscription or group.

    Example: edgeloop azure create --resource-group lab --workspace vision --location westeurope
    """
    from edgeloop.cli.azure_create import Creation

    names = (subscription, resource_group, workspace)
    settings = load_settings(store=store, experiment=experiment)
    creation = Creation(settings, names, location, storage_account, shared_key, as_json)
    if dry_run:
        creation.show()
        return
    if not yes and creation.work:
        if not as_json:
            creation.show()
        if sys.stdin is None:
            raise click.Abort
        click.confirm(f"Make {len(creation.work)} of these?", abort=True, err=True)
    creation.apply()


@azure.command("connection-string")
@workspace_option
@common_options
def show_connection_string(
    workspace_config: Path | None, experiment: str | None, store: str | None, as_json: bool
) -> None:
    """Print the account's connection string.

    It holds the account's key: keep it secret, for example in a variable of your shell:
    MODEL_STORAGE_CONNECTION_STRING="$(edgeloop azure connection-string)". The account must have
    been created with --shared-key.

    Example: edgeloop azure connection-string
    """
    from edgeloop.jobs.computes.azureml.connection import connect
    from edgeloop.jobs.computes.azureml.requirements import azure_requirements
    from edgeloop.operate.azure import connection_string, workspace_storage

    settings = load_settings(store=store, experiment=experiment, workspace_config=workspace_config)
    required = azure_requirements(settings)
    connection = connect(required.address, required.patience_s)
    text = connection_string(connection, workspace_storage(connection))
    print_json([{"connection_string": text}]) if as_json else click.echo(text)


@azure.command("list")
@click.argument("kind", type=click.Choice(KINDS))
@workspace_option
@common_options
def list_things(
    kind: str,
    workspace_config: Path | None,
    experiment: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List what the workspace has.

    Experiments come from the workspace's jobs, the newest first.

    Example: edgeloop azure list computes
    """
    from edgeloop.jobs.computes.azureml.connection import connect
    from edgeloop.jobs.computes.azureml.requirements import azure_requirements
    from edgeloop.operate.azure import list_resources

    settings = load_settings(store=store, experiment=experiment, workspace_config=workspace_config)
    required = azure_requirements(settings)
    rows = list_resources(connect(required.address, required.patience_s), kind)
    if as_json:
        print_json(rows)
    elif rows:
        headings = tuple(rows[0])
        cells = [tuple(str(row[name]) for name in headings) for row in rows]
        click.echo(listing(headings, cells, right=("jobs",)))
    else:
        click.echo(f"No {kind} in {required.address}.")


@azure.command()
@workspace_option
@common_options
def doctor(
    workspace_config: Path | None, experiment: str | None, store: str | None, as_json: bool
) -> None:
    """Check the workspace and suggest fixes.

    Exits with 0 if everything that jobs need works.

    Example: edgeloop azure doctor
    """
    from edgeloop.jobs.computes.azureml.requirements import azure_requirements
    from edgeloop.operate.azure import examine

    findings = []
    for finding in examine(
        lambda: azure_requirements(
            load_settings(store=store, experiment=experiment, workspace_config=workspace_config)
        )
    ):
        findings.append(finding)
        if not as_json:
            mark = {True: "ok", False: "missing", None: "-"}[finding.ok]
            click.echo(f"{mark:8}{finding.what:16}{printable(finding.text)}")
    if as_json:
        print_json(vars(finding) for finding in findings)
    if any(finding.is_problem for finding in findings):
        raise SystemExit(1)


COMMANDS = (azure,)


def _print_plan(required: WorkspaceRequirements, plan: tuple[Step, ...]) -> None:
    click.echo(f"In {required.address}:")
    for step in plan:
        step_line(step.action, step, step.text)
    for name in required.elsewhere:
        click.echo(f"  compute {name} is in another workspace, and is left out")


def _print_done(done: StepResult) -> None:
    if done.did != "kept":
        step_line(done.did, done.step, done.text)


def step_line(word: str, step: Step, text: str) -> None:
    click.echo(f"  {word:9}{step.kind:12}{printable(step.name)}  {printable(text)}".rstrip())


def _print_end(required: WorkspaceRequirements, work: list[Step]) -> None:
    click.echo(f"Done: {len(work)} created or changed." if work else "Nothing to do: all is there.")
    if not required.store.is_reachable:
        click.echo(f"No node can reach the store {required.store.description}: see 'azure doctor'.")
    if required.hints:
        click.echo("To use the clusters, put this into edgeloop.yaml:")
        click.echo("\n".join(required.hints))
