"""Azurite, Microsoft's emulator of a storage account, with as many accounts as tests may want."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from tests.peers.certificate import Certificate
from tests.peers.ports import free_port
from tests.peers.process import (
    MissingComponent,
    ServerProcess,
    accepts_connections,
    find_program,
)

PROGRAM = Path(__file__).parents[2] / ".tools/azurite/node_modules/azurite/dist/src/azurite.js"
ACCOUNTS = 1_500


class Azurite(ServerProcess):
    """With a certificate it speaks https and takes bearer tokens too. It checks a token's issuer,
    audience and times, not who signed it, and it knows no roles: no proof of what Azure permits."""

    name = "azurite"

    def __init__(self, certificate: Certificate | None = None) -> None:
        self._node = find_program("node")
        if not PROGRAM.is_file():
            raise MissingComponent("azurite")
        self.blob_port, self.queue_port, self.table_port = free_port(), free_port(), free_port()
        self.key = base64.b64encode(secrets.token_bytes(32)).decode()
        self._certificate = certificate
        self._accounts = iter([f"test{number:04d}" for number in range(ACCOUNTS)])
        super().__init__()
        self.connection_string = self.connection_string_of(self.new_account())

    def new_account(self) -> str:
        """An account that nobody has used: no tables, no containers."""
        account = next(self._accounts, None)
        if account is None:
            raise RuntimeError(f"all {ACCOUNTS} accounts are used up: raise azurite.ACCOUNTS")
        return account

    def connection_string_of(self, account: str, key: str | None = None) -> str:
        fields = {
            "DefaultEndpointsProtocol": self._scheme,
            "AccountName": account,
            "AccountKey": key or self.key,
            "BlobEndpoint": self.blob_endpoint_of(account),
            "TableEndpoint": self.table_endpoint_of(account),
        }
        return ";".join(f"{name}={value}" for name, value in fields.items())

    def blob_endpoint_of(self, account: str) -> str:
        return f"{self._scheme}://127.0.0.1:{self.blob_port}/{account}"

    def table_endpoint_of(self, account: str) -> str:
        return f"{self._scheme}://127.0.0.1:{self.table_port}/{account}"

    def command(self) -> list[str]:
        flags = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--loose"]
        if self._certificate:
            flags += ["--cert", str(self._certificate.file), "--key", str(self._certificate.key)]
            flags += ["--oauth", "basic"]
        for service, port in self._ports.items():
            flags += [f"--{service}Host", "127.0.0.1", f"--{service}Port", str(port)]
        return [self._node, str(PROGRAM), *flags, "--location", str(self.folder)]

    def environ(self) -> Mapping[str, str]:
        names = (f"test{number:04d}" for number in range(ACCOUNTS))
        return os.environ | {"AZURITE_ACCOUNTS": ";".join(f"{n}:{self.key}" for n in names)}

    def is_ready(self) -> bool:
        return all(map(accepts_connections, self._ports.values()))

    @property
    def _ports(self) -> dict[str, int]:
        return {"blob": self.blob_port, "queue": self.queue_port, "table": self.table_port}

    @property
    def _scheme(self) -> str:
        return "https" if self._certificate else "http"
