"""The hypervolume of a search is one number: in its table, the terminal, the portal and the report,
when it has ended and while it runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from edgeloop.settings import Settings
from edgeloop.view.portal.app import create_app
from edgeloop.workspace import Workspace
from tests.cli.conftest import Edgeloop, edgeloop, project  # noqa: F401 - fixtures
from tests.jobs.waiting import eventually
from tests.portal.conftest import HERE
from tests.search.seen import write_seen

pytestmark = pytest.mark.slow

SEARCH = {
    "search": {"name": "real", "space": "small-classifier", "size": 32, "budget": 4},
    "objectives": {"params": {"goal": "min"}, "macs": {"goal": "min"}},
}


def test_the_hypervolume_is_one_number_in_every_view(
    project: Path,  # noqa: F811 - the fixture
    edgeloop: Edgeloop,  # noqa: F811 - the fixture
) -> None:
    (project / "real.yaml").write_text(json.dumps(SEARCH))
    ended = edgeloop("search", "real.yaml", "--json").json
    write_seen(project / "searches/running", 25, is_running=True)
    write_seen(project / "searches/early", 5, is_running=True)
    with (
        Workspace(Settings.load(project, {})) as workspace,
        TestClient(create_app(workspace), HERE) as client,
    ):
        for name in ("real", "running"):
            with (project / f"searches/{name}/hypervolume.csv").open() as file:
                last = float(list(csv.DictReader(file))[-1]["hypervolume"])
            assert 0 < last < 1
            [told] = edgeloop("search", "show", name, "--json").json
            shown = client.get(f"/api/v1/searches/{name}").json()["search"]
            assert told["hypervolume"] == last == shown["hypervolume"]
            text = edgeloop("search", "show", name).out.replace("\n  ", " ")
            assert f"→ {last:.3f} (reference: " in text
            edgeloop("report", "--search", name, "-o", "report.html")
            page = (project / "report.html").read_text()
            assert f'<th>hypervolume</th><td class="v">{last:.3f}</td>' in page
            assert shown["reference"] and shown["reference"] in page, "stated in both"
        early = client.get("/api/v1/searches/early").json()["search"]
        assert early["hypervolume"] is None and early["reference"] == ""
    [told] = edgeloop("search", "show", "real", "--json").json
    assert max(row["hypervolume"] for row in ended) == told["hypervolume"]


def test_only_candidates_that_have_a_model_lead_to_its_page(project: Path) -> None:  # noqa: F811
    write_seen(project / "searches/ended", 5)
    with (
        Workspace(Settings.load(project, {})) as workspace,
        TestClient(create_app(workspace), HERE) as client,
    ):
        candidates = client.get("/api/v1/searches/ended").json()["candidates"]
        names = [candidate["name"] for candidate in candidates]
        experiment = client.get("/api/v1/searches/ended").json()["search"]["experiment"]
        assert "/models/" not in client.get("/searches/ended").text
        workspace.store.models(experiment).insert(names[0], {"name": names[0], "status": "new"})
        eventually(lambda: f'href="/models/{names[0]}' in client.get("/searches/ended").text)
        assert f'href="/models/{names[1]}' not in client.get("/searches/ended").text
