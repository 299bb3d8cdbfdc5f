"""A tabular benchmark for neural architecture search on chips: hourglasses that were trained.

    python -m bench nas_table --seconds 480        the next piece of what is left to measure
    python -m bench nas_table pack                 the table from what was measured

`read_table` needs none of that: docs/reference/nas-table.md describes what it gives.
"""

from __future__ import annotations

from bench.nas_table.space import all_params, architecture, table_space
from bench.nas_table.table import NasTable, TableMember, TableProblem, read_table

__all__ = [
    "NasTable",
    "TableMember",
    "TableProblem",
    "all_params",
    "architecture",
    "read_table",
    "run",
    "table_space",
]


def run(*options: str) -> str:
    from bench.nas_table.work import run as work

    return work(*options)
