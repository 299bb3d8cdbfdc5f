"""What KEDA refuses, at once or when it scales, although its schemas allow it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from edgeloop._util.suggest import suggestion
from edgeloop._util.values import shown
from edgeloop.fleet.kubernetes.formats import is_key, is_name
from edgeloop.fleet.kubernetes.pod_rules import (
    Problems,
    list_of,
    mapping_of,
    repeated,
    template_problems,
)
from edgeloop.fleet.kubernetes.values import Plain

# Jobs and pods get the name of a ScaledJob with a suffix, an autoscaler `keda-hpa-` before it, as
# values of labels.
SCALED_NAME_LIMIT = 52
_MOST_REPLICAS = 100  # what KEDA takes if nothing is said


@dataclass(frozen=True)
class Scaler:
    """What the metadata of a trigger may hold, and what its authentication."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()


SCALERS = {
    "metrics-api": Scaler(
        required=("url", "valueLocation", "targetValue"),
        optional=(
            *("format", "authMode", "method", "keyParamName", "unsafeSsl", "timeout"),
            *("activationTargetValue", "aggregateFromKubeServiceEndpoints", "aggregationType"),
        ),
        numbers=("targetValue", "activationTargetValue"),
        choices={
            "format": ("json", "prometheus", "xml", "yaml"),
            "authMode": ("apiKey", "basic", "tls", "bearer", "custom", "oauth"),
            "method": ("header", "query"),
            "unsafeSsl": ("true", "false"),
            "aggregationType": ("average", "sum", "max", "min"),
        },
        secrets=("token", "apiKey", "username", "password", "ca", "cert", "key"),
    ),
    "postgresql": Scaler(
        required=("query", "targetQueryValue"),
        optional=(
            *("activationTargetQueryValue", "connectionFromEnv", "passwordFromEnv", "host"),
            *("port", "userName", "dbName", "sslmode"),
        ),
        numbers=("targetQueryValue", "activationTargetQueryValue"),
        secrets=("connection", "host", "port", "userName", "dbName", "sslmode", "password"),
    ),
}


def scaled_job_problems(where: str, found: Plain, authentications: Mapping[str, Plain]) -> Problems:
    spec = mapping_of(found.get("spec"))
    yield from _common_problems(where, found, authentications)
    job = mapping_of(spec.get("jobTargetRef"))
    if "selector" in job and not job.get("manualSelector"):
        yield f"{where}: the selector of a job is Kubernetes' own"
    for key in ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished"):
        value = job.get(key, 0)
        if not isinstance(value, int) or value < 0:
            yield f"{where}: {key} must be 0 or more, not {shown(value)}"
    yield from template_problems(f"{where}, pod", job.get("template"), is_job=True)
    strategy = mapping_of(spec.get("scalingStrategy"))
    for key, value, allowed in (
        (
            "scalingStrategy.strategy",
            strategy.get("strategy"),
            ("default", "custom", "accurate", "eager"),
        ),
        (
            "scalingStrategy.multipleScalersCalculation",
            strategy.get("multipleScalersCalculation"),
            ("max", "min", "avg", "sum"),
        ),
        (
            "rollout.strategy",
            mapping_of(spec.get("rollout")).get("strategy"),
            ("default", "gradual"),
        ),
    ):
        if value is not None and value not in allowed:
            hint = suggestion(str(value), allowed, "there are")
            yield f"{where}: {key} cannot be {shown(value)}: {hint}"


def scaled_object_problems(
    where: str, found: Plain, authentications: Mapping[str, Plain], deployments: Mapping[str, Plain]
) -> Problems:
    spec = mapping_of(found.get("spec"))
    yield from _common_problems(where, found, authentications)
    target = mapping_of(spec.get("scaleTargetRef")).get("name")
    if target not in deployments:
        yield f"{where} scales the Deployment {shown(target)}, which does not exist"
    elif "replicas" in mapping_of(deployments[str(target)].get("spec")):
        yield f"{where} scales {target}, whose own number of replicas would reset it"
    least, idle = spec.get("minReplicaCount", 0), spec.get("idleReplicaCount")
    if idle is not None and not (isinstance(least, int) and 0 <= idle < least):
        yield f"{where}: idleReplicaCount must be below minReplicaCount"
    triggers = list_of(spec.get("triggers"))
    names = [trigger["name"] for trigger in triggers if "name" in trigger]
    for name in repeated(names):
        yield f"{where} has two triggers named {name}"
    modifiers = mapping_of(mapping_of(spec.get("advanced")).get("scalingModifiers"))
    if modifiers:
        if not modifiers.get("target"):
            yield f"{where}: scalingModifiers need a target"
        used = set(re.findall(r"[A-Za-z_]\w*", str(modifiers.get("formula", ""))))
        for name in sorted(used - set(names)):
            yield f"{where}: the formula names {name!r}, which no trigger has"


def authentication_problems(where: str, found: Plain) -> Problems:
    secrets = list_of(mapping_of(found.get("spec")).get("secretTargetRef"))
    for secret in secrets:
        if not is_name(secret.get("name")) or not is_key(secret.get("key")):
            yield f"{where}: secretTargetRef needs name and key of a Secret"
        known = {name for scaler in SCALERS.values() for name in scaler.secrets}
        if secret.get("parameter") not in known:
            yield f"{where}: no scaler has the parameter {shown(secret.get('parameter'))}"


def _common_problems(where: str, found: Plain, authentications: Mapping[str, Plain]) -> Problems:
    spec = mapping_of(found.get("spec"))
    name = str(mapping_of(found.get("metadata")).get("name"))
    if len(name) > SCALED_NAME_LIMIT:
        yield (
            f"{where}: its name has {len(name)} characters; {SCALED_NAME_LIMIT} are the limit: "
            "choose a shorter name for the fleet"
        )
    least, most = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", _MOST_REPLICAS)
    if not (isinstance(least, int) and isinstance(most, int) and 0 <= least <= most and most):
        yield f"{where}: minReplicaCount must be at most maxReplicaCount, which must be 1 or more"
    if not isinstance(spec.get("pollingInterval", 30), int) or spec.get("pollingInterval", 30) < 1:
        yield f"{where}: pollingInterval must be 1 or more"
    triggers = list_of(spec.get("triggers"))
    if not triggers:
        yield f"{where} has no triggers"
    for trigger in triggers:
        yield from _trigger_problems(f"{where}, trigger {trigger.get('type')}", trigger)
        reference = mapping_of(trigger.get("authenticationRef")).get("name")
        if reference is None:
            continue
        if reference not in authentications:
            yield f"{where} names the TriggerAuthentication {reference!r}, which does not exist"
            continue
        scaler = SCALERS.get(str(trigger.get("type")))
        own = mapping_of(authentications[reference].get("spec"))
        given = {secret.get("parameter") for secret in list_of(own.get("secretTargetRef"))}
        if scaler and not given & set(scaler.secrets):
            yield f"{where}: {reference} holds nothing that {trigger['type']} asks for"


def _trigger_problems(where: str, trigger: Plain) -> Problems:
    scaler = SCALERS.get(str(trigger.get("type")))
    if scaler is None:
        yield f"{where}: Edgeloop knows the scalers {' and '.join(SCALERS)} alone"
        return
    metadata = mapping_of(trigger.get("metadata"))
    known = (*scaler.required, *scaler.optional)
    for key, value in metadata.items():
        if key not in known:
            yield f"{where} has an unknown key {key!r}: {suggestion(key, known, 'there are')}"
        elif not isinstance(value, str):
            yield f"{where}: {key} must be a text, not {shown(value)}"
        elif key in scaler.choices and value not in scaler.choices[key]:
            hint = suggestion(value, scaler.choices[key], "there are")
            yield f"{where}: {key} cannot be {value!r}: {hint}"
        elif key in scaler.numbers and not re.fullmatch(r"[0-9]+(\.[0-9]+)?", value, re.ASCII):
            yield f"{where}: {key} must be a number, not {value!r}"
        elif key == "url" and not _is_address(value):
            yield f"{where}: {value!r} is not an address"
    for key in scaler.required:
        if not metadata.get(key):
            yield f"{where} needs {key}"
    if re.fullmatch(r"0+(\.0+)?", str(metadata.get(scaler.numbers[0], "1"))):
        yield f"{where}: {scaler.numbers[0]} must be above 0"


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
