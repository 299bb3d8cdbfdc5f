"""Metrics for Prometheus, from memory: frequent scrapes cost the store nothing.

`edgeloop_waiting{experiment, stage}` is what an autoscaler needs: how many models wait for a
runner, by stage.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from edgeloop._version import __version__
from edgeloop.portal.views.devices import busy_of, waiting_of

if TYPE_CHECKING:
    from edgeloop.portal.feed import TableSnapshot
    from edgeloop.portal.state import Portal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
Family = tuple[str, str, list[Sample]]


def metrics(portal: Portal, experiment: str | None = None) -> str:
    """Of one experiment. Stages without work are reported as 0, which an autoscaler must see, too.
    Before the store has answered once, nothing is reported: a false 0 would stop runners."""
    began = time.perf_counter()
    feed = portal.feed(experiment)
    snapshot = portal.rows(experiment)
    of = {"experiment": experiment or portal.workspace.experiment}
    stages = [stage.name for stage in portal.workspace.plan.stages]
    is_up = snapshot.is_loaded and not snapshot.problem
    age = time.time() - feed.read_at if feed.read_at is not None else float("nan")
    families: list[Family] = [
        *(_of_rows(snapshot, of, stages) if snapshot.is_loaded else ()),
        ("edgeloop_store_up", "1 while the store answers.", [(of, float(is_up))]),
        ("edgeloop_feed_age_seconds", "Since the store last answered.", [(of, age)]),
        ("edgeloop_build_info", "The version.", [({"version": __version__}, 1.0)]),
    ]
    took: list[Sample] = [({}, time.perf_counter() - began)]
    families.append(("edgeloop_scrape_seconds", "How long these numbers took.", took))
    return "".join(line for family in families for line in _lines(*family))


def _of_rows(snapshot: TableSnapshot, of: Labels, stages: list[str]) -> list[Family]:
    busy = busy_of(snapshot)
    alive = [item for item in busy if not item.is_stalled]
    return [
        (
            "edgeloop_waiting",
            "Models that a runner could claim now, by stage.",
            _counted(of, "stage", waiting_of(snapshot.rows.values()), stages),
        ),
        (
            "edgeloop_running",
            "Models that a machine works on, by stage.",
            _counted(of, "stage", Counter(item.stage for item in alive), stages),
        ),
        (
            "edgeloop_stalled",
            "Claims whose lease expired without a heartbeat, by stage.",
            _counted(of, "stage", Counter(b.stage for b in busy if b.is_stalled), stages),
        ),
        (
            "edgeloop_models",
            "Models by the first word of their status.",
            _counted(of, "status", Counter(row.word for row in snapshot.rows.values())),
        ),
        (
            "edgeloop_busy_nodes",
            "Machines that hold a claim.",
            [(of, float(len({item.node for item in alive})))],
        ),
        (
            "edgeloop_busy_devices",
            "Devices that a held stage is pinned to.",
            [(of, float(len({item.device for item in alive if item.device})))],
        ),
    ]


def _counted(
    of: Labels, label: str, counts: Mapping[str, int], always: list[str] | None = None
) -> list[Sample]:
    names = list(dict.fromkeys([*(always or ()), *sorted(counts)]))
    return [({**of, label: name}, float(counts.get(name, 0))) for name in names]


def _lines(name: str, meaning: str, samples: list[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}\n# TYPE {name} gauge\n"
    for labels, value in samples:
        escaped = {
            key: text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
            for key, text in labels.items()
        }
        inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
        shown = "NaN" if math.isnan(value) else f"{value:.10g}"
        yield f"{name}{{{inside}}} {shown}\n" if inside else f"{name} {shown}\n"
