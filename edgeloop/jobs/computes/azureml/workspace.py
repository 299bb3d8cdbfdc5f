"""Which workspace of which cloud to use, and how to log in: from settings, project files and the
environment, which only this file reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

from pydantic import StrictBool

from edgeloop._util.schema import Section, Text, key, validated
from edgeloop._util.values import Reads, choice
from edgeloop._util.yaml import Origin
from edgeloop.errors import BadSetting
from edgeloop.settings import ProjectFiles, read_project_files, with_workspace

_WORKSPACE = {
    "subscription": ("AZURE_SUBSCRIPTION_ID", "AZUREML_ARM_SUBSCRIPTION"),
    "resource_group": ("AML_RESOURCE_GROUP", "AZUREML_ARM_RESOURCEGROUP"),
    "workspace": ("AML_WORKSPACE_NAME", "AZUREML_ARM_WORKSPACE_NAME"),
}


def workspace_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those that users set, and those that Azure ML sets inside its own jobs."""
    return {
        part: next((environ[name] for name in names if environ.get(name)), "")
        for part, names in _WORKSPACE.items()
    }


def cloud_variables(environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The SDK's own: a cloud's name, and where the addresses of a private one are listed."""
    return environ.get("AZUREML_CURRENT_CLOUD", ""), environ.get("ARM_CLOUD_METADATA_URL", "")


def identity_client(environ: Mapping[str, str] = os.environ) -> str | None:
    """Which of several managed identities to use: on a cluster of Azure ML, the cluster's."""
    return environ.get("AZURE_CLIENT_ID") or environ.get("DEFAULT_IDENTITY_CLIENT_ID") or None


def has_terminal() -> bool:
    """Whether a person can use a browser."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


Login = Literal["usual", "device-code", "browser", "cli", "managed"]
_FIELDS = ("subscription", "resource_group", "workspace")
_KNOWN_CLOUDS = ("AzureCloud", "AzureUSGovernment", "AzureChinaCloud")
_ENDPOINTS = (
    "resource_manager",
    "active_directory",
    "aml_resource_id",
    "storage_endpoint",
    "azure_portal",
    "registry_discovery_endpoint",
)
_REQUIRED = _ENDPOINTS[:4]


@dataclass(frozen=True)
class Cloud:
    """Azure itself, one of its national clouds by name, or any other by its addresses. Without a
    name the SDK's variables count (AZUREML_CURRENT_CLOUD, ARM_CLOUD_METADATA_URL), else Azure."""

    name: str = ""
    endpoints: Mapping[str, str] | None = None

    @property
    def metadata(self) -> dict[str, str] | None:
        """For the SDK."""
        if self.endpoints is None:
            return None
        manager = self.endpoints["resource_manager"]
        usual = {"azure_portal": manager, "registry_discovery_endpoint": manager}
        return {**usual, **self.endpoints}


@dataclass(frozen=True)
class WorkspaceAddress:
    """One workspace; `files` are those of the project's `.azureml/`."""

    subscription: str
    resource_group: str
    workspace: str
    cloud: Cloud = Cloud()
    login: Login = "usual"
    files: ProjectFiles = field(default_factory=ProjectFiles)

    @property
    def path(self) -> str:
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.workspace}"
        )

    def __str__(self) -> str:
        return (
            f"workspace {self.workspace!r} of resource group {self.resource_group!r} "
            f"in subscription {self.subscription}"
        )


def _cloud(written: object) -> Cloud:
    if isinstance(written, Cloud):
        return written
    if isinstance(written, str):
        if written not in _KNOWN_CLOUDS:
            known = ", ".join(_KNOWN_CLOUDS)
            raise ValueError(f"must be one of {known}, or a mapping of addresses")
        return Cloud(written)
    if not isinstance(written, Mapping):
        raise ValueError("must be a name or a mapping of addresses")
    endpoints = {str(key): str(value) for key, value in written.items() if key != "name"}
    unknown = [key for key in endpoints if key not in _ENDPOINTS]
    missing = [key for key in _REQUIRED if key not in endpoints]
    if unknown or missing:
        what = f"has no {unknown[0]!r}" if unknown else f"lacks {missing[0]!r}"
        raise ValueError(f"{what}: its addresses are {', '.join(_ENDPOINTS)}")
    return Cloud(str(written.get("name") or endpoints["resource_manager"]), endpoints)


_ADDRESSES = {
    "anyOf": [
        {"enum": list(_KNOWN_CLOUDS)},
        {
            "type": "object",
            "properties": {
                key: {"type": "string", "description": f"The {key.replace('_', ' ')} of the cloud."}
                for key in ("name", *_ENDPOINTS)
            },
            "required": list(_REQUIRED),
            "additionalProperties": False,
        },
    ]
}


class WorkspaceKeys(Section):
    """Which workspace of which cloud, and how to log in."""

    subscription: Text = key("", "The subscription's id.")
    resource_group: Text = key("", "The resource group.")
    workspace: Text = key("", "The workspace's name.")
    login: Annotated[str, choice(*get_args(Login))] = key("", "How to log in.")
    cloud: Annotated[Cloud | None, Reads(_cloud, _ADDRESSES)] = key(
        None, "A national cloud, or the addresses of another."
    )


class AzureKeys(WorkspaceKeys):
    """`azure:` in edgeloop.yaml: what all computes of kind `azureml` share."""

    workspace_config: Text = key("", "A `config.json` to use instead of `.azureml/config.json`.")
    datastore_key: StrictBool = key(False, "Let `azure setup` give the workspace the store's key.")


def find_workspace(
    own: WorkspaceKeys,
    shared: Mapping[str, object],
    project: Path,
    where: str = "azure",
) -> WorkspaceAddress:
    """`own` are a compute's settings, `shared` the project's `azure:`. Each part is taken from the
    first of these that has it: own, the `workspace_config`, `.azureml/config.json`, shared, the
    environment."""
    common = validated(AzureKeys, shared, Origin("azure", BadSetting))
    files = read_project_files(project)
    if common.workspace_config:
        files = with_workspace(files, project / common.workspace_config)
    variables = workspace_variables()
    found: dict[str, str] = {}
    for name in _FIELDS:
        sources = [getattr(written, name) for written in (own, files, common)]
        sources.append(variables.get(name))
        value = next((value for value in sources if value), None)
        if value is None:
            reason = (
                f"no {name.replace('_', ' ')} is named: put .azureml/config.json into the project "
                "(the studio offers it for download), or set it under 'azure:' in edgeloop.yaml, "
                "or set AZURE_SUBSCRIPTION_ID, AML_RESOURCE_GROUP and AML_WORKSPACE_NAME"
            )
            raise BadSetting(where=where, reason=reason)
        if "/" in value:
            raise BadSetting(where=where, reason=f"{name} must be a name, not {value!r}")
        found[name] = value
    login = cast("Login", own.login or common.login or "usual")
    return WorkspaceAddress(
        **found, cloud=own.cloud or common.cloud or Cloud(), login=login, files=files
    )
