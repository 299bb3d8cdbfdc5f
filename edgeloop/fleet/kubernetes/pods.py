"""The pods of a fleet: containers that may do little, and folders that they may write to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from edgeloop._version import __version__
from edgeloop.fleet.kubernetes.values import (
    GRACE_MARGIN_S,
    DatasetValues,
    ExperimentValues,
    KubernetesValues,
    Labels,
    PlacementValues,
    Plain,
    RunnerValues,
)

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
