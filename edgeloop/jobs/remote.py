"""Data at URLs, as a job's compute and wrapper need it: who provides it, and with what access.

A compute that has a service of its own for this (Azure ML, for its datastores and Azure's blobs)
is told the URL. Otherwise the wrapper transfers the data on the node: from Azure with a signature
that expires and, for inputs, can only read; from S3 with the credentials that the node
or the job's variables have. The data never passes through this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgeloop.errors import BadJob, BadSetting
from edgeloop.jobs.computes import Compute, ServedPlace
from edgeloop.jobs.urls import RemotePath, UrlParts, parse_url
from edgeloop.node.ticket import PLACE_PREFIX, TicketPlace
from edgeloop.settings import Settings, older_datastore, storage_account
from edgeloop.store import AzureLocation, job_access


@dataclass(frozen=True)
class ResolvedPlaces:
    """What goes into a job's ticket, and what its compute is asked to provide."""

    sources: tuple[TicketPlace, ...] = ()
    targets: tuple[TicketPlace, ...] = ()
    served: tuple[ServedPlace, ...] = ()


@dataclass(frozen=True)
class PlaceResolver:
    """Resolves the URLs of one submission; `seconds` is how long an access has to be valid."""

    settings: Settings
    compute: Compute
    seconds: int

    def resolve(
        self, sources: Sequence[RemotePath], targets: Sequence[RemotePath]
    ) -> ResolvedPlaces:
        """Raises BadJob for what this compute cannot provide."""
        served: list[ServedPlace] = []
        read = [self._place(place, f"SOURCE_{n}", False, served) for n, place in enumerate(sources)]
        made = [self._place(place, f"TARGET_{n}", True, served) for n, place in enumerate(targets)]
        return ResolvedPlaces(tuple(read), tuple(made), tuple(served))

    def _place(
        self, place: RemotePath, slot: str, is_output: bool, served: list[ServedPlace]
    ) -> TicketPlace:
        parts = self._with_account(parse_url(place.url), place)
        if parts.kind in self.compute.serves:
            variable = PLACE_PREFIX + slot
            is_file = parts.is_file and not is_output
            url = place.url
            if parts.kind == "azure":
                url = f"{parts.endpoint}/{parts.container}/{parts.path}"
            served.append(ServedPlace(variable, url, place.mode, is_output, is_file))
            return TicketPlace(place.name, place.url, place.mode, variable)
        if parts.kind == "file":
            return self._folder(place, parts, is_output)
        if place.mode == "mount":
            other = "upload" if is_output else "download"
            reason = f"the compute {self.compute.name} ({self.compute.kind}) cannot mount it"
            raise BadJob(where=place.url, reason=f"{reason}: use mode: {other}, or no mode")
        if parts.kind == "gs":
            reason = "jobs cannot open gs:// on their node: use s3:// or az://, or a dataset"
            raise BadJob(where=place.url, reason=f"{reason} ('edgeloop data push')")
        if parts.kind == "s3":
            options = {"url": f"s3://{parts.container}"}
            return TicketPlace(
                place.name, place.url, place.mode, "", parts.path, "from_url", options
            )
        location, path = self._azure(parts, place)
        access = job_access(location, self.seconds, is_output)
        options = dict(access.options)
        return TicketPlace(place.name, place.url, place.mode, "", path, access.make, options)

    def _folder(self, place: RemotePath, parts: UrlParts, is_output: bool) -> TicketPlace:
        if not self.compute.sees_folders:
            reason = f"the nodes of {self.compute.name} do not see folders of this machine"
            raise BadJob(where=place.url, reason=f"{reason}: push it with 'edgeloop data push'")
        is_here = self.compute.kind == "local"
        if is_here and not is_output and not Path(parts.path).exists():
            raise BadJob(where=place.url, reason="there is no such file or folder")
        options = {"folder": parts.path}
        return TicketPlace(place.name, place.url, place.mode, "", "", "LocalStore", options)

    def _with_account(self, parts: UrlParts, place: RemotePath) -> UrlParts:
        """`az://container/path` names no account: the environment's, or the project's."""
        if parts.kind != "azure" or parts.account:
            return parts
        known = [*self._accounts()]
        if not known:
            reason = "it names no storage account: write https://ACCOUNT.blob.core.windows.net/…, "
            raise BadJob(where=place.url, reason=f"{reason}or set AZURE_STORAGE_ACCOUNT_NAME")
        return replace(parts, account=known[0].account, endpoint=known[0].blob_endpoint)

    def _azure(self, parts: UrlParts, place: RemotePath) -> tuple[AzureLocation, str]:
        """The container, with whatever opens its account here, and the path in it."""
        if parts.kind == "azureml":
            return self._datastore(parts, place), parts.path
        for known in self._accounts():
            if known.account == parts.account:
                return replace(known, container=parts.container), parts.path
        table = parts.endpoint.replace(".blob.", ".table.", 1)
        own = AzureLocation(parts.account, parts.endpoint, table, container=parts.container)
        return own, parts.path

    def _accounts(self) -> list[AzureLocation]:
        """Those that this machine has access to, the most explicit first."""
        older = older_datastore(self.settings.project)
        known = (storage_account(), self.settings.location, older and older[1])
        return [location for location in known if isinstance(location, AzureLocation)]

    def _datastore(self, parts: UrlParts, place: RemotePath) -> AzureLocation:
        """From `datastore.json`, else from the workspace: the project's, or that of the URL."""
        name, older = parts.container, older_datastore(self.settings.project)
        if older and older[0] == name and not parts.workspace:
            return older[1]
        from edgeloop.jobs.computes.azureml.connection import connect, explained, is_missing
        from edgeloop.jobs.computes.azureml.workspace import WorkspaceKeys, find_workspace

        try:
            fields = ("subscription", "resource_group", "workspace")
            keys = WorkspaceKeys.model_validate(dict(zip(fields, parts.workspace, strict=False)))
            address = find_workspace(keys, self.settings.azure, self.settings.project)
        except BadSetting as error:
            reason = f".azureml/datastore.json does not name the datastore {name}, and "
            raise BadJob(where=place.url, reason=f"{reason}{error.fields['reason']}") from None
        with explained(self.compute.name, address, lambda: ""):
            try:
                found = connect(address).ml.datastores.get(name, include_secrets=True)
            except Exception as error:
                if not is_missing(error):
                    raise
                reason = f"the workspace {address.workspace} has no datastore {name!r}"
                raise BadJob(where=place.url, reason=reason) from None
        return _location_of(found, place)


def _location_of(datastore: object, place: RemotePath) -> AzureLocation:
    """A datastore of the workspace as a container, with the secret it holds, if any."""
    account = getattr(datastore, "account_name", "")
    container = getattr(datastore, "container_name", "") or getattr(datastore, "filesystem", "")
    if not account or not container:
        reason = "its datastore is not a blob container: only a job on Azure ML can use it"
        raise BadJob(where=place.url, reason=reason)
    suffix = getattr(datastore, "endpoint", "") or "core.windows.net"
    protocol = getattr(datastore, "protocol", "") or "https"
    endpoint = f"{protocol}://{account}.blob.{suffix}"
    secret = getattr(datastore, "credentials", None)
    key, sas = getattr(secret, "account_key", None), getattr(secret, "sas_token", None)
    table = endpoint.replace(".blob.", ".table.", 1)
    return AzureLocation(account, endpoint, table, key, sas, container)
