"""python -m bench NAME…: all of them but `advice`, `architectures`, `endurance`, `latency`,
`faults`, `gpu-search`, `layers`, `nas_table`, `precision`, `recovery`, `gate` and `resources`
without a name.

startup, first, data, csv, memory, scoring, estimate, evaluate, claims, queue, throughput,
two-runners, stopping, nemesis, protocol, jobs, azureml, verbs, sampler, screen, training,
gpu-search, asynchronous, laptop, pareto, portal, boards, fleet, fleet-sim, endurance,
architectures, resources, structure, trace, latency, layers, recovery, gate, advice, precision,
early-stopping, many-chips, nas_table, faults

`advice`, `architectures`, `resources`, `structure`, `trace`, `two-runners`, `endurance`,
`faults`, `fleet-sim`, `latency`, `layers`, `many-chips`, `nas_table`, `precision`, `recovery`,
`sampler` and `gate` take options, and are then the only name:
`structure --list FOLDER`, `trace --write`, `architectures NAME…`, `two-runners ROUNDS`,
`endurance MODELS`, `fleet-sim --runners 1000`, `latency compile`, `layers FOLDER`, `recovery NETS`,
`gate --jobs 16`, `nas_table --seconds 480`.
"""

from __future__ import annotations

import sys
from importlib import import_module

from bench.tables import commit

# The modules are imported when their turn comes: counting lines needs no PyTorch.
BENCHES = {
    "startup": "startup",
    "first": "first_minute",
    "data": "data",
    "csv": "csv_export",
    "memory": "memory",
    "scoring": "scoring",
    "estimate": "estimate",
    "evaluate": "evaluate",
    "claims": "claims",
    "queue": "queue",
    "throughput": "throughput",
    "two-runners": "runners",
    "stopping": "stopping",
    "nemesis": "nemesis",
    "protocol": "protocol",
    "sampler": "samplers",
    "screen": "search_screen",
    "training": "training",
    "gpu-search": "gpu_search",
    "asynchronous": "asynchronous",
    "early-stopping": "early_stopping",
    "many-chips": "many_chips",
    "laptop": "laptop_search",
    "jobs": "jobs",
    "verbs": "verbs",
    "azureml": "azureml",
    "pareto": "pareto",
    "portal": "portal",
    "boards": "boards",
    "fleet": "fleet",
    "endurance": "endurance",
    "architectures": "architectures",
    "resources": "resources",
    "structure": "structure",
    "trace": "trace",
    "fleet-sim": "fleet_sim",
    "latency": "latency",
    "layers": "layers",
    "recovery": "recovery",
    "gate": "gate",
    "advice": "advice",
    "precision": "precision",
    "nas_table": "nas_table",
    "faults": "faults",
}
WITH_OPTIONS = (
    *("many-chips", "early-stopping"),
    *("architectures", "resources", "structure", "trace", "two-runners", "fleet-sim"),
    *("endurance", "latency", "layers"),
    *("recovery", "gate"),
    *("advice", "precision", "nas_table", "sampler", "faults"),
)
ON_REQUEST = (
    "advice",
    "architectures",
    "endurance",
    "faults",
    "latency",
    "gpu-search",
    "layers",
    "nas_table",
    "precision",
    "resources",
    "recovery",
    "gate",
)


def main() -> None:
    chosen, options = sys.argv[1:] or [name for name in BENCHES if name not in ON_REQUEST], []
    if chosen[0] in WITH_OPTIONS:
        chosen, options = chosen[:1], chosen[1:]
    unknown = [name for name in chosen if name not in BENCHES]
    if unknown:
        sys.exit(f"unknown bench {unknown[0]!r}: choose from {', '.join(BENCHES)}")
    for name in chosen:
        print(f"\n## {name}\n\nMeasured on commit {commit()}.\n", flush=True)
        print(import_module(f"bench.{BENCHES[name]}").run(*options), flush=True)


if __name__ == "__main__":
    main()
