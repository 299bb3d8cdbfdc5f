"""python -m bench NAME…: all of them without a name.

startup, data, csv, scoring, estimate, evaluate, claims, throughput, nemesis, jobs, azureml,
verbs, sampler, screen, training, asynchronous, laptop, pareto, portal, boards
"""

from __future__ import annotations

import sys

from bench import (
    asynchronous,
    azureml,
    boards,
    claims,
    csv_export,
    data,
    estimate,
    evaluate,
    jobs,
    laptop_search,
    nemesis,
    pareto,
    portal,
    sampler,
    scoring,
    search_screen,
    startup,
    throughput,
    training,
    verbs,
)

BENCHES = {
    "startup": startup.run,
    "data": data.run,
    "csv": csv_export.run,
    "scoring": scoring.run,
    "estimate": estimate.run,
    "evaluate": evaluate.run,
    "claims": claims.run,
    "throughput": throughput.run,
    "nemesis": nemesis.run,
    "sampler": sampler.run,
    "screen": search_screen.run,
    "training": training.run,
    "asynchronous": asynchronous.run,
    "laptop": laptop_search.run,
    "jobs": jobs.run,
    "verbs": verbs.run,
    "azureml": azureml.run,
    "pareto": pareto.run,
    "portal": portal.run,
    "boards": boards.run,
}


def main() -> None:
    chosen = sys.argv[1:] or list(BENCHES)
    unknown = [name for name in chosen if name not in BENCHES]
    if unknown:
        sys.exit(f"unknown bench {unknown[0]!r}: choose from {', '.join(BENCHES)}")
    for name in chosen:
        print(f"\n## {name}\n", flush=True)
        print(BENCHES[name](), flush=True)


if __name__ == "__main__":
    main()
