"""The bodies of the resources that may be put, by kind."""

from __future__ import annotations

from tests.peers.azureml.job_bodies import JOB
from tests.peers.azureml.shapes import (
    Check,
    Must,
    anything,
    by,
    each,
    many,
    one_of,
    record,
    resource_id,
    scalar,
    span,
    text,
    whole,
    yes_no,
)

_ASSET: dict[str, Check | Must] = {
    "description": text,
    "tags": many(text),
    "properties": many(scalar),
    "isAnonymous": yes_no,
    "isArchived": yes_no,
}
_RESERVED: dict[str, Check | Must] = {"id": anything, "name": anything, "type": anything}


def _body(properties: Check) -> Check:
    return record({"properties": Must(properties), "systemData": anything, **_RESERVED})


_ENVIRONMENT = record(
    {
        **_ASSET,
        "autoRebuild": one_of("Disabled", "OnBaseImageUpdate"),
        "build": record({"contextUri": Must(text), "dockerfilePath": text}),
        "condaFile": text,
        "image": text,
        "inferenceConfig": anything,
        "osType": one_of("Linux", "Windows"),
        "environmentType": anything,
        "stage": text,
    }
)
_CODE = record({**_ASSET, "codeUri": text})
_DATA = record(
    {
        **_ASSET,
        "dataType": Must(one_of("uri_file", "uri_folder", "mltable")),
        "dataUri": Must(text),
        "referencedUris": each(text),
        "autoDeleteSetting": anything,
    }
)
_MODEL = record({**_ASSET, "modelType": text, "modelUri": text, "jobName": text, "stage": text,
                 "flavors": anything})  # fmt: skip
_SPEC = record(
    {
        "command": Must(text),
        "environment": Must(resource_id),
        "code": resource_id,
        "type": Must(one_of("command")),
        "inputs": many(anything),
        "outputs": many(anything),
        "is_deterministic": yes_no,
        "distribution": anything,
        "resources": anything,
        **dict.fromkeys(("name", "version", "display_name", "description", "$schema"), text),
        "tags": many(text),
        "properties": many(text),
        "_source": text,
    }
)
_COMPONENT = record({**_ASSET, "componentSpec": Must(_SPEC), "stage": text})

_CREDENTIALS = by(
    "credentialsType",
    {
        "None": record({"credentialsType": Must(text)}),
        "AccountKey": record(
            {
                "credentialsType": Must(text),
                "secrets": Must(record({"secretsType": Must(one_of("AccountKey")), "key": text})),
            }
        ),
        "Sas": record(
            {
                "credentialsType": Must(text),
                "secrets": Must(record({"secretsType": Must(one_of("Sas")), "sasToken": text})),
            }
        ),
    },
)
_BLOB_DATASTORE = record(
    {
        "datastoreType": Must(text),
        "credentials": Must(_CREDENTIALS),
        "accountName": text,
        "containerName": text,
        "endpoint": text,
        "protocol": one_of("https", "http"),
        "resourceGroup": text,
        "subscriptionId": text,
        "serviceDataAccessAuthIdentity": one_of(
            "None", "WorkspaceSystemAssignedIdentity", "WorkspaceUserAssignedIdentity"
        ),
        "description": text,
        "tags": many(text),
        "properties": many(text),
        "isDefault": yes_no,
    }
)

_SCALE = record(
    {"maxNodeCount": Must(whole), "minNodeCount": whole, "nodeIdleTimeBeforeScaleDown": span}
)
_CLUSTER = record(
    {
        "osType": one_of("Linux", "Windows"),
        "vmSize": Must(text),
        "vmPriority": one_of("Dedicated", "LowPriority"),
        "scaleSettings": _SCALE,
        "subnet": record({"id": Must(text)}),
        "remoteLoginPortPublicAccess": one_of("Enabled", "Disabled", "NotSpecified"),
        "enableNodePublicIp": yes_no,
        "isolatedNetwork": yes_no,
        "userAccountCredentials": anything,
        "virtualMachineImage": anything,
        "propertyBag": anything,
    }
)
_COMPUTE = by(
    "computeType",
    {
        "AmlCompute": record(
            {
                "computeType": Must(text),
                "properties": Must(_CLUSTER),
                "description": text,
                "computeLocation": text,
                "disableLocalAuth": yes_no,
                "resourceId": text,
            }
        )
    },
)
_IDENTITY_TYPES = ("None", "SystemAssigned", "UserAssigned", "SystemAssigned,UserAssigned")
_IDENTITY = record(
    {
        "type": Must(one_of(*_IDENTITY_TYPES)),
        "userAssignedIdentities": many(record({"clientId": text, "principalId": text})),
    }
)

_ASSET_NAME = r"[a-zA-Z0-9][a-zA-Z0-9\-_]{0,254}"
NAMES: dict[str, str] = {
    "computes": r"[a-zA-Z][a-zA-Z0-9-]{1,30}[a-zA-Z0-9]",
    **dict.fromkeys(
        ("environments", "codes", "data", "models", "components", "datastores", "jobs"), _ASSET_NAME
    ),
}
"""The patterns that the service answers with when it refuses a name."""

SHAPES: dict[str, Check] = {
    "environments": _body(_ENVIRONMENT),
    "codes": _body(_CODE),
    "data": _body(_DATA),
    "models": _body(_MODEL),
    "components": _body(_COMPONENT),
    "datastores": _body(by("datastoreType", {"AzureBlob": _BLOB_DATASTORE})),
    "computes": record(
        {
            "location": text,
            "properties": Must(_COMPUTE),
            "identity": _IDENTITY,
            "sku": anything,
            "tags": many(text),
            **_RESERVED,
        }
    ),
    "jobs": _body(JOB),
}
