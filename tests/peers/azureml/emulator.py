"""The emulator: a workspace, its storage, its clusters, behind one address."""

from __future__ import annotations

import itertools
import json
import os
import secrets
from pathlib import Path
from typing import Any, Self

from tests.peers.azureml.arm import Account, ResourceManager
from tests.peers.azureml.assets import Assets, Datastores
from tests.peers.azureml.bodies import NAMES, SHAPES, Checker
from tests.peers.azureml.computes import Computes
from tests.peers.azureml.execution import Executor, Run
from tests.peers.azureml.history import History
from tests.peers.azureml.identity import USER, Credential, Identities
from tests.peers.azureml.jobs import Jobs
from tests.peers.azureml.resolving import sitecustomize
from tests.peers.azureml.server import (
    GROUP,
    SUBSCRIPTION,
    WORKSPACE,
    Faults,
    Logged,
    Operations,
    Router,
    Scope,
    Server,
)
from tests.peers.azureml.storage import Storage
from tests.peers.azurite import Azurite
from tests.peers.certificate import Certificate

AML_RESOURCE = "https://ml.azure.localhost"
_RESOLVING = Path(sitecustomize.__file__).parent
_NUMBERS = itertools.count()


class AzureML:
    """One workspace. It is ready when it is made, and has nothing in it but its datastores."""

    subscription, group, workspace = SUBSCRIPTION, GROUP, WORKSPACE

    def __init__(self, azurite: Azurite, certificate: Certificate, folder: Path) -> None:
        sitecustomize.install()
        self.faults = Faults()
        self.complaints: list[str] = []
        self.certificate = certificate
        self.folder = folder  # of runs, and in `nodes/` the disks of nodes
        self.storage = Storage(azurite, certificate)
        self.identities = Identities(self.faults)
        self._server = Server(certificate, self.faults)
        self.url = self._server.url
        self.cloud = f"emulator-{os.getpid()}-{next(_NUMBERS)}-{secrets.token_hex(3)}"
        self.identities.audiences = {self.url, AML_RESOURCE}
        self.scope = Scope(self.url)
        checker = Checker(SHAPES, NAMES, self.complaints)
        self.operations = operations = Operations(self.scope)
        self.computes = Computes(self.scope, operations, self.faults, checker)
        self.assets = Assets(self.scope, self.storage, checker)
        self.datastores = Datastores(self.scope, self.storage, checker)
        executor = Executor(
            *(self.scope, self.storage, self.assets, self.datastores, self.computes),
            *(self.identities, self.faults, folder, self._cloud_variables()),
        )
        self.jobs = Jobs(self.scope, executor, operations, checker)
        self.account = Account(self.scope, self.storage, self.faults, self.complaints)
        self.arm = ResourceManager(
            self.scope, self.storage, self.computes, self.faults, self.account, self.cloud
        )
        parts = (self.arm, self.account, self.identities, operations, self.computes, self.assets)
        more = (self.datastores, self.jobs, History(self.scope, self.jobs, self.storage))
        routes = [route for part in (*parts, *more) for route in part.routes()]
        self._server.serve(Router(*routes), self.identities.authenticate)

    @property
    def requests(self) -> list[Logged]:
        """All that was asked so far; `clear()` it to count from now."""
        return self._server.log

    @property
    def crashes(self) -> list[str]:
        """Errors of the emulator itself: never a client's fault."""
        return [*self._server.crashes, *self.jobs.crashes]

    def count(self, method: str = "", containing: str = "") -> int:
        """REST calls that changed or read something: those for tokens and clouds are left out."""
        return sum(
            method in ("", request.method) and containing in request.path
            for request in self.requests
            if not request.path.startswith(("/metadata/", "/identity/"))
        )

    def credential(self) -> Credential:
        return Credential(self.identities)

    def client(self, **options: Any) -> Any:
        """The SDK's MLClient. REQUESTS_CA_BUNDLE must be set: see `environment()`."""
        from azure.ai.ml import MLClient

        return MLClient(
            self.credential(),
            *(SUBSCRIPTION, GROUP, WORKSPACE),
            enable_telemetry=False,
            cloud=self.cloud,
            cloud_metadata=self.cloud_metadata(),
            **options,
        )

    def cloud_metadata(self) -> dict[str, str]:
        """As MLClient takes it, and as a product's setting for a private cloud would hold it."""
        return {
            "azure_portal": "https://portal.azure.localhost",
            "resource_manager": f"{self.url}/",
            "active_directory": self.url,
            "aml_resource_id": AML_RESOURCE,
            "storage_endpoint": self.storage.suffix,
            "registry_discovery_endpoint": self.url,
        }

    def environment(self) -> dict[str, str]:
        """Leads a command to this emulator, logged in, by variables that the SDKs know."""
        return {
            **self._cloud_variables(),
            "IDENTITY_ENDPOINT": f"{self.url}/identity/token",
            "IDENTITY_HEADER": self.identities.secret_of(USER),
            "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION,
            "AML_RESOURCE_GROUP": GROUP,
            "AML_WORKSPACE_NAME": WORKSPACE,
        }

    def config_file(self) -> str:
        """The content of `.azureml/config.json`."""
        names = {"subscription_id": SUBSCRIPTION, "resource_group": GROUP}
        return json.dumps({**names, "workspace_name": WORKSPACE})

    def run(self, name: str) -> Run:
        return self.jobs.find(name)

    def wait(self, name: str, limit_s: float = 60) -> Run:
        """Until a run has ended."""
        run = self.jobs.find(name)
        if not run.ended.wait(limit_s):
            raise TimeoutError(f"{name} is {run.status} after {limit_s:g} s")
        return run

    def close(self) -> None:
        self.faults.clear()
        self.jobs.close()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cloud_variables(self) -> dict[str, str]:
        return {
            "ARM_CLOUD_METADATA_URL": f"{self.url}/metadata/endpoints",
            "AZUREML_CURRENT_CLOUD": self.cloud,
            "REQUESTS_CA_BUNDLE": str(self.certificate.file),
            "SSL_CERT_FILE": str(self.certificate.file),
            "PYTHONPATH": str(_RESOLVING),
            "AZUREML_RUN_POLLING_INTERVAL_MIN": "1",
        }
