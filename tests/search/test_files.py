"""What a search leaves in its folder."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from edgeloop.errors import BadSetting
from edgeloop.pareto import hypervolume
from edgeloop.search.config import SearchConfig, config_of
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.results import (
    LearningCurves,
    ReferencePoint,
    RunningTables,
    VolumeCurve,
    copy_atomic,
    front_of,
    read_curves,
    read_reference,
    reference_from,
    write_front,
    write_tables,
)
from edgeloop.search.study import Candidate, Progress


def config(iteration: int = 10, **goals: str) -> SearchConfig:
    goals = goals or {"params": "min", "val_iou": "max"}
    objectives = {name: {"goal": goal} for name, goal in goals.items()}
    search = {"iteration": iteration}
    return config_of({"search": search, "objectives": objectives, "data": "raw/x"}, "x.yaml")


def candidate(
    number: int, params: float, iou: float | None, state: Progress = "complete", reason: str = ""
) -> Candidate:
    arch = Architecture("toy.py:build", {"number": number}, (1, 3, 8, 8), 19)
    values: Mapping[str, float] = {"params": params} | ({} if iou is None else {"val_iou": iou})
    return Candidate(number, arch, {"number": number}, state, values, reason)


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def numbers(front: list[Candidate]) -> list[int]:
    return [item.number for item in front]


def test_the_front_is_what_no_other_beats_in_order_of_the_first_objective():
    found = [candidate(0, 9, 0.9), candidate(1, 5, 0.4), candidate(2, 6, 0.3), candidate(3, 1, 0.1)]
    assert numbers(front_of(config(), found)) == [3, 1, 0]


def test_goals_turn_the_front_round():
    found = [candidate(0, 9, 0.9), candidate(1, 5, 0.4), candidate(2, 6, 0.3), candidate(3, 1, 0.1)]
    assert numbers(front_of(config(params="max", val_iou="max"), found)) == [0]
    assert numbers(front_of(config(params="min", val_iou="min"), found)) == [3]
    assert numbers(front_of(config(params="max", val_iou="min"), found)) == [0, 2, 3]
    assert numbers(front_of(config(val_iou="max"), found)) == [0]


def test_of_equal_candidates_all_are_on_the_front():
    found = [candidate(0, 5, 0.5), candidate(1, 5, 0.5), candidate(2, 5, 0.4)]
    assert numbers(front_of(config(), found)) == [0, 1]


@pytest.mark.parametrize("state", ["failed", "screened", "running"])
def test_only_complete_candidates_are_ever_on_the_front(state: Progress):
    found = [candidate(0, 5, 0.5), candidate(1, 1, 0.9, state)]
    assert numbers(front_of(config(), found)) == [0]
    assert front_of(config(), found[1:]) == []


def curve_of(found: list[Candidate], settings: SearchConfig | None = None) -> VolumeCurve:
    curve = VolumeCurve(settings or config())
    for item in found:
        curve.add(item)
    return curve


def test_the_hypervolume_is_measured_from_a_point_that_never_moves():
    chance = random.Random(3)
    found = [candidate(n, chance.randint(1, 99), chance.random()) for n in range(40)]
    found[3] = candidate(3, 5, None, "failed")
    first = [item for item in found if item.state == "complete"][:10]
    params, ious = zip(*((i.values["params"], i.values["val_iou"]) for i in first), strict=True)
    worst = max(params) + 0.1 * (max(params) - min(params))
    least = min(ious) - 0.1 * (max(ious) - min(ious))
    kept: list[ReferencePoint] = []
    curve = VolumeCurve(config(), None, kept.append)
    for n, item in enumerate(found):
        curve.add(item)
        assert bool(curve.shares) == bool(kept) == (n >= 10), "known with the tenth result"
    assert [reference.as_json() for reference in kept] == [
        {
            "objectives": {
                "params": {"worst": pytest.approx(worst), "best": 0.0},
                "val_iou": {"worst": pytest.approx(least), "best": 1.0},
            },
            "results": 10,
        }
    ]
    box = worst * (1 - least)
    points = [[i.values["params"], -i.values.get("val_iou", math.nan)] for i in found]
    truth = [hypervolume(points[: n + 1], [worst, -least]) / box for n in range(40)]
    assert curve.volumes == pytest.approx(truth, abs=1e-6) and len(curve.volumes) == 40
    assert curve.volumes == sorted(curve.volumes) and 0 < curve.volumes[-1] < 1


def test_a_search_continues_with_the_reference_point_it_has():
    found = [candidate(n, 9 - n % 7, n % 5 / 5) for n in range(12)]
    first = curve_of(found[:10]).reference
    assert first is not None and reference_from(json.loads(json.dumps(first.as_json()))) == first
    other_order = VolumeCurve(config(), first)
    for item in reversed(found):
        other_order.add(item)
    assert other_order.reference == first
    assert other_order.volumes[-1] == curve_of(found).volumes[-1]


def test_the_file_may_say_where_the_hypervolume_begins_and_ends():
    objectives = {"params": {"worst": "1e1", "best": 5}, "val_iou": {"worst": 0.5}}
    settings = config_of({"objectives": objectives, "data": "raw/x"}, "x.yaml")
    curve = curve_of([candidate(0, 7.5, 0.75), candidate(1, 11, 1.0)], settings)
    assert curve.volumes == [0.25, 0.25], "from the first candidate on; what is worse adds nothing"
    assert (
        settings.identity()
        == config_of(
            {"objectives": {"params": {}, "val_iou": {}}, "data": "raw/x"}, "x.yaml"
        ).identity()
    )
    for wrong in ({"worst": 0}, {"worst": 3, "best": 4}, {"worst": "inf"}, {"best": "much"}):
        with pytest.raises(BadSetting, match=r"objectives\.params"):
            config_of({"objectives": {"params": wrong}}, "x.yaml")


def test_few_results_equal_results_and_none_have_a_hypervolume_too():
    curve = curve_of([candidate(0, 4, 0.5), candidate(1, 4, 0.5)])
    assert curve.reference is None and curve.volumes == []
    curve.settle()
    assert curve.volumes[0] == curve.volumes[1] > 0
    nothing = curve_of([candidate(0, 1, None, "failed")])
    nothing.settle()
    assert nothing.reference is None and nothing.volumes == []
    perfect = curve_of([candidate(n, 0, 1.0) for n in range(10)])
    assert perfect.volumes == [1.0] * 10


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"objectives": {"params": {"worst": 1}}}', "[" * 9999]
)
def test_a_damaged_reference_point_is_none(tmp_path: Path, text: str):
    (tmp_path / "reference.json").write_text(text)
    assert read_reference(tmp_path) is None


def test_every_iteration_has_a_table_of_all_until_then(tmp_path: Path):
    found = [candidate(number, 10 - number, 0.1 * (number % 3)) for number in range(7)]
    write_tables(tmp_path, config(iteration=3), found)
    files = sorted(path.name for path in tmp_path.glob("search_state_*.csv"))
    assert files == [f"search_state_{n}.csv" for n in range(3)]
    assert [len(rows(tmp_path / name)) for name in files] == [3, 6, 7]
    last = rows(tmp_path / files[-1])
    assert [row["iteration"] for row in last] == ["0"] * 3 + ["1"] * 3 + ["2"]
    assert [row["arch_id"] for row in last] == [item.arch.id for item in found]
    assert {row["is_pareto"] for row in last} == {"0", "1"}


def test_the_table_says_what_came_of_each(tmp_path: Path):
    found = [
        candidate(0, 5, 0.5),
        candidate(1, 1, None, "failed", "the loss, it is NaN\nat step 3"),
        candidate(2, 9, None, "screened", "params is 9"),
        candidate(3, 2, None, "running"),
    ]
    write_tables(tmp_path, config(), found)
    table = rows(tmp_path / "search_state_0.csv")
    assert [row["state"] for row in table] == ["complete", "failed", "screened"]
    assert [row["is_pareto"] for row in table] == ["1", "0", "0"]
    assert table[1]["reason"] == "the loss, it is NaN\nat step 3" and table[1]["val_iou"] == ""
    assert (table[0]["params"], table[0]["val_iou"]) == ("5", "0.5")
    assert [row["number"] for row in rows(tmp_path / "front.csv")] == ["0"]


def test_nothing_is_written_before_something_ended(tmp_path: Path):
    write_tables(tmp_path, config(), [candidate(0, 1, None, "running")])
    assert list(tmp_path.iterdir()) == []


def test_what_was_damaged_by_a_kill_is_written_anew(tmp_path: Path):
    (tmp_path / "search_state_0.csv").write_text("number,itera")
    write_tables(tmp_path, config(), [candidate(0, 1, 0.5)])
    assert rows(tmp_path / "search_state_0.csv")[0]["val_iou"] == "0.5"


def test_the_folder_of_the_front_follows_the_front(tmp_path: Path):
    def net(item: Candidate, target: Path) -> None:
        target.write_text(item.arch.id)

    first, second, third = candidate(0, 9, 0.2), candidate(1, 5, 0.6), candidate(2, 1, 0.1)
    write_front(tmp_path, [first], net)
    (tmp_path / "pareto/notes.txt").write_text("mine")
    written = write_front(tmp_path, [third, second], net)
    assert [Architecture.load(path).id for path in written] == [third.arch.id, second.arch.id]
    names = {path.name for path in (tmp_path / "pareto").iterdir()}
    wanted = {f"{item.arch.id}.{kind}" for item in (second, third) for kind in ("json", "onnx")}
    assert names == wanted | {"notes.txt"}, "others' files stay"


def test_a_candidate_without_a_finite_value_is_on_no_front_and_adds_no_volume(tmp_path: Path):
    found = [candidate(0, 5, 0.5), candidate(1, 1, float("-inf")), candidate(2, 4, 0.6)]
    assert numbers(front_of(config(), found)) == [2]
    RunningTables(tmp_path, config(), (), found).finish()
    curve = [float(row["hypervolume"]) for row in rows(tmp_path / "hypervolume.csv")]
    assert 0 < curve[0] == curve[1] < curve[2] and len(curve) == 3


def running(folder: Path, ended: list[Candidate]) -> RunningTables:
    return RunningTables(folder, config(iteration=3), ("training_time",), ended)


def test_while_a_search_runs_a_line_is_appended_for_each_candidate(tmp_path: Path):
    found = [
        candidate(0, 9, 0.2),
        candidate(2, 1, None, "failed", "the loss, it is NaN\nat step 3"),
        candidate(1, 5, 0.6),
        candidate(3, 9.5, 0.1),
    ]
    tables = running(tmp_path, [])
    for count, item in enumerate(found, start=1):
        tables.append(item)
        assert len(rows(tmp_path / "candidates.csv")) == count
    table, curve = rows(tmp_path / "candidates.csv"), rows(tmp_path / "hypervolume.csv")
    names = [
        "number",
        "iteration",
        "name",
        "arch_id",
        "state",
        "params",
        "val_iou",
        "training_time",
    ]
    assert list(table[0]) == [*names, "parameters", "reason"]
    assert [json.loads(row["parameters"]) for row in table[:2]] == [{"number": 0}, {"number": 2}]
    assert [row["number"] for row in table] == ["0", "2", "1", "3"]
    assert table[1]["reason"] == "the loss, it is NaN at step 3"
    assert [row["candidates"] for row in curve] == ["1", "2", "3", "4"]
    assert {row["hypervolume"] for row in curve} == {""}, "without a reference point"
    tables.finish()
    shares = [float(row["hypervolume"]) for row in rows(tmp_path / "hypervolume.csv")]
    assert 0 < shares[0] == shares[1] < shares[2] == shares[3]
    kept = read_reference(tmp_path)
    assert kept is not None and kept.results == 3 and kept.scales["params"].worst > 9.5


def test_the_running_hypervolume_is_that_of_the_search_whatever_came_between(tmp_path: Path):
    chance = random.Random(5)
    found = [candidate(n, chance.randint(1, 99), chance.randint(1, 99) / 99) for n in range(40)]
    truth = curve_of(found)
    kept: list[ReferencePoint] = []
    for stopped in (4, 10, 25):  # killed and resumed
        tables = RunningTables(
            *(tmp_path, config(), (), found[:stopped]),
            known=read_reference(tmp_path),
            keep=kept.append,
        )
    for item in found[25:]:
        tables.append(item)
    curve = [float(row["hypervolume"]) for row in rows(tmp_path / "hypervolume.csv")]
    assert curve == truth.volumes and set(map(str, kept)) == {str(truth.reference)}


def test_a_line_that_a_kill_cut_off_is_gone_after_a_resume(tmp_path: Path):
    found = [candidate(n, 9 - n, 0.1 * n) for n in range(4)]
    tables = running(tmp_path, [])
    for item in found[:3]:
        tables.append(item)
    for name in ("candidates.csv", "hypervolume.csv"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-7])
    running(tmp_path, found[:3]).append(found[3])
    assert [row["number"] for row in rows(tmp_path / "candidates.csv")] == ["0", "1", "2", "3"]
    assert len(rows(tmp_path / "hypervolume.csv")) == 4


def written_bytes(folder: Path, count: int) -> int:
    """By this process, as the kernel counts them."""
    chance = random.Random(count)
    found = [candidate(n, chance.random(), chance.random()) for n in range(count)]
    folder.mkdir()
    tables = running(folder, [])

    def total() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("wchar")).split()[1])

    before = total()
    for item in found:
        tables.append(item)
    return total() - before


def test_what_is_written_while_a_search_runs_grows_with_its_candidates_not_their_square(
    tmp_path: Path,
):
    few, many = written_bytes(tmp_path / "few", 100), written_bytes(tmp_path / "many", 800)
    assert few > 100 * 40
    assert many < 1.2 * 8 * few


def epochs(file: Path, count: int) -> Path:
    line = (
        '{{"epoch": {0}, "step": {0}0, "loss": 0.5, "f1": 0.{0}, "miou": 0.3, "seconds": {0}.5}}\n'
    )
    file.write_text("".join(line.format(epoch) for epoch in range(1, count + 1)) + '{"epoch": ')
    return file


def test_curves_have_a_line_per_validation_and_what_a_kill_cut_off_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    curves = LearningCurves(tmp_path)
    curves.add("id_a", epochs(tmp_path / "metrics.jsonl", 1))
    curves.add("id_b", tmp_path / "metrics.jsonl")
    curves.add("id_a", epochs(tmp_path / "metrics.jsonl", 2))
    curves.add("id_a", tmp_path / "metrics.jsonl")
    text = (tmp_path / "curves.csv").read_text()
    assert text.splitlines() == [
        "arch_id,epoch,step,loss,val_f1,val_iou,seconds",
        "id_a,1,10,0.5,0.1,0.3,1.5",
        "id_b,1,10,0.5,0.1,0.3,1.5",
        "id_a,2,20,0.5,0.2,0.3,2.5",
    ]
    (tmp_path / "curves.csv").write_text(text[:-8])
    resumed = LearningCurves(tmp_path)
    resumed.add("id_a", tmp_path / "metrics.jsonl")
    assert sorted((tmp_path / "curves.csv").read_text().splitlines()) == sorted(text.splitlines())
    monkeypatch.setattr("edgeloop.search.results._LARGEST_BYTES", 100)
    assert read_curves(tmp_path) == {}
    large = (tmp_path / "curves.csv").read_text()
    LearningCurves(tmp_path).add("id_c", tmp_path / "metrics.jsonl")
    assert (tmp_path / "curves.csv").read_text().startswith(large), "it is never written anew"


def test_files_appear_whole_or_not_at_all(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        copy_atomic(tmp_path / "none", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "source").write_bytes(b"content")
    copy_atomic(tmp_path / "source", tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    assert (tmp_path / "target").read_bytes() == b"content"
