"""Every listing in a real terminal: 80 columns hold it, 140 are used, and a pipe gets all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgeloop import Workspace
from edgeloop.cli.terminal import Screen, TableColumn, fit, shortened
from edgeloop.jobs.records import RunRecords
from edgeloop.models.runners import RunnerDevice, RunnerEntry, columns_of
from edgeloop.node.datasets import Datasets
from edgeloop.operate.fleet.records import ExperimentShare, Fleets, FleetSpec
from edgeloop.store import Value
from tests.cli.running import run_command
from tests.cli.terminals import Terminal
from tests.jobs.runs import record
from tests.search.seen import write_seen

LONG = "a-name-that-somebody-made-longer-than-any-column-could-be-in-a-terminal"
WIDE = "模型" * 30
SENTENCE = re.compile(r"More runners|1 dead runner|Others take|\S+: its supervisor")
CHIP = "htp:" + "a-chip-with-quite-a-long-name-" * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with many rows of everything, and names that nobody has room for."""
    folder = tmp_path_factory.mktemp("listings")
    with Workspace.open(f"sqlite:{folder / '.edgeloop'}") as workspace:
        store = workspace.store
        converted: dict[str, Value]
        converted = {"quantized": True, "macs": 1, "params": 1, "shape": "[1]"}
        converted |= {"output_shape": "[1]", "toolchain": "qnn", "device": CHIP}
        rows: dict[str, dict[str, Value]]
        rows = {f"net-{i}": {"status": "new", "stdev": 10.0 + i} for i in range(60)}
        rows[LONG] = {"status": "waiting", **converted}
        rows[WIDE] = {"status": "complete", "stdev": 7.5}
        store.models("default").insert_many(rows.items())
        for name in ("net-1", LONG):
            store.blobs.put(f"default/{name}/{LONG}.onnx", b"x" * 1_500)
        store.models("an-experiment-with-a-rather-long-name").insert("x", {"status": "new"})
        for number, device in enumerate((CHIP, WIDE, "host")):
            span = {"start": "2026-11-01T10:00:00", "end": "2026-11-01T22:00:00"}
            owner = {"owner": f"{LONG}/{device}"} if device != "host" else {}
            store.usage().insert(str(number), {"name": device, **span, **owner})
        fleets = Fleets(store)
        for name in ("night", "a-fleet-with-a-long-name"):
            spec = FleetSpec(
                name=name,
                compute="a-cluster-with-a-long-name",
                experiments={"default": ExperimentShare()},
            )
            fleets.declare(spec, "local", "here")
        entry = RunnerEntry("lab|1", LONG, "default", devices=(RunnerDevice("", can=("onnx",)),))
        store.runners().insert(entry.id, {**columns_of(entry), "beat": store.now() - 700})
        (folder / "some").mkdir()
        (folder / "some/1.txt").write_text("1")
        for name in ("working/faces", f"working/{LONG[:50]}"):
            Datasets(store.blobs, node=LONG).push(name, folder / "some", message=WIDE)
    runs = RunRecords(folder / "runs")
    for name in ("first", LONG[:60]):
        runs.add(name, record)
    for name in ("few", LONG):
        write_seen(folder / "searches" / name, 3)
    return folder


LISTINGS = {
    "devices": "devices",
    "queue": "",
    "fleet status": "2 fleets: 2 unsupervised",
    "job list": "2 jobs: 2 queued",
    "experiment list": "2 experiments: 63 models",
    "search list": "2 searches: 6 candidates",
    "devices usage": "3 devices, 1 day: 129600 s in use",
    "data list": "2 datasets: 2 files, 2 B",
    "status --unsteady": "61 models",
    "download --list": "2 files of 2 models, 3.0 kB",
}


@pytest.mark.parametrize("words", LISTINGS)
def test_a_listing_fits_80_columns_uses_140_and_ends_with_its_totals(
    folder: Path, words: str
) -> None:
    found = {}
    for columns in (80, 140):
        said = Terminal.output(words.split(), folder, columns, EDGELOOP_STATE=str(folder / "s"))
        lines = [re.sub(r"\x1b\[\d+m", "", line) for line in said.splitlines()]
        table = [line for line in lines if not SENTENCE.match(line)]
        too_wide = [line for line in table if _width(line) > columns]
        assert too_wide == []
        assert LISTINGS[words] in said
        found[columns] = table
    narrow, wide = (max(map(_width, lines)) for lines in found.values())
    assert narrow <= 80 and (wide > 80 or not any("…" in line for line in found[80]))
    piped = run_command(words.split(), folder, {"COLUMNS": "40"}).out
    assert "\x1b" not in piped and "Not shown" not in piped
    assert LISTINGS[words] == "devices" or not LISTINGS[words] or LISTINGS[words] not in piped


def _width(line: str) -> int:
    """As a terminal counts: `shortened` leaves a line alone that fits."""
    return next(width for width in range(1_000) if shortened(line, width) == line)


def test_states_have_colours_in_a_terminal(folder: Path) -> None:
    assert "\x1b[32mready" in Terminal.output(["devices"], folder, 140)
    assert "\x1b[31munsupervised" in Terminal.output(["fleet", "status"], folder, 80)
    assert "\x1b" not in Terminal.output(["devices"], folder, 80, NO_COLOR="1")


def test_advice_continues_on_the_next_line_instead_of_ending_with_dots(folder: Path) -> None:
    said = Terminal.output(["doctor"], folder, 80, INPUT_DATASET="", NO_COLOR="1")
    lines = said.splitlines()
    assert max(map(_width, lines)) <= 80 and "…" not in said
    assert "set INPUT_DATASET, or make one: edgeloop data faces faces/" in " ".join(said.split())


@pytest.mark.parametrize("width", [16, 30, 60])
def test_a_column_that_wraps_loses_nothing(width: int) -> None:
    columns = (TableColumn("what", 100), TableColumn("why", 90, 4, wraps=True))
    text = f"it is at /{'x' * 30} and 模型模型模型模型 is wide"
    table = fit(columns, [("disk", text), ("cpu", "")], Screen(width))
    lines = "\n".join(table.lines).splitlines()
    assert max(map(_width, lines)) <= width
    kept = "".join(line[6:] for line in lines[:-1])
    assert kept.replace(" ", "") == text.replace(" ", "") and lines[-1] == "cpu"
