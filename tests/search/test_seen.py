"""A search as people see it: read from its folder, importance, charts, and `search show`."""

from __future__ import annotations

import csv
import json
import math
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edgeloop.errors import BadInput
from edgeloop.models.columns import search_measure
from edgeloop.search.config import Objective
from edgeloop.search.results import SeenCandidate, SeenFront, importances, read_search
from edgeloop.view.charts import parallel_chart, search_charts
from edgeloop.view.drawing import to_page_part
from tests.cli.conftest import Edgeloop, edgeloop, project  # noqa: F401 - fixtures
from tests.search.seen import CHIPS, write_seen


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Searches that ended with few results, with many, for six chips; and one that runs."""
    folder = tmp_path_factory.mktemp("searches")
    write_seen(folder / "few", 3)
    write_seen(folder / "many", 40)
    write_seen(folder / "chips", 30, chips=6)
    write_seen(folder / "farm", 20, chips=9)
    write_seen(folder / "running", 25, is_running=True)
    write_seen(folder / "warm", 20, taken=3)
    (folder / "warm/utilisation.json").write_text('{"trainers": 0.97, "gpu": 0.912}')
    return folder


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_a_search_is_read_as_it_was_written(folders: Path):
    seen = read_search(folders / "many")
    table = rows(folders / "many/candidates.csv")
    assert [item.arch_id for item in seen.candidates] == [row["arch_id"] for row in table]
    assert seen.counts == {"complete": 32, "failed": 4, "stopped": 4} and seen.budget == 300
    front = [row["arch_id"] for row in rows(folders / "many/front.csv")]
    assert [item.arch_id for item in seen.front] == front and len(front) > 3
    assert seen.candidates[0].parameters == json.loads(table[0]["parameters"])
    assert {item.trained for item in seen.candidates} == {9.0, 3.0, None}
    assert seen.hypervolume == float(rows(folders / "many/hypervolume.csv")[-1]["hypervolume"])
    assert seen.reference is not None and seen.reference.results == 10


def test_a_search_that_runs_is_read_up_to_its_last_complete_line(folders: Path):
    seen = read_search(folders / "running")
    assert len(seen.candidates) == 25 and seen.hypervolume is not None and seen.front
    assert not (folders / "running/front.csv").exists()


def test_with_several_chips_every_front_is_known(folders: Path):
    seen = read_search(folders / "chips")
    assert tuple(front.name for front in seen.fronts) == CHIPS
    table = {row["arch_id"]: row["fronts"].split() for row in rows(folders / "chips/front.csv")}
    assert {item.arch_id: list(item.fronts) for item in seen.front} == table
    last = rows(folders / "chips/hypervolume.csv")[-1]
    each = [float(last[f"hypervolume@{chip}"]) for chip in CHIPS]
    assert [front.hypervolume for front in seen.fronts] == each
    assert seen.hypervolume == pytest.approx(sum(each) / 6, abs=2e-6)


def test_a_folder_with_anything_in_it_is_read_or_said_to_be_damaged(tmp_path: Path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_search(tmp_path)
    (tmp_path / "search.yaml").write_text("objectives: [1, 2]\n")
    (tmp_path / "candidates.csv").write_bytes(b"number,arch_id\xff,state\n,,\n1,id_a,complete\n")
    (tmp_path / "curves.csv").write_text("arch_id,epoch\nid_a,x\n,1\n")
    (tmp_path / "hypervolume.csv").write_text("candidates,hypervolume\n1,\n2,nan\nx,0.5\n")
    seen = read_search(tmp_path)
    assert seen.front == () and seen.hypervolume is None and seen.objectives == ()
    (tmp_path / "search.yaml").write_text("a: {b\n")
    with pytest.raises(BadInput, match=r"search\.yaml"):
        read_search(tmp_path)


@pytest.mark.parametrize("written", ["budget: ${BUDGET}", "nonsense: 1", "iteration: ${N}"])
def test_the_fronts_of_a_search_are_known_where_its_variables_are_not_set(
    folders: Path, tmp_path: Path, written: str
):
    shutil.copytree(folders / "chips", tmp_path / "chips")
    file = tmp_path / "chips/search.yaml"
    file.write_text(file.read_text().replace("budget: 300", written))
    seen, whole = read_search(tmp_path / "chips"), read_search(folders / "chips")
    assert [(f.name, f.candidates, f.hypervolume) for f in seen.fronts] == [
        (f.name, f.candidates, f.hypervolume) for f in whole.fronts
    ]
    assert seen.objectives == whole.objectives or "nonsense" in written
    assert seen.budget is None


def test_a_large_file_of_learning_curves_is_left_out(folders: Path, monkeypatch):
    assert read_search(folders / "many").learning
    most = (folders / "many/curves.csv").stat().st_size - 1
    assert most > (folders / "many/candidates.csv").stat().st_size
    monkeypatch.setattr("edgeloop.search.results.LARGEST_BYTES", most)
    seen = read_search(folders / "many")
    assert not seen.learning and len(seen.candidates) == 40


def test_importance_is_of_complete_candidates_alone(folders: Path):
    seen = read_search(folders / "many")
    complete = [item for item in seen.candidates if item.state == "complete"]
    assert len(complete) == 32 and seen.counts["stopped"]
    values = {o.name: [item.values[o.name] for item in complete] for o in seen.objectives}
    assert seen.importances == importances([item.parameters for item in complete], values)


def test_a_parameter_is_as_important_as_what_it_explains():
    chance = random.Random(1)
    params, latency, score = [], [], []
    for number in range(200):
        width, kind = chance.choice([8, 16, 24]), chance.choice("ab")
        params.append({"width": width, "kind": kind, "noise": chance.random(), "same": 1})
        if kind == "a":
            params[-1]["depth"] = chance.randint(1, 9)  # only some have it
        latency.append(width + chance.random())
        depth = params[-1].get("depth", 5)
        score.append(math.nan if number % 9 == 0 else depth + 20 * (kind == "a"))
    found = {
        item.parameter: item.shares for item in importances(params, {"ms": latency, "s": score})
    }
    assert set(found) == {"width", "kind", "depth"}, "neither chance nor what never differs"
    assert found["width"].keys() == {"ms"} and found["width"]["ms"] > 0.85
    assert found["kind"].keys() == {"s"} and found["kind"]["s"] > 0.6
    assert 0.05 < found["depth"]["s"] < 0.3, "that others lack it counts for `kind`"
    assert importances(params[:7], {"ms": latency[:7]}) == ()
    assert importances([], {"ms": []}) == ()


def test_hypervolumes_stand_side_by_side_only_with_one_reference_point(
    folders: Path,
    project: Path,  # noqa: F811 - the fixture
    edgeloop: Edgeloop,  # noqa: F811 - the fixture
):
    for name in ("one", "two"):
        shutil.copytree(folders / "many", project / "searches" / name)
    heading, first, *_ = edgeloop("search", "list").out.splitlines()
    assert "hypervolume" in heading and f"{read_search(folders / 'many').hypervolume:.3f}" in first


def test_noise_in_many_parameters_is_no_importance():
    """As in a first search: 12 candidates and 73 parameters, of which some always fit by chance."""
    chance = random.Random(2)
    found = 0
    for _ in range(40):
        params = [{f"p{n}": chance.choice("abc") for n in range(73)} for _ in range(12)]
        found += bool(importances(params, {"ms": [chance.random() for _ in range(12)]}))
    assert found <= 6, "one in twenty, and its chance"


def test_lines_break_where_a_candidate_lacks_a_parameter(folders: Path):
    parameters = [{"depth": 1, "skip": 2}, {"depth": 2}, {"depth": 3, "skip": 1}]
    candidates = [
        SeenCandidate(number, 0, f"id_{number}", "complete", {"ms": 1.0 + number}, params)
        for number, params in enumerate(parameters)
    ]
    seen = replace(
        read_search(folders / "few"),
        objectives=(Objective("ms", "min"),),
        candidates=tuple(candidates),
        fronts=(SeenFront("", (Objective("ms", "min"),), tuple(candidates), None),),
    )
    spec = parallel_chart(seen).to_dict()
    lines = next(rows for rows in spec["datasets"].values() if "line" in rows[0])
    by_line: dict[str, list[int]] = {}
    for point in lines:
        by_line.setdefault(point["line"], []).append(point["axis"])
    assert by_line == {"0.0": [0, 1, 2], "1.0": [0], "1.1": [2], "2.0": [0, 1, 2]}
    assert "too few candidates" in str(spec["title"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["few", "many", "chips", "running"])
def test_all_charts_can_be_drawn(folders: Path, name: str):
    seen = read_search(folders / name)
    parts = [to_page_part(chart, f"c{n}-") for n, chart in enumerate(search_charts(seen, "rung"))]
    assert len(parts) == len(seen.fronts) + 4
    texts = [" ".join(ElementTree.fromstring(part).itertext()) for part in parts]
    for place, front in enumerate(seen.fronts):
        marks = re.findall(r"(id_[0-9a-f]+); ", texts[place])
        assert set(marks) == {
            item.arch_id for item in seen.candidates if "val_iou" in item.values
        }, "every candidate with a result, with what it is"
        assert len(front.candidates) > 0 and "base_channels" in texts[place]
    assert "reference point" in texts[len(seen.fronts)]


def test_the_chip_of_a_value_is_in_its_label():
    assert (
        search_measure("chip_latency_ms@htp:x-elite").title == "estimated latency on x-elite (ms)"
    )
    assert search_measure("val_iou").title == "mIoU after partial training"
    assert search_measure("something").title == "something"


def test_searches_are_listed_and_shown_in_80_columns(
    folders: Path,
    project: Path,  # noqa: F811 - the fixture
    edgeloop: Edgeloop,  # noqa: F811 - the fixture
):
    assert "No search was run" in edgeloop("search", "list").out
    (project / "searches").symlink_to(folders)
    listed = edgeloop("search", "list")
    assert [line.split()[0] for line in listed.out.splitlines()] == [
        *("search", "chips", "farm", "few", "many", "running", "warm", "(+N):", "Hypervolumes")
    ]
    *_, warm, note, apart = listed.out.splitlines()
    assert "reference points differ" in apart and "hypervolume" not in listed.out.splitlines()[0]
    assert "taken over" in note and warm.split()[1:4] == ["17/300", "13", "(+3)"]
    assert max(map(len, listed.out.splitlines())) <= 80
    for name in ("chips", "farm", "few", "many", "running", "warm"):
        said = edgeloop("search", "show", name).out
        assert max(map(len, said.splitlines())) <= 80, said
        seen = read_search(folders / name)
        assert f"→ {seen.hypervolume:.3f} (reference: " in said.replace("\n  ", " ")
        [found] = edgeloop("search", "show", name, "--json").json
        assert found["hypervolume"] == seen.hypervolume
        assert len(found["all"]) == found["candidates"] + found["taken_over"]
        assert found["reference"]["objectives"]["val_iou"]["best"] == 1.0
    said = edgeloop("search", "show", "warm").out
    assert "17 of 300 candidates" in said and "13 trained\n· 3 taken over" in said
    assert "The GPU was busy 91% of the time in training, the trainers 97% until" in said
    [found] = edgeloop("search", "show", "warm", "--json").json
    assert (found["candidates"], found["taken_over"], found["states"]["complete"]) == (17, 3, 13)
    assert found["utilisation"] == {"trainers": 0.97, "gpu": 0.912}
    said = edgeloop("search", "show", "chips").out
    assert "A htp:qcs8550: " in said and "F htp:888: " in said and "*" in said
    assert "3 stopped early · 3 failed" in said
    assert "on the front of" in edgeloop("search", "show", "farm").out
    assert edgeloop("search", "show", "none").code != 0
    damaged = project / "runs/job-1/outputs"
    damaged.mkdir(parents=True)
    (damaged / "search.yaml").write_text("a: {b\n")
    again = edgeloop("search", "list")
    assert again.code == 1 and "'job-1' cannot be read" in again.err and "many" in again.out
