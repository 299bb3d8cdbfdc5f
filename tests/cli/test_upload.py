"""upload checks what it is given: what can never run is refused, the rest says what it will get."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from edgeloop import Workspace
from edgeloop.errors import UnusableModel, WorkerFailed
from edgeloop.graph.isolated import GraphPool
from edgeloop.testing.models import save_classification_model, save_segmentation_model
from tests.cli.conftest import Edgeloop
from tests.cli.running import is_empty
from tests.cli.terminals import Terminal
from tests.graph import odd_models
from tests.nets import save_tiny


def free_sizes(path: Path) -> Path:
    model = onnx.load_model(str(save_classification_model(path)))
    sides = model.graph.input[0].type.tensor_type.shape.dim
    for side, word in ((sides[0], "batch"), (sides[2], "height"), (sides[3], "width")):
        side.dim_param = word
    onnx.save_model(model, str(path))
    return path


def unusable(path: Path) -> Path:
    """Valid ONNX with an operator that no chip takes."""
    model = onnx.load_model(str(odd_models.one_node(path, "Det")))
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 1
    onnx.save_model(model, str(path))
    return path


def test_every_file_says_what_will_be_evaluated(edgeloop: Edgeloop, project: Path):
    save_classification_model(project / "a.onnx")
    save_segmentation_model(project / "b.onnx")
    save_tiny(project / "c.onnx")
    done = edgeloop("upload", "a.onnx", "b.onnx", "c.onnx")
    assert done.code == 0, done.err
    first, second, third, _ = done.out.splitlines()
    assert first.endswith("latency, classification")
    assert second.endswith("latency, segmentation")
    assert third.endswith("no task fits: latency, agreement with float")
    (known,) = edgeloop("upload", "a.onnx", "--json").json
    assert (known["new"], known["task"]) == (False, "classification")


def test_a_model_of_the_package_is_uploaded_by_its_name(edgeloop: Edgeloop, project: Path):
    done = edgeloop("upload", "demo:unet-small", "--name", "small")
    assert done.out.startswith("small                unet-small.onnx"), done.err
    misspelt = edgeloop("upload", "demo:unet-smal").sentence
    assert misspelt.endswith(
        "no model 'unet-smal' is shipped with Edgeloop: did you mean 'unet-small'?"
    )
    for command in (("inspect",), ("layers",), ("gate", "baseline.json")):
        assert "did you mean 'unet-small'?" in edgeloop(*command, "demo:unet-smal").sentence
    (project / "demo:unet-smal").write_text("a file of one's own comes first")
    assert "unet-smal was not uploaded" in edgeloop("upload", "demo:unet-smal").sentence


def test_what_can_never_run_is_refused_and_nothing_is_stored(edgeloop: Edgeloop, project: Path):
    unusable(project / "odd.onnx")
    assert "Det" in edgeloop("upload", "odd.onnx").sentence
    with Workspace.open() as workspace:
        assert is_empty(workspace.store)
        with pytest.raises(UnusableModel, match="Det"):
            workspace.upload("odd.onnx")
        assert workspace.upload("odd.onnx", check=False).row["status"] == "new"
    (again,) = edgeloop("upload", "odd.onnx", "--no-check", "--json").json
    assert (again["new"], again["task"]) == (False, None)


def test_the_good_files_of_a_folder_are_uploaded_beside_bad_ones(edgeloop: Edgeloop, project: Path):
    save_tiny(project / "nets/a.onnx")
    free_sizes(project / "nets/b.onnx")
    (project / "nets/c.onnx").write_text("no model")
    done = edgeloop("upload", "nets")
    assert done.code == 1 and "1 model uploaded" in done.out
    free, text = done.err.splitlines()
    assert "--shape image=1x3x224x224" in free and "not an ONNX model" in text


def test_a_shape_is_kept_in_the_row_and_makes_another_model(edgeloop: Edgeloop, project: Path):
    free_sizes(project / "net.onnx")
    for sizes, is_new in (("1x3x40x48", True), ("1x3x64x64", True), ("1x3x40x48", False)):
        (done,) = edgeloop("upload", "net.onnx", "--shape", f"image={sizes}", "--json").json
        assert done["new"] is is_new
        with Workspace.open() as workspace:
            row = workspace.model(done["name"]).row
        assert json.loads(row["shapes"]) == {"image": [int(side) for side in sizes.split("x")]}
    wrong = edgeloop("upload", "net.onnx", "--shape", "picture=1x3x8x8").sentence
    assert "no input 'picture'" in wrong


@pytest.mark.slow
def test_on_a_terminal_missing_sizes_are_asked_for(project: Path):
    free_sizes(project / "net.onnx")
    terminal = Terminal(["upload", "net.onnx", "--name", "asked"], project)
    terminal.read_until("shape of input image (batchx3xheightxwidth) [1x3x224x224]")
    terminal.type(b"1x3x40x48\n")
    assert terminal.wait() == 0, terminal.seen
    assert "latency, classification" in terminal.seen
    with Workspace.open() as workspace:
        assert json.loads(workspace.model("asked").row["shapes"]) == {"image": [1, 3, 40, 48]}


def test_a_check_that_this_machine_cannot_make_refuses_no_model(
    edgeloop: Edgeloop, project: Path, monkeypatch
):
    def busy(self: GraphPool, *arguments: object) -> None:
        raise WorkerFailed(reason="this machine is too busy")

    monkeypatch.setattr(GraphPool, "summarize", busy)
    save_tiny(project / "net.onnx")
    done = edgeloop("upload", "net.onnx")
    assert done.code == 0 and done.out.splitlines()[0].endswith("not checked")
