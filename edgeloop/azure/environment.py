"""What Azure ML takes from the environment; nothing else in this room reads it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_WORKSPACE = {
    "subscription": ("AZURE_SUBSCRIPTION_ID", "AZUREML_ARM_SUBSCRIPTION"),
    "resource_group": ("AML_RESOURCE_GROUP", "AZUREML_ARM_RESOURCEGROUP"),
    "workspace": ("AML_WORKSPACE_NAME", "AZUREML_ARM_WORKSPACE_NAME"),
}


def workspace_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those that a person sets, and those that Azure ML sets inside its own jobs."""
    found = {}
    for field, names in _WORKSPACE.items():
        value = next((environ[name] for name in names if environ.get(name)), "")
        if value:
            found[field] = value
    return found


def cloud_variables(environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The SDK's own: a cloud's name, and where the addresses of a private one are told."""
    return environ.get("AZUREML_CURRENT_CLOUD", ""), environ.get("ARM_CLOUD_METADATA_URL", "")


def identity_client(environ: Mapping[str, str] = os.environ) -> str | None:
    """Which of several managed identities is meant: on a cluster of Azure ML, the cluster's."""
    return environ.get("AZURE_CLIENT_ID") or environ.get("DEFAULT_IDENTITY_CLIENT_ID") or None


def has_terminal() -> bool:
    """Whether somebody is there to look at a browser."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
