"""What a simulation has shown: figures beside their limits and goals, and the first bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.fleet_sim.simulation import SimulationResult
from bench.tables import markdown

IDLE_GOAL = 0.02
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Bottleneck:
    name: str
    text: str


def report(result: SimulationResult, assumed: Mapping[str, Any]) -> str:
    rows: list[Sequence[object]] = [
        *_progress(result),
        *_machines(result),
        *_store(result),
        *_costs(result, assumed["prices"]),
        *_faults(result),
    ]
    found = bottleneck(result)
    tables = [markdown(("what", "figure", "limit or goal"), rows), _requests(result)]
    violations = "\n".join(f"- {text}" for text in result.verdict.violations[:20])
    parts = (
        _title(result),
        *tables,
        f"First bottleneck: **{found.name}**. {found.text}",
        violations,
    )
    return "\n\n".join(part for part in parts if part)


def bottleneck(result: SimulationResult) -> Bottleneck:
    """A store that refuses requests slows everything; else it is what works all the time while
    work for it waits, and has the most of it left."""
    meter, backend = result.backend.meter, result.backend
    total = sum(meter.requests.values())
    throttled = sum(meter.throttled.values())
    if throttled > 0.005 * total:
        worst, count = meter.throttled.most_common(1)[0]
        text = f"{count:,} requests ({count / total:.1%}) were answered with 503 there."
        return Bottleneck(f"the store's limit on {_partition(worst)}", text)
    limits = backend.profile["limits"]
    if "cores" in limits:
        busy = meter.busy_s / result.seconds / limits["cores"]
        if busy > NEARLY_ALL:
            return Bottleneck("the database's cores", f"They are busy {busy:.0%} of the time.")
        if backend.most_connections > limits["connections"]:
            text = (
                f"{backend.most_connections:,} are open at once, and {limits['connections']:,} fit."
            )
            return Bottleneck("the database's connections", text)
    boards, linux = result.boards, result.linux
    left_s = {
        "boards": result.left_s["boards"] / max(result.scenario.boards, 1),
        "runners": result.left_s["linux"] / max(result.scenario.runners, 1),
    }
    name = max(left_s, key=lambda kind: left_s[kind])
    share = {"boards": boards, "runners": linux}[name]
    if share.waiting_s == 0:
        return Bottleneck("none", "No work has waited for longer than it takes to claim it.")
    text = (
        f"Work waits for them {share.waiting_s / result.seconds:.0%} of the time, and they compute "
        f"{share.computing_s / max(share.alive_s, 1):.1%} of it. The work that there was at the "
        f"start takes the {name} {left_s[name] / 3600:,.1f} h, and the others "
        f"{min(left_s.values()) / 3600:,.1f} h."
    )
    return Bottleneck(f"the number of {name}", text)


def sweep_row(result: SimulationResult) -> Sequence[object]:
    """One size of a fleet, as a line among others."""
    meter = result.backend.meter
    total = sum(meter.requests.values())
    queue = max((max(c.values()) for n, c in meter.entities.items() if "queue/sim" in n), default=0)
    return (
        result.scenario.runners,
        f"{result.stages_per_hour:,.0f}",
        f"{result.linux.idle_share:.2%}",
        f"{result.boards.idle_share:.2%}",
        f"{total / result.seconds:,.0f}",
        f"{max(meter.by_second.values()):,}",
        f"{_busiest(result):,.0f}" if meter.entities else f"{_cores_busy(result):.1%} of the cores",
        f"{sum(meter.throttled.values()) / total:.2%}" if queue else "",
        f"{_quantile(result.seen.claims, 0.99):.2f}",
        bottleneck(result).name,
    )


SWEEP_HEADINGS = (
    "runners",
    "stages/h",
    "runners idle",
    "boards idle",
    "requests/s",
    "peak",
    "busiest partition, entities/s",
    "503",
    "claim, p99 s",
    "first bottleneck",
)


def _title(result: SimulationResult) -> str:
    scenario = result.scenario
    text = (
        f"{scenario.models:,} models, {scenario.runners:,} runners, {scenario.boards} boards, "
        f"{result.backend.name}, seed {scenario.seed}"
    )
    if scenario.preempted_per_min:
        text += f", {scenario.preempted_per_min:.0%} of the nodes lost per minute"
    for outage in scenario.outages:
        text += f", store away for {outage.length_s:g} s after {outage.begins_s / 3600:g} h"
    ended = "complete" if result.is_over else "stopped"
    return f"{text}: {ended} after {result.seconds / 3600:.2f} h of virtual time"


def _progress(result: SimulationResult) -> list[Sequence[object]]:
    verdict = result.verdict
    return [
        ("models complete, failed as they should, unfinished", _three(verdict), ""),
        ("results accepted", f"{sum(result.ledger.accepted.values()):,}", ""),
        ("results lost", len(verdict.lost), "0"),
        ("results doubled", len(verdict.doubled), "0"),
        ("results that nobody computed", len(verdict.foreign), "0"),
        ("stages per hour", f"{result.stages_per_hour:,.0f}", ""),
        ("models through the runners per hour", f"{result.models_per_hour:,.0f}", ""),
    ]


def _machines(result: SimulationResult) -> list[Sequence[object]]:
    linux, boards = result.linux, result.boards
    rows: list[Sequence[object]] = [
        ("runners idle while work waits", f"{linux.idle_share:.2%}", f"< {IDLE_GOAL:.0%}"),
        ("runners that hand in results meanwhile", f"{_share(linux):.2%}", ""),
        ("boards idle while work waits", f"{boards.idle_share:.2%}", ""),
        ("a claim, median and 99th percentile", _claim(result), ""),
        ("claims lost to others", f"{result.seen.races_lost:,} of {len(result.seen.claims):,}", ""),
    ]
    if result.linux_done_s:
        rows.append(
            ("the runners' last work ended after", f"{result.linux_done_s / 3600:.2f} h", "")
        )
    return rows


def _store(result: SimulationResult) -> list[Sequence[object]]:
    meter, limits = result.backend.meter, result.backend.profile["limits"]
    total = sum(meter.requests.values())
    per_s, peak = total / result.seconds, max(meter.by_second.values())
    most = limits.get("requests_per_s")
    limit = f"{most:,}" if most else ""
    rows: list[Sequence[object]] = [
        ("requests per second, mean", f"{per_s:,.0f}", limit),
        ("requests in the busiest second", f"{peak:,}", limit),
    ]
    for name, used in sorted(meter.entities.items()):
        mean, highest = sum(used.values()) / result.seconds, max(used.values())
        text = f"{mean:,.0f} and {highest:,}"
        what = f"entities per second, {_partition(name)}: mean, busiest second"
        rows.append((what, text, f"{limits['entities_per_s']:,}"))
    if meter.entities:
        rows.append(("answered with 503", f"{sum(meter.throttled.values()):,} of {total:,}", ""))
    else:
        rows.append(("the server's cores are busy", f"{_cores_busy(result):.1%}", ""))
        most_open = f"{result.backend.most_connections:,}"
        rows.append(("connections at once", most_open, f"{limits['connections']:,}"))
    return rows


def _costs(result: SimulationResult, prices: Mapping[str, Any]) -> list[Sequence[object]]:
    """Spot nodes where some are lost, else regular ones."""
    kind = "spot" if result.scenario.preempted_per_min else "regular"
    nodes = result.node_hours * prices["node_hour"][kind]
    meter = result.backend.meter
    reads = meter.requests["blobs.get"]
    blobs = sum(count for what, count in meter.requests.items() if what.startswith("blobs."))
    store = result.seconds / 3600 * prices["server_hour"][result.backend.name]
    if meter.entities:
        store += (sum(meter.requests.values()) - blobs) / 10_000 * prices["table_10k"]
    files = (blobs - reads) / 10_000 * prices["blob_write_10k"]
    files += reads / 10_000 * prices["blob_read_10k"]
    done = max(result.verdict.complete, 1)
    text = f"${nodes:,.2f} nodes ({kind}), ${store:,.2f} store, ${files:,.2f} files"
    rows: list[Sequence[object]] = [("cost", text, "")]
    if result.is_over:
        rows.append(("cost of a model", f"${(nodes + store + files) / done:,.4f}", ""))
    return rows


def _faults(result: SimulationResult) -> list[Sequence[object]]:
    scenario = result.scenario
    if not (scenario.preempted_per_min or scenario.outages):
        return []
    lost = result.lost_nodes
    refused = sum(result.ledger.refused.values())
    return [
        ("nodes killed, frozen", f"{lost['killed']:,}, {lost['frozen']:,}", ""),
        ("late results refused", f"{refused:,}", ""),
        ("requests without an answer", f"{result.backend.meter.refused:,}", ""),
    ]


def _requests(result: SimulationResult) -> str:
    meter = result.backend.meter
    rows = [
        (what.replace("/sim", ""), f"{count:,}", f"{count / result.seconds:,.1f}")
        for what, count in meter.requests.most_common(12)
    ]
    return markdown(("requests", "all", "per second"), rows)


def _three(verdict: Any) -> str:
    return f"{verdict.complete:,}, {verdict.failed:,}, {verdict.unfinished:,}"


def _share(samples: Any) -> float:
    return float(samples.handing_in_s / samples.alive_s) if samples.alive_s else 0.0


def _claim(result: SimulationResult) -> str:
    claims = result.seen.claims
    return f"{_quantile(claims, 0.5):.3f} s, {_quantile(claims, 0.99):.3f} s"


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def _busiest(result: SimulationResult) -> float:
    return (
        max(sum(used.values()) for used in result.backend.meter.entities.values()) / result.seconds
    )


def _cores_busy(result: SimulationResult) -> float:
    limits = result.backend.profile["limits"]
    return float(result.backend.meter.busy_s / result.seconds / limits.get("cores", 1))


def _partition(name: str) -> str:
    known = {"queue/sim": "hints", "models/sim": "models", "queue/edgeloop-fleets": "fleets"}
    return {"account": "requests of the account"}.get(
        name, f"the partition of {known.get(name, name)}"
    )
