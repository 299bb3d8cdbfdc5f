"""Whatever the folders, a pull makes the target what the source was."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeloop.node.datasets import Datasets
from edgeloop.testing import memory_blobs
from tests.data.trees import NAME, tree, write

part = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="/\x00"), min_size=1, max_size=8
).filter(lambda name: name not in (".", "..") and not name.endswith(".edgeloop-part"))
path = st.lists(part, min_size=1, max_size=3).map("/".join)
content = st.one_of(
    st.binary(max_size=20),
    st.integers(1, 255).map(lambda byte: bytes([byte]) * 2_100_000),
)


def is_tree(files: dict[str, bytes]) -> bool:
    return not any(a != b and b.startswith(f"{a}/") for a in files for b in files)


trees = st.dictionaries(path, content, min_size=1, max_size=8).filter(is_tree)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(trees, min_size=1, max_size=4))
def test_every_version_of_any_tree_comes_back(states: list[dict[str, bytes]]):
    check_versions(states)


@pytest.mark.soak
@settings(max_examples=150, deadline=None)
@given(st.lists(trees, min_size=1, max_size=4))
def test_every_version_of_many_more_trees_comes_back(states: list[dict[str, bytes]]):
    check_versions(states)


def check_versions(states: list[dict[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        datasets = Datasets(memory_blobs(), top / "index")
        wanted: dict[int, dict[str, bytes]] = {}
        for state in states:
            shutil.rmtree(top / "source", ignore_errors=True)
            write(top / "source", state)
            wanted[datasets.push(NAME, top / "source").reference.version] = state
        assert wanted[max(wanted)] == states[-1]
        for version, state in wanted.items():
            shutil.rmtree(top / "fresh", ignore_errors=True)
            datasets.pull(f"faces@{version}", top / "fresh")
            assert tree(top / "fresh") == state
            assert datasets.verify(f"faces@{version}", top / "fresh").is_right
