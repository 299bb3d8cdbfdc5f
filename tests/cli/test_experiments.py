"""experiment set and show: one place for what every runner of an experiment follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Edgeloop


@pytest.fixture
def faces(project: Path, edgeloop: Edgeloop) -> str:
    """A dataset in the store, of two versions."""
    folder = project / "data/working/faces"
    folder.mkdir(parents=True)
    for number in range(2):
        (folder / f"{number}.txt").write_text("a face")
        edgeloop("data", "push", "faces")
    return "working/faces@2"


def test_a_dataset_is_kept_with_its_version(faces: str, edgeloop: Edgeloop):
    said = edgeloop("experiment", "set", "heads", "--dataset", "faces")
    assert faces in said.out
    edgeloop("experiment", "set", "heads", "--primary", "htp:qcs8550", "--target", "snpe:qcs8550",
             "--target", "qnn:qcs6490")  # fmt: skip
    [shown] = edgeloop("experiment", "show", "heads", "--json").json
    targets = ["snpe:qcs8550", "qnn:qcs6490"]
    whole = {"name": "heads", "dataset": faces, "primary": "htp:qcs8550", "targets": targets}
    assert shown == {**whole, "task": "", "devices": []}
    [shown] = edgeloop("experiment", "set", "heads", "--dataset", "none", "--clear", "target",
                       "--json").json  # fmt: skip
    assert shown == {**whole, "task": "", "dataset": "", "targets": [], "devices": []}
    [other] = edgeloop("experiment", "show", "--json").json
    assert (other["name"], other["primary"]) == ("default", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--dataset", "facse"], "no dataset 'facse': the store has none of that name (did you "
         "mean 'working/faces'?)"),
        (["--dataset", "faces@9"], "the store has no version 9 of it"),
        (["--dataset", "s3://bucket/faces"], "'edgeloop data push'"),
        (["--dataset", "./data/working/faces"], "'edgeloop data push'"),
        (["--target", "sbpe:qcs8550"], "did you mean 'snpe'?"),
        (["--target", "snpe:"], "TOOLCHAIN:CHIP"),
        (["--primary", "a b"], "a device or a chip"),
        ([], "Name a setting"),
    ],
)  # fmt: skip
def test_what_no_runner_could_use_is_refused(
    faces: str, edgeloop: Edgeloop, words: list[str], sentence: str
):
    said = edgeloop("experiment", "set", "heads", *words)
    assert said.code != 0
    assert sentence in said.err
    assert edgeloop("experiment", "show", "heads", "--json").json[0]["dataset"] == ""


def test_the_experiment_can_be_named_like_everywhere_else(edgeloop: Edgeloop):
    edgeloop("experiment", "set", "-e", "heads", "--dataset", "random")
    assert edgeloop("experiment", "show", "-e", "heads", "--json").json[0]["dataset"] == "random"
    said = edgeloop("experiment", "set", "hands", "-e", "heads", "--dataset", "none")
    assert said.code == 2 and "two experiments" in said.err
