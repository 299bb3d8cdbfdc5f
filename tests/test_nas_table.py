"""The table of trained networks: complete, consistent, and continued where a run stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.nas_table import NasTable, all_params, architecture, read_table
from bench.nas_table.places import COMPILED, TESTED, TRAINED, Places, groups
from bench.nas_table.table import ROWS, key_of, write_table
from bench.nas_table.trainer import wanted
from bench.nas_table.work import pack
from edgeloop.platforms.qnn.latency import built_in_profiles
from edgeloop.search.nets.architecture import RecordingTrial
from edgeloop.search.nets.spaces import build, find_space

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def table() -> NasTable:
    return read_table()


def test_members_are_of_the_space_and_there_once(table: NasTable):
    assert not table.is_synthetic
    members = [member.key for member in table.members]
    assert set(members) <= {key_of(params) for params in all_params()}
    assert len(set(members)) == len(members) == table.about["members"] >= 432
    for member in table.members[::37]:
        assert member.arch_id == architecture(member.params).id
    ids = {member.arch_id for member in table.members}
    assert len(ids) == len(members) and set(table.repeats) <= ids


def test_the_space_of_a_table_suggests_its_members_and_all_of_them(table: NasTable):
    seen = set()
    for seed in range(12_000):
        trial = RecordingTrial(seed)
        chosen = table.space(trial)
        member = table.find(trial.params)
        assert member is table.find(chosen)
        seen.add(member.arch_id)
    assert len(seen) == len(table.members)


def test_values_fit_together(table: NasTable):
    assert table.epochs == 27
    assert set(table.chips) == {f"htp:{name}" for name in built_in_profiles()}
    for member in (*table.members, *table.repeats.values()):
        assert len(member.f1_curve) == len(member.miou_curve) == table.epochs
        assert all(0 <= value <= 1 for value in (*member.f1_curve, *member.miou_curve))
        assert member.f1 == max(member.f1_curve) and member.miou in member.miou_curve
        assert set(member.latency_ms) == set(table.chips)
        assert min(member.latency_ms.values()) > 0 and max(member.latency_ms.values()) < 100
        assert 0 < member.weights < member.macs and member.seconds > 0
        growing = [member.score("f1", epoch) for epoch in range(1, table.epochs + 1)]
        assert growing == sorted(growing) and growing[-1] == member.score("f1")
        assert member.score("miou", table.epochs) == member.score("miou")
    by_id = {member.arch_id: member for member in table.members}
    for arch_id, again in table.repeats.items():
        assert again.latency_ms == by_id[arch_id].latency_ms and again.seed != by_id[arch_id].seed


def test_the_front_of_a_problem_is_the_true_one(table: NasTable):
    problem = table.problem("htp:x-elite", "f1")
    costs = [problem.cost(member.params) for member in table.members]
    front = {member.arch_id for member in problem.front}
    for member, (error, latency) in zip(table.members, costs, strict=True):
        beaten = any(
            one <= error and other <= latency and (one, other) != (error, latency)
            for one, other in costs
        )
        assert (member.arch_id in front) is not beaten
    assert len(front) >= 6
    wide, high = problem.reference
    assert 0 < problem.hypervolume < wide * high
    assert problem.cheap(problem.front[0].params)["chip_latency_ms"] == min(np.array(costs)[:, 1])
    with pytest.raises(ValueError, match="htp:qcs8550"):
        table.problem("htp:unknown")


def test_reading_and_writing_are_inverse(table: NasTable, tmp_path: Path):
    trainings = [*table.repeats.values(), *reversed(table.members)]
    write_table(trainings, table.about, tmp_path)
    again = read_table(tmp_path)
    assert again.members == table.members and again.repeats == table.repeats
    assert (tmp_path / ROWS).stat().st_size < 1_000_000


def test_a_search_can_use_the_space():
    space = find_space("bench/nas_table/space.py:build", project=ROOT)
    trial = RecordingTrial(5)
    net = space.build(trial, (1, 3, 128, 128), 19)
    same = build(architecture(trial.params))
    count = sum(weights.numel() for weights in net.parameters())
    assert count == sum(weights.numel() for weights in same.parameters())


def test_a_run_continues_where_the_last_one_stopped(tmp_path: Path):
    places = Places(tmp_path, tmp_path)
    first, second, *_ = [task for group in groups() for task in group]
    assert sum(map(len, wanted(places))) == 576 + 60
    for task in (first, second):
        line = {"params": dict(task.params), "arch_id": task.arch.id, "seed": task.seed}
        curves = {"f1": [0.1, 0.3, 0.2], "miou": [0.1, 0.2, 0.25], "best_epoch": 2}
        places.add(TRAINED, {**line, **curves, "seconds": 2.0, "device": "GPU", "steps": 9})
        counts = {"weights": 10, "macs": 100, "memory_bytes": 5, "latency_ms": {"htp:a": 0.5}}
        places.add(COMPILED, {"arch_id": task.arch.id, **counts})
    tested = {"arch_id": first.arch.id, "seed": first.seed}
    places.add(TESTED, {**tested, "f1": 0.28, "miou": 0.19})
    with (tmp_path / TESTED).open("a") as file:
        file.write('{"arch_id": "id_')  # a process was killed while it wrote
    left = [task.name for group in wanted(places) for task in group]
    assert len(left) == 576 + 60 - 1 and first.name not in left
    assert left[-61] == second.name  # its model was lost before it was tested
    places.write_plan(wanted(places))
    assert [[task.name for task in group] for group in places.plan()] == [
        [task.name for task in group] for group in wanted(places)
    ]
    pack(places, tmp_path)
    assert '"tested": 1' in (tmp_path / "table.json").read_text()


def test_the_table_is_what_its_lines_say_and_a_run_continues_from_them(
    table: NasTable, tmp_path: Path
):
    places = Places(tmp_path / "results", tmp_path)
    places.begin()
    pack(places, tmp_path)
    again = read_table(tmp_path)
    assert (again.members, again.repeats, again.about) == (
        table.members,
        table.repeats,
        table.about,
    )
    left = [task for group in wanted(places) for task in group if task.seed == 0]
    tested = table.about["tested"]
    assert len(left) == 576 - tested


def test_work_is_claimed_by_one_process_only(tmp_path: Path):
    places = Places(tmp_path, tmp_path)
    assert [places.claim("group1"), places.claim("group1"), places.claim("group2")] == [
        True,
        False,
        True,
    ]
