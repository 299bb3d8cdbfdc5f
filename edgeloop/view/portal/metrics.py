"""Metrics for Prometheus, from memory: frequent scrapes cost the store nothing.

`edgeloop_waiting_total{experiment, capability}` is what an autoscaler needs: how many stages wait
for a runner, by what it must have.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from edgeloop._version import __version__
from edgeloop.view.portal.views.devices import busy_of, queue_view

if TYPE_CHECKING:
    from edgeloop.operate.fleet.demand import WaitingWork
    from edgeloop.view.portal.feed import TableSnapshot
    from edgeloop.view.portal.shapes import QueueView
    from edgeloop.view.portal.state import Portal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
Family = tuple[str, str, list[Sample]]


def metrics(
    portal: Portal, experiment: str | None = None, capabilities: Collection[str] = ()
) -> str:
    """Of one experiment. Stages and capabilities without work are reported as 0, which an
    autoscaler must see, too; `capabilities` are some that nobody may have mentioned yet. Before the
    store has answered once, nothing is reported: a false 0 would stop runners."""
    began = time.perf_counter()
    feed = portal.feed(experiment)
    snapshot = portal.rows(experiment)
    of = {"experiment": experiment or portal.workspace.experiment}
    stages = [stage.name for stage in portal.workspace.plan.stages]
    queue = queue_view(portal, experiment, capabilities)
    is_known = snapshot.is_loaded and queue.is_loaded
    is_up = is_known and not snapshot.problem
    age = time.time() - feed.read_at if feed.read_at is not None else float("nan")
    families: list[Family] = [
        *((*_of_rows(snapshot, queue, of, stages), *_of_queue(queue, of)) if is_known else ()),
        ("edgeloop_store_up", "1 while the store answers.", [(of, float(is_up))]),
        ("edgeloop_feed_age_seconds", "Since the store last answered.", [(of, age)]),
        ("edgeloop_build_info", "The version.", [({"version": __version__}, 1.0)]),
    ]
    took: list[Sample] = [({}, time.perf_counter() - began)]
    families.append(("edgeloop_scrape_seconds", "How long these numbers took.", took))
    return "".join(line for family in families for line in _lines(*family))


def _of_queue(queue: QueueView, of: Labels) -> list[Family]:
    def each(value: Callable[[WaitingWork], float]) -> list[Sample]:
        return [({**of, "capability": line.capability}, value(line)) for line in queue.lines]

    return [
        (
            "edgeloop_waiting_total",
            "Stages that a runner could claim now, by capability.",
            each(lambda line: line.ready),
        ),
        (
            "edgeloop_work_running",
            "Stages that a live lease holds, by capability.",
            each(lambda line: line.running),
        ),
        (
            "edgeloop_work_blocked",
            "Stages that wait for an earlier one, a retry or another tool, by capability.",
            each(lambda line: line.blocked),
        ),
        (
            "edgeloop_oldest_seconds",
            "For how long the oldest ready stage has waited, by capability.",
            each(lambda line: line.oldest_s),
        ),
        (
            "edgeloop_runners_wanted",
            "Runners that would have something to do, by capability.",
            each(lambda line: line.runners),
        ),
        (
            "edgeloop_runners_able",
            "Machines, or devices, of live runners, by capability.",
            each(lambda line: line.have),
        ),
        (
            "edgeloop_runners",
            "Runners by what they do; dead ones fell silent without having ended.",
            _counted(of, "state", queue.runners),
        ),
    ]


def _of_rows(
    snapshot: TableSnapshot, queue: QueueView, of: Labels, stages: list[str]
) -> list[Family]:
    busy = busy_of(snapshot)
    alive = [item for item in busy if not item.is_stalled]
    return [
        (
            "edgeloop_waiting",
            "Models that a runner could claim now, by stage.",
            _counted(of, "stage", queue.stages, stages),
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
