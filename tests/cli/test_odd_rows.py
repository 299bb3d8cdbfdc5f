"""Every command on a table with rows that another tool wrote: it answers, and says no `fault`."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.store import open_store, parse_location
from tests.cli.conftest import Edgeloop
from tests.models.test_odd_rows import ODD_CELLS, ODD_RECORDS


@pytest.fixture
def odd_table(project: Path) -> None:
    store = open_store(parse_location(f"sqlite:{project / '.edgeloop'}"))
    (project / ".edgeloop" / "blobs").mkdir(parents=True)  # else it is not mounted
    models = store.models("default")
    sound = {"status": "new", "model_date": "2026-01-01"}
    models.insert("sound", {"name": "sound", **sound})
    for number, stages in enumerate(ODD_RECORDS.values()):
        models.insert(f"record-{number}", {"name": f"record-{number}", **sound, "stages": stages})
    for column, value in ODD_CELLS.items():
        models.insert(f"cell-{column}", {"name": f"cell-{column}", **sound, column: value})
    models.insert("nothing", {})
    store.close()


@pytest.mark.slow
def test_every_command_reads_a_table_with_odd_rows(
    edgeloop: Edgeloop, project: Path, odd_table: None
) -> None:
    for line in (
        "status",
        "status --json",
        "status --stage convert",
        "status --csv rows.csv",
        "download --list",
        "experiment list",
        "queue",
        "devices",
        "status --unsteady",
        "devices usage",
        "report --output report.html",
        "gc --dry-run",
        "gc --yes",
        "unlock --node nobody",
        "priority sound 5",
        "reset sound -y",
        "delete record-1 -y",
        "fleet status",
    ):
        said = edgeloop(*line.split())
        assert said.code == 0, (line, said)
        assert "Traceback" not in said.err and "unexpected" not in said.err, (line, said)


@pytest.mark.parametrize("value", ["-1", "100000000", "9" * 5_000, "1.5", "true", "x", "1e3"])
def test_priorities_out_of_bounds_are_refused_the_same_way(
    edgeloop: Edgeloop, odd_table: None, value: str
) -> None:
    said = edgeloop("priority", "--", "sound", value)
    assert said.code == 2
    assert "a whole number from 0 to 99999999, or 'auto', not" in said.err
