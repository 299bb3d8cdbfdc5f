"""Planted faults: does some test fail when the product is wrong?

python -m bench faults [--only ROOM|ID,…] [--workers N] [--tests unit|test] [--seconds N]
                       [--tree DIR] [--python PATH] [--map FILE] [--among FILE] [--results FILE]
python -m bench faults trace FOLDER [arguments of pytest]    measure which test runs which lines
python -m bench faults map FOLDER [--tree DIR] [--out FILE]  which tests meet which fault
python -m bench faults confirm FILE [--tree DIR] [--python PATH]  run what has caught something
                                                                  without any fault
python -m bench faults report FILE [FILE]                    the tables, of one tree or of two

`faults.yaml` has the faults: each is one mistake in one file, found by its text. A fault whose text
is gone is reported and fails the bench, since nothing can be said about it.

For each fault, a copy of the tree gets the mistake, and tests that run the changed lines are run
there until one fails: those that are closest to the file and cheapest first, then others (`unit`),
then those with servers and processes, and those of the fault's room (`test`). Which tests these are
says a map, made from a coverage measurement of the whole suite with one context per test; without a
map the tests of the room are run, closest first. Each answer is added to the results file at once,
and a bench that is started again continues after the last one: `--tests test` after `--tests unit`
looks only at what has survived.

The tree may be another one than this, such as an older commit, and needs no repository. Nothing in
it is changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*options: str) -> str:
    steps = {"trace": _trace, "map": _map, "confirm": _confirm, "report": _report}
    if options and options[0] in steps:
        return steps[options[0]](list(options[1:]))
    return _plant(list(options))


def _plant(options: list[str]) -> str:
    from bench.faults.catalog import read_catalog
    from bench.faults.choice import LEVELS, CoverageMap
    from bench.faults.report import tables
    from bench.faults.trials import Bench, Results

    parser = argparse.ArgumentParser(prog="python -m bench faults")
    parser.add_argument("--only", default="", help="rooms or ids, separated by commas")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tests", choices=LEVELS, default="test")
    parser.add_argument("--seconds", type=float, default=None, help="begin no fault after that")
    _add_common(parser)
    parser.add_argument("--map", type=Path, default=None)
    parser.add_argument("--among", type=Path, default=None, help="ids of tests, one per line")
    parser.add_argument("--results", type=Path, default=Path("faults.jsonl"))
    given = parser.parse_args(options)
    catalog = read_catalog().only(given.only.split(",") if given.only else ())
    coverage = CoverageMap.read(given.map) if given.map else CoverageMap()
    if given.among:
        coverage = coverage.only(given.among.read_text(encoding="utf-8").splitlines())
    results = Results(given.results)
    bench = Bench(given.tree, given.python, catalog, coverage, results)
    bench.run(given.tests, given.workers, given.seconds)
    text = tables(catalog, [results])
    if bench.lost:
        sys.exit(f"{text}\n\nnot found in the tree: {', '.join(bench.lost)}")
    return text


def _trace(options: list[str]) -> str:
    from bench.faults.tracing import trace

    parser = argparse.ArgumentParser(prog="python -m bench faults trace")
    parser.add_argument("folder", type=Path)
    given, pytest_arguments = parser.parse_known_args(options)
    return trace(given.folder, pytest_arguments, ROOT)


def _map(options: list[str]) -> str:
    from bench.faults.catalog import read_catalog
    from bench.faults.tracing import make_map

    parser = argparse.ArgumentParser(prog="python -m bench faults map")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--out", type=Path, default=Path("faults-map.json"))
    given = parser.parse_args(options)
    return make_map(given.folder, given.tree, read_catalog(), given.out)


def _confirm(options: list[str]) -> str:
    from bench.faults.trials import Results, confirm

    parser = argparse.ArgumentParser(prog="python -m bench faults confirm")
    parser.add_argument("results", type=Path)
    _add_common(parser)
    given = parser.parse_args(options)
    return confirm(given.tree, given.python, Results(given.results))


def _report(options: list[str]) -> str:
    from bench.faults.catalog import read_catalog
    from bench.faults.report import tables
    from bench.faults.trials import Results

    return tables(read_catalog(), [Results(Path(file)) for file in options])


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
