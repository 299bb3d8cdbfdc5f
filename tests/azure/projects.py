"""A project with a workspace, and the command line run in this process (the SDK loads slowly)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner

from edgeloop.cli.app import app
from edgeloop.errors import EdgeloopError

if TYPE_CHECKING:
    from tests.peers.azureml import AzureML
    from tests.peers.azurite import Azurite

SIZE, GPU_SIZE = "STANDARD_DS3_V2", "STANDARD_NC4AS_T4_V3"


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    error: str

    @property
    def rows(self) -> Any:
        return json.loads(self.out)

    @property
    def created(self) -> list[str]:
        """The kinds that were created, in order, from the lines that report one step each."""
        steps = [line.split() for line in self.out.splitlines() if line.startswith("  created ")]
        return [words[1] for words in steps]


@dataclass(frozen=True)
class Project:
    folder: Path
    cloud: AzureML
    account: str

    def write(self, **settings: object) -> None:
        (self.folder / "edgeloop.yaml").write_text(yaml.safe_dump(settings))

    def run(self, *words: str) -> Said:
        """Errors of ours as the edge would say them; any other is the test's failure."""
        done = CliRunner().invoke(app, ["azure", *words])
        if isinstance(done.exception, EdgeloopError):
            return Said(1, done.stdout, str(done.exception))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Said(done.exit_code, done.stdout, done.stderr)

    def findings(self) -> dict[str, list[dict[str, Any]]]:
        """What the doctor says, by what it looked at."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.run("doctor", "--json").rows:
            found.setdefault(row["what"], []).append(row)
        return found

    def puts(self, containing: str) -> list[Any]:
        """The bodies that were written."""
        return [
            request.body
            for request in self.cloud.requests
            if request.method == "PUT" and containing in request.path
        ]


def make_project(
    folder: Path, cloud: AzureML, storage: Azurite, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """In a workspace's folder, with the store in an account of its own, opened by its key."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    account = storage.new_account()
    monkeypatch.setenv("MODEL_STORAGE_CONNECTION_STRING", storage.connection_string_of(account))
    return Project(folder, cloud, account)
