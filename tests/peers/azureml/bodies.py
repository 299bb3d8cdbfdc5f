"""What the published REST API asks of a body: fields, types, patterns, enums, and what is required.

Written by hand after the specification of api-version 2025-12-01, whose models the SDK carries.
They have lost the patterns, which are those of the JavaScript client generated from the same
definitions (`@azure/arm-machinelearning` 2.1.1). A field that is not named here is refused, since
a service may ignore a misspelt one in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.peers.azureml.server import Request, ServiceError

Check = Callable[[Any, str], list[str]]


@dataclass(frozen=True)
class Must:
    check: Check


def text(value: Any, at: str) -> list[str]:
    return [] if isinstance(value, str) else [f"{at} must be a string, not {value!r}"]


def whole(value: Any, at: str) -> list[str]:
    fine = isinstance(value, int) and not isinstance(value, bool)
    return [] if fine else [f"{at} must be an integer, not {value!r}"]


def scalar(value: Any, at: str) -> list[str]:
    """The service turns numbers into strings here, and the SDK counts on that."""
    return [] if isinstance(value, str | int) else [f"{at} must be a string, not {value!r}"]


def yes_no(value: Any, at: str) -> list[str]:
    return [] if isinstance(value, bool) else [f"{at} must be true or false, not {value!r}"]


def anything(_value: Any, _at: str) -> list[str]:
    return []


def span(value: Any, at: str) -> list[str]:
    pattern = r"P(?=.)(\d+D)?(T(\d+H)?(\d+M)?([\d.]+S)?)?"
    fine = isinstance(value, str) and re.fullmatch(pattern, value)
    return [] if fine else [f"{at} must be an ISO 8601 duration, not {value!r}"]


def resource_id(value: Any, at: str) -> list[str]:
    """Stricter than the published pattern, which asks for one letter, digit or underscore."""
    fine = isinstance(value, str) and value.startswith(
        ("/subscriptions/", "azureml:", "azureml://")
    )
    return [] if fine else [f"{at} must be a resource id, not {value!r}"]


def data_uri(value: Any, at: str) -> list[str]:
    """What the documentation lists for inputs and outputs: assets, datastores and Azure storage.
    Stricter than the published pattern, as with `resource_id`."""
    known = ("azureml:", "/subscriptions/", "https://", "http://", "wasbs://", "abfss://", "adl://")
    fine = isinstance(value, str) and value.startswith(known)
    return [] if fine else [f"{at} must be a URI of data that the service knows, not {value!r}"]


def matching(pattern: str) -> Check:
    """A string that the published pattern allows; a pattern without anchors may match anywhere."""

    def check(value: Any, at: str) -> list[str]:
        wrong = text(value, at)
        if wrong or re.search(pattern, value):
            return wrong
        return [f"{at} must match the pattern {pattern}: {value!r}"]

    return check


def uuid_text(value: Any, at: str) -> list[str]:
    fine = isinstance(value, str) and re.fullmatch(
        r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", value
    )
    return [] if fine else [f"{at} must be a UUID, not {value!r}"]


def docker_argument(value: Any, at: str) -> list[str]:
    """The service takes the string for one argument of docker; several make a container that does
    not start (azure-sdk-for-python #30466). They belong into `dockerArgsList`."""
    if isinstance(value, str) and len(value.split()) < 2:
        return []
    return [f"{at} must be a single argument, not {value!r}: dockerArgsList takes several"]


def docker_arguments(value: Any, at: str) -> list[str]:
    """In the specification of a component one name takes both forms."""
    return each(text)(value, at) if isinstance(value, list) else docker_argument(value, at)


def one_of(*allowed: str) -> Check:
    def check(value: Any, at: str) -> list[str]:
        return [] if value in allowed else [f"{at} must be one of {', '.join(allowed)}: {value!r}"]

    return check


def many(item: Check) -> Check:
    """A mapping from names to items."""

    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, dict):
            return [f"{at} must be an object, not {value!r}"]
        return [line for name, one in value.items() for line in item(one, f"{at}.{name}")]

    return check


def each(item: Check) -> Check:
    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, list):
            return [f"{at} must be a list, not {value!r}"]
        return [line for n, one in enumerate(value) for line in item(one, f"{at}[{n}]")]

    return check


def record(fields: Mapping[str, Check | Must]) -> Check:
    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, dict):
            return [f"{at} must be an object, not {value!r}"]
        found = [f"{at}.{name} is no field of it" for name in value if name not in fields]
        for name, field in fields.items():
            test = field.check if isinstance(field, Must) else field
            if value.get(name) is None:  # null is as good as left out
                found += [f"{at}.{name} is required"] if isinstance(field, Must) else []
            else:
                found += test(value[name], f"{at}.{name}")
        return found

    return check


def by(discriminator: str, kinds: Mapping[str, Check]) -> Check:
    def check(value: Any, at: str) -> list[str]:
        if not isinstance(value, dict):
            return [f"{at} must be an object, not {value!r}"]
        kind = str(value.get(discriminator))
        if kind not in kinds:
            return [f"{at}.{discriminator} must be one of {', '.join(kinds)}: {kind!r}"]
        return kinds[kind](value, at)

    return check


class Checker:
    """Refuses a body that the REST API would not know, and remembers that it did."""

    def __init__(
        self, shapes: Mapping[str, Check], names: Mapping[str, str], complaints: list[str]
    ) -> None:
        self._shapes, self._names, self._complaints = shapes, names, complaints

    def check(self, kind: str, request: Request) -> dict[str, Any]:
        body = request.json
        found = self._shapes[kind](body, "body")
        name, pattern = request.parameters.get("name", ""), self._names[kind]
        if not re.fullmatch(pattern, name):
            found.append(f"the name {name!r} does not match the pattern ^{pattern}$")
        if found:
            self._complaints += [f"{request.method} {request.path}: {line}" for line in found]
            raise ServiceError(400, "InvalidRequestContent", "; ".join(found))
        return body


_WORD = matching("[a-zA-Z0-9_]")
"""Without anchors, as published: any string with a letter, a digit or an underscore in it."""
_INPUT_MODES = one_of("ReadOnlyMount", "ReadWriteMount", "Download", "Direct", "EvalMount",
                      "EvalDownload")  # fmt: skip
_OUTPUT_MODES = one_of("ReadWriteMount", "Upload", "Direct")
_ASSET_INPUT = record(
    {
        "jobInputType": Must(text),
        "uri": Must(data_uri),
        "mode": _INPUT_MODES,
        "description": text,
    }
)
_DATA_TYPES = ("uri_file", "uri_folder", "mltable")
_PLACE_TYPES = (*_DATA_TYPES, "custom_model", "mlflow_model", "triton_model")
_INPUT = by(
    "jobInputType",
    {
        "literal": record({"jobInputType": Must(text), "value": Must(_WORD), "description": text}),
        **dict.fromkeys(_PLACE_TYPES, _ASSET_INPUT),
    },
)
_OUTPUT = by(
    "jobOutputType",
    dict.fromkeys(
        _PLACE_TYPES,
        record(
            {
                "jobOutputType": Must(text),
                "uri": data_uri,
                "mode": _OUTPUT_MODES,
                "description": text,
                "assetName": text,
            }
        ),
    ),
)
_TIERS = one_of("Spot", "Basic", "Standard", "Premium", "Null")
SHM_SIZE = r"\d+[bBkKmMgG]"
_RUN_AS = by(
    "identityType",
    {
        "AMLToken": record({"identityType": Must(text)}),
        "UserIdentity": record({"identityType": Must(text)}),
        "Managed": record(
            {
                "identityType": Must(text),
                "clientId": uuid_text,
                "objectId": uuid_text,
                "resourceId": text,
            }
        ),
    },
)
_DISTRIBUTION = by(
    "distributionType",
    {
        **dict.fromkeys(
            ("PyTorch", "Mpi"),
            record({"distributionType": Must(text), "processCountPerInstance": whole}),
        ),
        "TensorFlow": record(
            {"distributionType": Must(text), "parameterServerCount": whole, "workerCount": whole}
        ),
    },
)
_RESOURCES = record(
    {
        "instanceCount": whole,
        "instanceType": text,
        "properties": many(anything),
        "dockerArgs": docker_argument,
        "dockerArgsList": each(text),
        "shmSize": matching(SHM_SIZE),
    }
)
_SERVICE = record(
    {
        "endpoint": text,
        "jobServiceType": text,
        "nodes": by("nodesValueType", {"All": record({"nodesValueType": Must(text)})}),
        "port": whole,
        "properties": many(text),
        "errorMessage": anything,
        "status": anything,
    }
)
_NOTIFICATION = record(
    {
        "emailOn": each(one_of("JobCompleted", "JobFailed", "JobCancelled")),
        "emails": each(text),
        "webhooks": many(
            by(
                "webhookType",
                {"AzureDevOps": record({"webhookType": Must(text), "eventType": text})},
            )
        ),
    }
)
_ANY: dict[str, Check | Must] = {
    "jobType": Must(text),
    "displayName": text,
    "description": text,
    "experimentName": text,
    "computeId": text,
    "componentId": text,
    "identity": _RUN_AS,
    "isArchived": yes_no,
    "notificationSetting": _NOTIFICATION,
    "properties": many(text),
    "services": many(_SERVICE),
    "tags": many(text),
    "status": anything,
    "inputs": many(_INPUT),
    "outputs": many(_OUTPUT),
}


def _step_place(modes: Check) -> Check:
    """An input or output of a step: a value, a binding, or data at a URI."""
    data = record(
        {
            **dict.fromkeys(("job_input_type", "job_output_type"), text),
            **{"uri": Must(data_uri), "mode": modes, "pathOnCompute": text, "description": text},
            **dict.fromkeys(("assetName", "assetVersion"), text),
        }
    )
    return lambda value, at: data(value, at) if isinstance(value, dict) and "uri" in value else []


_SPEC_RESOURCES = record(
    {
        "instance_count": whole,
        "instance_type": text,
        "properties": anything,
        "docker_args": docker_arguments,
        "shm_size": matching(SHM_SIZE),
    }
)


def _spec_distribution(discriminator: str, pytorch: str, mpi: str, tensorflow: str) -> Check:
    processes = record({discriminator: Must(text), "process_count_per_instance": whole})
    servers = record(
        {discriminator: Must(text), "parameter_server_count": whole, "worker_count": whole}
    )
    return by(discriminator, {pytorch: processes, mpi: processes, tensorflow: servers})


_STEP_IDENTITY = by(
    "identity_type",
    {
        **dict.fromkeys(("AMLToken", "UserIdentity"), record({"identity_type": Must(text)})),
        "Managed": record(
            {
                "identity_type": Must(text),
                "client_id": uuid_text,
                "object_id": uuid_text,
                "resource_id": text,
            }
        ),
    },
)
# The service takes steps as they are; these are the names that the SDK gives them.
_STEP = record(
    {
        "componentId": Must(resource_id),
        "type": Must(one_of("command")),
        "inputs": many(_step_place(_INPUT_MODES)),
        "outputs": many(_step_place(_OUTPUT_MODES)),
        "computeId": resource_id,
        "environment_variables": many(text),
        "limits": record({"timeout": span, "job_limits_type": one_of("Command")}),
        "resources": _SPEC_RESOURCES,
        "distribution": _spec_distribution("distribution_type", "PyTorch", "Mpi", "TensorFlow"),
        "queue_settings": record({"job_tier": _TIERS}),
        "identity": _STEP_IDENTITY,
        "tags": many(text),
        "properties": many(text),
        **dict.fromkeys(("name", "display_name", "description", "comment", "_source"), text),
    }
)
JOB = by(
    "jobType",
    {
        "Command": record(
            {
                **_ANY,
                "command": Must(_WORD),
                "environmentId": Must(resource_id),
                "codeId": resource_id,
                "environmentVariables": many(text),
                "distribution": _DISTRIBUTION,
                "limits": record({"jobLimitsType": Must(one_of("Command")), "timeout": span}),
                "queueSettings": record({"jobTier": _TIERS}),
                "resources": _RESOURCES,
                "parameters": anything,
            }
        ),
        "Pipeline": record(
            {**_ANY, "jobs": Must(many(_STEP)), "settings": anything, "sourceJobId": text}
        ),
    },
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


_ROUTE = record({"path": Must(_WORD), "port": Must(whole)})
_ENVIRONMENT = record(
    {
        **_ASSET,
        "autoRebuild": one_of("Disabled", "OnBaseImageUpdate"),
        "build": record({"contextUri": Must(_WORD), "dockerfilePath": text}),
        "condaFile": text,
        "image": text,
        "inferenceConfig": record(
            dict.fromkeys(
                ("livenessRoute", "readinessRoute", "scoringRoute", "startupRoute"), _ROUTE
            )
        ),
        "osType": one_of("Linux", "Windows"),
        "environmentType": anything,
        "stage": text,
    }
)
_CODE = record({**_ASSET, "codeUri": text})
_DATA = record(
    {
        **_ASSET,
        "dataType": Must(one_of(*_DATA_TYPES)),
        "dataUri": Must(data_uri),
        "referencedUris": each(text),
        "autoDeleteSetting": anything,
    }
)
_MODEL = record({**_ASSET, "modelType": text, "modelUri": text, "jobName": text, "stage": text,
                 "flavors": many(record({"data": many(text)}))})  # fmt: skip
_SPEC = record(
    {
        "command": Must(_WORD),
        "environment": Must(resource_id),
        "code": resource_id,
        "type": Must(one_of("command")),
        "inputs": many(anything),
        "outputs": many(anything),
        "is_deterministic": yes_no,
        "distribution": _spec_distribution("type", "pytorch", "mpi", "tensorflow"),
        "resources": _SPEC_RESOURCES,
        **dict.fromkeys(("name", "version", "display_name", "description", "$schema"), text),
        "tags": many(text),
        "properties": many(text),
        "_source": text,
    }
)
_COMPONENT = record({**_ASSET, "componentSpec": Must(_SPEC), "stage": text})


def _credentials(kind: str, secret: str, **more: Check | Must) -> Check:
    secrets = record({"secretsType": Must(one_of(kind)), secret: text})
    return record({"credentialsType": Must(text), "secrets": Must(secrets), **more})


_PRINCIPAL: dict[str, Check | Must] = {
    "clientId": Must(uuid_text),
    "tenantId": Must(uuid_text),
    "authorityUrl": text,
    "resourceUrl": text,
}
_CREDENTIALS = by(
    "credentialsType",
    {
        "None": record({"credentialsType": Must(text)}),
        "AccountKey": _credentials("AccountKey", "key"),
        "Sas": _credentials("Sas", "sasToken"),
        "ServicePrincipal": _credentials("ServicePrincipal", "clientSecret", **_PRINCIPAL),
        "Certificate": _credentials(
            "Certificate", "certificate", thumbprint=Must(_WORD), **_PRINCIPAL
        ),
    },
)


def _datastore(**place: Check | Must) -> Check:
    return record(
        {
            "datastoreType": Must(text),
            "credentials": Must(_CREDENTIALS),
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
            **place,
        }
    )


_DATASTORE = by(
    "datastoreType",
    {
        "AzureBlob": _datastore(accountName=text, containerName=text),
        "AzureFile": _datastore(accountName=Must(_WORD), fileShareName=Must(_WORD)),
        "AzureDataLakeGen2": _datastore(accountName=Must(_WORD), filesystem=Must(_WORD)),
    },
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
        "userAccountCredentials": record(
            {
                "adminUserName": Must(text),
                "adminUserPassword": text,
                "adminUserSshPublicKey": text,
            }
        ),
        "virtualMachineImage": record({"id": Must(text)}),
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
_SKU = record(
    {
        "name": Must(text),
        "tier": one_of("Free", "Basic", "Standard", "Premium"),
        "size": text,
        "family": text,
        "capacity": whole,
    }
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
    "datastores": _body(_DATASTORE),
    "computes": record(
        {
            "location": text,
            "properties": Must(_COMPUTE),
            "identity": _IDENTITY,
            "sku": _SKU,
            "tags": many(text),
            **_RESERVED,
        }
    ),
    "jobs": _body(JOB),
}
