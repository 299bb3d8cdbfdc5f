"""All objects of a fleet on Kubernetes as plain data: what the Helm chart renders."""

from __future__ import annotations

from edgeloop.fleet.kubernetes.keda import (
    runner_metadata,
    scaled_job,
    scaled_object,
    trigger_authentication,
)
from edgeloop.fleet.kubernetes.pods import (
    IN_AZURE,
    Release,
    effective_runner,
    portal_pod,
    runner_pod,
)
from edgeloop.fleet.kubernetes.values import ExperimentValues, Plain

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
