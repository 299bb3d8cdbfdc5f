"""Empty is not wrong: a page without models says where they are, and a name that is not there gets
the nearest one that is."""

from __future__ import annotations

import re

from edgeloop.workspace import Workspace
from tests.portal.conftest import TOKEN, MakeClient
from tests.report.pages import read

NASTY = "b-<i>&"


def fill(workspace: Workspace, experiment: str, *names: str) -> None:
    table = workspace.store.models(experiment)
    for name in names:
        table.insert(name, {"name": name, "status": "new"})


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", "".join(read(page).texts))


def test_an_empty_experiment_says_where_the_models_are(
    make_client: MakeClient, workspace: Workspace
) -> None:
    fill(workspace, "laptop", *(f"net-{number}" for number in range(16)))
    fill(workspace, "phone", "net")
    client = make_client()
    for path in ("/", "/pareto"):
        page = client.get(path).text
        assert "No models in experiment ‘default’ 16 in ‘laptop’, 1 in ‘phone’" in text_of(page)
        assert {"/?experiment=laptop", "/?experiment=phone"} <= set(read(page).links)
        assert "edgeloop upload model.onnx -e default" in page
    assert "net-15" in client.get("/?experiment=laptop").text


def test_a_store_without_any_model_says_how_to_upload_one(make_client: MakeClient) -> None:
    page = make_client().get("/").text
    assert "No models yet" in text_of(page) and "edgeloop upload model.onnx\n" in page
    assert "Filter by name" not in page  # nothing to filter


def test_a_filter_that_matches_nothing_is_no_empty_experiment(
    make_client: MakeClient, workspace: Workspace
) -> None:
    fill(workspace, "default", "net")
    fill(workspace, "laptop", "net")
    page = make_client().get("/?text=other").text
    assert "Nothing matches" in page and "laptop’" not in text_of(page)


def test_an_experiment_that_is_not_there_gets_the_nearest_one(
    make_client: MakeClient, workspace: Workspace
) -> None:
    fill(workspace, "laptop", "net")
    client = make_client()
    for path in ("/", "/pareto", "/devices", "/models/net"):
        got = client.get(f"{path}?experiment=lapto")
        assert got.status_code == 404
        assert "no experiment 'lapto' in this store. Did you mean laptop?" in text_of(got.text)
        assert "/?experiment=laptop" in read(got.text).links
    got = client.get("/?experiment=zzz")  # nothing is near: all of them
    assert {"/?experiment=laptop", "/?experiment=default"} <= set(read(got.text).links)


def test_a_model_that_is_not_there_gets_the_nearest_one_of_its_experiment(
    make_client: MakeClient, workspace: Workspace
) -> None:
    fill(workspace, "laptop", "calm-heron", "brisk-otter")
    got = make_client().get("/models/calm-heren?experiment=laptop")
    assert got.status_code == 404 and "Did you mean calm-heron?" in text_of(got.text)
    links = read(got.text).links
    assert "/models/calm-heron?experiment=laptop" in links and "/?experiment=laptop" in links


def test_names_in_hints_are_mere_texts(make_client: MakeClient, workspace: Workspace) -> None:
    fill(workspace, "laptop", NASTY)
    page = make_client().get("/models/b-i?experiment=laptop").text
    assert NASTY in text_of(page) and "<i>" not in page


def test_who_has_no_token_learns_no_name(make_client: MakeClient, workspace: Workspace) -> None:
    """Files of pages are open to everybody, and so is the form that asks for the token."""
    fill(workspace, "laptop", "net")
    client = make_client(token=TOKEN)
    form = {"content-type": "application/x-www-form-urlencoded"}
    for got in (
        client.get("/static/none?experiment=lapto"),
        client.get("/static/none?experiment=lapto", headers={"host": "127.0.0.1:8750/pareto?"}),
        client.get("/static/none?experiment=laptop"),
        client.post("/login?experiment=lapto", headers=form, content=b"\xff"),
    ):
        assert got.status_code in (400, 401, 403, 404, 421)
        assert "Did you mean" not in got.text and "/?experiment=laptop" not in got.text
