"""Conversions with the SDK's tools, in both versions: every file is made and computes right."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from edgeloop.errors import BadInput, MissingSdk, ModelFailed
from edgeloop.graph.info import image_info
from edgeloop.graph.isolated import GraphProcess
from edgeloop.platforms import GraphInfo
from edgeloop.platforms.batching import as_input
from edgeloop.platforms.snpe.dlc import read_tensors
from edgeloop.platforms.snpe.sdk import find_sdk
from edgeloop.platforms.snpe.toolchain import SnpeToolchain, write_calibration
from edgeloop.testing.contracts.platform import ToolchainContract
from tests.converted import SIZE, samples, smooth_images
from tests.exports import export_everyday
from tests.graph import odd_models
from tests.nets_torch import SmallUNet, export
from tests.peers.board.sdk import SDK_1, SDK_2, make_sdk
from tests.platforms.sdks import with_tool
from tests.platforms.standin import run_dlc

ALL = (".dlc", ".quant.dlc", ".classes.dlc", ".classes.quant.dlc", ".layers.csv", ".encodings.json")


@pytest.fixture(scope="module")
def graphs():
    graphs = GraphProcess()
    yield graphs
    graphs.close()


@pytest.fixture(scope="module", params=[SDK_1, SDK_2])
def sdk(request, tmp_path_factory) -> Path:
    return make_sdk(tmp_path_factory.mktemp("sdk"), request.param)


@pytest.fixture(scope="module")
def newest(tmp_path_factory) -> Path:
    return make_sdk(tmp_path_factory.mktemp("sdk"), SDK_2)


@pytest.fixture(scope="module")
def unet(tmp_path_factory) -> Path:
    return export(SmallUNet(), tmp_path_factory.mktemp("nets") / "it's a net; $(x).onnx", SIZE)


@pytest.fixture
def chain(newest, graphs):
    return lambda root=newest, limit_s=60.0: SnpeToolchain(find_sdk(root), limit_s, graphs)


@pytest.fixture(scope="module")
def converted(sdk, graphs, unet, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made with spaces")
    toolchain = SnpeToolchain(find_sdk(sdk), 60, graphs)
    return toolchain.convert(unet, samples(smooth_images(8)), folder)


def logits(path: Path, images: np.ndarray) -> np.ndarray:
    return np.concatenate([run_dlc(path, as_input(image[None], "NHWC")) for image in images])


def test_every_file_is_made_under_the_models_own_name_and_nothing_else_stays(converted):
    stem = "it's a net; $(x)"
    assert set(converted.files) == {stem + suffix for suffix in ALL}
    assert converted.quantized == f"{stem}.quant.dlc"
    folder = converted.files[converted.quantized].parent
    assert {path.name for path in folder.iterdir()} == set(converted.files)
    assert all(path.stat().st_size for path in converted.files.values())


def test_the_counts_of_the_tool_agree_with_ours(converted):
    assert converted.info.macs > 0
    assert converted.info.params > 0
    assert not converted.notes
    with next(p for n, p in converted.files.items() if n.endswith(".layers.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 5
    assert all(row["name"] and row["operator"] for row in rows)


def test_class_maps_are_the_argmax_of_the_logits_float_and_quantized(converted):
    images = smooth_images(4, seed=5)
    stem = converted.quantized.removesuffix(".quant.dlc")
    for kind in (".dlc", ".quant.dlc"):
        whole = logits(converted.files[f"{stem}{kind}"], images)
        maps = logits(converted.files[f"{stem}.classes{kind}"], images)
        assert maps.shape == (4, SIZE, SIZE)
        assert (maps == whole.argmax(axis=3)).mean() > 0.999


def test_the_quantized_model_answers_nearly_as_the_float_one(converted):
    images = smooth_images(4, seed=9)
    stem = converted.quantized.removesuffix(".quant.dlc")
    whole = logits(converted.files[f"{stem}.dlc"], images)
    quantized = logits(converted.files[f"{stem}.quant.dlc"], images)
    assert not np.array_equal(whole, quantized)
    assert (whole.argmax(3) == quantized.argmax(3)).mean() > 0.9
    encoding = read_tensors(converted.files[converted.quantized]).encodings["output"]
    steps = quantized / encoding.scale
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-2)
    assert steps.min() >= encoding.offset - 0.01
    assert steps.max() <= encoding.offset + 255.01


@pytest.mark.parametrize("precision", ["a8w8", "a16w8"])
def test_other_precisions_are_passed_on(chain, unet, tmp_path, precision):
    made = chain().convert(unet, samples(smooth_images(4)), tmp_path, precision)
    assert made.precision == precision
    encoding = read_tensors(made.files[made.quantized]).encodings["output"]
    assert encoding.bits == (16 if precision == "a16w8" else 8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["channel_last", "classifier"])
def test_other_kinds_of_nets_convert(chain, tmp_path, kind):
    if kind == "classifier":
        model, size = export_everyday("classifier", tmp_path), SIZE
    else:
        model, size = odd_models.channel_last(tmp_path / "net.onnx"), 16
    toolchain = chain()
    made = toolchain.convert(model, samples(smooth_images(2, size)), tmp_path / "out")
    assert made.info == toolchain.inspect(model)
    has_maps = any(".classes." in name for name in made.files)
    assert has_maps == (kind == "channel_last")
    assert not made.notes


def test_what_cannot_be_made_is_refused_before_any_work(chain, unet, tmp_path):
    calibration = samples(smooth_images(2))
    with pytest.raises(BadInput, match="fp16 models are not quantized"):
        chain().convert(unet, calibration, tmp_path, "fp16")
    with pytest.raises(BadInput, match=r"32×32×3, the model takes 64×64×3"):
        chain().convert(unet, samples(smooth_images(2, 32)), tmp_path)
    with pytest.raises(BadInput, match="does not take"):
        chain().convert(
            odd_models.one_node(tmp_path / "m.onnx", "Det"), calibration, tmp_path / "o"
        )


SAYS_SO = "echo 'Conversion completed successfully' >&2"
EMPTY = f'{SAYS_SO}\nwhile [ "$1" != --output_path ]; do shift; done\n: > "$2"'


@pytest.mark.parametrize(
    ("tool", "script", "error", "said"),
    [
        ("snpe-onnx-to-dlc", "echo 'ERROR_X: Op Foo unsupported' >&2; exit 1", ModelFailed, "Foo"),
        ("snpe-onnx-to-dlc", "sleep 600", ModelFailed, "did not end within 0.5 s"),
        ("snpe-onnx-to-dlc", "exit 0", ModelFailed, "did not say 'Conversion completed"),
        ("snpe-onnx-to-dlc", SAYS_SO, ModelFailed, "wrote no model"),
        ("snpe-onnx-to-dlc", EMPTY, ModelFailed, "wrote no model"),
        ("snpe-onnx-to-dlc", None, MissingSdk, "has no bin/x86_64-linux-clang/snpe-onnx-to-dlc"),
        ("snpe-dlc-quantize", "echo '[ERROR] no encodings'; exit 2", ModelFailed, "no encodings"),
        ("snpe-dlc-quantize", "echo well", ModelFailed, "did not say 'Writing quantized model'"),
        ("snpe-dlc-quantize", "echo 'Writing quantized model'", ModelFailed, "wrote no model"),
        ("snpe-dlc-info", "exit 1", ModelFailed, "snpe-dlc-info: ended with code 1"),
    ],
)
def test_a_tool_that_fails_is_the_reason_and_leaves_nothing(
    chain, newest, unet, tmp_path, tool, script, error, said
):
    root = with_tool(newest, tmp_path / "sdk", tool, script)
    folder = tmp_path / "out"
    limit_s = 0.5 if script == "sleep 600" else 60.0
    with pytest.raises(error, match=re.escape(said)):
        chain(root, limit_s).convert(unet, samples(smooth_images(1)), folder)
    assert list(folder.iterdir()) == []


def test_a_converter_that_refuses_bytes_gets_argmax_alone(chain, newest, unet, tmp_path):
    """And one that refuses that, too, costs the class maps, not the model."""
    real = newest / "bin/x86_64-linux-clang/snpe-onnx-to-dlc"
    refuse = 'case "$2" in *{}) echo "ERROR: Cast unsupported" >&2; exit 1;; esac\nexec "{}" "$@"'
    calibration = samples(smooth_images(1))
    root = with_tool(newest, tmp_path / "one", real.name, refuse.format("bytes.onnx", real))
    made = chain(root).convert(unet, calibration, tmp_path / "a")
    assert len(made.files) == len(ALL)
    assert not made.notes
    root = with_tool(newest, tmp_path / "two", real.name, refuse.format("[bc]*s.onnx", real))
    made = chain(root).convert(unet, calibration, tmp_path / "b")
    assert not any(".classes." in name for name in made.files)
    assert "Cast unsupported" in made.notes[0]


def test_calibration_files_stay_below_a_limit_and_are_spread_over_the_set(tmp_path):
    images = smooth_images(10, 32)
    info = info_of(32)
    each = 4 * 32 * 32 * 3
    listed, used, note = write_calibration(samples(images), info, tmp_path, largest=4 * each)
    assert listed.read_text().split("\n")[:-1] == [
        "000000.raw",
        "000003.raw",
        "000006.raw",
        "000009.raw",
    ]
    assert used == 4
    assert "4 of 10" in note
    stored = np.fromfile(tmp_path / "000003.raw", np.float32).reshape(32, 32, 3)
    np.testing.assert_array_equal(stored, images[3].astype(np.float32) / np.float32(255))


def info_of(size: int) -> GraphInfo:
    return image_info("x", "y", (1, 3, size, size), (1, 4, size, size))


def test_a_graph_with_nan_weights_is_refused_as_by_the_other_toolchain(chain, tmp_path):
    weight = odd_models.weights()
    weight[0, 0, 0, 0] = np.nan
    model = odd_models.one_conv(tmp_path / "m.onnx", weight=weight)
    with pytest.raises(BadInput, match="NaN"):
        chain().inspect(model)


class TestContract(ToolchainContract):
    @pytest.fixture
    def toolchain(self, newest, graphs):
        return SnpeToolchain(find_sdk(newest), 60, graphs)
