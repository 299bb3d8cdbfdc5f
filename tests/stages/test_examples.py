"""The images that tests of segmentation leave: what a model really answered, on the same images in
every test, and never at the cost of a score."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from edgeloop.errors import BadInput
from edgeloop.models.leases import Leases
from edgeloop.platforms import Device, open_device
from edgeloop.runner.stages.base import Assignment, Equipment, Result, Sizes, perform
from edgeloop.runner.worker import store_and_commit
from edgeloop.settings import Settings
from edgeloop.tasks import (
    FACE_CLASSES,
    Examples,
    IllustratedScorer,
    Illustration,
    Samples,
    Task,
    class_colours,
    open_task,
    read_example_images,
    read_examples,
    write_examples,
)
from edgeloop.tasks.segmentation import SegmentationScorer
from edgeloop.testing.faces import make_faces
from edgeloop.testing.models import save_segmentation_model
from edgeloop.workspace import Workspace
from tests.stages.inspecting import Inspecting

ROAD = {"0": "background", "7": "road", "8": "kerb"}
FLOAT, QUICK = "f1_onnx", "f1_1k_f"


@pytest.fixture(scope="module")
def host() -> Device:
    return open_device("host")


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("examples")
    make_faces(folder / "faces", 20, 64, seed=3)
    return open_task("segmentation", folder / "faces", folder / "cache")


def roads(root: Path, count: int) -> Task:
    """Three classes and pixels that do not count, in images that are twice as wide as high."""
    dice = np.random.default_rng(4)
    (root / "roads").mkdir()
    for number in range(count):
        labels = dice.choice(np.array([0, 7, 8, 255], np.uint8), (24, 48))
        pixels = dice.integers(0, 256, (24, 48, 3), np.uint8)
        Image.fromarray(pixels).save(root / "roads" / f"{number:06d}.png")
        Image.fromarray(labels).save(root / "roads" / f"{number:06d}_seg.png")
    (root / "roads/label_map.json").write_text(json.dumps(ROAD))
    return open_task("segmentation", root / "roads", root / "cache")


def save_brightest(path: Path, out: tuple[int, int] = (24, 48)) -> Path:
    """The class of a pixel is the number of its brightest channel."""
    weights = numpy_helper.from_array(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1), "w")
    nodes = [helper.make_node("Conv", ["image", "w"], ["y"], strides=[24 // out[0], 48 // out[1]])]
    graph = helper.make_graph(
        nodes,
        "brightest",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 24, 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, *out])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def done(
    stage: str, task: Task, host: Device, model: Path, folder: Path, sizes: Sizes, **more: Any
) -> Result:
    (target := folder / stage).mkdir(parents=True)
    files = {model.name: model, **more.get("files", {})}
    work = Assignment("m", stage, more.get("row", {}), files, target)
    return perform(work, Equipment(Inspecting(), host, task, host, sizes=sizes))


def examples_of(result: Result, stage: str) -> Examples:
    return read_examples(result.files[f"examples_{stage}.png"].read_bytes())


def test_they_are_what_the_model_answers_to_the_last_images(faces, host, tmp_path):
    import onnxruntime

    model = save_segmentation_model(tmp_path / "net.onnx", 64)
    result = done(FLOAT, faces, host, model, tmp_path, Sizes())
    found, samples = examples_of(result, FLOAT), faces.test(64, 64, 4)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    pixels = samples.images.transpose(0, 3, 1, 2).astype(np.float32) / 255
    logits = np.concatenate([session.run(None, {"image": one[None]})[0] for one in pixels])
    answers = logits.argmax(axis=1)
    np.testing.assert_array_equal(found.truth, samples.labels)
    assert (found.answers == answers).mean() > 0.999  # another order of sums may turn a tie
    assert (found.task, found.device) == ("segmentation", "host")
    present = {*np.unique(found.truth).tolist(), *np.unique(found.answers).tolist()} - {255}
    assert found.names == {number: FACE_CLASSES[number] for number in present}
    inputs = read_example_images(result.files[f"examples_{FLOAT}.jpg"].read_bytes(), found)
    assert np.abs(inputs.astype(int) - samples.images).mean() < 8
    sizes = [path.stat().st_size for name, path in result.files.items() if "examples" in name]
    assert len(sizes) == 2 and sum(sizes) < 15_000


def test_tests_on_few_and_on_many_images_show_the_same_ones(faces, host, tmp_path):
    model = save_segmentation_model(tmp_path / "net.onnx", 64)
    sizes = Sizes(quick=5, thorough=9)
    whole, few = (done(stage, faces, host, model, tmp_path, sizes) for stage in (FLOAT, QUICK))
    assert (whole.columns["f1_onnx_images"], few.columns["f1_1k_f_images"]) == (9, 5)
    one, two = examples_of(whole, FLOAT), examples_of(few, QUICK)
    assert one.key == two.key
    np.testing.assert_array_equal(one.answers, two.answers)


def test_a_copied_result_has_them_too(faces, host, tmp_path):
    model = save_segmentation_model(tmp_path / "net.onnx", 64)
    first = done(FLOAT, faces, host, model, tmp_path, Sizes())
    row = {"row": first.columns, "files": first.files}
    again = done(QUICK, faces, host, model, tmp_path, Sizes(), **row)
    assert "copied from f1_onnx" in again.summary
    for ending in ("png", "jpg"):
        source = first.files[f"examples_{FLOAT}.{ending}"]
        assert again.files[f"examples_{QUICK}.{ending}"].read_bytes() == source.read_bytes()


def test_a_small_dataset_of_other_classes_and_no_square_shows_all_it_has(host, tmp_path):
    task = roads(tmp_path, 4)  # two of them for the test
    model = save_brightest(tmp_path / "net.onnx")
    result = done(FLOAT, task, host, model, tmp_path, Sizes())
    found, samples = examples_of(result, FLOAT), task.test(24, 48, 4)
    assert found.truth.shape == found.answers.shape == (2, 24, 48) == samples.labels.shape
    np.testing.assert_array_equal(found.truth, samples.labels)
    np.testing.assert_array_equal(found.answers, samples.images.argmax(axis=3))
    assert (found.truth == 255).any() and 255 not in found.names
    assert found.names == {0: "background", 1: "road", 2: "kerb"}


def test_an_output_of_another_size_is_refused_as_before(host, tmp_path):
    task, model = roads(tmp_path, 4), save_brightest(tmp_path / "net.onnx", (12, 24))
    with pytest.raises(BadInput, match="smaller than its input"):
        done(FLOAT, task, host, model, tmp_path, Sizes())


class Illustrating:
    """A plug-in's scorer: its images are larger than the model's input. `fault` is what is wrong
    with them."""

    def __init__(self, fault: Callable[[], Illustration] | None = None) -> None:
        self.fault, self.added = fault, 0

    def add(self, outputs: Any, labels: np.ndarray) -> None:
        self.added += len(labels)

    def score(self) -> Any:
        return self.added

    def illustrate(self, outputs: Any, labels: np.ndarray) -> Illustration:
        if self.fault is not None:
            return self.fault()
        maps = labels.repeat(100, axis=1).repeat(100, axis=2)
        return Illustration(maps, maps - 1, ["a", "b", "c"])


def some(count: int = 6) -> Samples:
    labels = np.arange(count * 32).reshape(count, 4, 8) % 3
    return Samples(np.zeros((count, 4, 8, 3), np.uint8), labels, "some")


def scored(scorer: Any, samples: Samples) -> IllustratedScorer:
    kept = IllustratedScorer(scorer, len(samples))
    for start in range(0, len(samples), 3):
        labels = samples.labels[start : start + 3]
        kept.add({"y": labels, "other": labels}, labels)
    assert kept.score() == len(samples)
    return kept


def test_a_scorer_of_a_plug_in_may_show_images_of_any_size(tmp_path):
    samples = some()
    files = scored(Illustrating(), samples).write(tmp_path, "f1_1k", samples, "mine", "npu:1")
    found = read_examples(files["examples_f1_1k.png"].read_bytes())
    assert found.truth.shape == (4, 128, 256)  # of 400 × 800
    assert (found.truth[:, ::32, ::32] == samples.labels[2:]).all()
    assert found.answers[found.truth == 0].tolist() == [255] * int((found.truth == 0).sum())
    assert (found.task, found.device, found.names) == ("mine", "npu:1", {0: "a", 1: "b", 2: "c"})
    images = read_example_images(files["examples_f1_1k.jpg"].read_bytes(), found)
    assert images.shape == (4, 128, 256, 3)


def broken() -> Illustration:
    raise RuntimeError("no images today\nand more")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (broken, "no images today"),
        (lambda: Illustration(np.zeros((9, 4, 8), int), np.zeros((9, 4, 8), int), "ab"), "belong"),
        (lambda: Illustration(np.zeros(3), np.zeros(3), "ab"), "unpack"),
    ],
)
def test_whatever_is_wrong_with_the_images_leaves_the_score_alone(tmp_path, fault, said):
    samples = some()
    scorer = scored(Illustrating(fault), samples)
    assert scorer.write(tmp_path, "f1_1k", samples, "mine", "npu:1") == {}
    assert said in scorer.problem and "\n" not in scorer.problem


def test_a_stage_without_images_has_its_score_and_says_why(faces, host, tmp_path, monkeypatch):
    model = save_segmentation_model(tmp_path / "net.onnx", 64)
    whole = done(FLOAT, faces, host, model, tmp_path / "a", Sizes())
    monkeypatch.setattr(SegmentationScorer, "illustrate", lambda *_: broken())
    result = done(FLOAT, faces, host, model, tmp_path / "b", Sizes())
    assert result.columns == whole.columns
    assert not any("examples" in name for name in result.files)
    assert result.summary.endswith("no images of examples: no images today")


def test_a_task_without_images_has_none_and_says_nothing(tmp_path):
    class Plain:
        add, score = Illustrating.add, Illustrating.score
        added = 0

    samples = some()
    scorer = scored(Plain(), samples)
    assert scorer.write(tmp_path, "f1_1k", samples, "plain", "host") == {} and not scorer.problem


def test_reset_removes_them_and_keeps_those_of_other_stages(faces, host, tmp_path):
    model = save_segmentation_model(tmp_path / "net.onnx", 64)
    with Workspace(Settings.load(tmp_path, {})) as workspace:
        workspace.catalog.upload(model, "net")
        store = workspace.store
        leases = Leases(store.models("default"), store.queue("default"), workspace.plan)
        lease = leases.claim(["onnx"], "me")
        assert lease is not None and lease.stage == FLOAT
        result = done(FLOAT, faces, host, model, tmp_path / "work", Sizes())
        store_and_commit(workspace, leases, lease, result)
        blobs = {item.key for item in store.blobs.list("default/net/")}
        assert {f"default/net/examples_{FLOAT}.{end}" for end in ("png", "jpg")} <= blobs
        names = {file.name for file in workspace.catalog.files("net")}
        assert f"examples_{FLOAT}.png" in names
        workspace.catalog.reset("net", ["convert"])  # float stays as it is
        assert {file.name for file in workspace.catalog.files("net")} == names
        workspace.catalog.reset("net", [FLOAT])
        assert not any("examples" in item.key for item in store.blobs.list("default/net/"))


# As Machado, Oliveira and Fernandes (2009) have it, on linear RGB: all colours, no red, no green.
SEEN_BY = (
    np.eye(3),
    [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
)
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


@pytest.mark.parametrize("seen_by", SEEN_BY, ids=["all", "no-red", "no-green"])
def test_colours_of_up_to_24_classes_can_be_told_apart_by_colour_blind_people_too(seen_by):
    """In CIELAB, where 2 is just noticeable side by side."""
    shown = class_colours()[:24] / 255
    linear = np.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)
    xyz = np.clip(linear @ np.transpose(seen_by), 0, 1) @ TO_XYZ.T / (0.9505, 1, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    lab = np.stack((116 * f[:, 1], 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])), axis=1)
    distance = np.linalg.norm(lab[:, None] - lab[None], axis=2)
    assert distance[~np.eye(len(lab), dtype=bool)].min() > 14


# Files that nobody of us wrote


@pytest.fixture
def good(tmp_path: Path) -> dict[str, bytes]:
    maps = np.arange(2 * 8 * 16).reshape(2, 8, 16) % 3
    shown = Illustration(maps, maps, ["a", "b", "c"])
    images = np.zeros((2, 8, 16, 3), np.uint8)
    files = write_examples(tmp_path, "f1_1k", images, shown, "segmentation", "host")
    return {path.suffix: path.read_bytes() for path in files.values()}


def drawn(about: object, size: tuple[int, int] = (32, 16), mode: str = "P") -> bytes:
    text, file = PngInfo(), io.BytesIO()
    text.add_text("edgeloop", about if isinstance(about, str) else json.dumps(about))
    Image.new(mode, size).save(file, "PNG", pnginfo=text)
    return file.getvalue()


ABOUT = {
    **{"set": "k", "task": "t", "device": "d", "images": 2, "height": 8, "width": 16},
    "classes": {"0": "a"},
}


def bomb() -> bytes:
    """A few bytes that claim a billion pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    head = struct.pack(">IIBBBBB", 65_000, 65_000, 8, 3, 0, 0, 0)
    text = chunk(b"tEXt", b"edgeloop\0" + json.dumps(ABOUT).encode())
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + text + chunk(b"PLTE", bytes(768))
    return start + chunk(b"IDAT", zlib.compress(bytes(1_000))) + chunk(b"IEND", b"")


HOSTILE = {
    "empty": b"",
    "cut": b"\x89PNG\r\n\x1a\ncut",
    "svg": b"<svg onload=alert(1)>",
    "pickle": b"\x80\x04cos\nsystem\n",
    "bomb": bomb(),
    "no-text": drawn("null"),
    "no-json": drawn("{"),
    "deep": drawn("[" * 50_000),
    "list": drawn([1]),
    "true": drawn({**ABOUT, "images": True}),
    "none": drawn({**ABOUT, "images": 0}),
    "many": drawn({**ABOUT, "images": 10**9}),
    "wide": drawn({**ABOUT, "width": 257}, (514, 16)),
    "another-size": drawn({**ABOUT, "height": 9}),
    "no-palette": drawn(ABOUT, mode="RGB"),
    "missing": drawn({key: value for key, value in ABOUT.items() if key != "set"}),
    "key": drawn({**ABOUT, "set": ["k"]}),
    "classes": drawn({**ABOUT, "classes": [["0", "a"]]}),
    "name": drawn({**ABOUT, "classes": {"0": {"a": 1}}}),
    "too-large": drawn(ABOUT) + bytes(1 << 20),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_is_not_what_it_should_be_is_refused(what):
    with pytest.raises(BadInput, match="no examples can be read from it"):
        read_examples(HOSTILE[what])


def test_long_names_are_cut_and_foreign_classes_left_out():
    classes = {"0": "a" * 500, "255": "ignored", "-1": "x", "no": "y", "00": "z"}
    found = read_examples(drawn({**ABOUT, "classes": classes}))
    assert found.names == {0: "a" * 60}


def test_images_of_another_set_are_not_taken(good):
    found = read_examples(good[".png"])
    assert read_example_images(good[".jpg"], found).shape == (2, 8, 16, 3)
    png = io.BytesIO()
    Image.new("RGB", (16, 16)).save(png, "PNG")
    for examples, content in (
        (replace(found, key="another"), good[".jpg"]),
        (replace(found, truth=found.truth[:1]), good[".jpg"]),
        (found, good[".jpg"][:300]),
        (found, good[".png"]),
        (found, png.getvalue()),
        (found, b""),
    ):
        with pytest.raises(BadInput, match="no examples can be read"):
            read_example_images(content, examples)


def test_every_cut_of_a_file_is_read_or_refused(good):
    """Damage at any place is BadInput, never another error."""
    dice = np.random.default_rng(0)
    content = good[".png"]
    for _ in range(300):
        spoilt = bytearray(content[: dice.integers(1, len(content) + 1)])
        spoilt[dice.integers(len(spoilt))] = dice.integers(256)
        with contextlib.suppress(BadInput):
            read_examples(bytes(spoilt))
