"""inspect and bench: one file, no store, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from edgeloop.testing.models import save_classification_model, save_segmentation_model
from tests.cli.conftest import Edgeloop
from tests.graph import odd_models

pytestmark = pytest.mark.slow
DEVICES = ("--device", "htp:qcs8550", "--device", "htp:x-elite", "--device", "host")


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return save_classification_model(tmp_path / "net.onnx", classes=7)


def test_inspect_says_what_a_model_is_and_what_a_chip_thinks_of_it(
    edgeloop: Edgeloop, project: Path, net: Path
):
    done = edgeloop("inspect", net)
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    for part in ("1x3x32x32", "1x7", "MACs", "classification: one image in, 7 classes out"):
        assert part in done.out
    assert "htp:qcs8550: takes it, about" in done.out
    assert "other chips: not asked" in done.out
    assert list(project.iterdir()) == []


def test_bench_leaves_to_the_cpu_what_a_chip_lacks_where_that_is_allowed(
    edgeloop: Edgeloop, tmp_path: Path
):
    call = ("bench", odd_models.with_product(tmp_path / "odd.onnx"), "--device", "htp:qcs8550")
    refused = edgeloop(*call)
    assert refused.code == 1 and "does not take ReduceProd (layer 'odd')" in refused.err
    done = edgeloop(*call, "--allow-cpu-fallback")
    assert done.code == 0, done.err
    assert "ReduceProd 'odd' run on the CPU (0.0 % of the MACs)" in done.out


def test_inspect_as_json_is_complete(edgeloop: Edgeloop, net: Path):
    (found,) = edgeloop("inspect", net, "--device", "host", "--device", "htp", "--json").json
    assert found["task"] == "classification" and found["usable"] is True
    assert found["inputs"][0]["layout"] == "NCHW" and found["outputs"][0]["shape"] == [1, 7]
    assert found["macs"] > 0 and found["params"] > 0 and found["memory"]["activations"] > 0
    assert found["chips"][0]["answer"] == "unknown" and "bench" in found["chips"][0]["text"]
    assert len(found["not_asked"]) > 10


def test_inspect_names_the_layer_that_is_in_the_way(edgeloop: Edgeloop, tmp_path: Path):
    done = edgeloop("inspect", odd_models.one_node(tmp_path / "odd.onnx", "Det"))
    assert done.code == 1
    assert "in the way" in done.out and "Det" in done.out and "inputs" in done.out


def test_without_the_compiler_inspect_says_how_to_get_it(command: Edgeloop, net: Path, tmp_path):
    """The rest of the answer needs the onnx package alone."""
    (tmp_path / "hidden").mkdir()
    hiding = "import sys\nsys.modules['onnxruntime'] = sys.modules['onnxruntime_qnn'] = None\n"
    (tmp_path / "hidden/sitecustomize.py").write_text(hiding)
    environ = {"PYTHONPATH": str(tmp_path / "hidden")}
    done = command("inspect", net, environ=environ)
    assert done.code == 0 and "pip install 'edgeloop[qnn]'" in " ".join(done.out.split())
    assert "classification" in done.out
    assert "pip install 'edgeloop[qnn]'" in command("bench", net, environ=environ).sentence


def test_bench_shows_several_chips_in_one_table(edgeloop: Edgeloop, project: Path, net: Path):
    done = edgeloop("bench", net, *DEVICES, "--runs", "2")
    assert done.code == 0, done.err
    heading, *rows, note = done.out.splitlines()
    assert heading.split()[:5] == ["chip", "latency", "90", "%", "interval"]
    assert [row.split()[0] for row in rows[:3]] == ["qcs8550", "x-elite", "host"]
    assert ["est" in row.split() for row in rows[:3]] == [True, True, False]
    assert "random inputs" in note
    assert list(project.iterdir()) == [] and done.err == ""


@pytest.mark.soak
def test_bench_of_a_free_size_and_as_json(edgeloop: Edgeloop, tmp_path: Path):
    model = save_segmentation_model(tmp_path / "net.onnx", 64)
    free = onnx.load_model(str(model))
    for side, word in zip(free.graph.input[0].type.tensor_type.shape.dim[2:], "hw", strict=True):
        side.dim_param = word
    del free.graph.output[0].type.tensor_type.shape.dim[2:]
    onnx.save_model(free, str(model))
    assert "--shape image=1x3x224x224" in edgeloop("bench", model).sentence
    given = ("--shape", "image=1x3x32x48", "--device", "htp:x-elite", "--precision", "a8w8")
    (found,) = edgeloop("bench", model, *given, "--json").json
    assert found["latency_ms"] > 0 and found["low_ms"] < found["latency_ms"] < found["high_ms"]
    assert (found["kind"], found["precision"]) == ("estimate", "a8w8")


def test_a_device_that_fails_does_not_hide_the_others(edgeloop: Edgeloop, net: Path, monkeypatch):
    from edgeloop.errors import DeviceUnavailable
    from edgeloop.platforms.host import HostDevice

    def gone(self: HostDevice) -> str:
        raise DeviceUnavailable(device="host", reason="it was unplugged")

    monkeypatch.setattr(HostDevice, "probe", gone)
    done = edgeloop("bench", net, "--device", "host", "--device", "htp:qcs8550")
    assert done.code == 1
    assert "unplugged" in done.out and "est" in done.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("net.onnx", "--device", "htp:qcs855"), "did you mean 'qcs8550'"),
        (("net.onnx", "--device", "hpt"), "did you mean 'htp'"),
        (("net.onnx", "--shape", "image"), "such as x=1x3x224x224"),
        (("net.onnx", "--shape", "picture=1x3x8x8"), "no input 'picture'"),
        (("net.onnx", "--shape", "image=1x3x8x8"), "cannot be 1x3x8x8"),
        (("empty.onnx",), "the file is empty"),
        (("text.onnx",), "not an ONNX model"),
        (("none.onnx",), "there is no such file"),
        ((".",), "it is a folder"),
    ],
)
@pytest.mark.parametrize("verb", ["inspect", pytest.param("bench", marks=pytest.mark.soak)])
def test_what_is_wrong_is_said_in_one_sentence(
    edgeloop: Edgeloop, tmp_path: Path, net: Path, monkeypatch, verb, arguments, reason
):
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "text.onnx").write_text("hello")
    monkeypatch.chdir(tmp_path)
    assert reason in edgeloop(verb, *arguments).sentence


def test_bench_says_what_is_wrong_too(edgeloop: Edgeloop, net: Path):
    assert "did you mean 'qcs8550'" in edgeloop("bench", net, "--device", "htp:qcs855").sentence
    assert "there is no such file" in edgeloop("bench", "none.onnx").sentence
    assert "cannot be 1x3x8x8" in edgeloop("bench", net, "--shape", "image=1x3x8x8").sentence


def test_a_chip_without_an_estimate_names_the_nearest(edgeloop: Edgeloop, net: Path):
    done = edgeloop("bench", net, "--device", "htp:snapdragon-8-elite-gen-5")
    assert "nearest chip that has one is snapdragon-8-elite" in done.sentence


@pytest.mark.soak
def test_bench_takes_a_file_with_the_bits_of_each_tensor(
    edgeloop: Edgeloop, net: Path, tmp_path: Path
):
    plan = tmp_path / "plan.yaml"
    plan.write_text("default: {activations: 16}\n")
    call = ("bench", net, "--device", "htp:qcs8550", "--json", "--precision")
    (mixed,) = edgeloop(*call, f"mixed:{plan}").json
    assert mixed["precision"].startswith("mixed:") and mixed["latency_ms"] > 0
    plan.write_text(f"model: {'f' * 64}\n")
    assert "belongs to another model" in edgeloop(*call, f"mixed:{plan}").sentence
    plan.write_text("tensors: {none: {bits: 16}}\n")
    assert "names the tensor 'none'" in edgeloop(*call, f"mixed:{plan}").sentence
    refused = edgeloop(*call, "a4w4")
    assert refused.code == 2 and "'mixed:FILE'" in refused.err
