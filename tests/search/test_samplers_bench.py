"""The benchmark of samplers: its tables are whole, equal cells are equal, and runs continue."""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.samplers import cells, measure, problems, report, runs, samplers, tables
from bench.samplers.cells import CELLS, canonical, counts, network, representatives
from bench.samplers.problems import cell_of, params_of, problem


def interpreted(cell: str, image: np.ndarray) -> np.ndarray:
    """A cell with operations that are simple functions: a sum over its edges, node by node."""
    functions = [
        lambda x: 0 * x,
        lambda x: x,
        lambda x: np.tanh(1.3 * x),
        lambda x: np.sin(2.1 * x) + 0.1,
        lambda x: x**2 / 3,
    ]
    nodes, live = [image], [True]
    for node in range(1, 4):
        total, lives = 0 * image, False
        for (source, target), letter in zip(cells.EDGES, cell, strict=True):
            if target == node and letter != "0" and live[source]:
                total, lives = total + functions[int(letter)](nodes[source]), True
        nodes.append(total)
        live.append(lives)
    return nodes[-1]


def test_cells_that_are_measured_once_compute_the_same() -> None:
    image = np.linspace(-1.0, 1.0, 7)
    values = {cell: interpreted(cell, image) for cell in CELLS}
    for cell, first in representatives().items():
        np.testing.assert_allclose(values[cell], values[first], atol=1e-9, err_msg=cell)
        assert counts(cell) == counts(first)
    assert len(set(representatives().values())) == 5425


def test_cells_that_share_a_node_are_not_those_that_compute_it_twice() -> None:
    shared = canonical("300022")  # node 3 = conv1x1(node 1), node 2 is zero
    assert shared == canonical("030002")
    # Two convolutions of one node, or of two nodes that are alike: other weights, other latency.
    assert canonical("310022") != canonical("330022")
    assert counts("310022")["macs"] < counts("330022")["macs"]


def test_a_network_has_the_weights_and_macs_that_are_counted(tmp_path: Path) -> None:
    import onnx

    from edgeloop.graph.check import read_graph
    from edgeloop.graph.count import count_layers

    for cell in ("432103", "000000", "111111"):
        onnx.save_model(network(cell), tmp_path / "model.onnx")
        model = read_graph(tmp_path / "model.onnx")
        assert sum(layer.macs for layer in count_layers(model)) == counts(cell)["macs"]


@pytest.mark.parametrize("dataset", tables.DATASETS)
def test_accuracies_are_those_of_the_benchmark(dataset: str) -> None:
    accuracies, latencies = tables.read_accuracies(dataset)
    assert len(accuracies) == len(latencies) == 15_625
    assert latencies.min() > 0
    dead = [place for place, cell in enumerate(CELLS) if canonical(cell) == ()]
    chance = {"cifar10": 9.712, "cifar100": 1.0, "imagenet": 0.833}[dataset]
    np.testing.assert_allclose(accuracies[dead], chance, atol=1e-3)
    best = {"cifar10": 91.6, "cifar100": 73.5, "imagenet": 46.7}[dataset]
    assert accuracies.max() == pytest.approx(best, abs=0.2)


def measured(folder: Path, devices: Sequence[str], seed: int) -> Path:
    """What workers leave behind, one of them killed in the middle of a line."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    (folder / "devices.txt").write_text("\n".join(devices), encoding="utf-8")
    with (folder / "part0.csv").open("w", encoding="utf-8") as file:
        for cell in sorted(set(representatives().values())):
            row = [cell, *rng.integers(1, 1000, len(devices)), 1.0]
            csv.writer(file, lineterminator="\n").writerow(row)
        file.write("4444")
    return folder


def test_equal_cells_have_equal_latencies_on_every_device(tmp_path: Path) -> None:
    table = tmp_path / "devices.csv.xz"
    measure.pack(measured(tmp_path / "parts", measure.DEVICE_NAMES, 0), table)
    devices = tables.read_devices(table)
    assert tuple(devices) == measure.DEVICE_NAMES
    for latencies in devices.values():
        by_cell = dict(zip(CELLS, latencies, strict=True))
        assert all(by_cell[cell] == by_cell[first] for cell, first in representatives().items())


def test_a_device_that_is_measured_later_is_added_to_the_table(tmp_path: Path) -> None:
    table = tmp_path / "devices.csv.xz"
    measure.pack(measured(tmp_path / "chips", ("qcs8550", "sa8295p"), 0), table)
    first = tables.read_devices.__wrapped__(table)
    measure.pack(measured(tmp_path / "host", ("x86_int8",), 1), table)
    both = tables.read_devices.__wrapped__(table)
    assert list(both) == ["qcs8550", "sa8295p", "x86_int8"]
    assert all((both[name] == first[name]).all() for name in first)


def test_a_table_that_lacks_cells_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "devices.csv.xz"
    tables.write_table([{"cell": "000000", "qcs8550_cycles": "1"}], table)
    with pytest.raises(ValueError, match="lacks 5424 cells"):
        tables.read_devices(table)


def test_the_shipped_device_tables_are_whole() -> None:
    for latencies in tables.read_devices().values():
        assert len(latencies) == 15_625
        assert latencies.min() > 0
        assert len(set(latencies)) > 1000
    assert len(problems.held_out()) == 3 * len(tables.read_devices())


def test_a_cell_is_found_by_its_parameters() -> None:
    assert all(cell_of(params_of(cell)) == cell for cell in CELLS[::97])
    task = problem("cifar100:3")
    assert task.table is not None
    assert task.cost(params_of("432103")) == tuple(task.table[CELLS.index("432103")])
    assert all(low <= high for low, high in zip(task.table.max(axis=0), task.corner, strict=True))


@pytest.mark.parametrize(
    "sampler", ["ours", "ours, no pool", "TPE", "NSGA-II", "mutation", "random"]
)
def test_a_sampler_trains_as_many_distinct_members_as_asked(sampler: str) -> None:
    trainings = samplers.Trainings(problem("cifar100"))
    samplers.SAMPLERS[sampler](trainings, 0, 22)
    assert trainings.count == 22
    assert trainings.repeats == 0 or sampler in ("TPE", "NSGA-II")


def outcome(sampler: str, name: str, seed: int, *shares: float) -> runs.Outcome:
    best = problem(name).best or 0.0
    return runs.Outcome(sampler, name, seed, [share * best for share in shares], [], 0, 2.0)


def test_runs_that_are_known_are_not_repeated(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    keys = runs.planned(["cifar100"], ["random"], 2)
    line = json.dumps({**vars(outcome("random", "cifar100", 0, 0.5))})
    out.write_text(line + "\n" + line[:40], encoding="utf-8")  # and one that was cut short
    runs.run_all(keys, out, jobs=1, budget=50)
    found = runs.read_outcomes(out)
    assert sorted(found) == sorted(keys)
    assert len(found["random", "cifar100", 0].volumes) == 1
    assert found["random", "cifar100", 0].seconds == 2.0


def test_a_lead_is_paired_by_problem_and_seed() -> None:
    noise = itertools.cycle((0.0, 0.2, 0.1))
    outcomes = {}
    for name, seed in itertools.product(("cifar10", "cifar100"), range(3)):
        level = next(noise)
        for one in (
            outcome("ours", name, seed, 0.6 + level, 0.7, 0.75),
            outcome("TPE", name, seed, 0.5 + level, 0.7),
        ):
            outcomes[one.key] = one
    shares = report.shares_of(outcomes.values())
    names = ["cifar10", "cifar100"]
    assert report.lead(shares, names, "TPE", 0) == pytest.approx((0.1, 0.0))
    assert report.lead(shares, names, "TPE", 2) == (None, None)
    text = report.report(outcomes)
    assert "| TPE | no | 3 | 0.6000 ± 0.0577 | 0.7000 ± 0.0000 | not run | 0.0 |" in text


def test_slow_samplers_have_fewer_seeds_and_only_problems_that_they_can_solve() -> None:
    keys = runs.planned(["cifar10", "hourglass"], ["ours", "GPSampler"], 3)
    assert Counter((sampler, name) for sampler, name, _ in keys) == {
        ("ours", "cifar10"): 3,
        ("ours", "hourglass"): 3,
        ("GPSampler", "cifar10"): runs.SLOW_SEEDS["GPSampler"],
    }
