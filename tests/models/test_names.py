"""Which names are allowed, and what friendly ones look like."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgeloop.errors import BadName
from edgeloop.models.columns import (
    attention_rank,
    check_experiment_name,
    check_model_name,
    is_pattern,
    matches,
    natural_key,
)
from edgeloop.models.files import check_file_name
from edgeloop.models.upload import friendly_names, friendly_words
from edgeloop.store.azure import experiment_name, table_name

BAD_NAMES = [
    "",
    "../x",
    "..",
    ".",
    "a/b",
    "a\\b",
    "/etc",
    "-x",
    ".x",
    "_x",
    "a b",
    "a\nb",
    "a\x00b",
    "a\x1b[31m",
    "a\x7f",
    "a" * 300,
    "größe",
    "模型",
    "a\u202eb",
    "a*",
    "a?",
    "a[1]",
    "a#b",
    "a%2fb",
    "a|b",
    "x\n",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_not_plain_is_refused_in_one_line(name: str):
    with pytest.raises(BadName) as caught:
        check_model_name(name)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


@pytest.mark.parametrize("name", [*BAD_NAMES, "a.b", "ab", "usage", "Tables", "edgeloopqueue"])
def test_an_experiment_name_that_is_not_plain_is_refused_in_one_line(name: str):
    with pytest.raises(BadName) as caught:
        check_experiment_name(name)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["a", "calm-heron", "id_4f.2", "7b", "A" * 100])
def test_plain_names_are_allowed(name: str):
    assert check_model_name(name) == name


@pytest.mark.parametrize("name", ["default", "faces-2", "id_4f", "2024-run_1", "A" * 40])
def test_plain_experiment_names_are_allowed(name: str):
    assert check_experiment_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb", "é" * 130, "a\udcff"])
def test_a_file_name_that_could_be_a_path_or_hide_something_is_refused(name: str):
    with pytest.raises(BadName):
        check_file_name(name)


def test_a_file_keeps_spaces_and_letters_of_any_language():
    assert check_file_name("mein Größen-Modell (2).onnx") == "mein Größen-Modell (2).onnx"


def test_friendly_names_are_an_adjective_and_an_animal():
    first = next(friendly_names(random.Random(3)))
    adjective, animal = first.split("-")
    adjectives, animals = friendly_words()
    assert adjective in adjectives and animal in animals


def test_friendly_names_are_allowed_and_can_be_said_aloud():
    for name in friendly_names(random.Random(4)):
        assert check_model_name(name) == name
        assert re.fullmatch(r"[a-z]{2,12}-[a-z]{2,12}(-\d+)?", name), name
    adjectives, animals = friendly_words()
    for word in (*adjectives, *animals):
        assert re.search("[aeiouy]", word) and not re.search("[^aeiouy]{5}", word), word


def test_no_word_is_listed_twice():
    for words in friendly_words():
        assert len(set(words)) == len(words) > 100


def test_friendly_names_hardly_ever_repeat():
    names = list(friendly_names(random.Random(5)))
    assert len(names) == 1_000 and len(set(names)) > 980


def test_globs_are_those_of_a_shell_and_know_upper_from_lower_case():
    assert matches("brave-otter", "brave-*") and not matches("brave-otter", "Brave-*")
    assert matches("net1", "net[0-3]") and not matches("net4", "net[0-3]")
    assert is_pattern("a*") and is_pattern("a?") and is_pattern("[a]") and not is_pattern("a-b")


EXPERIMENTS = some.one_of(
    some.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{2,12}", fullmatch=True),
    some.lists(
        some.sampled_from(["Zx", "Z", "x", "2D", "5F", "5A", "30", "-", "_", "7", "a"]),
        min_size=3,
        max_size=9,
    )
    .map("".join)
    .filter(lambda name: name[0] not in "-_"),
)


@pytest.mark.slow
@given(EXPERIMENTS)
def test_an_experiment_is_found_again_behind_its_table_on_azure(name: str):
    table = table_name(name)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9]{2,62}", table)
    assert experiment_name(table) == name


@given(some.from_regex(r"[A-Za-z][A-Za-z0-9]{2,12}", fullmatch=True))
def test_a_table_that_others_named_keeps_its_name(name: str):
    assert table_name(experiment_name(name)) == name


@pytest.mark.parametrize("name", ["Zxabc", "aZxba", "faceZx", "aZx5A", "aZx35b"])
def test_a_table_that_only_looks_like_ours_keeps_its_name(name: str):
    assert experiment_name(name) == name and table_name(name) == name


def test_experiments_with_different_names_have_different_tables():
    names = ["a-b", "a_b", "aZx2Db", "aZx5Fb", "1ab", "Zx31ab", "aZx5Ax2Db", "ab1"]
    assert len({table_name(name) for name in names}) == len(names)


def test_a_name_that_outgrows_azures_tables_is_refused():
    with pytest.raises(BadName, match="no room"):
        table_name("a" + "-" * 30)


def test_names_sort_as_people_count() -> None:
    names = ["net-10", "Net-2", "net-02b", "net", "a1b10", "a1b9", "9" * 5000, "10", "net-2"]
    assert sorted(names, key=natural_key)[-6:] == [
        *("a1b10", "net", "Net-2", "net-2", "net-02b", "net-10"),
    ]
    assert sorted(["x\u0664", "x3"], key=natural_key)  # digits of other scripts are letters here


def test_what_runs_or_failed_comes_before_the_rest() -> None:
    states = ["complete", "error", "new", "running f1_1k", ""]
    assert sorted(states, key=attention_rank) == [
        *("running f1_1k", "error", "complete", "new", ""),
    ]
