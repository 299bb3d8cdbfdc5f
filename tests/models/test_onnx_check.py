"""Only whole, valid models with all their files get through."""

from __future__ import annotations

import os
import random
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from edgeloop.errors import BadModel, BadName, EdgeloopError
from edgeloop.models.upload import check_onnx
from tests.nets import point_at, save_external, save_tiny, save_with_location, tiny_model


def refusal(path: Path) -> str:
    with pytest.raises(BadModel) as caught:
        check_onnx(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_whole_model_is_accepted_with_its_size_and_content(tmp_path: Path):
    path = save_tiny(tmp_path / "net.onnx")
    found = check_onnx(path)
    assert found.files == {"net.onnx": path}
    assert found.size == path.stat().st_size
    assert len(found.content) == 64


def test_external_data_comes_along(tmp_path: Path):
    path = save_external(tmp_path / "net.onnx", data="weights.bin")
    found = check_onnx(path)
    assert list(found.files) == ["net.onnx", "weights.bin"]
    assert found.size == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_external_data_may_lie_in_a_folder_below(tmp_path: Path):
    path = save_external(tmp_path / "net.onnx")
    (tmp_path / "data").mkdir()
    (tmp_path / "weights.bin").rename(tmp_path / "data/w.bin")
    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "data/w.bin"
    path.write_bytes(model.SerializeToString())
    assert list(check_onnx(path).files) == ["net.onnx", "data/w.bin"]


def test_the_content_does_not_depend_on_the_files_name(tmp_path: Path):
    first, second = save_tiny(tmp_path / "a.onnx"), save_tiny(tmp_path / "b.onnx")
    assert check_onnx(first).content == check_onnx(second).content
    assert check_onnx(first).content != check_onnx(save_tiny(tmp_path / "c.onnx", 1)).content


def test_one_byte_of_external_data_changes_the_content(tmp_path: Path):
    path = save_external(tmp_path / "net.onnx")
    before = check_onnx(path).content
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[-1] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    assert check_onnx(path).content != before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"Dear sir, please find attached the model.\n" * 20,
        random.Random(1).randbytes(5_000),
        bytes(100),
        onnx.ModelProto().SerializeToString() + b"\x08\x08",
        b"\x08\x0a",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        b"PK\x03\x04" + bytes(200),
    ],
    ids=["empty", "text", "random", "zeros", "no-graph", "only-a-version", "lfs-pointer", "zip"],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    assert "net.onnx was not uploaded" in refusal(path)


@pytest.mark.filterwarnings("ignore")
def test_random_bytes_never_crash_and_never_pass(tmp_path: Path):
    dice = random.Random(7)
    path = tmp_path / "net.onnx"
    for _ in range(300):
        path.write_bytes(dice.randbytes(dice.randrange(1, 200)))
        refusal(path)


def test_every_truncation_is_refused_or_leaves_a_whole_model(tmp_path: Path):
    model = tiny_model(size=6)
    helper.set_model_props(model, {"author": "somebody", "licence": "a text of some length" * 3})
    whole = model.SerializeToString()
    assert 400 < len(whole) < 700
    path, accepted = tmp_path / "net.onnx", []
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            check_onnx(path)
        except EdgeloopError:
            continue
        rest = onnx.load(str(path))
        assert rest.graph == model.graph, length
        assert rest.opset_import == model.opset_import, length
        accepted.append(length)
    assert len(accepted) <= 2  # behind the graph and the opset only notes are cut off


def test_every_flipped_byte_is_survived(tmp_path: Path):
    """Refused or accepted, but never an error that is not ours."""
    whole = tiny_model().SerializeToString()
    path = tmp_path / "net.onnx"
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            check_onnx(path)
        except EdgeloopError:
            refused += 1
    assert refused > len(whole) / 4


def test_a_graph_that_onnx_itself_refuses_is_refused(tmp_path: Path):
    model = tiny_model()
    model.graph.node[0].op_type = "NoSuchOperator"
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert "ONNX's own check says" in refusal(path)


def test_missing_and_truncated_external_data_is_named(tmp_path: Path):
    path = save_external(tmp_path / "net.onnx")
    for size in (1_087, 1_023, 500, 1, 0):
        os.truncate(tmp_path / "weights.bin", size)
        assert "'weights.bin' is cut off" in refusal(path)
    (tmp_path / "weights.bin").unlink()
    assert "'weights.bin' is missing" in refusal(path)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        *((path, "external data") for path in ("../w", "", "a/../../w", "..", ".")),
        ("/etc/hostname", "outside the model's folder"),
        ("{folder}/inside", "outside the model's folder"),  # absolute paths at all
        ("link", "outside the model's folder"),
        ("linked/w", "outside the model's folder"),
    ],
)
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str, said: str):
    folder = tmp_path / "folder"
    (tmp_path / "elsewhere").mkdir()
    path = save_with_location(folder / "net.onnx", location.format(folder=folder))
    for place in (tmp_path / "w", tmp_path / "elsewhere/w", folder / "inside"):
        place.write_bytes(bytes(1_000))
    (folder / "link").symlink_to("../w")
    (folder / "linked").symlink_to("../elsewhere")
    assert said in refusal(path)


@pytest.mark.parametrize(
    "fields",
    [{"offset": "-4"}, {"length": "-1"}, {"offset": "x"}, {"length": "10"}, {"length": "1e3"}],
)
def test_external_data_with_a_senseless_extent_is_refused(tmp_path: Path, fields: dict[str, str]):
    (tmp_path / "w").write_bytes(bytes(1_000))
    path = save_with_location(tmp_path / "net.onnx", "w", **fields)
    assert "no valid extent" in refusal(path)


def test_external_data_with_a_control_character_is_refused(tmp_path: Path):
    (tmp_path / "w\n1").write_bytes(bytes(1_000))
    path = save_with_location(tmp_path / "net.onnx", "w\n1")
    with pytest.raises((BadModel, BadName)) as caught:
        check_onnx(path)
    assert "\n" not in str(caught.value)


def test_a_model_that_is_its_own_external_data_is_refused(tmp_path: Path):
    path = save_with_location(tmp_path / "net.onnx", "net.onnx")
    assert "itself" in refusal(path) or "cut off" in refusal(path)


def test_truncated_external_data_is_seen_where_the_model_gives_no_length(tmp_path: Path):
    path = save_with_location(tmp_path / "net.onnx", "w")  # 4 × 4 floats: 64 bytes
    (tmp_path / "w").write_bytes(bytes(64))
    check_onnx(path)
    (tmp_path / "w").write_bytes(bytes(63))
    assert "is cut off" in refusal(path)


def test_external_data_of_constants_and_sub_graphs_counts(tmp_path: Path):
    inner = helper.make_tensor("c", TensorProto.FLOAT, [2], [1.0, 2.0])
    point_at(inner, "inner.bin")
    body = helper.make_graph(
        [helper.make_node("Constant", [], ["v"], value=inner)],
        "branch",
        [],
        [helper.make_tensor_value_info("v", TensorProto.FLOAT, [2])],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["condition"], ["y"], then_branch=body, else_branch=body)],
        "outer",
        [helper.make_tensor_value_info("condition", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    path = tmp_path / "net.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    assert "'inner.bin' is missing" in refusal(path)


def test_external_data_of_functions_counts(tmp_path: Path):
    inner = helper.make_tensor("c", TensorProto.FLOAT, [2], [1.0, 2.0])
    point_at(inner, "function.bin")
    model = tiny_model()
    constant = helper.make_node("Constant", [], ["v"], value=inner)
    opset = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("local", "Two", [], ["v"], [constant], opset))
    model.opset_import.append(helper.make_opsetid("local", 1))
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert "'function.bin' is missing" in refusal(path)


def test_a_3_gb_file_is_refused_without_being_read(tmp_path: Path):
    path = tmp_path / "net.onnx"
    path.touch()
    os.truncate(path, 3 * 2**30)
    assert "3.2 GB" in refusal(path) and path.stat().st_blocks == 0
    assert "save_as_external_data=True" in refusal(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path):
    assert "there is no file" in refusal(tmp_path)
    assert "there is no file" in refusal(tmp_path / "net.onnx")


def test_a_device_or_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path):
    os.mkfifo(tmp_path / "net.onnx")
    assert "there is no file" in refusal(tmp_path / "net.onnx")
