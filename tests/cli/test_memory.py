"""Commands that read a whole table take no more memory for what they do not show."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.memory import COMMANDS, MOST_MB, PORTAL, ROW_BYTES, ROWS, fill, measured, of_portal
from edgeloop.store import SqliteLocation, open_store


@pytest.mark.slow
@pytest.mark.parametrize("are_complete", [True, False], ids=["complete", "new"])
def test_memory_grows_by_a_fraction_of_the_rows(are_complete: bool, tmp_path: Path):
    few, many = tmp_path / "few", tmp_path / "many"
    _filled(few, 1_000, are_complete)
    _filled(many, 11_000, are_complete)
    for command in COMMANDS:
        grown_mb = measured(command, many).peak_mb - measured(command, few).peak_mb
        assert grown_mb < 0.3 * 10_000 * ROW_BYTES / 1e6, (command, grown_mb)


@pytest.mark.slow
@pytest.mark.parametrize("are_complete", [True, False], ids=["complete", "new"])
def test_the_portal_keeps_a_row_in_a_fifth_of_its_bytes(are_complete: bool, tmp_path: Path):
    few, many = tmp_path / "few", tmp_path / "many"
    _filled(few, 1_000, are_complete)
    _filled(many, 11_000, are_complete)
    grown_mb = of_portal(many, 11_000).peak_mb - of_portal(few, 1_000).peak_mb
    assert grown_mb < 0.2 * 10_000 * ROW_BYTES / 1e6


@pytest.mark.soak
@pytest.mark.parametrize("are_complete", [True, False], ids=["complete", "new"])
def test_a_table_of_800_mb_is_read_in_200_mb(are_complete: bool, tmp_path: Path):
    _filled(tmp_path, ROWS, are_complete)
    peaks_mb = {command: measured(command, tmp_path).peak_mb for command in COMMANDS}
    peaks_mb[PORTAL] = of_portal(tmp_path).peak_mb
    assert max(peaks_mb.values()) < MOST_MB, peaks_mb


def _filled(folder: Path, count: int, are_complete: bool) -> None:
    store = open_store(SqliteLocation(folder / ".edgeloop"))
    fill(store, count, are_complete)
    store.close()
