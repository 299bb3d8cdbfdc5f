"""Waiting work for scalers: numbers that KEDA's metrics-api scaler reads by a path such as
`linux.ready`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from edgeloop.fleet import WaitingWork
from edgeloop.portal.api.routes import ERRORS, Which
from edgeloop.portal.api.strict import STRICT_QUERY
from edgeloop.portal.state import Portal
from edgeloop.portal.views.queue import queue_view

Capabilities = Annotated[
    list[Annotated[str, Field(max_length=200)]] | None,
    Query(
        alias="capability",
        max_length=50,
        description="Device types that are reported even if no model and no runner has them yet.",
    ),
]


class WorkNumbers(BaseModel):
    """The work for one capability."""

    ready: int = Field(description="Stages that a runner could claim now.")
    running: int = Field(description="Stages that a live lease holds.")
    blocked: int = Field(description="Stages that wait for an earlier one, a retry, another tool.")
    oldest_s: float = Field(description="For how long the oldest ready stage has waited.")
    wanted: int = Field(description="Runners that would have something to do.")
    have: int = Field(description="Machines, or devices, of live runners.")
    stages: dict[str, int] = Field(description="Ready stages by name.")


class RunnerNumbers(BaseModel):
    """The runners of the experiment by what they do; dead ones fell silent."""

    working: int
    idle: int
    dead: int


class QueueNumbers(BaseModel):
    """Work by capability: `linux`, `device`, and one entry per device type that models are pinned
    to, such as `htp:qcs8550`. All of them are there even if nothing waits."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, WorkNumbers]

    experiment: str
    read_at: float | None = Field(description="When the store last answered.")
    runners: RunnerNumbers
    total: WorkNumbers
    linux: WorkNumbers
    device: WorkNumbers


def router(portal: Portal) -> APIRouter:
    routes = APIRouter(responses=ERRORS, dependencies=[STRICT_QUERY])

    @routes.get("/api/queue")
    def queue(experiment: Which = None, capabilities: Capabilities = None) -> QueueNumbers:
        """Waiting work as numbers. Before the store has answered once it is an error: a false 0
        would stop runners."""
        view = queue_view(portal, experiment, capabilities or ())
        if not view.is_loaded:
            raise HTTPException(503, "The store has not answered yet: nobody knows what waits.")
        lines = {line.capability: _numbers(line) for line in view.lines}
        live = view.runners["working"] + view.runners["idle"]
        return QueueNumbers.model_validate(
            {
                "experiment": view.experiment,
                "read_at": view.read_at,
                "runners": RunnerNumbers(**view.runners),
                "total": _total(list(lines.values()), live, dict(view.stages)),
                **lines,
            }
        )

    return routes


def _numbers(line: WaitingWork) -> WorkNumbers:
    return WorkNumbers(
        ready=line.ready,
        running=line.running,
        blocked=line.blocked,
        oldest_s=round(line.oldest_s, 3),
        wanted=line.runners,
        have=line.have,
        stages=dict(line.stages),
    )


def _total(lines: list[WorkNumbers], live: int, stages: dict[str, int]) -> WorkNumbers:
    """Of all capabilities; it has the live runners, of which each may have several."""
    return WorkNumbers(
        ready=sum(line.ready for line in lines),
        running=sum(line.running for line in lines),
        blocked=sum(line.blocked for line in lines),
        oldest_s=max(line.oldest_s for line in lines),
        wanted=sum(line.wanted for line in lines),
        have=live,
        stages=stages,
    )
