"""`azure create`, step by step: the account, the project's config.json, then `azure setup`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from edgeloop.cli.azure import step_line
from edgeloop.cli.terminal import print_json
from edgeloop.errors import BadSetting
from edgeloop.jobs.computes.azureml.connection import connect
from edgeloop.jobs.computes.azureml.requirements import SetupChoices, azure_requirements
from edgeloop.jobs.computes.azureml.resources import WorkspaceRequirements
from edgeloop.jobs.computes.azureml.workspace import WorkspaceAddress, WorkspaceKeys, find_workspace
from edgeloop.operate.azure import (
    AccountChoices,
    Step,
    StepResult,
    apply_account,
    apply_plan,
    as_row,
    connection_string,
    plan_account,
    plan_setup,
    storage_endpoints,
    unchecked_plan,
)
from edgeloop.settings import write_workspace
from edgeloop.store.location import AzureLocation, parse_connection_string

if TYPE_CHECKING:
    from edgeloop.settings import Settings


class Creation:
    """The plan of one creation, made when it is opened; nothing is created before `apply`."""

    def __init__(
        self,
        settings: Settings,
        names: tuple[str, str, str],
        location: str,
        storage: str,
        shared_key: bool,
        as_json: bool,
    ) -> None:
        self._settings = settings
        self._shared_key = shared_key
        self._as_json = as_json
        self._done: list[StepResult] = []
        self._address = _address(settings, names)
        store_location = settings.location if isinstance(settings.location, AzureLocation) else None
        container = store_location.container if store_location else AzureLocation.container
        storage = storage or (store_location.account if store_location else "")
        choices = AccountChoices(container, location, storage, shared_key)
        self._connection = connect(self._address)
        self._account_plan, self._account = plan_account(self._connection, choices)
        is_there = any(s.kind == "workspace" and s.action == "keep" for s in self._account_plan)
        blob = f"https://{self._account}.blob.core.windows.net"  # only for showing the plan
        table = blob.replace(".blob.", ".table.")
        required = self._required(AzureLocation(self._account, blob, table, container=container))
        if is_there:
            self._inner = plan_setup(self._connection, required)
        else:
            self._inner = unchecked_plan(required)

    @property
    def work(self) -> list[Step]:
        return [step for step in (*self._account_plan, *self._inner) if step.is_work]

    def show(self) -> None:
        plan = (*self._account_plan, *self._inner)
        if self._as_json:
            print_json(map(as_row, plan))
            return
        click.echo(f"In {self._address}:")
        for step in plan:
            step_line(step.action, step, step.text)

    def apply(self) -> None:
        """A later run continues after a step that failed."""
        try:
            self._apply()
        finally:
            if self._as_json:
                print_json(
                    {**as_row(each.step), "did": each.did, "text": each.text} for each in self._done
                )

    def _apply(self) -> None:
        apply_account(self._connection, self._account_plan, self._tell)
        address = self._address
        write_workspace(
            self._settings.project, address.subscription, address.resource_group, address.workspace
        )
        places = storage_endpoints(self._connection, self._account)
        location = AzureLocation(places.account, places.blob, places.table)
        if self._shared_key:
            location = parse_connection_string(connection_string(self._connection, self._account))
        required = self._required(location)
        plan = plan_setup(self._connection, required)
        apply_plan(self._connection, required, plan, self._tell)
        if not self._as_json:
            self._say_next(places.blob, required.hints)

    def _required(self, location: AzureLocation) -> WorkspaceRequirements:
        address = self._address
        named = {
            "subscription": address.subscription,
            "resource_group": address.resource_group,
            "workspace": address.workspace,
        }
        azure = {**self._settings.azure, **named}
        if self._shared_key:
            azure["datastore_key"] = True
        settings = replace(self._settings, location=location, azure=azure)
        return azure_requirements(settings, SetupChoices(is_new=True))

    def _tell(self, result: StepResult) -> None:
        if result.did == "kept":
            return
        self._done.append(result)
        if not self._as_json:
            step_line(result.did, result.step, result.text)

    def _say_next(self, blob: str, hints: tuple[str, ...]) -> None:
        click.echo("Ready. The workspace is in .azureml/config.json. To use the store:")
        if self._shared_key:
            command = "edgeloop azure connection-string"
            click.echo(f'  export MODEL_STORAGE_CONNECTION_STRING="$({command})"')
        else:
            click.echo(f"  export EDGELOOP_STORE=azure:{blob}")
            click.echo("Roles take a few minutes to work: 'edgeloop azure doctor' tells.")
        if hints:
            click.echo("To use the clusters, put this into edgeloop.yaml:")
            click.echo("\n".join(hints))


def _address(settings: Settings, names: tuple[str, str, str]) -> WorkspaceAddress:
    """Options win; but a project that already belongs to another workspace keeps it."""
    keys = dict(zip(("subscription", "resource_group", "workspace"), names, strict=True))
    options = WorkspaceKeys.model_validate({key: value for key, value in keys.items() if value})
    address = find_workspace(options, settings.azure, settings.project)
    files = address.files
    named = (files.subscription, files.resource_group, files.workspace)
    requested = (address.subscription, address.resource_group, address.workspace)
    if all(named) and named != requested:
        reason = f"it names the workspace {files.workspace}: run this in another folder"
        raise BadSetting(where=".azureml/config.json", reason=reason)
    return address
