"""Equal architectures have equal ids, however they were written."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgeloop.errors import BadArchitecture, LocalFileError
from edgeloop.search.nets.architecture import Architecture

SHAPE = (1, 3, 64, 96)

values = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(-(10**12), 10**12),
    some.floats(allow_nan=False, allow_infinity=False),
    some.text(max_size=8),
)


@given(some.dictionaries(some.text(min_size=1, max_size=8), values, max_size=8))
def test_json_comes_back_exactly(params):
    arch = Architecture("hourglass", params, SHAPE, 19)
    again = Architecture.from_json(arch.canonical)
    assert again == arch
    assert (again.canonical, again.id, hash(again)) == (arch.canonical, arch.id, hash(arch))


@given(some.dictionaries(some.text(min_size=1, max_size=8), values, max_size=8), some.randoms())
def test_the_order_of_params_does_not_matter(params, dice):
    items = list(params.items())
    dice.shuffle(items)
    assert Architecture("s", dict(items), SHAPE, 2).id == Architecture("s", params, SHAPE, 2).id


@pytest.mark.parametrize(
    ("one", "other"), [(2, 2.0), (0, -0.0), (np.int64(3), 3), (np.float32(1.5), 1.5), (1e6, 10**6)]
)
def test_a_number_has_one_spelling(one, other):
    first, second = (Architecture("s", {"a": value}, SHAPE, 2) for value in (one, other))
    assert first == second and first.id == second.id


@pytest.mark.parametrize(
    "change",
    [{"space": "other"}, {"params": {"a": 2}}, {"shape": (1, 3, 64, 64)}, {"classes": 3}],
)
def test_whatever_shapes_the_net_changes_the_id(change):
    fields = {"space": "s", "params": {"a": 1}, "shape": SHAPE, "classes": 2}
    assert Architecture(**fields).id != Architecture(**(fields | change)).id


def test_true_is_not_one():
    one, true = (Architecture("s", {"a": value}, SHAPE, 2) for value in (1, True))
    assert one.id != true.id


def test_an_id_stays_what_it_was_in_earlier_versions():
    """Results are kept by id: a new spelling would throw them all away."""
    arch = Architecture("hourglass", {"b": 1.5, "a": 2.0}, SHAPE, 19)
    canonical = '{"classes":19,"params":{"a":2,"b":1.5},"shape":[1,3,64,96],"space":"hourglass"}'
    assert arch.canonical == canonical
    assert arch.id == "id_d6c9008850b9c343"


def test_an_architecture_travels_to_other_processes():
    arch = Architecture("s", {"a": 1, "b": "x"}, SHAPE, 2)
    assert pickle.loads(pickle.dumps(arch)) == arch


def test_a_saved_file_is_the_canonical_text(tmp_path: Path):
    arch = Architecture("s", {"a": 1}, SHAPE, 2)
    arch.save(tmp_path / "arch.json")
    assert (tmp_path / "arch.json").read_text() == arch.canonical + "\n"
    assert Architecture.load(tmp_path / "arch.json") == arch


@pytest.mark.parametrize("value", [math.nan, math.inf, [1], {"a": 1}, b"x", 1j])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(BadArchitecture, match="parameter 'a'"):
        Architecture("s", {"a": value}, SHAPE, 2)


@pytest.mark.parametrize(
    "shape", [(3, 64, 64), (2, 3, 64, 64), (1, 1, 8, 8), (1, 3, 0, 8), (1, 3, 9000, 8), "x", None]
)
def test_a_shape_that_no_image_has_is_refused(shape):
    with pytest.raises(BadArchitecture):
        Architecture("s", {}, shape, 2)


@pytest.mark.parametrize("classes", [0, 1, -3, 2.5, True, "two", 70_000])
def test_a_number_of_classes_that_cannot_be_is_refused(classes):
    with pytest.raises(BadArchitecture, match="classes"):
        Architecture("s", {}, SHAPE, classes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        ("[]", "no JSON object"),
        ('{"space":"s"}', "'classes' is missing"),
        (json.dumps({"spaec": 1}), "'spaec' is unknown"),
        ('{"classes":2,"params":[],"shape":[1,3,8,8],"space":"s"}', "params are no JSON object"),
        ('{"classes":2,"params":{"a":NaN},"shape":[1,3,8,8],"space":"s"}', "parameter 'a'"),
    ],
)
def test_a_bad_file_is_named_with_the_reason(tmp_path: Path, text: str, said: str):
    file = tmp_path / "arch.json"
    file.write_text(text)
    with pytest.raises(BadArchitecture, match=said) as caught:
        Architecture.load(file)
    assert str(file) in str(caught.value)


def test_a_missing_or_foreign_file_is_one_sentence(tmp_path: Path):
    with pytest.raises(LocalFileError, match="No such file"):
        Architecture.load(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadArchitecture, match="no JSON"):
        Architecture.load(tmp_path / "bytes.json")
