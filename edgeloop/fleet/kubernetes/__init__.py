"""A fleet on Kubernetes: the objects that the Helm chart renders, from the settings and without
Helm."""

from __future__ import annotations

from edgeloop.fleet.kubernetes.manifest import fleet_manifest, fleet_values, manifest_text
from edgeloop.fleet.kubernetes.objects import fleet_objects
from edgeloop.fleet.kubernetes.pods import Release
from edgeloop.fleet.kubernetes.rules import check_objects, object_problems
from edgeloop.fleet.kubernetes.values import KubernetesValues

__all__ = [
    "KubernetesValues",
    "Release",
    "check_objects",
    "fleet_manifest",
    "fleet_objects",
    "fleet_values",
    "manifest_text",
    "object_problems",
]
