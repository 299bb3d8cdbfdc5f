"""The workspace's storage account, on Azurite: one host name an account, as on Azure."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from azure.core.exceptions import ResourceExistsError
from azure.storage.blob import (
    BlobServiceClient,
    ContainerClient,
    ContainerSasPermissions,
    generate_container_sas,
)

from tests.peers.azureml.server import WORKSPACE_GUID
from tests.peers.azurite import Azurite
from tests.peers.certificate import Certificate

BLOBSTORE = f"azureml-blobstore-{WORKSPACE_GUID}"
ARTIFACTS = "azureml"
_SAS_DAYS = 1


class Storage:
    def __init__(self, azurite: Azurite, certificate: Certificate) -> None:
        self.account, self.key = azurite.new_account(), azurite.key
        self.suffix = f"core.localhost:{azurite.blob_port}"
        self._azurite, self._certificate = azurite, certificate
        self._services: dict[str, BlobServiceClient] = {}
        for name in (BLOBSTORE, ARTIFACTS):
            self.make(name)

    def new_account(self) -> str:
        """A name that the storage behind it will serve once it is put."""
        return self._azurite.new_account()

    def endpoints_of(self, account: str) -> dict[str, str]:
        return {
            "blob": f"{self._azurite.blob_endpoint_of(account)}/",
            "table": f"{self._azurite.table_endpoint_of(account)}/",
        }

    def url_of(self, container: str) -> str:
        return f"https://{self.account}.blob.{self.suffix}/{container}"

    def make(self, container: str) -> None:
        with contextlib.suppress(ResourceExistsError):
            self.container(container).create_container()

    def new_upload(self) -> tuple[str, str]:
        """A container for one upload, and the same with a signature that lets one write."""
        name = f"upload-{uuid.uuid4().hex}"
        self.make(name)
        signature = generate_container_sas(
            *(self.account, name, self.key),
            permission=ContainerSasPermissions(read=True, write=True, list=True, add=True),
            expiry=datetime.now(UTC) + timedelta(days=_SAS_DAYS),
        )
        return self.url_of(name), f"{self.url_of(name)}?{signature}"

    def signed(self, container: str, blob: str) -> str:
        signature = generate_container_sas(
            *(self.account, container, self.key),
            permission=ContainerSasPermissions(read=True),
            expiry=datetime.now(UTC) + timedelta(days=_SAS_DAYS),
        )
        return f"{self.url_of(container)}/{blob}?{signature}"

    def container(self, name: str, account: str | None = None) -> ContainerClient:
        account = account or self.account
        if account not in self._services:
            self._services[account] = BlobServiceClient(
                self._azurite.blob_endpoint_of(account),
                credential=self.key,
                connection_verify=str(self._certificate.file),
                retry_total=2,
            )
        return self._services[account].get_container_client(name)

    def names(self, container: str, prefix: str = "", account: str | None = None) -> list[str]:
        found = self.container(container, account).list_blob_names(name_starts_with=prefix)
        return list(found)

    def fetch(self, container: str, prefix: str, folder: Path, account: str | None = None) -> int:
        """Everything below a prefix, or the one blob of that name; how many files."""
        client, count = self.container(container, account), 0
        for name in self.names(container, prefix, account):
            rest = name[len(prefix) :].lstrip("/")
            if rest and prefix and not prefix.endswith("/") and name[len(prefix)] != "/":
                continue  # a neighbour whose name begins alike
            target = folder / (rest or Path(name).name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(client.download_blob(name).readall())
            count += 1
        return count

    def store(self, folder: Path, container: str, prefix: str, account: str | None = None) -> None:
        client = self.container(container, account)
        for path in _files(folder):
            name = f"{prefix.rstrip('/')}/{path.relative_to(folder).as_posix()}"
            with path.open("rb") as data:
                client.upload_blob(name, data, overwrite=True)


def split_blob_url(url: str) -> tuple[str, str, str]:
    """`https://account.blob.core…/container/path` as account, container, path."""
    parts = urlsplit(url)
    container, _, path = parts.path.strip("/").partition("/")
    return (parts.hostname or "").partition(".")[0], container, path


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
