"""The options of `python -m bench fleet-sim`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from bench.fleet_sim.backends import BACKENDS, Outage
from bench.fleet_sim.report import SWEEP_HEADINGS, report, sweep_row
from bench.fleet_sim.simulation import Scenario, Simulation, assumptions
from bench.tables import markdown
from edgeloop._util.values import seconds_of


def run(*words: str) -> str:
    """One simulation and its report; with --sweep one line for each number of runners."""
    options = _parser().parse_args(words)
    scenario = Scenario(
        models=options.models,
        runners=options.runners,
        boards=options.boards,
        hours=options.hours,
        profile=options.profile,
        preempted_per_min=options.preempt,
        outages=tuple(options.outage),
        bad=options.bad,
        seed=options.seed,
        is_elastic=not options.static,
    )
    assumed = assumptions()
    if not options.sweep:
        return report(Simulation(scenario, assumed).run(), assumed)
    rows = []
    for runners in options.sweep:
        rows.append(sweep_row(Simulation(replace(scenario, runners=runners), assumed).run()))
    return markdown(SWEEP_HEADINGS, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench fleet-sim")
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--runners", type=int, default=20, help="at the most")
    parser.add_argument("--boards", type=int, default=3)
    parser.add_argument("--hours", type=float, default=300.0, help="of virtual time, at most")
    parser.add_argument("--profile", choices=sorted(BACKENDS), default="azure")
    parser.add_argument("--preempt", type=_rate, default=0.0, metavar="0.05/min")
    parser.add_argument("--outage", type=_outage, action="append", default=[], metavar="120s@1h")
    parser.add_argument(
        "--bad", type=float, default=0.0, help="share of models that cannot be done"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--static", action="store_true", help="keep all runners to the end")
    parser.add_argument("--sweep", type=_counts, metavar="10,100,1000", help="numbers of runners")
    return parser


def _rate(text: str) -> float:
    """The share of nodes that are lost each minute."""
    return float(text.removesuffix("/min"))


def _outage(text: str) -> Outage:
    length, begin = (seconds_of(part) for part in text.split("@"))
    if length is None or begin is None:
        raise ValueError
    return Outage(begin, length)


def _counts(text: str) -> Sequence[int]:
    return [int(word) for word in text.split(",")]
