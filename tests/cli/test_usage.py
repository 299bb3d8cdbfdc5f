"""devices usage: one line per machine, device and day, for people and programs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop.models.catalog import read_csv
from edgeloop.runner.presence import record_use
from tests.cli.conftest import Edgeloop

BEGAN = datetime(2026, 11, 15, 6, tzinfo=UTC)
USES = [
    ("", "host", 7_200.0, 1),
    ("bench-1", "adb:8c2f11d0", 3_600.0, 1),
    ("quant-1", "host", 3_600.0, 1),
    ("quant-2", "host", 3_600.0, 1),
]


@pytest.fixture
def used(project: Path) -> Path:
    """Two quantizers, a board, and a row of a version that did not name the machine."""
    with Workspace.open() as workspace:
        usage, hour = workspace.store.usage(), timedelta(hours=1)
        for device, owner in (
            ("host", "quant-2:runner"),
            ("host", "quant-1:runner"),
            ("adb:8c2f11d0", "bench-1/adb:8c2f11d0"),
        ):
            record_use(usage, device, BEGAN, BEGAN + hour, owner=owner, model="m", stage="f1_1k")
        record_use(usage, "host", BEGAN, BEGAN + 2 * hour)
    return project


def test_each_machine_has_a_line_for_each_device(used: Path, edgeloop: Edgeloop) -> None:
    heading, *lines = [line.split() for line in edgeloop("devices", "usage").out.splitlines()]
    assert heading == ["machine", "device", "day", "uses", "seconds", "of", "the", "day"]
    assert lines == [
        [*filter(None, (machine, device)), "2026-11-15", str(uses), f"{seconds:.0f}", share, "%"]
        for (machine, device, seconds, uses), share in zip(
            USES, ("8.3", "4.2", "4.2", "4.2"), strict=True
        )
    ]


def test_programs_get_the_same_as_json_and_csv(used: Path, edgeloop: Edgeloop) -> None:
    expected = [
        {"machine": machine, "device": device, "day": "2026-11-15", "seconds": s, "uses": uses}
        for machine, device, s, uses in USES
    ]
    assert edgeloop("devices", "usage", "--json").json == expected
    assert edgeloop("devices", "usage", "--csv", "usage.csv").out == ""
    assert read_csv(used / "usage.csv") == [
        {name: value for name, value in row.items() if value != ""} for row in expected
    ]
    assert edgeloop("devices", "usage", "--csv", "-").out.splitlines()[:2] == [
        "machine,device,day,seconds,uses",
        ",host,2026-11-15,7200.0,1",
    ]
    assert edgeloop("devices", "usage", "--csv", "-", "--json").code == 2


def test_without_any_use_a_csv_has_its_heading_and_people_are_told_what_to_do(
    project: Path, edgeloop: Edgeloop
) -> None:
    with Workspace.open() as workspace:
        workspace.store.models("default").insert("m", {"status": "new"})
    said = edgeloop("devices", "usage", "--csv", "-")
    assert said.out == "machine,device,day,seconds,uses\n"
    assert "edgeloop runner" in said.err
