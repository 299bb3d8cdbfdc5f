"""A search beside other searches: one process drives it, and results of others bring their nets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from edgeloop.demo import make_faces
from edgeloop.errors import BadInput
from edgeloop.search import Search
from edgeloop.search.campaign import alone, written
from edgeloop.search.config import config_of
from edgeloop.settings import Settings

FEW = {"base_channels": [4], "stems": [2], "kernels": ["conv3x3"], "most_layers": 1}


def config(name: str):
    search = {"name": name, "size": 32, "budget": 2, "options": {**FEW, "most_hourglasses": 1}}
    objectives = {"params": {}, "val_iou": {"train": {"steps": 2}}}
    document = {"search": search, "objectives": objectives, "data": "working/faces"}
    return config_of(document, "search.yaml")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    make_faces(tmp_path / "data/working/faces", 24, 32, 7)
    return Settings.load(store=f"sqlite:{tmp_path}/.edgeloop", experiment="both")


@pytest.mark.slow
def test_the_front_has_its_trained_nets_even_where_another_search_trained_them(settings: Settings):
    with Search(config("one"), settings, resume=False) as first:
        found = first.run()
    assert not (found.folder / "screening").exists(), "untrained models are of no use any more"
    trained = {path.name: path.read_bytes() for path in (found.folder / "nets").iterdir()}
    with Search(config("two"), settings, resume=False) as second:
        again = second.run()
    assert [item.arch.id for item in again.candidates] == [i.arch.id for i in found.candidates]
    for item in again.front:
        net = again.folder / "pareto" / f"{item.arch.id}.onnx"
        assert net.read_bytes() == trained[f"{item.arch.id}.onnx"]


def test_a_search_that_runs_is_not_run_again_beside_it(tmp_path: Path):
    lock = tmp_path / "lock"
    with alone(lock, "a"), pytest.raises(BadInput, match="is running"), alone(lock, "a"):
        raise AssertionError("two at once")
    with alone(lock, "a"):
        assert lock.exists()


def test_what_was_searched_is_kept_with_its_store_and_experiment_but_no_password():
    kept = yaml.safe_load(written(with_store("${WHERE}"), "both"))
    assert (kept["store"], kept["experiment"], kept["search"]["name"]) == (
        "${WHERE}",
        "both",
        "one",
    )
    assert "hush" not in written(with_store("postgresql://me:hush@host/db"), "both")


def with_store(store: str):
    plain = config("one")
    return replace(plain, document={**plain.document, "store": store})
