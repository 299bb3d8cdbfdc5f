"""Fleets that differ in everything that the chart and the manifest decide."""

from __future__ import annotations

from typing import Any

SPOT = {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Equal", "value": "spot"}
CASES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "workload identity on spot nodes in Azure": {
        "image": {
            "repository": "registry.example:5000/team/edgeloop",
            "tag": "2026.11",
            "digest": f"sha256:{'ab' * 32}",
            "pullSecrets": ["registry"],
        },
        "store": {"secret": "", "url": "azure:https://account.blob.core.windows.net"},
        "serviceAccount": {"azureClientId": "11111111-2222-3333-4444-555555555555"},
        "runner": {
            "nodeSelector": {"edgeloop/pool": "runners"},
            "tolerations": [{**SPOT, "effect": "NoSchedule"}],
            "affinity": {"nodeAffinity": {}},
            "podLabels": {"team": "vision"},
            "podAnnotations": {"karpenter.sh/do-not-disrupt": "false"},
        },
        "settings": {
            "max_attempts": 5,
            "note": "a < b & ü",
            "deep": {"a": [1, 2.5, 240.0], "b": {}},
        },
    },
    "two experiments with quotas, data and a simulator": {
        "dataset": {"claim": "faces", "subPath": "v3/images"},
        "runner": {
            "device": "htp:snapdragon-888",
            "cpus": 0,
            "args": ["--precision", "a16w8"],
            "snpeClaim": "snpe",
            "env": [{"name": "OMP_NUM_THREADS", "value": "2"}],
            "resources": {"requests": {"cpu": "4"}, "limits": None},
        },
        "experiments": [
            {"name": "default", "maxReplicas": 7},
            {
                "name": "My_Nets-",
                "maxReplicas": 3,
                "minReplicas": 0,
                "device": "",
                "cpus": 3,
                "dataset": {"pull": "faces@3"},
                "resources": {"limits": {"memory": "8Gi"}},
                "nodeSelector": {"disk": "ssd"},
            },
            {"name": "random", "dataset": {}, "toolchains": ["snpe"]},
        ],
    },
    "a Deployment that is scaled by the portal": {
        "runner": {
            "mode": "deployment",
            "device": "htp:qcs8550",
            "toolchains": ["qnn", "snpe"],
            "stagesPerRunner": 4,
            "minReplicas": 2,
        },
        "experiments": [{"name": "default"}, {"name": "small", "minReplicas": 1}],
        "dataset": {"pull": "faces", "size": "5Gi"},
        "portal": {"allowChanges": True, "port": 80, "nodeSelector": {"pool": "small"}},
        "networkPolicy": {"fromNamespaces": ["ingress"], "storeNamespaces": ["database"]},
    },
    "a Deployment that is scaled by the database": {
        "runner": {
            "mode": "deployment",
            "maxUnavailable": 2,
            "scaler": {"type": "postgresql", "pollingInterval": 5},
        },
        "store": {"blobs": "s3://models"},
        "portal": {"enabled": False},
        "networkPolicy": {"storeCidrs": ["10.0.0.0/8"], "storePorts": [5432, 9000]},
    },
    "jobs that are scaled by the database, with Secrets of the release": {
        "runner": {
            "scaler": {"type": "postgresql"},
            "capabilities": ["linux", "convert snpe", "qcs8550"],
        },
        "store": {"create": {"EDGELOOP_STORE": "postgresql://u:p@h/d", "KEDA_CONNECTION": "x"}},
        "portal": {"token": "0123456789abcdef01"},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False, "name": "own"},
    },
}
