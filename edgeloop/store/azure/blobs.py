"""Files in the container of an Azure storage account, and access to them for jobs."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from edgeloop.errors import MissingExtra, StoreRefused
from edgeloop.store.azure.errors import our_errors
from edgeloop.store.azure.limits import limited_transport, pause_of_error
from edgeloop.store.base import Access, plain_version
from edgeloop.store.blobs import ObjectBlobs, network_limits
from edgeloop.store.identity import identity_client
from edgeloop.store.location import AzureLocation

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

IDENTITY_SIGNATURE_SECONDS = 7 * 24 * 3600 - 900  # the service's limit, less clocks that differ
CLOCK_MARGIN = timedelta(minutes=15)


def azure_blobs(location: AzureLocation, credential: TokenCredential | None = None) -> ObjectBlobs:
    """With neither key nor signature in the location, `credential` or the default identity."""
    import obstore.store

    options: dict[str, Any] = {}
    if location.key is not None:
        options["account_key"] = location.key
    elif location.sas is not None:
        options["sas_key"] = location.sas.lstrip("?")
    else:
        from obstore.auth.azure import AzureCredentialProvider

        credential = credential or default_identity()
        options["credential_provider"] = AzureCredentialProvider(cast("Any", credential))
    client, retry = network_limits(location.blob_endpoint.startswith("http:"))
    store = obstore.store.AzureStore(
        container_name=location.container,
        account_name=location.account,
        endpoint=location.blob_endpoint,
        client_options=client,
        retry_config=retry,
        **options,
    )
    return ObjectBlobs(
        store,
        str(location),
        lambda: _make_container(location, credential),
        lambda seconds: _access(location, credential, seconds),
        lambda key, seconds: _link(location, credential, key, seconds),
        lambda: _asked_pause(location, credential),
        lambda key, version: _delete_if(location, credential, key, version),
    )


def default_identity() -> TokenCredential:
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        raise MissingExtra(what="An Azure storage account", extra="azure") from None
    return DefaultAzureCredential(managed_identity_client_id=identity_client())


def azure_access(location: AzureLocation, seconds: int, writes: bool) -> Access:
    """Access for a job to a container that may not be the store's: to read it, or to write to it. A
    container that does not exist is not created."""
    try:
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas
    except ImportError:
        raise MissingExtra(what="An Azure storage account", extra="azure") from None
    signature = location.sas
    if signature is None:
        credential = default_identity() if location.key is None else None
        start, ends, secret = _signing(location, credential, seconds)
        reads = not writes
        rights = ContainerSasPermissions(read=reads, list=reads, write=writes, create=writes)
        signature = generate_container_sas(
            *(location.account, location.container),
            permission=rights,
            start=start,
            expiry=ends,
            protocol=_protocol(location),
            **secret,
        )
    place = {"container_name": location.container, "account_name": location.account}
    options = {**place, "endpoint": location.blob_endpoint, "sas_key": signature.lstrip("?")}
    return Access("AzureStore", options)


def _access(location: AzureLocation, credential: TokenCredential | None, seconds: int) -> Access:
    """A signature for the container that ends by itself; the account's key stays here. For no
    seconds, no signature: the address alone, for a machine that has an identity of its own."""
    place = {
        "container_name": location.container,
        "account_name": location.account,
        "endpoint": location.blob_endpoint,
    }
    if seconds == 0:
        return Access("AzureIdentity", place)
    signature = location.sas or _signature(location, credential, seconds)
    return Access("AzureStore", {**place, "sas_key": signature.lstrip("?")})


def _link(
    location: AzureLocation, credential: TokenCredential | None, key: str, seconds: int
) -> str:
    """A signature for this one file, to read it."""
    from urllib.parse import quote

    if location.sas is not None:
        reason = "no links can be made with a signature: they need the account's key or an identity"
        raise StoreRefused(store=str(location), reason=reason)
    try:
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas
    except ImportError:
        raise MissingExtra(what="An Azure storage account", extra="azure") from None
    start, ends, secret = _signing(location, credential, seconds)
    signature = generate_blob_sas(
        location.account,
        location.container,
        key,
        permission=BlobSasPermissions(read=True),
        start=start,
        expiry=ends,
        protocol=_protocol(location),
        **secret,
    )
    return f"{location.blob_endpoint.rstrip('/')}/{location.container}/{quote(key)}?{signature}"


def _signature(location: AzureLocation, credential: TokenCredential | None, seconds: int) -> str:
    try:
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas
    except ImportError:
        raise MissingExtra(what="An Azure storage account", extra="azure") from None
    _make_container(location, credential)
    rights = ContainerSasPermissions(read=True, write=True, create=True, delete=True, list=True)
    start, ends, secret = _signing(location, credential, seconds)
    return str(
        generate_container_sas(
            location.account,
            location.container,
            permission=rights,
            start=start,
            expiry=ends,
            protocol=_protocol(location),
            **secret,
        )
    )


def _protocol(location: AzureLocation) -> str | None:
    """A signature for an account on Azure is of no use without encryption."""
    return "https" if location.blob_endpoint.startswith("https:") else None


def _signing(
    location: AzureLocation, credential: TokenCredential | None, seconds: int
) -> tuple[datetime, datetime, dict[str, Any]]:
    """From when, until when, and with what a signature is made."""
    from azure.storage.blob import BlobServiceClient

    now = datetime.now(UTC)
    if location.key is not None:
        secret: dict[str, Any] = {"account_key": location.key}
        return now - CLOCK_MARGIN, now + timedelta(seconds=seconds), secret
    ends = now + timedelta(seconds=min(seconds, IDENTITY_SIGNATURE_SECONDS))
    transport = limited_transport(location.blob_endpoint, str(location))
    service = BlobServiceClient(location.blob_endpoint, credential=credential, transport=transport)
    with our_errors(str(location)), service:
        key = service.get_user_delegation_key(now - CLOCK_MARGIN, ends)
    return now - CLOCK_MARGIN, ends, {"user_delegation_key": key}


def _make_container(location: AzureLocation, credential: TokenCredential | None) -> None:
    """The one thing that obstore cannot do."""
    from azure.core.exceptions import ResourceExistsError
    from azure.storage.blob import ContainerClient

    container = ContainerClient(
        *(location.blob_endpoint, location.container, _secret(location, credential)),
        transport=limited_transport(location.blob_endpoint, str(location)),
    )
    with our_errors(str(location)), container, contextlib.suppress(ResourceExistsError):
        container.create_container()


def _delete_if(
    location: AzureLocation, credential: TokenCredential | None, key: str, version: str
) -> bool:
    """Delete a file in one step with the look at its version; False if it has another one."""
    from azure.core import MatchConditions
    from azure.core.exceptions import ResourceModifiedError, ResourceNotFoundError
    from azure.storage.blob import BlobClient

    blob = BlobClient(
        *(location.blob_endpoint, location.container, key),
        credential=_secret(location, credential),
        transport=limited_transport(location.blob_endpoint, str(location)),
    )
    with our_errors(str(location)), blob:
        try:
            blob.delete_blob(
                etag=f'"{plain_version(version)}"',
                match_condition=MatchConditions.IfNotModified,
            )
        except (ResourceModifiedError, ResourceNotFoundError):
            return False
        return True


def _asked_pause(location: AzureLocation, credential: TokenCredential | None) -> float:
    """How long the account asks to wait, from its answer to one more request: obstore keeps the
    headers of answers to itself. 0 where it does not say, or limits us no longer."""
    from azure.core.exceptions import AzureError, HttpResponseError
    from azure.storage.blob import BlobClient

    secret = _secret(location, credential)
    place = (location.blob_endpoint, location.container, "_limits")
    try:
        with BlobClient(*place, credential=secret, retry_total=0, read_timeout=20) as blob:
            blob.exists()
    except HttpResponseError as error:
        return pause_of_error(error) or 0.0
    except AzureError:
        pass
    return 0.0


def _secret(location: AzureLocation, credential: TokenCredential | None) -> Any:
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    if location.key is not None:
        return AzureNamedKeyCredential(location.account, location.key)
    return credential if location.sas is None else AzureSasCredential(location.sas)
