"""All objects of a fleet on Kubernetes as plain data: what the Helm chart renders."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from urllib.parse import quote

from edgeloop._version import __version__
from edgeloop.operate.fleet.kubernetes.values import (
    GRACE_MARGIN_S,
    DatasetValues,
    ExperimentValues,
    KubernetesValues,
    Labels,
    PlacementValues,
    Plain,
    RunnerValues,
)

PORTAL_PORT = 8750  # of the container


def fleet_objects(release: Release) -> list[Plain]:
    """In the order in which a cluster should get them."""
    values = release.values
    found: list[Plain] = []
    if values.service_account.create:
        found.append(_service_account(release))
    found += _secrets(release)
    found.append(_settings(release))
    if values.network_policy.enabled:
        found.append(_runner_policy(release))
        if values.portal.enabled:
            found.append(_portal_policy(release))
    found.append(trigger_authentication(release))
    if values.portal.enabled:
        found += [_portal_service(release), _portal_deployment(release), _portal_budget(release)]
    for experiment in values.experiments:
        found += _runners(release, experiment)
    return found


def _service_account(release: Release) -> Plain:
    own = release.values.service_account
    azure = {f"{IN_AZURE}client-id": own.azure_client_id} if own.azure_client_id else {}
    annotations = {**azure, **own.annotations}
    metadata = {**release.metadata(), "name": release.account}
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {**metadata, **({"annotations": annotations} if annotations else {})},
        "automountServiceAccountToken": False,
    }


def _secrets(release: Release) -> list[Plain]:
    values = release.values
    contents = []
    if values.store.create:
        contents.append((values.store.secret, values.store.create))
    if values.portal.enabled and values.portal.token:
        contents.append((values.portal.token_secret, {"token": values.portal.token}))
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**release.metadata(), "name": name},
            "type": "Opaque",
            "stringData": content,
        }
        for name, content in contents
    ]


def _settings(release: Release) -> Plain:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": release.metadata("settings"),
        "data": {"edgeloop.yaml": release.settings_text},
    }


def _runner_policy(release: Release) -> Plain:
    return _policy(release, "runner", [])


def _portal_policy(release: Release) -> Plain:
    policy = release.values.network_policy
    peers = [_namespace(name) for name in (policy.keda_namespace, *policy.from_namespaces)]
    ports = [{"protocol": "TCP", "port": PORTAL_PORT}]
    return _policy(release, "portal", [{"from": peers, "ports": ports}])


def _policy(release: Release, component: str, ingress: list[Plain]) -> Plain:
    """What pods may be reached by, and what they may reach."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": release.metadata(component, component),
        "spec": {
            "podSelector": {"matchLabels": release.selector(component)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": _egress(release),
        },
    }


def _egress(release: Release) -> list[Plain]:
    """Names, and the store. A policy cannot name hosts, so the store is addresses and ports."""
    policy = release.values.network_policy
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    ports = [{"protocol": "TCP", "port": port} for port in policy.store_ports]
    peers: list[Plain] = [{"ipBlock": {"cidr": cidr}} for cidr in policy.store_cidrs]
    peers += [_namespace(name) for name in policy.store_namespaces]
    found: list[Plain] = [{"ports": names}]
    return [*found, {"to": peers, "ports": ports}] if peers and ports else found


def _namespace(name: str) -> Plain:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _portal_service(release: Release) -> Plain:
    port = {
        "name": "http",
        "port": release.values.portal.port,
        "targetPort": "http",
        "protocol": "TCP",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": release.metadata("portal", "portal"),
        "spec": {
            "type": "ClusterIP",
            "selector": release.selector("portal"),
            "ports": [port],
        },
    }


def _portal_deployment(release: Release) -> Plain:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": release.metadata("portal", "portal"),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": release.selector("portal")},
            "template": portal_pod(release),
        },
    }


def _portal_budget(release: Release) -> Plain:
    """It may be evicted, or no node could ever be drained; KEDA waits for its successor."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": release.metadata("portal", "portal"),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": release.selector("portal")},
        },
    }


def _runners(release: Release, experiment: ExperimentValues) -> list[Plain]:
    """A budget for jobs would have to count pods, and would stop the draining of nodes for as long
    as there is work: a runner that is evicted finishes its stage or gives it back."""
    runner = effective_runner(release.values, experiment)
    if runner.mode == "job":
        return [scaled_job(release, experiment)]
    selector = {"matchLabels": release.selector("runner", experiment.name)}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": runner_metadata(release, experiment),
        # No number of replicas: KEDA's autoscaler owns it.
        "spec": {
            "revisionHistoryLimit": 3,
            "selector": selector,
            "template": runner_pod(release, experiment),
        },
    }
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": runner_metadata(release, experiment),
        "spec": {"maxUnavailable": runner.max_unavailable, "selector": selector},
    }
    return [deployment, budget, scaled_object(release, experiment)]


# The pods of a fleet: containers that may do little, and folders that they may write to.


USER = 10001  # of the image
WORK, DATA, SNPE = "/work", "/data", "/opt/snpe"
HEALTH = "/tmp/edgeloop-health"  # noqa: S108 - in a container of our own
IN_AZURE = "azure.workload.identity/"
_SLUG_LIMIT, _SLUG_DIGEST = 30, 6


@dataclass(frozen=True)
class Release:
    """A fleet in a cluster: its values, under a name in a namespace."""

    values: KubernetesValues
    name: str
    namespace: str
    managed_by: str = "edgeloop"

    def labels(self, component: str = "", more: Labels | None = None) -> Labels:
        version = self.values.image.tag or __version__
        return {
            **self.selector(component),
            "app.kubernetes.io/version": version,
            "app.kubernetes.io/managed-by": self.managed_by,
            **(more or {}),
        }

    def selector(self, component: str = "", experiment: str = "") -> Labels:
        """Labels that never change as long as the objects exist."""
        found = {"app.kubernetes.io/name": "edgeloop", "app.kubernetes.io/instance": self.name}
        if component:
            found["app.kubernetes.io/component"] = component
        if experiment:
            found["edgeloop/experiment"] = slug(experiment)
        return found

    def metadata(self, suffix: str = "", component: str = "", more: Labels | None = None) -> Plain:
        name = f"{self.name}-{suffix}" if suffix else self.name
        labels = self.labels(component, more)
        return {"name": name, "namespace": self.namespace, "labels": labels}

    @property
    def account(self) -> str:
        own = self.values.service_account
        return own.name or (self.name if own.create else "default")

    @property
    def settings_text(self) -> str:
        """`edgeloop.yaml` of the pods: JSON is YAML, and reads the same from Helm and from here."""
        settings = _whole_numbers(self.values.settings)
        text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text + "\n"

    @property
    def settings_digest(self) -> str:
        return hashlib.sha256(self.settings_text.encode()).hexdigest()


def _whole_numbers(value: object) -> object:
    """`120.0` as `120`, which is how Helm writes it."""
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def slug(experiment: str) -> str:
    """An experiment's name as part of an object's name. Two experiments never have the same."""
    plain = experiment.lower().replace("_", "-").strip("-")
    if plain == experiment and len(plain) <= _SLUG_LIMIT:
        return plain
    digest = hashlib.sha256(experiment.encode()).hexdigest()[:_SLUG_DIGEST]
    return f"{plain[: _SLUG_LIMIT - _SLUG_DIGEST - 1].strip('-')}-{digest}"


def effective_runner(values: KubernetesValues, experiment: ExperimentValues) -> RunnerValues:
    """What `runner` says, changed by what the experiment says itself."""
    own = {
        name: value
        for name in RunnerValues.model_fields
        if (value := getattr(experiment, name, None)) is not None
    }
    return values.runner.model_copy(update=own)


def runner_pod(release: Release, experiment: ExperimentValues) -> Plain:
    """The template of an experiment's runners."""
    values = release.values
    runner = effective_runner(values, experiment)
    dataset = values.dataset if experiment.dataset is None else experiment.dataset
    variables = [
        {"name": "EDGELOOP_EXPERIMENT", "value": experiment.name},
        {"name": "EDGELOOP_HEALTH", "value": HEALTH},
    ]
    mounts = [_mount("tmp", "/tmp"), *_work_mounts()]  # noqa: S108 - in a container of our own
    volumes = [*_volumes(release, runner.work_size)]
    if dataset.claim:
        claim = {"claimName": dataset.claim, "readOnly": True}
        volumes.append({"name": "dataset", "persistentVolumeClaim": claim})
        sub_path = {"subPath": dataset.sub_path} if dataset.sub_path else {}
        mounts.append({**_mount("dataset", DATA, read_only=True), **sub_path})
    elif dataset.pull:
        volumes.append({"name": "dataset", "emptyDir": {"sizeLimit": dataset.size}})
        mounts.append(_mount("dataset", DATA, read_only=True))
    if runner.snpe_claim:
        claim = {"claimName": runner.snpe_claim, "readOnly": True}
        volumes.append({"name": "snpe", "persistentVolumeClaim": claim})
        mounts.append(_mount("snpe", SNPE, read_only=True))
        variables.append({"name": "SNPE_ROOT", "value": SNPE})
    container = {
        **_container(release, "runner", runner, variables, mounts),
        "args": _runner_words(runner, dataset),
        "livenessProbe": _health((), period_s=30, failures=4),
        "readinessProbe": _health(("--ready",), period_s=15, failures=3),
        "resources": runner.resources,
    }
    spec = _pod_spec(release, runner, container, volumes)
    if dataset.pull:
        spec["initContainers"] = [_pull(release, runner, dataset)]
    job = {"restartPolicy": "Never"} if runner.mode == "job" else {}
    selector = release.selector("runner", experiment.name)
    evictions = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    return {
        "metadata": _pod_metadata(release, runner, selector, evictions),
        "spec": {
            **spec,
            **job,
            "terminationGracePeriodSeconds": runner.grace_seconds,
            "topologySpreadConstraints": [
                {
                    **runner.spread.model_dump(by_alias=True),
                    "labelSelector": {"matchLabels": release.selector("runner")},
                }
            ],
        },
    }


def portal_pod(release: Release) -> Plain:
    """The template of the portal."""
    portal = release.values.portal
    token = {"name": portal.token_secret, "key": "token"}
    variables = [{"name": "EDGELOOP_PORTAL_TOKEN", "valueFrom": {"secretKeyRef": token}}]
    mounts = [_mount("tmp", "/tmp"), *_work_mounts()]  # noqa: S108 - in a container of our own
    changes = ["--allow-changes"] if portal.allow_changes else []
    container = {
        **_container(release, "portal", portal, variables, mounts),
        "args": ["portal", "--host", "0.0.0.0", "--port", "8750", "--no-open", *changes],  # noqa: S104
        "ports": [{"name": "http", "containerPort": 8750, "protocol": "TCP"}],
        "startupProbe": _answers(period_s=2, failures=60),
        "livenessProbe": _answers(period_s=20, failures=3),
        "readinessProbe": _answers(period_s=5, failures=3),
        "resources": portal.resources,
    }
    return {
        "metadata": _pod_metadata(release, portal, release.selector("portal"), {}),
        "spec": {
            **_pod_spec(release, portal, container, _volumes(release, "1Gi")),
            "terminationGracePeriodSeconds": 30,
        },
    }


def _runner_words(runner: RunnerValues, dataset: DatasetValues) -> list[str]:
    words = ["runner"]
    if runner.mode == "job":
        # A model in error is the model's fault: the job did its work.
        words += ["--drain", "--ok-if-errors"]
    words += ["--grace", str(runner.grace_seconds - GRACE_MARGIN_S)]
    words += ["--cpus", str(runner.cpus)] if runner.cpus else []
    words += ["--device", runner.device] if runner.device else []
    words += ["--dataset", DATA] if dataset.claim or dataset.pull else []
    return [*words, *runner.args]


def _pull(release: Release, runner: RunnerValues, dataset: DatasetValues) -> Plain:
    mounts = [_mount("tmp", "/tmp"), *_work_mounts(), _mount("dataset", DATA)]  # noqa: S108
    return {
        **_container(release, "dataset", runner, [], mounts),
        "args": ["data", "pull", dataset.pull, "--to", DATA],
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
    }


def _container(
    release: Release,
    name: str,
    placement: PlacementValues,
    variables: list[Plain],
    mounts: list[Plain],
) -> Plain:
    values = release.values
    node = {"fieldRef": {"fieldPath": "metadata.name"}}
    own: list[Plain] = [{"name": "EDGELOOP_NODE", "valueFrom": node}]
    # The image's working folder is the project; a runner wants a folder for itself.
    own.append({"name": "EDGELOOP_WORKDIR", "value": f"{WORK}/runner"})
    if values.store.url:
        own.append({"name": "EDGELOOP_STORE", "value": values.store.url})
    if values.store.blobs:
        own.append({"name": "EDGELOOP_BLOBS", "value": values.store.blobs})
    secret = [{"secretRef": {"name": values.store.secret}}] if values.store.secret else []
    return {
        "name": name,
        "image": image_reference(release),
        "imagePullPolicy": values.image.pull_policy,
        "env": [*own, *variables, *placement.env],
        **({"envFrom": secret} if secret else {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": mounts,
    }


def image_reference(release: Release) -> str:
    image = release.values.image
    tagged = f"{image.repository}:{image.tag or __version__}"
    return f"{tagged}@{image.digest}" if image.digest else tagged


def _pod_spec(
    release: Release, placement: PlacementValues, container: Plain, volumes: list[Plain]
) -> Plain:
    optional = {
        "imagePullSecrets": [{"name": name} for name in release.values.image.pull_secrets],
        "nodeSelector": placement.node_selector,
        "tolerations": placement.tolerations,
        "affinity": placement.affinity,
        "priorityClassName": placement.priority_class_name,
    }
    return {
        "serviceAccountName": release.account,
        "automountServiceAccountToken": False,
        # A Service named edgeloop-portal would set EDGELOOP_PORTAL_… in every pod.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
        **{name: value for name, value in optional.items() if value},
    }


def _pod_metadata(
    release: Release, placement: PlacementValues, selector: Labels, annotations: Labels
) -> Plain:
    azure = {f"{IN_AZURE}use": "true"} if release.values.service_account.azure_client_id else {}
    return {
        "labels": {**placement.pod_labels, **azure, **selector},
        "annotations": {
            **annotations,
            "edgeloop/settings": release.settings_digest,
            **placement.pod_annotations,
        },
    }


def _volumes(release: Release, work_size: str) -> list[Plain]:
    return [
        {"name": "tmp", "emptyDir": {"sizeLimit": "5Gi"}},
        {"name": "work", "emptyDir": {"sizeLimit": work_size}},
        {"name": "settings", "configMap": {"name": f"{release.name}-settings"}},
    ]


def _work_mounts() -> list[Plain]:
    file = {"subPath": "edgeloop.yaml"}
    settings = {**_mount("settings", f"{WORK}/edgeloop.yaml", read_only=True), **file}
    return [_mount("work", WORK), settings]


def _mount(name: str, path: str, read_only: bool = False) -> Plain:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def _health(words: tuple[str, ...], period_s: int, failures: int) -> Plain:
    return {
        "exec": {"command": ["edgeloop", "health", *words]},
        "initialDelaySeconds": 15,
        "periodSeconds": period_s,
        "timeoutSeconds": 10,
        "failureThreshold": failures,
    }


def _answers(period_s: int, failures: int) -> Plain:
    return {
        "httpGet": {"path": "/api/v1/health", "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


# KEDA's kinds: the number of runners follows the waiting work.


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
