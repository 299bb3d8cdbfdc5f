"""The bodies of jobs: commands, pipelines, and the steps of pipelines."""

from __future__ import annotations

from tests.peers.azureml.shapes import (
    Check,
    Must,
    anything,
    by,
    data_uri,
    each,
    many,
    one_of,
    record,
    resource_id,
    span,
    text,
    whole,
    yes_no,
)

_INPUT_MODES = one_of("ReadOnlyMount", "ReadWriteMount", "Download", "Direct", "EvalMount",
                      "EvalDownload")  # fmt: skip
_OUTPUT_MODES = one_of("ReadWriteMount", "Upload", "Direct")
_ASSET_INPUT = record(
    {
        "jobInputType": Must(text),
        "uri": Must(data_uri),
        "mode": _INPUT_MODES,
        "description": text,
        "pathOnCompute": text,
    }
)
_INPUT = by(
    "jobInputType",
    {
        "literal": record({"jobInputType": Must(text), "value": Must(text), "description": text}),
        **dict.fromkeys(
            ("uri_file", "uri_folder", "mltable", "custom_model", "mlflow_model"), _ASSET_INPUT
        ),
    },
)
_OUTPUT = by(
    "jobOutputType",
    dict.fromkeys(
        ("uri_file", "uri_folder", "mltable", "custom_model", "mlflow_model"),
        record(
            {
                "jobOutputType": Must(text),
                "uri": data_uri,
                "mode": _OUTPUT_MODES,
                "description": text,
                "assetName": text,
                "assetVersion": text,
                "autoDeleteSetting": anything,
                "pathOnCompute": text,
            }
        ),
    ),
)
_RUN_AS = by(
    "identityType",
    {
        "AMLToken": record({"identityType": Must(text)}),
        "UserIdentity": record({"identityType": Must(text)}),
        "Managed": record(
            {"identityType": Must(text), "clientId": text, "objectId": text, "resourceId": text}
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
        "locations": each(text),
        "maxInstanceCount": whole,
        "properties": many(anything),
        "dockerArgs": text,
        "shmSize": text,
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
    "notificationSetting": anything,
    "properties": many(text),
    "services": many(anything),
    "tags": many(text),
    "status": anything,
    "secretsConfiguration": anything,
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
        "resources": anything,
        "distribution": anything,
        "queue_settings": anything,
        "identity": anything,
        "services": anything,
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
                "command": Must(text),
                "environmentId": Must(resource_id),
                "codeId": resource_id,
                "environmentVariables": many(text),
                "distribution": _DISTRIBUTION,
                "limits": record({"jobLimitsType": Must(one_of("Command")), "timeout": span}),
                "queueSettings": record(
                    {
                        "jobTier": one_of("Spot", "Basic", "Standard", "Premium", "Null"),
                        "priority": whole,
                    }
                ),
                "resources": _RESOURCES,
                "autologgerSettings": anything,
                "parameters": anything,
            }
        ),
        "Pipeline": record(
            {**_ANY, "jobs": Must(many(_STEP)), "settings": anything, "sourceJobId": text}
        ),
    },
)
