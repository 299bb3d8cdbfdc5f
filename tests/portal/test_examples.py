"""Examples on the page of a model: what is shown is what the tests found, on equal images only, and
no file of the store can break or deceive the page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from edgeloop.store import Value
from edgeloop.tasks import class_colours
from edgeloop.workspace import Workspace
from tests.portal.conftest import TOKEN, MakeClient
from tests.portal.farm import NASTY
from tests.portal.pictures import written
from tests.stages.test_examples import HOSTILE

CLASSES = ("background", "road", NASTY)
TRUTH = np.array([[[0, 0, 1, 1], [1, 2, 2, 255]]], np.uint8)
FLOAT = np.array([[[0, 1, 1, 1], [1, 0, 2, 0]]], np.uint8)  # two of seven are wrong
QUANTIZED = np.array([[[0, 0, 1, 0], [1, 1, 2, 1]]], np.uint8)  # one got right, one got wrong
PLACE = "/api/v1/models/net"


def put(workspace: Workspace, files: dict[str, bytes], model: str = "net", **row: Value) -> None:
    table = workspace.store.models(workspace.experiment)
    if table.get(model) is None:
        table.insert(model, {"name": model, "status": "complete", **row})
    for name, content in files.items():
        workspace.store.blobs.put(f"{workspace.experiment}/{model}/{name}", content)


def files_of(
    stage: str, answers: Any, device: str = "host", images: Any = None
) -> dict[str, bytes]:
    given = np.full((1, 2, 4, 3), 90, np.uint8) if images is None else images
    return dict(written(stage, given, TRUTH, answers, CLASSES, device))


def shown(client: TestClient) -> dict[str, Any]:
    got = client.get(PLACE)
    assert got.status_code == 200
    found: dict[str, Any] = got.json()["examples"]
    return found


def columns(found: dict[str, Any]) -> dict[str, str]:
    return {column["name"]: column["source"] for column in found["columns"]}


def pixels(client: TestClient, address: str) -> Any:
    got = client.get(address)
    assert (got.status_code, got.headers["content-type"]) == (200, "image/png")
    return np.asarray(Image.open(io.BytesIO(got.content)))


@pytest.fixture
def both(workspace: Workspace) -> None:
    put(workspace, {**files_of("f1_onnx", FLOAT), **files_of("f1_1k", QUANTIZED, "htp:qcs8550")})


@pytest.mark.usefixtures("both")
def test_words_and_colours_are_those_of_the_classes(make_client: MakeClient):
    client = make_client()
    found = shown(client)
    assert columns(found) == {
        **{"input": "", "label": "", "float": "f1_onnx on host"},
        **{"quantized": "f1_1k on htp:qcs8550", "difference": ""},
    }
    ((first, label, one, two, difference),) = found["rows"]
    assert one["note"] == two["note"] == "71.4 % as labelled"  # five of the seven that count
    assert difference["note"] == "42.9 % of pixels"
    marks = [mark["name"] for mark in found["marks"]]
    assert marks == [
        *(
            "only float is right, 14.3 %",
            "only quantized is right, 14.3 %",
            "both are wrong, 14.3 %",
        )
    ]
    names = [(one["name"], one["is_hatched"]) for one in found["classes"]]
    assert names == [*((name, False) for name in CLASSES), ("not counted", True)]
    assert label["text"].startswith("Label of test image 1: road, background, ")
    colours = class_colours()
    drawn = pixels(client, label["address"])
    np.testing.assert_array_equal(drawn[TRUTH[0] != 255], colours[TRUTH[0]][TRUTH[0] != 255])
    for image, answers in ((one, FLOAT), (two, QUANTIZED)):
        np.testing.assert_array_equal(pixels(client, image["address"]), colours[answers[0]])
    assert np.abs(pixels(client, first["address"]).astype(int) - 90).max() <= 2
    lost, won, other = (
        [int(mark["colour"][n : n + 2], 16) for n in (1, 3, 5)] for mark in found["marks"]
    )
    drawn = pixels(client, difference["address"]).tolist()
    assert (drawn[0][3], drawn[0][1], drawn[1][1]) == (lost, won, other)
    plain = {tuple(drawn[y][x]) for y, x in ((0, 0), (0, 2), (1, 0), (1, 2), (1, 3))}
    assert len(plain) == 1  # equal, or not counted


@pytest.mark.usefixtures("both")
def test_names_of_classes_are_escaped_on_the_page(make_client: MakeClient):
    page = make_client().get("/models/net").text
    assert "<h2>Examples</h2>" in page and NASTY not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.usefixtures("both")
def test_an_address_with_the_version_is_kept_and_changes_with_the_files(
    make_client: MakeClient, workspace: Workspace
):
    client = make_client()
    address = shown(client)["rows"][0][2]["address"]
    before = client.get(address)
    assert "immutable" in before.headers["cache-control"]
    put(workspace, files_of("f1_onnx", QUANTIZED))
    fresh = shown(client)["rows"][0][2]["address"]
    assert fresh != address
    for path, kept in ((fresh, "private, max-age=31536000, immutable"), (address, "no-store")):
        after = client.get(path)
        assert (after.headers["cache-control"], after.content != before.content) == (kept, True)


@pytest.mark.usefixtures("both")
def test_files_are_read_once_for_all_images_of_a_page(
    make_client: MakeClient, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    read: list[str] = []
    real = workspace.store.blobs.read_range

    def counted(key: str, start: int, length: int) -> bytes:
        read.append(key.rpartition("/")[2])
        return real(key, start, length)

    monkeypatch.setattr(workspace.store.blobs, "read_range", counted)
    client = make_client()
    for image in shown(client)["rows"][0]:
        client.get(image["address"])
    assert sorted(n for n in read if n.startswith("examples_")) == [
        *("examples_f1_1k.png", "examples_f1_onnx.jpg", "examples_f1_onnx.png")
    ]


@pytest.mark.parametrize(
    ("stages", "sources"),
    [
        (["f1_onnx"], ["f1_onnx on host"]),
        (["f1_1k"], ["f1_1k on host"]),
        (["f1_10k", "f1_1k_f"], ["f1_1k_f on host", "f1_10k on host"]),
        (["f1_10k", "f1_1k", "f1_1k_f", "f1_onnx"], ["f1_onnx on host", "f1_1k on host"]),
    ],
)
def test_what_there_is_is_shown(
    make_client: MakeClient, workspace: Workspace, stages: list[str], sources: list[str]
):
    for stage in stages:
        put(workspace, files_of(stage, QUANTIZED if stage in ("f1_1k", "f1_10k") else FLOAT))
    found = shown(make_client())
    assert [source for source in columns(found).values() if source] == sources
    assert ("difference" in columns(found)) == (len(sources) == 2) == bool(found["marks"])
    assert found["notes"] == []


def test_answers_to_other_images_are_not_compared(make_client: MakeClient, workspace: Workspace):
    other = np.full((1, 2, 4, 3), 200, np.uint8)
    put(workspace, {**files_of("f1_onnx", FLOAT, images=other), **files_of("f1_1k", QUANTIZED)})
    client = make_client()
    found = shown(client)
    assert list(columns(found)) == ["input", "label", "quantized"]
    assert np.abs(pixels(client, found["rows"][0][0]["address"]).astype(int) - 90).max() <= 2
    assert "different images" in found["notes"][0]
    assert client.get(f"{PLACE}/examples/1/difference.png").status_code == 404


def test_models_that_answer_the_same_say_so(make_client: MakeClient, workspace: Workspace):
    put(workspace, {**files_of("f1_onnx", FLOAT), **files_of("f1_1k", FLOAT)})
    found = shown(make_client())
    assert (found["rows"][0][4]["note"], found["marks"]) == ("no pixel differs", [])


def test_without_the_images_themselves_all_else_is_there(
    make_client: MakeClient, workspace: Workspace
):
    for stage, answers in (("f1_onnx", FLOAT), ("f1_1k", QUANTIZED)):
        put(workspace, {n: c for n, c in files_of(stage, answers).items() if n.endswith(".png")})
    client = make_client()
    found = shown(client)
    assert list(columns(found)) == ["label", "float", "quantized", "difference"]
    assert pixels(client, found["rows"][0][3]["address"]).shape == (2, 4, 3)
    put(workspace, {"examples_f1_10k.jpg": files_of("f1_10k", FLOAT)["examples_f1_10k.jpg"]})
    assert "input" in columns(shown(client))  # kept once, for all tests of the same images


def test_a_model_without_examples_has_none(make_client: MakeClient, workspace: Workspace):
    put(workspace, {})
    client = make_client()
    assert shown(client) is None
    assert '<div id="examples" data-live></div>' in client.get("/models/net").text  # no gap
    assert client.get(f"{PLACE}/examples/1/label.png").status_code == 404


def test_a_damaged_file_gives_a_note_and_hides_nothing(
    make_client: MakeClient, workspace: Workspace
):
    client = make_client()
    for what, content in HOSTILE.items():
        put(workspace, {"examples_f1_1k.png": content, "examples_f1_1k.jpg": content}, what)
        found = client.get(f"/api/v1/models/{what}").json()["examples"]
        assert found["rows"] == [] and len(found["notes"]) == 1
        assert found["notes"][0].startswith("examples_f1_1k.png: no examples can be read from it")
        assert client.get(f"/api/v1/models/{what}/examples/1/label.png").status_code == 404
        put(workspace, files_of("f1_onnx", FLOAT), what)
        good = client.get(f"/api/v1/models/{what}").json()["examples"]
        assert list(columns(good)) == ["input", "label", "float"] and len(good["notes"]) == 1
    for what in ("svg", "bomb"):
        page = client.get(f"/models/{what}")
        assert page.status_code == 200 and "no examples can be read from it" in page.text


def test_an_image_needs_the_token_and_a_place_that_exists(
    make_client: MakeClient, workspace: Workspace
):
    put(workspace, {**files_of("f1_onnx", FLOAT), **files_of("f1_1k", QUANTIZED)})
    guarded = make_client(TOKEN)
    address = f"{PLACE}/examples/1/label.png"
    assert guarded.get(address).status_code == 401
    headers = {"Authorization": f"Bearer {TOKEN}"}
    got = guarded.get(address, headers=headers)
    assert got.status_code == 200 and got.headers["x-content-type-options"] == "nosniff"
    for path, status in (
        (f"{PLACE}/examples/2/label.png", 404),
        ("/api/v1/models/nobody/examples/1/label.png", 404),
        (f"{PLACE}/examples/1/label.png?experiment=nowhere", 404),
        (f"{PLACE}/examples/0/label.png", 422),
        (f"{PLACE}/examples/1e9/label.png", 422),
        (f"{PLACE}/examples/1/..%2f..%2flabel.png", 404),
        (f"{PLACE}/examples/1/secret.png", 422),
        (f"{PLACE}/examples/1/label.png?size=9", 422),
    ):
        got = guarded.get(path, headers=headers)
        assert got.status_code in (status, 400 if status == 422 else status), (path, got.text)


def test_a_model_of_another_experiment_has_its_own(make_client: MakeClient, tmp_path: Path):
    with Workspace.open(f"sqlite:{tmp_path / 'store'}", "other") as other:
        put(other, files_of("f1_1k", QUANTIZED))
    client = make_client()
    found = client.get(f"{PLACE}?experiment=other").json()["examples"]
    assert "experiment=other" in found["rows"][0][0]["address"]
    assert client.get(found["rows"][0][0]["address"]).status_code == 200
    page = client.get("/models/net?experiment=other").text
    assert found["rows"][0][0]["address"].replace("&", "&amp;") in page
