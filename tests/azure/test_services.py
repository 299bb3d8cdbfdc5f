"""Azure's services that limit requests: asked again when they say so, each time a little later."""

from __future__ import annotations

import time

import pytest

from edgeloop.jobs.computes.azureml import services
from tests.peers.service import Service


def test_a_request_comes_back_at_a_moment_of_its_own(monkeypatch: pytest.MonkeyPatch):
    from azure.core import PipelineClient
    from azure.core.pipeline.policies import RetryPolicy

    told: list[float] = []
    monkeypatch.setattr(services, "spread", lambda pause_s: told.append(pause_s) or 0.2)
    limits = services.network_limits()
    policies = [RetryPolicy(**limits), services.patience_policy(limits["timeout"])]
    row = (200, {"Content-Type": "application/json"}, b'{"value": []}')
    begun = time.monotonic()
    with (
        Service((429, {"Retry-After": "1"}, b""), row) as limited,
        PipelineClient("", policies=policies) as client,
    ):
        services._send(client, "GET", limited.url)
    assert told[-1] == 1.0 and len(limited.asked) == 2
    assert time.monotonic() - begun >= 1.2
