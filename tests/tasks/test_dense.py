"""Depth and super-resolution: known errors have known scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgeloop.errors import BadInput, NotFound
from edgeloop.tasks import Samples, Score, open_task
from edgeloop.tasks.super_resolution import SuperResolution, psnr, ssim
from tests.tasks import made


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.depths(tmp_path_factory.mktemp("depth") / "rooms")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.sharp(tmp_path_factory.mktemp("sharp") / "photos")


def scored(task: Any, output: np.ndarray, samples: Samples, name: str = "output") -> Score:
    task.check_outputs({name: output.shape})
    scorer = task.scorer()
    scorer.add({name: output}, samples.labels)
    score: Score = scorer.score()
    return score


def opened(root: Path, tmp_path: Path, task: str = "depth", **options: object) -> Any:
    """With the options beside the dataset."""
    link = tmp_path / "data"
    if not link.is_symlink():
        link.symlink_to(root)
    (tmp_path / f"{task}.json").write_text(json.dumps(options))
    return open_task(task, link, tmp_path / "cache")


def test_depths_that_are_too_large_by_a_factor(rooms: Path, tmp_path: Path):
    task = opened(rooms, tmp_path)
    samples = task.test(32, 32, 4)
    assert 1 <= samples.labels[samples.labels > 0].min() <= samples.labels.max() <= 5
    assert (samples.labels[:, :4, :4] == 0).all()
    score = scored(task, 1.2 * samples.labels[:, None], samples)
    table = {name: row["overall"] for name, row in score.table.items()}
    assert (table["delta1"], score.headline) == (1, 1)
    assert table["abs_rel"] == pytest.approx(0.2, rel=1e-5)
    real = samples.labels[samples.labels > 0].reshape(4, -1)
    assert table["rmse"] == pytest.approx(np.sqrt((0.04 * real**2).mean(axis=1)).mean(), rel=1e-5)
    score = scored(task, 1.3 * samples.labels[..., None], samples)
    assert (score.headline, score.table["delta2"]["overall"]) == (0, 1)
    assert not score.curves
    assert "read as depth, not aligned" in score.note


def test_relative_depths_are_aligned_where_the_options_say_so(rooms: Path, tmp_path: Path):
    samples = opened(rooms, tmp_path).test(32, 32, 4)
    real = np.where(samples.labels > 0, samples.labels, 1)
    relative = {
        ("depth", "median"): 7 * real,
        ("depth", "scale-shift"): 3 * real + 20,
        ("disparity", "median"): 9 / real,
        ("disparity", "scale-shift"): 40 / real - 3,
        ("disparity", "none"): 1 / real,
    }
    for (prediction, alignment), output in relative.items():
        task = opened(rooms, tmp_path, prediction=prediction, alignment=alignment)
        assert scored(task, output, samples).table["abs_rel"]["overall"] < 1e-4
        if alignment != "none":
            plain = opened(rooms, tmp_path, prediction=prediction)
            assert scored(plain, output, samples).headline < 0.5


def test_a_smaller_output_is_enlarged_and_the_largest_of_several_is_taken(
    rooms: Path, tmp_path: Path
):
    task = opened(rooms, tmp_path)
    samples = task.test(32, 32, 4)
    flat = np.full((4, 1, 8, 8), 3.0, np.float32)
    small = scored(task, flat, samples)
    assert small.headline == scored(task, np.full((4, 32, 32), 3.0, np.float32), samples).headline
    task.check_outputs({"a": (1, 1, 8, 8), "b": (1, 1, 32, 32), "c": (1, 7)})
    scorer = task.scorer()
    scorer.add({"a": flat, "b": samples.labels[:, None]}, samples.labels)
    assert scorer.score().headline == 1


def test_depths_in_metres_and_in_other_units_are_the_same(rooms: Path, tmp_path: Path):
    (tmp_path / "metres").mkdir()
    for path in rooms.glob("?.png"):
        depth = np.asarray(Image.open(rooms / f"{path.stem}_depth.png"), np.float32) / 1000
        np.save(tmp_path / "metres" / f"{path.stem}_depth.npy", depth)
        Image.open(path).save(tmp_path / "metres" / path.name)
    ours = open_task("depth", tmp_path / "metres", tmp_path / "cache").test(32, 32, 4)
    assert ours.key == opened(rooms, tmp_path).test(32, 32, 4).key
    half = opened(rooms, tmp_path, scale=500).test(32, 32, 4)
    np.testing.assert_allclose(half.labels, 2 * ours.labels, rtol=1e-6)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("missing", r"lacks 3_depth\.png or \.npy"),
        ("colour", "one channel of 16 bits"),
        ("cut", "cannot be read as an image"),
        ("pickle", "cannot be read as an array"),
        ("shape", "not the aspect ratio"),
        ("dimensions", r"holds an array \[4, 4, 2\]"),
        ("empty", "no images with depths"),
    ],
)
def test_depths_that_cannot_be_used_are_explained(tmp_path: Path, fault: str, said: str):
    root = made.depths(tmp_path / "data")
    for path in root.glob("*_depth.png"):
        if fault == "missing" and path.stem == "3_depth":
            path.unlink()
        elif fault == "colour":
            Image.new("RGB", (32, 32)).save(path)
        elif fault == "cut":
            path.write_bytes(path.read_bytes()[:60])
        elif fault == "shape":
            Image.new("I;16", (32, 64)).save(path)
        elif fault in ("pickle", "dimensions"):
            path.unlink()
            array = np.array([{}]) if fault == "pickle" else np.ones((4, 4, 2))
            np.save(path.with_suffix(".npy"), array, allow_pickle=True)
        elif fault == "empty":
            path.unlink()
    with pytest.raises((BadInput, NotFound), match=said):
        open_task("depth", root, tmp_path / "cache").test(32, 32, 4)


def test_a_wrong_scale_leaves_nothing_to_score(rooms: Path, tmp_path: Path):
    task = opened(rooms, tmp_path, scale=1e-3)
    samples = task.test(32, 32, 4)
    with pytest.raises(BadInput, match=r"check 'scale' in depth\.json"):
        scored(task, samples.labels, samples)


@pytest.mark.parametrize("shape", [(1, 19, 32, 32), (1, 1000), (1, 3, 32, 32), (1, 17, 3)])
def test_outputs_that_are_no_depths_are_refused(rooms: Path, tmp_path: Path, shape: Any):
    with pytest.raises(BadInput, match=r"is not a map of depths"):
        opened(rooms, tmp_path).check_output(shape)


# Super-resolution


def test_psnr_of_a_known_error_and_an_exact_image():
    real = np.full((20, 20, 3), 100.0)
    assert psnr(real + 5, real) == pytest.approx(10 * np.log10(255**2 / 25))
    assert psnr(real, real) == 100


def test_ssim_is_that_of_gaussian_windows():
    """Computed as scikit-image does it, with SciPy's filter."""
    from scipy.ndimage import gaussian_filter

    dice = np.random.default_rng(0)
    real = dice.uniform(0, 255, (40, 30))
    own = np.clip(real + dice.normal(0, 20, real.shape), 0, 255)

    def blur(image: np.ndarray) -> np.ndarray:
        return gaussian_filter(image, 1.5, truncate=3.5)[5:-5, 5:-5]

    one, two = 6.5025, 58.5225
    mean, other = blur(own), blur(real)
    alike = (2 * mean * other + one) * (2 * (blur(own * real) - mean * other) + two)
    spread = blur(own**2) - mean**2 + blur(real**2) - other**2
    expected = (alike / ((mean**2 + other**2 + one) * (spread + two))).mean()
    assert ssim(own[..., None], real[..., None]) == pytest.approx(expected, abs=1e-9)
    assert ssim(real[..., None], real[..., None]) == pytest.approx(1)
    assert np.isnan(ssim(real[:8, :, None], real[:8, :, None]))


def test_high_resolution_images_are_reduced_by_the_models_factor(photos: Path, tmp_path: Path):
    task = opened(photos, tmp_path, "super-resolution")
    for factor in (2, 3):
        own = task.for_model(32, 24, {"y": (1, 3, 32 * factor, 24 * factor)})
        samples = own.test(32, 24, 4)
        assert samples.images.shape == (4, 32, 24, 3)
        assert samples.labels.shape == (4, 32 * factor, 24 * factor, 3)
        large = [
            np.asarray(Image.fromarray(i).resize((24 * factor, 32 * factor), Image.BICUBIC))
            for i in samples.images
        ]
        score = scored(own, np.stack(large).astype(np.float32), samples)
        assert 20 < score.headline < 60
        assert score.table["SSIM"]["overall"] < 1
        assert f"border of {factor} pixels, outputs read as 0 to 255" in score.note
    shapes = {"y": (1, 3, 48, 48)}
    with pytest.raises(BadInput, match="not a whole number of times larger"):
        task.for_model(32, 32, shapes).check_outputs(shapes)


def test_pairs_are_cut_at_the_same_place(photos: Path, tmp_path: Path):
    for path in photos.iterdir():
        image = Image.open(path)
        for folder, part, name in (("hr", 1, path.name), ("lr", 2, f"{path.stem}x2.png")):
            (tmp_path / "pairs" / folder).mkdir(parents=True, exist_ok=True)
            size = (image.width // part, image.height // part)
            image.resize(size, Image.Resampling.NEAREST).save(tmp_path / "pairs" / folder / name)
    task = open_task("super-resolution", tmp_path / "pairs", tmp_path / "cache")
    assert isinstance(task, SuperResolution)
    samples = task.test(40, 24, 4)
    # Each pixel of a pair's half is one of the four that it stands for.
    parts = [samples.labels[:, y::2, x::2] == samples.images for y in (0, 1) for x in (0, 1)]
    assert max(part.mean() for part in parts) == 1
    shapes = {"output": (1, 3, 160, 96)}
    with pytest.raises(BadInput, match="differ by 2×, and the model makes 4×"):
        task.for_model(40, 24, shapes).check_outputs(shapes)
    (tmp_path / "pairs" / "lr" / "03x2.png").unlink()
    with pytest.raises(BadInput, match="lr lacks '03'"):
        open_task("super-resolution", tmp_path / "pairs", tmp_path / "cache").test(40, 24, 4)


def test_images_that_are_too_small_are_left_out(photos: Path, tmp_path: Path):
    root = made.sharp(tmp_path / "data")
    Image.new("RGB", (100, 100)).save(root / "small.png")
    samples = open_task("super-resolution", root, tmp_path / "cache").test(32, 32, 4)
    assert samples.note == "1 of 9 images are too small"
    with pytest.raises(BadInput, match="smaller than the model needs, 1024 × 1024"):
        open_task("super-resolution", root, tmp_path / "cache").test(256, 256, 4)
    with pytest.raises(BadInput, match="is not an image"):
        open_task("super-resolution", root, tmp_path / "cache").check_output((1, 1000))
