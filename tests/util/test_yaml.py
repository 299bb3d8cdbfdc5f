"""One reader for every file: lines, keys that are there twice, and limits that hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgeloop._util.yaml import MAX_BYTES, NotYaml, parse_yaml, read_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{here}: &{here} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, here in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_values_come_with_the_line_of_their_key():
    found = parse_yaml("# first\na: 1\nb:\n  c: [x,\n    y]\n")
    assert found.value == {"a": 1, "b": {"c": ["x", "y"]}}
    assert found.lines == {
        **{("a",): 2, ("b",): 3, ("b", "c"): 4, ("b", "c", 0): 4, ("b", "c", 1): 5},
    }


def test_scalars_stay_texts_where_that_is_asked_for():
    text = "a: 1e-3\nb: yes\nc: 010\nd: ~\ne:\nf: '7'"
    assert parse_yaml(text, texts=True).value == {
        **{"a": "1e-3", "b": "yes", "c": "010", "d": "~", "e": "", "f": "7"},
    }
    assert parse_yaml("").value is None


def test_anchors_and_merges_are_expanded():
    text = "base: &base {a: 1, b: 2}\nuse: {<<: *base, b: 3}\nlist: [*base]"
    found = parse_yaml(text).value
    assert found == {"base": {"a": 1, "b": 2}, "use": {"a": 1, "b": 3}, "list": [{"a": 1, "b": 2}]}


@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("a: 1\nb: [", "cannot be read as YAML", 2),
        ("a: 1\nb: 2\na: 3", "the key 'a' is there twice", 3),
        ("a:\n  b: 1\n  b: 2", "the key 'a.b' is there twice", 3),
        ("[" * 60 + "]" * 60, "is nested more than 50 levels deep", 1),
        ("[" * 200_000, "is nested more than 50 levels deep", 1),
        ("a: &a [*a]", "is nested more than 50 levels deep", 1),
        ("a: &a {b: *a}", "is nested more than 50 levels deep", 1),
        ("a: &a {<<: *a}", "is nested more than 50 levels deep", 1),
        (BOMB, "expands to more than 100,000 values", 1),
        ("? [a, b]\n: 1", "has a key that is a list or a mapping", 1),
        ("a: {<<: 3}", "'<<' must name a mapping", 1),
        ("a: 1\n---\nb: 2", "cannot be read as YAML", 2),
        ("a: *b", "cannot be read as YAML", 1),
    ],
)
def test_what_cannot_be_used_is_said_with_its_line(text: str, said: str, line: int, texts: bool):
    with pytest.raises(NotYaml, match=said) as caught:
        parse_yaml(text, texts)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 2024-99-99", "has a date or time that does not exist"),
        ("a: " + "9" * 5_000, "has a number that is too large"),
        ("a: " + "9" * 400, "has a number that is too large"),
        ("a: 0x" + "f" * 5_000, "has a number that is too large"),
        ("a: !!python/object/apply:os.system [ls]", "has a tag that is not allowed"),
        ("a: !!python/name:os.system x", "cannot be read as YAML"),
        ("a: !!timestamp x", "has a date or time that does not exist"),
        ("a: !!bool maybe", "has a value that cannot be read"),
        ("a: !!int ''", "has a value that is no number: quote it"),
        ('a: !!int "zz"', "has a value that is no number"),
        ("a: !!float x", "has a value that is no number"),
        ("a: !!set {b}", "has a tag that is not allowed"),
        ("? !!set ''", "has a tag that is not allowed"),
        *(
            (f"a: !!{kind} x", "has a tag that is not allowed")
            for kind in ("map", "omap", "pairs", "seq", "set")
        ),
        ("a: \0", "cannot be read as YAML"),
    ],
)
def test_values_that_yaml_knows_and_we_do_not_are_refused(text: str, said: str):
    with pytest.raises(NotYaml, match=said):
        parse_yaml(text)


WORDS = st.sampled_from(
    [
        *"abc[]{}:,&*!?|>%@#'\"-",
        "\n",
        "\n  ",
        ": ",
        "- ",
        "&x ",
        "*x",
        "<<: ",
        "!!int ",
        "!!set ",
        "~",
        "9",
    ]
)


@example("? !!set ''", False)
@given(st.lists(WORDS, max_size=30).map("".join) | st.text(max_size=60), st.booleans())
def test_any_text_is_plain_data_or_refused(text: str, texts: bool):
    try:
        parse_yaml(text, texts)
    except NotYaml as problem:
        assert "\n" not in str(problem)


def test_files_that_are_missing_too_large_or_no_text_are_refused(tmp_path: Path):
    (tmp_path / "large.yaml").write_text("a: " + "x" * MAX_BYTES)
    (tmp_path / "image.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "image-large.yaml").write_bytes(b"\xff" * (MAX_BYTES + 9))
    for name, said in (
        ("large.yaml", "is larger than 1 MB"),
        ("image-large.yaml", "is larger than 1 MB"),
        ("image.yaml", "cannot be read: "),
        ("none.yaml", "there is no such file"),
        (".", "cannot be read: Is a directory"),
    ):
        with pytest.raises(NotYaml, match=said):
            read_yaml(tmp_path / name)


def test_numbers_with_colons_are_texts_and_not_minutes_of_hours():
    found = parse_yaml("bounds: 2:16\nlong: 1:20:30.5\nplain: 16\n").value
    assert found == {"bounds": "2:16", "long": "1:20:30.5", "plain": 16}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [1\nb: 2\n", "is not closed"),
        ("a: 'b\n", "a quotation mark is not closed"),
        ("a: 1\n\tb: 2\n", "a tab; indent with spaces"),
        ("a: b: c\n", "needs quotes"),
        ("a: *x\n", "needs quotes"),
        ("a: @x\n", "needs quotes"),
        ("- a\nb: 1\n", "must all begin with '-'"),
    ],
)
def test_what_is_no_yaml_says_why_and_quotes_nothing(text: str, why: str):
    with pytest.raises(NotYaml) as raised:
        parse_yaml(text)
    assert why in str(raised.value) and "secret" not in str(raised.value)
    with pytest.raises(NotYaml) as raised:
        parse_yaml(f"password: secret\n{text}")
    assert "secret" not in str(raised.value)
