"""A card of a device that is busy with much."""

from __future__ import annotations

import json
import time

from edgeloop.workspace import Workspace
from tests.portal.conftest import MakeClient


def test_a_busy_device_lists_five_models_and_folds_the_others(
    make_client: MakeClient, workspace: Workspace
) -> None:
    now, models = time.time(), workspace.store.models(workspace.experiment)
    for number in range(8):
        held = {"token": "t", "owner": "lab/adb:1", "since": now - number, "expires": now + 900}
        row = {"name": f"net-{number}", "status": "running convert"}
        models.insert(row["name"], {**row, "stages": json.dumps({"convert": held})})
    page = make_client().get("/devices").text
    before, _, after = page.partition("<summary>and 3 more</summary>")
    assert before.count('href="/models/net-') == 5 and after.count('href="/models/net-') == 3
