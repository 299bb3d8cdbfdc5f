"""Changes by the API: by the same rules as on the command line, and only where they are allowed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Query
from fastapi.requests import Request

from edgeloop.portal.api.shapes import Delete, Done, Priority, Reset
from edgeloop.portal.auth import refuse_strangers
from edgeloop.portal.state import Portal

Name = Annotated[str, Path(max_length=400, description="The model's name.")]
Which = Annotated[str | None, Query(alias="experiment", max_length=60)]


def may_change(request: Request) -> None:
    if sentence := refuse_strangers(request):
        raise HTTPException(403, sentence)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "A change is sent as JSON: Content-Type: application/json.")


def router(portal: Portal) -> APIRouter:
    routes = APIRouter(dependencies=[Depends(may_change)], tags=["changes"])

    @routes.post("/models/{name}/reset")
    def reset(name: Name, body: Reset, experiment: Which = None) -> Done:
        """Test a model again: clear results and stale files, so that runners redo them."""
        workspace = portal.workspace_of(experiment)
        for stage in body.stages:
            workspace.plan[stage]  # a stage that is not there is said before anything is cleared
        cleared = workspace.catalog.reset(name, body.stages)
        portal.feed(experiment).look_now()
        order = [stage.name for stage in workspace.plan.stages if stage.name in cleared]
        return Done(name=name, done="reset", stages=order)

    @routes.post("/models/{name}/priority")
    def priority(name: Name, body: Priority, experiment: Which = None) -> Done:
        """Set a model's priority: 0 goes before everything."""
        portal.workspace_of(experiment).catalog.set_priority(name, body.priority)
        portal.feed(experiment).look_now()
        return Done(name=name, done="priority")

    @routes.post("/models/{name}/delete")
    def delete(name: Name, body: Delete, experiment: Which = None) -> Done:
        """Delete a model: its row and all its files."""
        workspace = portal.workspace_of(experiment)
        workspace.catalog.get(name)
        workspace.catalog.delete(name)
        portal.feed(experiment).look_now()
        return Done(name=name, done="delete")

    return routes
