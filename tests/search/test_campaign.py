"""A search beside other searches: one process drives it, and results of others bring their nets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from edgeloop.cli.search import _say_outcome
from edgeloop.errors import BadInput
from edgeloop.search.base import Evaluation
from edgeloop.search.campaign import Search, SearchResult, alone, utilisation_of, written
from edgeloop.search.config import config_of
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.results import FoundModels, write_front
from edgeloop.search.study import Candidate
from edgeloop.settings import Settings
from edgeloop.testing.faces import make_faces
from tests.search.seen import write_seen
from tests.search.toy import Worked

FEW = {"base_channels": [4], "stems": [2], "kernels": ["conv3x3"], "most_layers": 1}


def config(name: str):
    search = {"name": name, "size": 32, "budget": 1, "pool": 0}
    search |= {"options": {**FEW, "most_hourglasses": 1}}
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


class Retraining(Worked):
    """Trains, or fails, and says how busy its GPU was."""

    def collect(self, timeout_s: float) -> list[Evaluation]:
        found = []
        for answer in super().collect(timeout_s):
            files = {} if answer.error else {"model.onnx": self.model, "metrics.json": self.metrics}
            found.append(replace(answer, files=files))
        return found


def test_models_of_the_front_are_copied_or_trained_and_never_left_untrained(tmp_path: Path):
    def trained(arch: Architecture) -> float:
        if arch.params["n"] == 2:
            raise ValueError("it diverged.")
        return 0.5

    earlier, told = tmp_path / "earlier", list[str]()
    for folder in (tmp_path / "here", earlier / "nets"):
        folder.mkdir(parents=True)
    archs = [Architecture("toy.py:build", {"n": n}, (1, 3, 8, 8), 19) for n in range(3)]
    front = [Candidate(n, arch, state="complete", earlier="old") for n, arch in enumerate(archs)]
    (earlier / f"nets/{archs[0].id}.onnx").write_bytes(b"copied")
    training = Retraining("val_iou", 1, trained)
    training.model, training.metrics = tmp_path / "model.onnx", tmp_path / "metrics.json"
    training.model.write_bytes(b"trained")
    training.metrics.write_text('{"gpu_utilisation": 0.8}')
    models = FoundModels(tmp_path / "here", cast("Any", None))
    models.complete(front, {"old": {"folder": str(earlier)}}, training, told.append)
    assert told == [
        "Training 2 models of the front, whose results other searches had.",
        f"The model of {archs[2].id} is left out: it diverged.",
    ]
    write_front(tmp_path / "here", front, models.save)
    written = {path.stem: path.read_bytes() for path in (tmp_path / "here/pareto").glob("*.onnx")}
    assert written == {archs[0].id: b"copied", archs[1].id: b"trained"}
    assert models.gpu_utilisation == 0.8
    assert utilisation_of(training, 1, models.gpu_utilisation) == {"gpu": 0.8}


def test_the_summary_says_how_much_of_the_trainings_was_done(tmp_path: Path, capsys):
    whole = config("one")
    train = {"epochs": 9, "early_stopping": True}
    document = {**whole.document, "objectives": {"params": {}, "val_iou": {"train": train}}}
    stopping = config_of(document, "search.yaml")
    write_seen(tmp_path / "seen", 3)
    arch = Architecture("toy.py:build", {}, (1, 3, 8, 8), 19)
    ends = (("complete", {3: {}}), ("stopped", {1: {}, 3: {}}), ("failed", {}))
    found = [Candidate(n, arch, state=state, rungs=at) for n, (state, at) in enumerate(ends)]  # type: ignore[arg-type]
    _say_outcome(stopping, SearchResult(found, [], [], False, tmp_path / "seen"))
    assert "1 stopped early: trained for 67% of the epochs" in capsys.readouterr().out


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
