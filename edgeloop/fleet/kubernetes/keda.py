"""KEDA's kinds: the number of runners follows the waiting work."""

from __future__ import annotations

from urllib.parse import quote

from edgeloop.fleet.kubernetes.pods import Release, effective_runner, runner_pod, slug
from edgeloop.fleet.kubernetes.values import ExperimentValues, Plain, RunnerValues

GROUP = "keda.sh/v1alpha1"
LINUX, DEVICE = "linux", "device"
# What stages need, as hints have it.
ON_LINUX, ON_DEVICE = ("quantize", "onnx"), ("device", "device-accuracy", "device-float")


def trigger_authentication(release: Release) -> Plain:
    """Where KEDA finds the portal's token, or its connection to the database."""
    values = release.values
    if values.runner.scaler.type == "postgresql":
        secret = {
            "parameter": "connection",
            "name": values.store.secret,
            "key": values.runner.scaler.connection_key,
        }
    else:
        secret = {"parameter": "token", "name": values.portal.token_secret, "key": "token"}
    return {
        "apiVersion": GROUP,
        "kind": "TriggerAuthentication",
        "metadata": release.metadata("queue", "runner"),
        "spec": {"secretTargetRef": [secret]},
    }


def scaled_job(release: Release, experiment: ExperimentValues) -> Plain:
    runner = effective_runner(release.values, experiment)
    return {
        "apiVersion": GROUP,
        "kind": "ScaledJob",
        "metadata": runner_metadata(release, experiment),
        "spec": {
            "pollingInterval": runner.scaler.polling_interval,
            "minReplicaCount": runner.min_replicas,
            "maxReplicaCount": runner.max_replicas,
            "successfulJobsHistoryLimit": runner.successful_jobs_history_limit,
            "failedJobsHistoryLimit": runner.failed_jobs_history_limit,
            "rollout": {"strategy": "gradual"},
            # "default" subtracts the runners there are, which go on as long as there is work.
            "scalingStrategy": {"strategy": "default", "multipleScalersCalculation": "sum"},
            "jobTargetRef": {
                "parallelism": 1,
                "completions": 1,
                "backoffLimit": 0,  # leases give work to others; Kubernetes need not
                "ttlSecondsAfterFinished": runner.ttl_seconds_after_finished,
                "template": runner_pod(release, experiment),
            },
            "triggers": _triggers(release, experiment, runner),
        },
    }


def scaled_object(release: Release, experiment: ExperimentValues) -> Plain:
    runner = effective_runner(release.values, experiment)
    metadata = runner_metadata(release, experiment)
    triggers = _triggers(release, experiment, runner)
    advanced: Plain = {
        "horizontalPodAutoscalerConfig": {
            "behavior": {
                "scaleDown": {"stabilizationWindowSeconds": runner.cooldown_seconds},
            }
        }
    }
    if len(triggers) > 1:  # the autoscaler itself would take the largest, not the sum
        names = [f"queue{number}" for number in range(len(triggers))]
        triggers = [
            {**trigger, "name": name} for trigger, name in zip(triggers, names, strict=True)
        ]
        formula = {"formula": " + ".join(names), "target": str(runner.stages_per_runner)}
        advanced["scalingModifiers"] = formula
    return {
        "apiVersion": GROUP,
        "kind": "ScaledObject",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": {"name": metadata["name"]},
            "pollingInterval": runner.scaler.polling_interval,
            "cooldownPeriod": runner.cooldown_seconds,
            "minReplicaCount": runner.min_replicas,
            "maxReplicaCount": runner.max_replicas,
            "advanced": advanced,
            "triggers": triggers,
        },
    }


def runner_metadata(release: Release, experiment: ExperimentValues) -> Plain:
    name = slug(experiment.name)
    return release.metadata(f"runner-{name}", "runner", {"edgeloop/experiment": name})


def _triggers(release: Release, experiment: ExperimentValues, runner: RunnerValues) -> list[Plain]:
    names = runner.capabilities or ([LINUX, DEVICE, runner.device] if runner.device else [LINUX])
    reference = {"name": f"{release.name}-queue"}
    target = str(runner.stages_per_runner)
    if runner.scaler.type == "postgresql":
        metadata = {"query": _query(experiment.name, names), "targetQueryValue": target}
        return [{"type": "postgresql", "authenticationRef": reference, "metadata": metadata}]
    return [
        {
            "type": "metrics-api",
            "authenticationRef": reference,
            "metadata": {
                "url": _address(release, experiment.name, name),
                "format": "json",
                "valueLocation": f"{name.replace('.', chr(92) + '.')}.wanted",
                "targetValue": target,
                "authMode": "bearer",
            },
        }
        for name in names
    ]


def _address(release: Release, experiment: str, capability: str) -> str:
    """KEDA takes a missing number for an error, so the portal is told which one is asked for."""
    place = f"{release.name}-portal.{release.namespace}.svc:{release.values.portal.port}"
    question = f"experiment={experiment}&capability={quote(capability, safe='')}"
    return f"http://{place}/api/queue?{question}"


def _query(experiment: str, names: list[str]) -> str:
    """Hints at work that is ready or running, by what a runner must have for it."""
    parts: list[str] = []
    for name in names:
        if name == LINUX:
            parts += ON_LINUX
        else:
            parts += ON_DEVICE if name == DEVICE else [f"{kind}@{name}" for kind in ON_DEVICE]
    kinds = [f"starts_with(key, '{part}|')" for part in parts]
    return (
        f"SELECT count(*) FROM edgeloop_rows WHERE space = 'queue/{experiment}' "  # noqa: S608
        f"AND ({' OR '.join(kinds)})"
    )
