"""Microsoft Archai's stacked hourglass: its ArchConfig files build the same network here, and
train."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import onnx
import pytest
import torch
from click.testing import CliRunner

from edgeloop.cli.app import app
from edgeloop.errors import BadArchitecture
from edgeloop.search.nets.spaces import build, from_arch_config
from edgeloop.testing.faces import make_faces
from tests.nets_archai import ARCH_CONFIG, SIZE, archai_net

SHAPE = (1, 3, SIZE, SIZE)


@pytest.fixture
def config() -> dict:
    return json.loads(ARCH_CONFIG.read_text())


def test_an_arch_config_builds_the_network_that_archai_builds(config: dict):
    arch = from_arch_config(config, SHAPE, 18)
    ours, theirs = build(arch).eval(), archai_net(config).eval()
    weights = dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True))
    ours.load_state_dict(weights)
    image = torch.rand(SHAPE)
    with torch.no_grad():
        assert torch.allclose(ours(image), theirs(image), atol=1e-5)


def test_plain_lists_and_older_files_are_read_too(config: dict):
    """As `to_dict(remove_metadata_info=True)` gives them; older ones lack the last list."""

    def plain(value: object) -> object:
        if not isinstance(value, dict):
            return value
        if "_configs" in value:
            return [plain(value["_configs"][str(i)]) for i in range(value["_repeat_times"])]
        return {key: plain(inner) for key, inner in value.items()}

    wanted = from_arch_config(config, SHAPE, 18)
    assert from_arch_config({**plain(config), "nan": 0}, SHAPE, 18) == wanted  # type: ignore[dict-item]
    del config["post_upsample_layers"]
    older = from_arch_config(config, SHAPE, 18)
    assert older.params["post_layers"] == 0
    build(older)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("stem_stride",), "2", "'stem_stride' is '2'"),
        (("hourglasses", "_configs"), None, "'hourglasses' has no '_configs'"),
        (("hourglasses", "_repeat_times"), 10**9, "'hourglasses'"),
        (("hourglasses", "_configs", "0", "skip_blocks", "_repeat_times"), 1, "skip_blocks"),
    ],
)
def test_a_broken_arch_config_is_refused_in_a_sentence(
    config: dict, path: tuple[str, ...], value: object, said: str
):
    place = config = copy.deepcopy(config)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(BadArchitecture, match=said):
        from_arch_config(config, SHAPE, 18)


@pytest.mark.slow
def test_an_arch_config_trains_with_the_classes_of_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """19 without a label map; as many as the map has with one; or as many as were asked for."""
    monkeypatch.chdir(tmp_path)
    make_faces(tmp_path / "faces", 24, SIZE, seed=5)
    (tmp_path / "few").mkdir()
    for file in (tmp_path / "faces").iterdir():
        if file.suffix == ".png":
            (tmp_path / "few" / file.name).write_bytes(file.read_bytes())
    names = ["background", *["face"] * 17, "background"]
    (tmp_path / "few" / "label_map.json").write_text(json.dumps(names))
    made = {
        (): ("faces", 19),
        ("--classes", "18"): ("faces", 18),
        ("--seed", "1"): ("few", 2),
    }
    for more, (dataset, classes) in made.items():
        out = tmp_path / f"out{classes}"
        given = ["--dataset", dataset, "--size", str(SIZE), "--steps", "2", "--batch", "4"]
        done = CliRunner().invoke(
            app, ["arch", "train", str(ARCH_CONFIG), *given, "--output", str(out), *more]
        )
        assert done.exit_code == 0, done.output
        output = onnx.load_model(str(out / "model.onnx")).graph.output[0]
        sides = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
        assert sides == [1, classes, SIZE, SIZE]
        assert json.loads((out / "arch.json").read_text())["classes"] == classes
    again = ["arch", "export", str(out / "arch.json"), "-o", "again.onnx"]
    assert CliRunner().invoke(app, again).exit_code == 0
    for wrong, said in (
        (["arch", "export", str(ARCH_CONFIG), "-o", "net.onnx"], "--classes"),
        ([*again, "--size", "128"], "says its classes and size itself"),
    ):
        done = CliRunner().invoke(app, wrong)
        assert done.exit_code != 0
        assert said in str(done.exception)
