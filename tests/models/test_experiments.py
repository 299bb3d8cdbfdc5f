"""Settings of an experiment: on every store, by compare-and-set, and read defensively."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgeloop.errors import BadInput, BadName
from edgeloop.models.catalog import (
    ExperimentSettings,
    change_settings,
    parse_target,
    read_settings,
)
from edgeloop.store import Store
from edgeloop.testing import MemoryStore
from tests.conftest import StoreUnderTest


def test_settings_are_read_as_they_were_written_on_every_store(store: Store) -> None:
    assert read_settings(store, "faces") == ExperimentSettings()
    targets = ("snpe:qcs8550", "qnn:qcs6490", "snpe:qcs8550")
    change_settings(store, "faces", {"dataset": "working/faces@3", "targets": targets})
    change_settings(store, "faces", {"primary": "htp:qcs8550", "task": "segmentation"})
    whole = ExperimentSettings("working/faces@3", "segmentation", "htp:qcs8550", targets[:2])
    assert read_settings(store, "faces") == whole
    after = change_settings(store, "faces", {"dataset": "", "targets": ()})
    assert after == read_settings(store, "faces")
    assert after == ExperimentSettings(task="segmentation", primary="htp:qcs8550")
    assert read_settings(store, "hands") == ExperimentSettings()
    assert store.experiments() == []


def test_two_people_who_set_different_keys_at_once_both_succeed(
    place: StoreUnderTest, make_store: Callable[[StoreUnderTest], Store]
) -> None:
    changes: list[dict[str, str]] = [{"task": "depth"}, {"primary": "host"}, {"dataset": "random"}]
    stores = [make_store(place) for _ in changes]
    with ThreadPoolExecutor(len(changes)) as pool:
        list(pool.map(lambda pair: change_settings(pair[0], "faces", pair[1]),
                      zip(stores, changes, strict=True)))  # fmt: skip
    assert read_settings(stores[0], "faces") == ExperimentSettings("random", "depth", "host")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("dataset", "faces@latest", "a dataset of the store"),
        ("primary", "a b", "a device or a chip"),
        ("targets", ("snpe:",), "TOOLCHAIN:CHIP"),
        ("targets", ("SNPE qcs8550",), "TOOLCHAIN:CHIP"),
        ("targets", tuple(f"snpe:chip-{n}" for n in range(51)), "50 targets"),
        ("colour", "red", "dataset, task, primary, targets"),
    ],
)
def test_a_value_that_no_runner_could_read_is_refused(
    key: str, value: str | tuple[str, ...], words: str
) -> None:
    store = MemoryStore()
    with pytest.raises(BadInput, match=words):
        change_settings(store, "faces", {key: value})
    assert read_settings(store, "faces") == ExperimentSettings()


def test_what_another_tool_wrote_there_counts_as_not_set() -> None:
    store = MemoryStore()
    odd = {"dataset": 7, "primary": "x y", "targets": "snpe:; rm -rf", "task": "depth", "new": 1}
    store.experiment_settings().insert("faces", odd)
    assert read_settings(store, "faces") == ExperimentSettings(dataset="7", task="depth")


def test_names_that_edgeloop_keeps_for_itself_have_no_settings() -> None:
    with pytest.raises(BadName):
        change_settings(MemoryStore(), "edgeloop-experiments", {"task": "depth"})


def test_a_target_may_leave_its_chip_open() -> None:
    assert parse_target("snpe:qcs8550") == ("snpe", "qcs8550")
    assert parse_target("qnn") == ("qnn", "")
