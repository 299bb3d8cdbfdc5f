"""Our sampler beside those of Optuna and BoTorch, mutation and random search, by hypervolume.

python -m bench sampler [--problems …] [--samplers …] [--seeds N] [--jobs N] [--out FILE]
python -m bench sampler report FILE…       the tables of what has run
python -m bench sampler proposal           how long one proposal takes
python -m bench sampler measure FOLDER     latencies of all cells, for the held-out devices
python -m bench sampler pack FILE          what `measure` found, as the table that is shipped

Problems: `quick` (default), `development`, `held-out`, `all`, or names separated by commas. Only
distinct trainings count. The reference point is the worst of the whole table in each objective.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

QUICK = ("cifar100",)
DEVELOPMENT = ("cifar10", "cifar100", "imagenet", "cifar100:2", "cifar100:3", "cifar100:5")
FAST = ("ours", "ours, no pool", "TPE", "NSGA-II", "mutation", "random")


def run(*options: str) -> str:
    step, rest = (options[0], options[1:]) if options else ("", ())
    if step == "measure":
        from bench.samplers import measure

        return measure.run(*rest)
    if step == "pack":
        from bench.samplers.measure import pack

        return pack(Path(rest[0]))
    if step == "proposal":
        from bench.samplers.proposal import proposal_times

        return proposal_times()
    if step == "report":
        return _report(map(Path, rest))
    return _runs(options)


def _runs(options: Iterable[str]) -> str:
    from bench.samplers.runs import AT, SEEDS, planned, run_all

    parser = argparse.ArgumentParser(prog="python -m bench sampler")
    parser.add_argument("--problems", default="quick")
    parser.add_argument("--samplers", default="", help="separated by semicolons")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("samplers.jsonl"))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--budget", type=int, default=AT[-1])
    given = parser.parse_args(list(options))
    is_quick = given.problems == "quick"
    samplers = given.samplers.split(";") if given.samplers else _samplers(is_quick)
    seeds = given.seeds or (2 if is_quick else SEEDS)
    keys = planned(_problems(given.problems), samplers, seeds)
    run_all(keys, given.out, given.jobs, given.seconds, given.budget)
    return _report([given.out])


def _samplers(is_quick: bool) -> list[str]:
    from bench.samplers.samplers import SAMPLERS

    return list(FAST if is_quick else SAMPLERS)


def _problems(chosen: str) -> list[str]:
    from bench.samplers.problems import held_out

    own = [*DEVELOPMENT, "hourglass", "table@htp:qcs8550"]
    groups = {
        "quick": list(QUICK),
        "development": own,
        "held-out": held_out(),
        "all": [*held_out(), *own],
    }
    return groups.get(chosen) or chosen.split(",")


def _report(files: Iterable[Path]) -> str:
    from bench.samplers.report import report
    from bench.samplers.runs import Outcome, read_outcomes

    outcomes: dict[tuple[str, str, int], Outcome] = {}
    for file in files:
        outcomes |= read_outcomes(file)
    return report(outcomes)
